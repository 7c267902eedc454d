#include "source/local_file.hpp"

#include <fcntl.h>
#include <pthread.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "base/stream_copy.hpp"
#include "sys/checked_copy.hpp"
#include "sys/fork_guard.hpp"

namespace penstock::source {

namespace {

constexpr std::uint64_t tmpfs_magic = 0x01021994;
constexpr std::uint64_t bounce_bytes = std::uint64_t{1} << 20;

// Created when the library is loaded, because there may be no memory for a message when a request completes.
const status stays_in_cache(errc::unsupported,
                            "on this file system the kernel cannot drop transferred data from the page cache at once (RWF_DONTCACHE)");

struct free_memory {
  void operator()(void* memory) const noexcept { std::free(memory); }
};
using aligned_memory = std::unique_ptr<void, free_memory>;

aligned_memory allocate_blocks(std::uint64_t bytes) { return aligned_memory(std::aligned_alloc(direct_alignment, bytes)); }

// Fits in the L2 cache and stays there.
constexpr std::uint64_t streaming_bytes = std::uint64_t{64} << 10;

// Returns the calling thread's block for fill_streaming(), which is kept until the thread exits; nullptr if out of memory. A thread_local
// with a destructor would then abort the process. libc frees the block, so a thread may outlive this library.
std::byte* streaming_block() {
  struct thread_key {
    pthread_key_t key{};
    bool made = pthread_key_create(&key, &std::free) == 0;
  };
  static const thread_key blocks;
  if (!blocks.made) return nullptr;
  void* block = pthread_getspecific(blocks.key);
  if (block == nullptr) {
    block = std::aligned_alloc(direct_alignment, streaming_bytes);
    if (block != nullptr && pthread_setspecific(blocks.key, block) != 0) std::free(std::exchange(block, nullptr));
  }
  return static_cast<std::byte*>(block);
}

// Returns why the options are invalid; ok if they are valid.
status contradiction(const std::string& path, const open_options& options) {
  if (path.empty()) return {errc::invalid_argument, "open: the path is empty"};
  if (path.find('\0') != std::string::npos) return {errc::invalid_argument, "open: the path contains a null byte"};
  if (!options.read && !options.write) return {errc::invalid_argument, fmt::format("open {}: neither read nor write was requested", path)};
  if (!options.write && (options.create || options.truncate)) {
    return {errc::invalid_argument, fmt::format("open {}: create and truncate require write", path)};
  }
  if (options.write && options.immutable) {
    return {errc::invalid_argument, fmt::format("open {}: an immutable file cannot be opened for writing", path)};
  }
  return {};
}

}  // namespace

// --- opening and closing

result<std::unique_ptr<local_file>> local_file::open(sys::kernel& kernel, const std::string& path, const open_options& options) {
  if (auto wrong = contradiction(path, options); !wrong.ok()) return wrong;
  // O_NONBLOCK keeps open() from waiting for the other end of a FIFO. It does not affect regular files.
  int flags = O_NONBLOCK | (options.read && options.write ? O_RDWR : options.write ? O_WRONLY : O_RDONLY);
  if (options.create) flags |= O_CREAT;
  if (options.truncate) flags |= O_TRUNC;
  // Created first, so that an exception cannot leak a descriptor.
  std::unique_ptr<local_file> made(new local_file(kernel, path));
  const auto descriptor = kernel.open(path, flags, options.mode);
  if (!descriptor) return descriptor.error();
  made->descriptors_.cached = made->owned_.cached = made->first_descriptor_ = *descriptor;
  made->access_ = flags & O_ACCMODE;
  made->facts_.direct_writes = options.direct_writes;
  if (auto problem = made->examine(); !problem.ok()) return problem;
  return made;
}

result<std::unique_ptr<local_file>> local_file::adopt(sys::kernel& kernel, int descriptor, const lent_as& how) {
  const auto flags = kernel.descriptor_flags(descriptor);
  if (!flags) return flags.error().with_context(fmt::format("adopt: descriptor {}", descriptor));
  if ((*flags & O_PATH) != 0) return status(errc::invalid_argument, fmt::format("adopt: descriptor {} was opened with O_PATH", descriptor));
  if ((*flags & O_APPEND) != 0 && (*flags & O_ACCMODE) != O_RDONLY) {
    return status(errc::invalid_argument,
                  fmt::format("adopt: descriptor {} has O_APPEND, which makes writes ignore their offset", descriptor));
  }
  std::unique_ptr<local_file> made(new local_file(kernel, how.name.empty() ? fmt::format("descriptor {}", descriptor) : how.name));
  const bool direct = (*flags & O_DIRECT) != 0;
  int first = descriptor;
  if (how.duplicate) {
    const auto second = kernel.duplicate(descriptor);
    if (!second) return second.error().with_context(fmt::format("adopt: descriptor {}", descriptor));
    first = (direct ? made->owned_.direct : made->owned_.cached) = *second;
  }
  (direct ? made->descriptors_.direct : made->descriptors_.cached) = made->first_descriptor_ = first;
  made->access_ = *flags & O_ACCMODE;
  made->promises_ = *flags & (O_SYNC | O_DSYNC | O_NOATIME);
  made->facts_.lent_past_cache = direct;
  made->facts_.direct_writes = direct || how.direct_writes;
  made->held_ = how.held;
  made->told_ = how.told;
  if (auto problem = made->examine(); !problem.ok()) return problem;
  return made;
}

status local_file::examine() {
  auto seen = kernel_.describe(first_descriptor_);
  if (!seen) return seen.error().with_context(name());
  if (seen->type == sys::file_type::other) {
    return {errc::not_a_file, fmt::format("{} is neither a regular file nor a block device", name())};
  }
  facts_.device = seen->type == sys::file_type::block_device ? seen->block_device : seen->device;
  facts_.inode = seen->type == sys::file_type::regular ? seen->inode : 0;
  facts_.modified_ns = seen->modified_ns;
  opened_bytes_ = seen->size_bytes;
  facts_.from_server = seen->from_server;
  facts_.in_memory = seen->filesystem_magic == tmpfs_magic;
  facts_.readable = access_ != O_WRONLY;
  facts_.writable = access_ != O_RDONLY;
  direct_offset_alignment_ = seen->direct_offset_alignment;
  direct_memory_alignment_ = seen->direct_memory_alignment;
  return {};
}

// Opens the file a second time, with the first descriptor's promised flags.
result<int> local_file::reopen(int flags) {
  auto opened = kernel_.reopen(first_descriptor_, flags | promises_);
  // Only the file's owner may set O_NOATIME, but an adopted descriptor may come from the owner.
  if (opened || (promises_ & O_NOATIME) == 0) return opened;
  return kernel_.reopen(first_descriptor_, flags | (promises_ & ~O_NOATIME));
}

void local_file::open_rest() {
  if (descriptors_.direct < 0) {
    // Larger alignments would break the rule that transfers are cut at a page; no common file system requires them.
    if (direct_offset_alignment_ == 0) {
      direct_problem_ = {errc::unsupported, "the file system does not support direct I/O"};
    } else if (direct_offset_alignment_ > direct_alignment || direct_memory_alignment_ > direct_alignment) {
      direct_problem_ = {errc::unsupported, fmt::format("direct I/O on this file system needs {}-byte blocks", direct_offset_alignment_)};
    } else if (auto opened = reopen(access_ | O_DIRECT); opened) {
      descriptors_.direct = owned_.direct = *opened;
    } else {
      direct_problem_ = opened.error();
    }
  } else if (auto opened = reopen(access_); opened) {
    descriptors_.cached = owned_.cached = *opened;
  } else {
    cached_problem_ = opened.error();
  }
}

// Fills in flight. They use the source without the file's knowledge.
class local_file::begun {
 public:
  begun(local_file& of, staging::waiting_lanes& by, staging::answer_times& times) noexcept : file_(of), lanes_(by), times_(times) {}

