#include "bench/ceilings.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "bench/meter.hpp"
#include "bench/open_file.hpp"
#include "bench/sample_data.hpp"
#include "device/device.hpp"
#include "device/owned.hpp"
#include "sys/kernel.hpp"

namespace penstock::bench {
namespace {

constexpr std::uint64_t mebibyte = std::uint64_t{1} << 20;

struct shape {
  std::uint32_t block_bytes;
  unsigned depth;
};
constexpr std::array<shape, 3> direct_shapes{{{512 << 10, 64}, {1 << 20, 32}, {4 << 20, 8}}};

// Host memory, pinned if a session is given.
class host_memory {
 public:
  static result<host_memory> make(sys::kernel& kernel, std::size_t bytes, device::session* pin_with) {
    auto base = kernel.map_memory(bytes, -1);
    if (!base) return base.error();
    host_memory memory(kernel, *base, bytes);
    if (pin_with == nullptr) return memory;
    if (status error = pin_with->pin(*base, bytes, false); !error.ok()) return error;
    memory.session_ = pin_with;
    return memory;
  }
  host_memory(host_memory&& other) noexcept
      : kernel_(other.kernel_),
        base_(std::exchange(other.base_, nullptr)),
        bytes_(other.bytes_),
        session_(std::exchange(other.session_, nullptr)) {}
  host_memory& operator=(host_memory&&) = delete;
  ~host_memory() {
    if (session_ != nullptr) static_cast<void>(session_->unpin(base_).ok());
    if (base_ != nullptr) static_cast<void>(kernel_->unmap(base_, bytes_).ok());
  }
  [[nodiscard]] std::byte* data() const { return static_cast<std::byte*>(base_); }

 private:
  host_memory(sys::kernel& kernel, void* base, std::size_t bytes) : kernel_(&kernel), base_(base), bytes_(bytes) {}
  sys::kernel* kernel_;
  void* base_;
  std::size_t bytes_;
  device::session* session_ = nullptr;
};

// Device memory and a stream, to measure the link.
class link_ends {
 public:
  static result<link_ends> make(device::session& session, std::size_t bytes) {
    link_ends ends(session);
    auto memory = session.allocate(bytes);
    if (!memory) return memory.error();
    ends.memory_ = *memory;
    auto stream = device::owned_stream::make(session);
    if (!stream) return stream.error();
    ends.stream_ = *std::move(stream);
    return ends;
  }
  link_ends(link_ends&& other) noexcept
      : session_(other.session_), memory_(std::exchange(other.memory_, nullptr)), stream_(std::move(other.stream_)) {}
  link_ends& operator=(link_ends&&) = delete;
  ~link_ends() {
    if (memory_ != nullptr) static_cast<void>(session_->release(memory_).ok());
  }
  [[nodiscard]] void* memory() const { return memory_; }
  // Returns the seconds that `times` queued copies take, including the wait for the last.
  result<double> time_copies(void* target, const void* source, std::size_t bytes, int times) {
    const stopwatch watch;
    for (int i = 0; i < times; ++i) {
      if (status error = session_->copy(target, source, bytes, stream_.get()); !error.ok()) return error;
    }
    if (status error = session_->synchronize(stream_.get()); !error.ok()) return error;
    return watch.seconds();
  }

