#include "fault/faulty_world.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "core/engine_core.hpp"
#include "support/pattern.hpp"
#include "support/temp_dir.hpp"

#if defined(__SANITIZE_ADDRESS__)
// A ring that failed is leaked on purpose, since the kernel may still use it. faulty_world counts such rings; the sanitizer need not.
extern "C" [[gnu::visibility("default"), gnu::used]] const char* __lsan_default_suppressions() {
  return "leak:faulty_kernel::make_ring\nleak:faulty_ring::\n";
}
#endif

namespace penstock::testing {

namespace {

void must(bool done, const std::string& what) {
  if (!done) throw std::runtime_error("the test's own set-up: " + what);
}

class descriptor {
 public:
  descriptor(const std::string& path, int flags) : fd_(::open(path.c_str(), flags | O_CLOEXEC, 0644)) { must(fd_ >= 0, "open " + path); }
  descriptor(const descriptor&) = delete;
  descriptor& operator=(const descriptor&) = delete;
  ~descriptor() { ::close(fd_); }
  operator int() const { return fd_; }  // NOLINT(google-explicit-constructor)

 private:
  int fd_;
};

const temp_dir& shared_dir() {
  static const temp_dir dir = temp_dir::on_build_disk();
  return dir;
}

}  // namespace

// --- the device

bare_device& bare_device::shared() {
  static bare_device only;
  return only;
}

bare_device::bare_device() : driver_(device::make_host_driver()) {
  auto session = driver_->open(0, nullptr);
  must(session.ok(), "open host:0");
  session_ = *session;
  auto memory = session_->allocate(memory_bytes);
  must(memory.ok(), "allocate on host:0");
  memory_ = static_cast<std::byte*>(*memory);
}

void bare_device::put(std::byte* target, std::span<const std::byte> bytes) {
  must(session_->copy_small(target, bytes.data(), bytes.size(), nullptr).ok(), "copy to host:0");
}

void bare_device::get(std::span<std::byte> bytes, const std::byte* source) {
  must(session_->copy_small(bytes.data(), source, bytes.size(), nullptr).ok(), "copy from host:0");
}

// --- files

kept_file::kept_file(const std::string& name, std::uint64_t seed, std::size_t bytes)
    : path_(shared_dir().file(name)), content_(pattern::make(bytes, seed)) {
  { const descriptor made(path_, O_CREAT | O_RDWR); }
  restore();
  const descriptor fd(path_, O_RDONLY);
  must(::fsync(fd) == 0, "fsync " + path_);
}

void kept_file::make(heat wanted, std::size_t offset, std::size_t length) const {
  const descriptor fd(path_, O_RDONLY);
  if (wanted != heat::hot) {
    must(::fdatasync(fd) == 0, "fdatasync " + path_);
    must(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED) == 0, "cool " + path_);
  }
  // Without read-ahead, which would warm more than asked for.
  must(posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM) == 0, "advise " + path_);
  const std::size_t warm = wanted == heat::hot ? length : wanted == heat::half ? length / 2 : 0;
  std::vector<std::byte> bytes(warm);
  must(::pread(fd, bytes.data(), warm, static_cast<off_t>(offset)) == static_cast<ssize_t>(warm), "warm " + path_);
}

void kept_file::restore() const {
  const descriptor fd(path_, O_WRONLY);
  must(::pwrite(fd, content_.data(), content_.size(), 0) == static_cast<ssize_t>(content_.size()), "write " + path_);
  must(::ftruncate(fd, static_cast<off_t>(content_.size())) == 0, "cut " + path_);
}

std::vector<std::byte> kept_file::read_back() const {
  const descriptor fd(path_, O_RDONLY);
  std::vector<std::byte> bytes(static_cast<std::size_t>(::lseek(fd, 0, SEEK_END)));
  must(::pread(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()), "read " + path_);
  return bytes;
}

// --- faults

std::string fault::name() const {
  const auto what = where == door::kernel         ? fmt::format("error {}", error)
                    : where == door::kernel_short ? "short by " + (bytes ? fmt::format("all but {}", *bytes) : std::string("half"))
                                                  : std::string(to_string(code));
  return fmt::format("{} {}{}: {}", call == any_call ? "any call" : call, nth, lasting ? " and after" : "", what);
}

// --- worlds

faulty_world::faulty_world(const engine_options& options) {
  auto made = core::make_engine(options, core::seams{kernel_, nullptr, device_});
  must(made.ok(), "make an engine");
  engine_.emplace(std::move(*made));
}

faulty_world::~faulty_world() {
  if (engine_) (void)end();
}

void faulty_world::arm(const fault& wanted) {
  // When nobody can say how far a stream or a ring has come, the slab that it may still use is given up.
  may_abandon_ = wanted.lasting && (wanted.call == any_call || wanted.call == "ring.reap" || wanted.call == "record");
  switch (wanted.where) {
    case door::kernel:
      kernel_->fail({.call = wanted.call, .nth = wanted.nth, .error = wanted.error, .lasting = wanted.lasting});
      break;
    case door::kernel_short:
      kernel_->shorten({.call = wanted.call, .nth = wanted.nth, .bytes = wanted.bytes, .lasting = wanted.lasting});
      break;
    case door::device:
      device_->fail(wanted.call, wanted.nth, status(wanted.code, "injected", error_domain::cuda, 999),
                    wanted.lasting ? faulty_driver::always : 1);
      break;
  }
}

void faulty_world::disarm() {
  kernel_->disarm();
  device_->clear_faults();
}

std::uint64_t faulty_world::count(door where, const std::string& call) const {
  if (call == any_call) return where == door::device ? device_->calls() : kernel_->count();
  return where == door::device ? device_->calls(call) : kernel_->count(call);
}

std::string faulty_world::end() {
  disarm();
  engine_.reset();
  // A lane may hold the last reference for a moment longer; then the engine ends on a thread of its own.
  while (kernel_.use_count() > 1) std::this_thread::yield();
  auto left = leaks();
  real_->reclaim([](void* base) { (void)bare_device::shared().session().unpin(base); });
  return left;
}

std::string faulty_world::leaks() const {
  std::string left;
  const auto note = [&](std::string_view what, std::int64_t count) {
    if (count != 0) left += fmt::format("{} {} left; ", count, what);
  };
  const auto live = device_->live();
  note("descriptors", kernel_->open_descriptors());
  note("stray closes", kernel_->stray_closes());
  note("streams", live.streams);
  note("events", live.events);
  note("allocations", live.allocations);
  note("current contexts", live.current_contexts);
  if (may_abandon_) return left;
  note("rings", kernel_->live_rings());
  note("mapped bytes", kernel_->mapped_bytes());
  note("pinned ranges", live.pinned_ranges);
  return left;
}

}  // namespace penstock::testing
