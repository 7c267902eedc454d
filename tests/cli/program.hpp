// Runs the penstock command as a user does, with pipes for its output. One thread per object.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

#include "penstock/penstock.hpp"

namespace penstock::cli_test {

inline constexpr std::size_t mib = std::size_t{1} << 20;

inline bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

struct ended_program {
  int exit_code = -1;  // 128 + signal when a signal killed it
  std::string out, err;
};

// A child whose stdout is read line by line and whose stderr goes to a file. Killed by the destructor when it still runs.
class program {
 public:
  explicit program(const std::vector<std::string>& arguments);
  program(const program&) = delete;
  program& operator=(const program&) = delete;
  ~program();
  // Blocks until the child has printed a line that contains the text. False when it ended without one.
  bool wait_for_output(const std::string& text);
  void send(int signal_number) const;
  [[nodiscard]] bool has_ended() const;
  // Blocks until the child catches the signal in place of ending at once.
  void wait_until_it_catches(int signal_number) const;
  // Reads what is left and waits for the end.
  ended_program finish();

 private:
  bool read_more();
  pid_t child_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  std::string out_;
};

ended_program run(const std::vector<std::string>& arguments);

// Sets a variable for the programs that a test starts.
class scoped_variable {
 public:
  scoped_variable(const char* name, const std::string& value) : name_(name) {
    if (const char* present = std::getenv(name)) before_ = present;
    ::setenv(name, value.c_str(), 1);
  }
  scoped_variable(const scoped_variable&) = delete;
  scoped_variable& operator=(const scoped_variable&) = delete;
  ~scoped_variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> before_;
};

// Of this process, for its host device.
inline engine host_engine() {
  engine_options options;
  options.use_cuda = false;
  return *engine::create(options);
}

// A directory of its own, removed with what is in it.
class scratch_directory {
 public:
  scratch_directory();
  scratch_directory(const scratch_directory&) = delete;
  scratch_directory& operator=(const scratch_directory&) = delete;
  ~scratch_directory();
  [[nodiscard]] const std::string& path() const { return path_; }
  // Makes a file of pseudo-random bytes; returns its path.
  [[nodiscard]] std::string make_file(const std::string& name, std::size_t bytes) const;
  // Makes a file without blocks: all of it reads as zeros.
  [[nodiscard]] std::string make_sparse_file(const std::string& name, std::size_t bytes) const;
  [[nodiscard]] std::size_t entries() const;

 private:
  std::string path_;
};

}  // namespace penstock::cli_test
