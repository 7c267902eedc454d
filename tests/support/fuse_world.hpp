// A file system of the test's own, whose files hang, fail, fall short and lie about their size on demand: a FUSE mount with a device number
// of its own, served by another process. Several may live side by side. For the main thread; what changes a file's behaviour may be called
// from any thread. The mount is reachable only through path_of(), so that nothing stays behind when a test dies.
//
//   if (const auto reason = fuse_world::missing(); !reason.empty()) GTEST_SKIP() << reason;
//   fuse_world world;
//   auto& data = world.add("data", 8 << 20, seed);    // pattern::make(8 << 20, seed)
//   auto opened = engine.open(world.path_of("data"));
//   data.held_calls = fuse_reads;                     // each read of it hangs, from now on
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "support/fuse_control.hpp"

namespace penstock::testing {

class fuse_world {
 public:
  // Why there can be no such file system here; empty: there can.
  static std::string missing();

  fuse_world();  // throws std::runtime_error
  fuse_world(const fuse_world&) = delete;
  fuse_world& operator=(const fuse_world&) = delete;
  ~fuse_world();  // lets go of what is held, then ends the server: who still reads gets an error

  // Makes a file of pattern bytes. At most fuse_control::most_files of at most file_capacity_bytes.
  fuse_file_control& add(const std::string& name, std::uint64_t size_bytes, std::uint64_t seed);
  [[nodiscard]] std::string path_of(const std::string& name) const;
  // What the server holds for the file, whatever size it claims.
  [[nodiscard]] std::span<std::byte> content(const fuse_file_control& file) const;
  // Answers every call that is held, and holds none from now on.
  void release_all() noexcept;

 private:
  void start_server();
  void await_server();
  void end_server() noexcept;

  int memory_fd_ = -1;
  fuse_control* control_ = nullptr;
  pid_t server_ = -1;
  std::string mount_point_;  // while it is mounted there
  int root_fd_ = -1;
};

}  // namespace penstock::testing