  void begin(far_fill& what) noexcept {
    auto* const made = prepare_to_throw() ? new (std::nothrow) filling(*this, what) : nullptr;
    if (made == nullptr) return what.tell({0, no_memory()});
    {
      const std::lock_guard guard(lock_);
      ++under_way_;
    }
    staging::work_chain one;
    one.add(*made);
    lanes_.push_or_run(list_, one);
  }
  void wait() noexcept {
    if (fork_.forked()) return;
    std::unique_lock guard(lock_);
    quiet_.wait(guard, [this] { return under_way_ == 0; });
  }

 private:
  struct filling final : staging::work {
    filling(begun& by, far_fill& fill) noexcept : of(by), what(fill) {}
    bool run() override {
      of.carry(what);
      auto& by = of;
      delete this;
      by.ended();
      return true;
    }
    begun& of;
    far_fill& what;
  };

  void carry(far_fill& what) noexcept {
    const auto timed = times_.begins(staging::answer_times::clock_ns());
    auto got = file_.fill(what.target(), what.length(), what.offset());
    times_.ended(timed, staging::answer_times::clock_ns(), got.bytes_done > 0);
    what.tell(std::move(got));
  }
  void ended() noexcept {
    const std::lock_guard guard(lock_);
    if (--under_way_ == 0) quiet_.notify_all();  // under the lock: wait() may destroy this once it has the lock
  }

