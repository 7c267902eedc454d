// A file system for one test, whose files hang, fail, fall short and report wrong sizes on demand: a FUSE mount with its own device number,
// served by another process. Several may exist at the same time. Only for the main thread, except that any thread may change a file's
// behaviour. The mount is reachable only through path_of(), so that it disappears when a test dies.
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
  // Returns why FUSE mounts are not possible on this machine; empty if they are.
  static std::string missing();

  fuse_world();  // throws std::runtime_error
  fuse_world(const fuse_world&) = delete;
  fuse_world& operator=(const fuse_world&) = delete;
  ~fuse_world();  // answers held calls, then ends the server: later reads fail

  // Makes a file of pattern bytes. At most fuse_control::most_files files of at most file_capacity_bytes.
  fuse_file_control& add(const std::string& name, std::uint64_t size_bytes, std::uint64_t seed);
  [[nodiscard]] std::string path_of(const std::string& name) const;
  // Returns the bytes that the server holds for the file, whatever size it reports.
  [[nodiscard]] std::span<std::byte> content(const fuse_file_control& file) const;
  // Answers every held call, and holds none from now on.
  void release_all() noexcept;

 private:
  void start_server();
  void await_server();
  void end_server() noexcept;

  int memory_fd_ = -1;
  fuse_control* control_ = nullptr;
  pid_t server_ = -1;
  std::string mount_point_;  // empty once it is detached
  int root_fd_ = -1;
};

}  // namespace penstock::testing
