// A machine in a text file (tests/cli/machines): the small files of /proc, /sys and /etc that it shows, and what is expected of
// `penstock check` on it. One line each:
//   file PATH CONTENT, or file PATH << and the lines up to one that is a single dot
//   dir PATH; link PATH TARGET (both from the root); env NAME=VALUE (of /proc/self/environ); library SONAME PATH (an entry of ld.so.cache,
//   and an empty file) pci BUSPATH name=value...     class, vendor, node, now and most (GT/s and lanes: 32/16), window (MiB), driver, iommu
//   (type of its group) bridge BUSPATH name=value...  kind (root, switch), acs (on, off, hidden, none), most gpu ADDRESS MINOR NAME rdma
//   NAME ADDRESS STATE LAYER RATE drive NAME DEVICE BUSPATH name=value...  max, can (KiB), depth, scheduler, rotates, transport, model
//   expect VERDICT ID SUBJECT     all findings, in order; exit CODE
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace penstock::cli_test {

class recorded_machine {
 public:
  // Throws on a line that is not understood: it names the file and the line.
  recorded_machine(const std::string& file, std::filesystem::path root);
  [[nodiscard]] const std::vector<std::string>& expected() const { return expected_; }  // "slow iommu.on", "ok gpu.found 0000:3b:00.0"
  [[nodiscard]] int exit_code() const { return exit_code_; }

 private:
  using settings = std::map<std::string, std::string>;
  bool take(const std::string& verb, const std::string& rest);
  void write(const std::string& path, const std::string& content) const;
  void link(const std::string& path, const std::string& target) const;  // both from the root
  void add_pci(const std::string& bus_path, const settings& of) const;
  void add_bridge(const std::string& bus_path, const settings& of) const;
  void add_gpu(const std::string& rest) const;
  void add_rdma(const std::string& rest) const;
  void add_drive(const std::string& rest) const;
  void add_library(const std::string& rest);
  void finish() const;

  std::filesystem::path root_;
  std::vector<std::string> expected_;
  std::string environment_;
  std::vector<std::pair<std::string, std::string>> libraries_;
  int exit_code_ = 0;
};

// What ldconfig would write for these names and paths (glibc 2.2 and later).
std::string loader_cache(const std::vector<std::pair<std::string, std::string>>& libraries);

}  // namespace penstock::cli_test
