// A file that has its name only once it is whole: until then it has none (O_TMPFILE) or, where the file system cannot do that, a hidden
// one. One thread.
#pragma once

#include <string>

#include "cli/io_target.hpp"
#include "penstock/status.hpp"

namespace penstock::cli {

class pending_file {
 public:
  // path: of the file that will be; its folder must exist. unnamed false: with a hidden name from the beginning. Errors: os errors.
  static result<pending_file> make(const std::string& path, bool unnamed = true);
  pending_file(pending_file&& other) noexcept = default;
  pending_file& operator=(pending_file&&) = delete;
  ~pending_file();  // what was not published is gone

  [[nodiscard]] int fd() const { return fd_.get(); }  // for reading and writing
  // Gives it its name, in place of what had it or, where that is not to be replaced, with an error (EEXIST). Errors: os errors, also those
  // that the kernel had kept to itself until now.
  status publish(bool replace = true);

 private:
  pending_file(std::string path, owned_fd fd, std::string hidden)
      : path_(std::move(path)), hidden_(std::move(hidden)), fd_(std::move(fd)) {}
  std::string path_;
  std::string hidden_;  // its name now, where it has one
  owned_fd fd_;
};

// A name in the same folder, another one at each call, for what is renamed to this path. Only what a killed process left may have it.
inline constexpr int most_hidden_names = 100;  // to try: in a container, the number of a killed process is soon another one's
std::string hidden_name(const std::string& path);

}  // namespace penstock::cli