 private:
  explicit link_ends(device::session& session) : session_(&session) {}
  device::session* session_;
  void* memory_ = nullptr;
  device::owned_stream stream_;
};

result<double> best_copy_speed(link_ends& ends, void* target, const void* source, std::size_t bytes) {
  constexpr int copies = 4;
  double best = 0;
  for (int trial = 0; trial < 5; ++trial) {
    auto seconds = ends.time_copies(target, source, bytes, copies);
    if (!seconds) return seconds.error();
    best = std::max(best, gigabytes_per_second(copies * bytes, *seconds));
  }
  return best;
}

result<double> median_small_copy_us(link_ends& ends, const void* source) {
  std::vector<double> times(2000);
  for (double& time : times) {
    auto seconds = ends.time_copies(ends.memory(), source, 4096, 1);
    if (!seconds) return seconds.error();
    time = *seconds * 1e6;
  }
  std::nth_element(times.begin(), times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

// Keeps the first error of several threads.
class first_error {
 public:
  void note(status error) {
    const std::lock_guard lock(mutex_);
    if (error_.ok()) error_ = std::move(error);
  }
  status get() {
    const std::lock_guard lock(mutex_);
    return error_;
  }

 private:
  std::mutex mutex_;
  status error_;
};

using block_function = std::function<status(unsigned thread, std::uint64_t offset, std::uint64_t length)>;

// Returns the seconds that `threads` threads take to process [0, bytes) in blocks. The threads start before the clock does.
result<double> time_shared_blocks(unsigned threads, std::uint64_t bytes, std::uint64_t block, const block_function& work) {
  std::atomic<std::uint64_t> next{0};
  std::atomic<bool> go{false};
  first_error error;
  std::vector<std::thread> crew;
  for (unsigned index = 0; index < threads; ++index) {
    crew.emplace_back([&, index] {
      go.wait(false);
      for (std::uint64_t offset = next.fetch_add(block); offset < bytes; offset = next.fetch_add(block)) {
        status outcome = work(index, offset, std::min(block, bytes - offset));
        if (outcome.ok()) continue;
        error.note(std::move(outcome));
        return;
      }
    });
  }
  const stopwatch watch;
  go = true;
  go.notify_all();
  for (std::thread& thread : crew) thread.join();
  const double seconds = watch.seconds();
  if (status outcome = error.get(); !outcome.ok()) return outcome;
  return seconds;
}

status read_block(sys::kernel& kernel, int fd, std::byte* target, std::uint64_t offset, std::uint64_t length) {
  for (std::uint64_t done = 0; done < length;) {
    auto count = kernel.pread(fd, target + done, length - done, offset + done);
    if (!count) return count.error();
    if (*count == 0) return {errc::io, "the file ends before the range to measure does"};
    done += *count;
  }
  return {};
}

status write_block(sys::kernel& kernel, int fd, const std::byte* source, std::uint64_t offset, std::uint64_t length) {
  for (std::uint64_t done = 0; done < length;) {
    auto count = kernel.pwrite(fd, source + done, length - done, offset + done);
    if (!count) return count.error();
    done += *count;
  }
  return {};
}

// A file opened with O_DIRECT, a ring, and its buffers, registered if the kernel allows it.
class direct_io {
 public:
  static result<direct_io> open(sys::kernel& kernel, const std::string& path, bool write, shape form) {
    auto file = open_file::open(kernel, path, (write ? O_WRONLY : O_RDONLY) | O_DIRECT);
    if (!file) return file.error();
    auto ring = kernel.make_ring(form.depth);
    if (!ring) return ring.error();
    const std::size_t bytes = std::size_t{form.block_bytes} * form.depth;
    auto memory = host_memory::make(kernel, bytes, nullptr);
    if (!memory) return memory.error();
    const int slot = (*ring)->register_buffer(0, memory->data(), bytes).ok() ? 0 : -1;
    return direct_io(std::move(*file), std::move(*memory), std::move(*ring), form, write, slot);
  }

  // Moves one block for each offset, `depth` at a time. next returns false if there are no more. After the first error, starts nothing more
  // and waits for what is in flight.
  status run(const std::function<bool(std::uint64_t& offset)>& next) {
    std::deque<unsigned> idle;
    for (unsigned slot = 0; slot < form_.depth; ++slot) idle.push_back(slot);
    std::array<sys::ring_completion, 64> ended;
    status problem;
    for (bool more = true;;) {
      for (std::uint64_t offset = 0; problem.ok() && more && !idle.empty();) {
        more = next(offset);
        if (!more) break;
        if (!queue(idle.front(), offset)) {
          problem = {errc::internal, "a ring of this depth did not take as many requests"};
        } else {
          idle.pop_front();
        }
      }
      if (idle.size() == form_.depth) return problem;
      auto count = ring_->reap(ended, true);
      if (!count) return count.error();
      for (std::size_t i = 0; i < *count; ++i) {
        if (problem.ok()) problem = outcome(ended[i].result);
        idle.push_back(static_cast<unsigned>(ended[i].token));
      }
    }
  }

 private:
  direct_io(open_file file, host_memory memory, std::unique_ptr<sys::ring> ring, shape form, bool write, int slot)
      : file_(std::move(file)), memory_(std::move(memory)), ring_(std::move(ring)), form_(form), write_(write), slot_(slot) {}
  [[nodiscard]] status outcome(int moved) const {
    if (moved < 0) return status::from_errno(-moved, "raw O_DIRECT transfer");
    if (static_cast<std::uint32_t>(moved) != form_.block_bytes) return {errc::io, "raw O_DIRECT transfer fell short"};
    return {};
  }
  bool queue(unsigned buffer, std::uint64_t offset) {
    std::byte* memory = memory_.data() + std::size_t{buffer} * form_.block_bytes;
    return write_ ? ring_->queue_write(file_.fd(), memory, form_.block_bytes, offset, buffer, slot_)
                  : ring_->queue_read(file_.fd(), memory, form_.block_bytes, offset, buffer, slot_);
  }
  open_file file_;
  host_memory memory_;
  std::unique_ptr<sys::ring> ring_;  // destroyed first, so that nothing is in flight into the memory
  shape form_;
  bool write_;
  int slot_;
};

result<ceiling> best_direct(sys::kernel& kernel, const std::string& path, std::uint64_t bytes, bool write) {
  ceiling best;
  for (const shape& form : direct_shapes) {
    const std::uint64_t end = bytes / form.block_bytes * form.block_bytes;
    if (end == 0) continue;
    auto io = direct_io::open(kernel, path, write, form);
    if (!io) return io.error();
    std::uint64_t position = 0;
    const stopwatch watch;
    const status error = io->run([&](std::uint64_t& offset) {
      offset = position;
      position += form.block_bytes;
      return offset < end;
    });
    if (!error.ok()) return error;
    const double speed = gigabytes_per_second(end, watch.seconds());
    if (speed > best.value) best = {speed, fmt::format("{} KiB x {}", form.block_bytes >> 10, form.depth)};
  }
  if (best.value == 0) return status(errc::unsupported, "the file is too small to measure the disk with");
  return best;
}

}  // namespace

struct ceiling_meter::parts {
  std::shared_ptr<sys::kernel> kernel;
  std::shared_ptr<device::driver> driver;
  int ordinal = 0;

  result<device::session*> session() {
    if (!driver) return status(errc::not_found, "ceilings: no such device");
    return driver->open(ordinal, nullptr);
  }
};

ceiling_meter::ceiling_meter(const std::string& device) : parts_(std::make_unique<parts>()) {
  parts_->kernel = sys::make_kernel();
  const std::size_t colon = device.find(':');
  const std::string kind = device.substr(0, colon);
  if (colon != std::string::npos) std::from_chars(device.data() + colon + 1, device.data() + device.size(), parts_->ordinal);
  if (kind == "cuda") parts_->driver = device::make_cuda_driver();
  if (kind == "host") parts_->driver = device::make_host_driver();
}

ceiling_meter::~ceiling_meter() = default;

sys::kernel& ceiling_meter::kernel() const { return *parts_->kernel; }

result<link_ceiling> ceiling_meter::link() {
  constexpr std::size_t bytes = 64 * mebibyte;
  auto session = parts_->session();
  if (!session) return session.error();
  auto host = host_memory::make(*parts_->kernel, bytes, *session);
  if (!host) return host.error();
  auto ends = link_ends::make(**session, bytes);
  if (!ends) return ends.error();
  auto in = best_copy_speed(*ends, ends->memory(), host->data(), bytes);
  if (!in) return in.error();
  auto out = best_copy_speed(*ends, host->data(), ends->memory(), bytes);
  if (!out) return out.error();
  auto small = median_small_copy_us(*ends, host->data());
  if (!small) return small.error();
  return link_ceiling{*in, *out, *small};
}

result<ceiling> ceiling_meter::cached_read(const std::string& path, std::uint64_t bytes) {
  constexpr std::uint64_t block = 4 * mebibyte;
  constexpr unsigned most_threads = 16;
  auto file = open_file::open(*parts_->kernel, path, O_RDONLY);
  if (!file) return file.error();
  auto memory = host_memory::make(*parts_->kernel, most_threads * block, nullptr);
  if (!memory) return memory.error();
  ceiling best;
  for (unsigned threads = 1; threads <= most_threads; threads *= 2) {
    auto seconds = time_shared_blocks(threads, bytes, block, [&](unsigned thread, std::uint64_t offset, std::uint64_t length) {
      return read_block(*parts_->kernel, file->fd(), memory->data() + thread * block, offset, length);
    });
    if (!seconds) return seconds.error();
    const double speed = gigabytes_per_second(bytes, *seconds);
    if (speed > best.value) best = {speed, fmt::format("{} threads", threads)};
  }
  return best;
}

result<ceiling> ceiling_meter::direct_read(const std::string& path, std::uint64_t bytes) {
  return best_direct(*parts_->kernel, path, bytes, false);
}

result<ceiling> ceiling_meter::direct_write(const std::string& path, std::uint64_t bytes) {
  return best_direct(*parts_->kernel, path, bytes, true);
}

result<ceiling> ceiling_meter::random_read(const std::string& path, std::uint64_t count) {
  constexpr shape form{4096, 128};
  auto io = direct_io::open(*parts_->kernel, path, false, form);
  if (!io) return io.error();
  auto plain = open_file::open(*parts_->kernel, path, O_RDONLY);
  if (!plain) return plain.error();
  auto size = parts_->kernel->file_size(plain->fd());
  if (!size) return size.error();
  const std::uint64_t blocks = *size / form.block_bytes;
  if (blocks == 0) return status(errc::unsupported, "the file is too small to measure the disk with");
  random_bytes random(42);
  std::uint64_t left = count;
  const stopwatch watch;
  const status error = io->run([&](std::uint64_t& offset) {
    offset = random.next() % blocks * form.block_bytes;
    return left-- > 0;
  });
  if (!error.ok()) return error;
  return ceiling{static_cast<double>(count) / watch.seconds(), "4 KiB x 128"};
}

result<ceiling> ceiling_meter::cached_write(const std::string& path, std::uint64_t bytes) {
  constexpr std::uint64_t largest_block = 4 * mebibyte;
  constexpr unsigned most_threads = 4;
  auto session = parts_->session();
  if (!session) return session.error();
  auto file = open_file::open(*parts_->kernel, path, O_WRONLY);
  if (!file) return file.error();
  auto memory = host_memory::make(*parts_->kernel, most_threads * largest_block, *session);
  if (!memory) return memory.error();
  ceiling best;
  for (const std::uint64_t block : {mebibyte, largest_block}) {
    for (unsigned threads = 1; threads <= most_threads; threads *= 2) {
      auto seconds = time_shared_blocks(threads, bytes, block, [&](unsigned thread, std::uint64_t offset, std::uint64_t length) {
        return write_block(*parts_->kernel, file->fd(), memory->data() + thread * largest_block, offset, length);
      });
      if (!seconds) return seconds.error();
      // Dirty pages left by one setting would slow the next.
      if (status error = parts_->kernel->sync_data(file->fd()); !error.ok()) return error;
      const double speed = gigabytes_per_second(bytes, *seconds);
      if (speed > best.value) best = {speed, fmt::format("{} MiB by {} threads", block / mebibyte, threads)};
    }
  }
  return best;
}

}  // namespace penstock::bench