  local_file& file_;
  staging::waiting_lanes& lanes_;
  staging::answer_times& times_;
  const sys::fork_guard fork_;
  staging::work_list list_;
  std::mutex lock_;  // guards the members below
  std::condition_variable quiet_;
  unsigned under_way_ = 0;
};

local_file::local_file(sys::kernel& kernel, std::string name) : source(std::move(name)), kernel_(kernel) {}

bool local_file::let_wait(staging::waiting_lanes& by, staging::answer_times& times) {
  begun_ = std::make_unique<begun>(*this, by, times);
  return true;
}

void local_file::begin_fill(far_fill& what) noexcept { begun_ == nullptr ? source::begin_fill(what) : begun_->begin(what); }

status local_file::close() {
  if (begun_ != nullptr) begun_->wait();
  status outcome;
  for (const int descriptor : {std::exchange(owned_.cached, -1), std::exchange(owned_.direct, -1)}) {
    if (descriptor < 0) continue;
    auto closed = or_no_memory([&] { return kernel_.close(descriptor); });
    if (outcome.ok() && !closed.ok()) outcome = closed.with_context(name());
  }
  held_.reset();
  return outcome;
}

local_file::~local_file() { (void)close(); }

// --- queries

result<std::uint64_t> local_file::size() { return kernel_.file_size(first_descriptor_); }

status local_file::truncate(std::uint64_t size) { return kernel_.truncate(first_descriptor_, size); }
status local_file::sync() { return kernel_.sync_data(first_descriptor_); }

result<std::uint64_t> local_file::resident_bytes(std::uint64_t offset, std::uint64_t length) {
  const int cached = descriptors().cached;
  return kernel_.resident_bytes(cached >= 0 ? cached : first_descriptor_, offset, length);
}

bool local_file::changed() {
  const auto seen = kernel_.describe(first_descriptor_);
  return seen && (seen->size_bytes != opened_bytes_ || seen->modified_ns != facts_.modified_ns);
}

// Relies on a read that returns 0, not on st_size.
result<bool> local_file::ends_at(std::uint64_t offset) {
  if (descriptors().cached < 0) return ends_at_by_blocks(offset);
  std::byte unused{};
  const auto got = pread(descriptors_.cached, &unused, 1, offset);
  if (!got) return at(got.error(), "read", 1, offset);
  return *got == 0;
}

// Like ends_at(), but only with O_DIRECT. Most file systems handle a read at or past the end of the file before they check its alignment.
result<bool> local_file::ends_at_by_blocks(std::uint64_t offset) {
  const auto block = allocate_blocks(direct_alignment);
  if (block == nullptr) return at({errc::out_of_memory, "no memory for a block"}, "direct read", 1, offset);
  if (const auto beyond = pread(descriptors_.direct, block.get(), 1, offset)) return *beyond == 0;
  const std::uint64_t start = round_down(offset);
  const auto got = pread(descriptors_.direct, block.get(), direct_alignment, start);
  if (!got) return at(got.error(), "direct read", direct_alignment, start);
  if (*got > offset - start) return false;
  // Require the block to end here twice in a row, to rule out a read that merely stopped early.
  const auto again = pread(descriptors_.direct, block.get(), direct_alignment, start);
  if (!again) return at(again.error(), "direct read", direct_alignment, start);
  return *again == *got;
}

status local_file::at(const status& error, const char* verb, std::uint64_t length, std::uint64_t offset) const noexcept {
  return or_without_memory([&] { return error.with_context(fmt::format("{} {} at {} of {}", verb, length, offset, name())); },
                           [&] { return error; });
}

// --- reading

result<std::size_t> local_file::pread(int fd, void* target, std::uint64_t length, std::uint64_t offset, get by) noexcept {
  return or_no_memory([&] { return (kernel_.*by)(fd, target, length, offset); });
}

io_result local_file::fill(std::byte* target, std::uint64_t length, std::uint64_t offset, caching by) {
  const int cached = descriptors().cached;
  if (by == caching::streaming) return fill_streaming(target, length, offset);
  if (by == caching::direct) {
    const std::uint64_t skip = offset % direct_alignment;
    auto got = read_blocks(target - skip, blocks_around(offset, length), offset - skip);
    got.bytes_done = std::min(length, got.bytes_done > skip ? got.bytes_done - skip : 0);
    return got;
  }
  if (cached < 0) return aligned(target, length, offset) ? read_blocks(target, length, offset) : fill_bounced(target, length, offset);
  if (by == caching::filling) (void)or_no_memory([&] { return kernel_.read_into_cache(cached, offset, length); });
  if (by == caching::uncached && uncached_problem().ok()) {
    auto got = read_all(&sys::kernel::pread_uncached, target, length, offset);
    if (!refuses_uncached(got)) return got;
  }
  return read_all(&sys::kernel::pread, target, length, offset);
}

// Reads through the page cache.
io_result local_file::read_all(get by, std::byte* target, std::uint64_t length, std::uint64_t offset) {
  const int cached = descriptors().cached;
  io_result total;
  while (total.bytes_done < length) {
    auto got = pread(cached, target + total.bytes_done, length - total.bytes_done, offset + total.bytes_done, by);
    if (!got) {
      total.error = at(got.error(), "read", length, offset);
      break;
    }
    if (*got == 0) break;
    total.bytes_done += *got;
  }
  return total;
}

// Copies block by block through a small buffer, which takes a quarter more CPU time.
io_result local_file::fill_streaming(std::byte* target, std::uint64_t length, std::uint64_t offset) {
  std::byte* const block = streaming_block();
  if (block == nullptr) return fill(target, length, offset);
  io_result total;
  while (total.bytes_done < length) {
    const std::uint64_t want = std::min(length - total.bytes_done, streaming_bytes);
    auto got = fill(block, want, offset + total.bytes_done);
    stream_copy(target + total.bytes_done, block, got.bytes_done);
    total.bytes_done += got.bytes_done;
    total.error = std::move(got.error);
    if (!total.ok() || got.bytes_done < want) break;
  }
  return total;
}

// The kernel checks the flags first, so if it rejects them it has transferred nothing.
bool local_file::refuses_uncached(const io_result& outcome) noexcept {
  if (outcome.error.code() != errc::unsupported || outcome.bytes_done > 0) return false;
  kernel_.without_uncached().note(facts_.device);
  return true;
}

status local_file::uncached_problem() {
  if (!kernel_.without_uncached().known(facts_.device)) return {};
  return stays_in_cache;
}

void local_file::fetch_ahead(std::uint64_t offset, std::uint64_t length) noexcept {
  const int cached = descriptors().cached;
  if (cached >= 0 && offset < opened_bytes_) kernel_.read_ahead(cached, offset, std::min(length, opened_bytes_ - offset));
}

// Reads bypassing the page cache; target, length and offset are aligned.
io_result local_file::read_blocks(std::byte* target, std::uint64_t length, std::uint64_t offset) {
  constexpr int most_idle_tries = 8;
  int idle_tries = 0;
  io_result total;
  while (total.bytes_done < length) {
    auto got = pread(descriptors().direct, target + total.bytes_done, length - total.bytes_done, offset + total.bytes_done);
    if (!got) {
      total.error = at(got.error(), "direct read", length, offset);
      break;
    }
    total.bytes_done += *got;
    if (*got == 0) break;
    if (total.bytes_done % direct_alignment == 0) continue;
    // An unaligned count means the end of the file, unless the read stopped early; in that case reading resumes at the last whole block.
    const auto ended = ends_at(offset + total.bytes_done);
    if (!ended) total.error = at(ended.error(), "direct read", length, offset);
    if (!ended || *ended) break;
    total.bytes_done = round_down(total.bytes_done);
    idle_tries = *got < direct_alignment ? idle_tries + 1 : 0;
    if (idle_tries > most_idle_tries) {
      total.error = at({errc::io, "the kernel repeatedly read less than one block"}, "direct read", length, offset);
      break;
    }
  }
  return total;
}

// Copies into the caller's memory. As with pread(), invalid memory causes an error, not a signal.
io_result local_file::copy_out(std::byte* target, const std::byte* source, std::uint64_t length) noexcept {
  io_result total;
  while (total.bytes_done < length && total.ok()) {
    const auto copied =
        or_no_memory([&] { return sys::copy_checked(target + total.bytes_done, source + total.bytes_done, length - total.bytes_done); });
    copied ? void(total.bytes_done += *copied) : void(total.error = copied.error());
  }
  return total;
}

// Reads bypassing the page cache through a bounce buffer, for an unaligned target, length or offset.
io_result local_file::fill_bounced(std::byte* target, std::uint64_t length, std::uint64_t offset) {
  const auto bounce = allocate_blocks(bounce_bytes + direct_alignment);
  if (bounce == nullptr) return {0, at({errc::out_of_memory, "no memory for a bounce buffer"}, "read", length, offset)};
  io_result total;
  while (total.bytes_done < length) {
    const std::uint64_t from = offset + total.bytes_done;
    const std::uint64_t want = std::min(length - total.bytes_done, bounce_bytes);
    auto* const bytes = static_cast<std::byte*>(bounce.get()) + from % direct_alignment;
    const auto got = fill(bytes, want, from, caching::direct);
    const auto copied = copy_out(target + total.bytes_done, bytes, got.bytes_done);
    total.bytes_done += copied.bytes_done;
    total.error = copied.ok() ? got.error : at(copied.error, "read", length, offset);
    if (!total.ok() || copied.bytes_done < want) break;
  }
  return total;
}

// --- writing

io_result local_file::drain(const std::byte* memory, std::uint64_t length, std::uint64_t offset, const drain_manner& how) {
  const auto [cached, direct] = descriptors();
  if (how.by == caching::direct) return write_all(direct, memory, length, offset);
  if (how.by == caching::uncached && cached >= 0 && uncached_problem().ok()) {
    auto written = write_all(cached, memory, length, offset, &sys::kernel::pwrite_uncached);
    if (!refuses_uncached(written)) return written;
  }
  if (auto refused = can_drain(memory, length, offset); !refused.ok()) return {0, at(refused, "write", length, offset)};
  return write_all(cached >= 0 ? cached : direct, memory, length, offset);
}

io_result local_file::write_all(int fd, const std::byte* memory, std::uint64_t length, std::uint64_t offset, put by) {
  io_result total;
  while (total.bytes_done < length) {
    auto put =
        or_no_memory([&] { return (kernel_.*by)(fd, memory + total.bytes_done, length - total.bytes_done, offset + total.bytes_done); });
    if (put && *put == 0) put = status(errc::io, "the kernel wrote 0 bytes");
    if (!put) {
      total.error = at(put.error(), "write", length, offset);
      break;
    }
    total.bytes_done += *put;
  }
  return total;
}

}  // namespace penstock::source
