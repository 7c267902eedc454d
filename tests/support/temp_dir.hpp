// A directory for one test, removed with its content on destruction.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>

namespace penstock::testing {

class temp_dir {
 public:
  // Under TMPDIR or /tmp, which is often tmpfs.
  temp_dir() : temp_dir(std::filesystem::temp_directory_path()) {}

  // Under the test's initial working directory, which is the build directory: on most machines on a disk.
  static temp_dir on_build_disk() { return temp_dir(std::filesystem::current_path()); }

  explicit temp_dir(const std::filesystem::path& parent) {
    std::string name = (parent / "penstock-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make a directory below " + parent.string());
    path_ = name;
  }

  temp_dir(temp_dir&& other) noexcept : path_(std::exchange(other.path_, {})) {}
  temp_dir(const temp_dir&) = delete;
  temp_dir& operator=(const temp_dir&) = delete;
  temp_dir& operator=(temp_dir&&) = delete;

  ~temp_dir() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  // Returns the full path of a file in the directory.
  [[nodiscard]] std::string file(const std::string& name) const { return (path_ / name).string(); }

 private:
  std::filesystem::path path_;
};

}  // namespace penstock::testing
