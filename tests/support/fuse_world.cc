#include "support/fuse_world.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <stdexcept>

#include "support/pattern.hpp"

namespace penstock::testing {
namespace {

std::runtime_error failure(const char* what, int error) {
  return std::runtime_error(fmt::format("fuse: {}: {}", what, std::strerror(error)));
}

// Runs a program found in PATH, and waits for it.
bool run_program(const char* const* words) {
  pid_t child = -1;
  if (posix_spawnp(&child, words[0], nullptr, nullptr, const_cast<char* const*>(words), environ) != 0) return false;
  int outcome = 0;
  while (waitpid(child, &outcome, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0;
}

// The mount lives as long as a descriptor of it is open.
void detach(const std::string& mount_point) {
  if (umount2(mount_point.c_str(), MNT_DETACH) == 0) return;
  const char* const words[] = {"fusermount3", "-u", "-z", "-q", mount_point.c_str(), nullptr};
  (void)run_program(words);
}

}  // namespace

#ifdef PENSTOCK_FUSE_SERVER_PATH

std::string fuse_world::missing() {
  static const std::string found = []() -> std::string {
    if (access("/dev/fuse", F_OK) != 0) return "there is no /dev/fuse";
    try {
      const fuse_world tried;
    } catch (const std::exception& wrong) {
      return fmt::format("no FUSE file system can be mounted ({})", wrong.what());
    }
    return {};
  }();
  return found;
}

void fuse_world::start_server() {
  const std::string descriptor = std::to_string(memory_fd_);
  const char* const words[] = {PENSTOCK_FUSE_SERVER_PATH, descriptor.c_str(), mount_point_.c_str(), nullptr};
  const int error = posix_spawn(&server_, words[0], nullptr, nullptr, const_cast<char* const*>(words), environ);
  if (error != 0) throw failure("the server cannot be started", error);
}

#else

std::string fuse_world::missing() { return "built without libfuse3: no file system that stalls"; }
void fuse_world::start_server() { throw std::runtime_error(missing()); }

#endif

fuse_world::fuse_world() {
  try {
    memory_fd_ = memfd_create("penstock-fuse", 0);  // inherited by the server
    if (memory_fd_ < 0 || ftruncate(memory_fd_, static_cast<off_t>(fuse_control::total_bytes())) != 0) throw failure("memory", errno);
    void* mapped = mmap(nullptr, fuse_control::total_bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, memory_fd_, 0);
    if (mapped == MAP_FAILED) throw failure("memory", errno);
    control_ = new (mapped) fuse_control;
    std::string name = "/tmp/penstock-fuse-XXXXXX";
    if (mkdtemp(name.data()) == nullptr) throw failure("mount point", errno);
    mount_point_ = name;
    start_server();
    await_server();
    root_fd_ = ::open(mount_point_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (root_fd_ < 0) throw failure("open", errno);
    detach(mount_point_);
    (void)rmdir(mount_point_.c_str());
    mount_point_.clear();
    close(memory_fd_);
    memory_fd_ = -1;
  } catch (...) {
    end_server();
    throw;
  }
}

fuse_world::~fuse_world() { end_server(); }

void fuse_world::await_server() {
  while (control_->stage.load() == fuse_control::starting) {
    if (waitpid(server_, nullptr, WNOHANG) == server_) {
      server_ = -1;
      if (control_->stage.load() == fuse_control::starting) throw std::runtime_error("fuse: the server has died");
      break;
    }
    const timespec shortly{0, 1000000};
    nanosleep(&shortly, nullptr);
  }
  if (control_->stage.load() == fuse_control::failed) throw failure("mount", control_->error.load());
}

void fuse_world::end_server() noexcept {
  if (control_ != nullptr) release_all();
  if (!mount_point_.empty()) {
    detach(mount_point_);
    (void)rmdir(mount_point_.c_str());
  }
  if (root_fd_ >= 0) close(root_fd_);
  if (server_ > 0) {
    kill(server_, SIGKILL);
    while (waitpid(server_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  if (control_ != nullptr) munmap(control_, fuse_control::total_bytes());
  if (memory_fd_ >= 0) close(memory_fd_);
}

fuse_file_control& fuse_world::add(const std::string& name, std::uint64_t size_bytes, std::uint64_t seed) {
  const auto index = control_->file_count.load();
  auto& made = control_->files[index];
  if (index == fuse_control::most_files || size_bytes > fuse_control::file_capacity_bytes || name.size() >= sizeof made.name) {
    throw std::runtime_error("fuse: no room for " + name);
  }
  name.copy(made.name, sizeof made.name - 1);
  made.size_bytes = size_bytes;
  pattern::fill(content(made).first(size_bytes), seed, 0);
  control_->file_count = index + 1;
  return made;
}

std::string fuse_world::path_of(const std::string& name) const { return fmt::format("/proc/self/fd/{}/{}", root_fd_, name); }

std::span<std::byte> fuse_world::content(const fuse_file_control& file) const {
  const auto index = static_cast<std::size_t>(&file - control_->files);
  return {reinterpret_cast<std::byte*>(control_) + fuse_control::content_at(index), fuse_control::file_capacity_bytes};
}

void fuse_world::release_all() noexcept {
  for (auto& each : control_->files) {
    each.held_calls = 0;
    each.delay_ms = 0;
  }
}

}  // namespace penstock::testing
