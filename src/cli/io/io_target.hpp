// Opens the files that `penstock io` reads and writes, and recognizes those that it wrote itself. Create and destroy from one thread; use
// from any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/common/plain_file.hpp"
#include "penstock/penstock.hpp"

namespace penstock::cli {

// Facts about a file before the run.
struct target_facts {
  bool exists = false;
  std::uint64_t size = 0;
  // The newest generation found in samples of the file; nullopt if the samples do not contain the pattern or the file is empty.
  std::optional<std::uint64_t> generation;
};
// Errors: os errors; not_a_file.
result<target_facts> look_at(const std::string& path);

class io_target {
 public:
  struct options {
    bool write = false;
    bool direct_writes = true;  // bypass the page cache
    bool force = false;         // overwrite files that penstock io did not create
    bool immutable = false;     // declare the file immutable
  };
  // Opens or creates the file. Refuses to write to a file with data that penstock io did not create.
  // Errors: os errors; not_a_file; invalid_argument for a refused file.
  static result<io_target> open(const engine& owner, const std::string& path, const options& how);
  io_target(io_target&&) noexcept = default;
  io_target& operator=(io_target&&) = delete;
  ~io_target() = default;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const file& handle() const { return handle_; }
  [[nodiscard]] int plain_fd() const { return plain_.get(); }
  [[nodiscard]] const target_facts& before() const { return before_; }
  // Closes the file; removes it if this run created it.
  void discard();
  status close();

 private:
  io_target(std::string path, target_facts before) : path_(std::move(path)), before_(before) {}
  status open_descriptors(const engine& owner, const options& how);
  std::string path_;
  target_facts before_;
  bool made_ = false;
  owned_fd plain_;  // for checks
  file handle_;
};

}  // namespace penstock::cli
