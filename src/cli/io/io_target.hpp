// The files that `penstock io` reads and writes: which are its own, and how they are opened. One thread to make and end them; then any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/common/plain_file.hpp"
#include "penstock/penstock.hpp"

namespace penstock::cli {

// What a file is, before anything is done to it.
struct target_facts {
  bool exists = false;
  std::uint64_t size = 0;
  // Of the newest writing seen in it, where what it holds is the pattern, as far as samples tell; none where it is not, or is empty.
  std::optional<std::uint64_t> generation;
};
// Errors: os errors; not_a_file.
result<target_facts> look_at(const std::string& path);

class io_target {
 public:
  struct options {
    bool write = false;
    bool direct_writes = true;  // past the page cache
    bool force = false;         // overwrite what was not made here
    bool immutable = false;     // declared so
  };
  // Opens the file, or makes it. Refuses to write to one that it did not make and that holds something.
  // Errors: os errors; not_a_file; invalid_argument for what is refused.
  static result<io_target> open(const engine& owner, const std::string& path, const options& how);
  io_target(io_target&&) noexcept = default;
  io_target& operator=(io_target&&) = delete;
  ~io_target() = default;

  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const file& handle() const { return handle_; }
  [[nodiscard]] int plain_fd() const { return plain_.get(); }
  [[nodiscard]] const target_facts& before() const { return before_; }
  // Ends it; one that this run has made is removed.
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
