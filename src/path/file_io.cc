#include "path/file_io.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "staging/stream_copy.hpp"

namespace penstock::path {

namespace {

constexpr std::uint64_t bounce_bytes = std::uint64_t{1} << 20;

bool aligned(const void* memory, std::uint64_t length, std::uint64_t offset) {
  return (reinterpret_cast<std::uintptr_t>(memory) | length | offset) % direct_alignment == 0;
}

status at(const status& error, const char* verb, const file_view& file, std::uint64_t length, std::uint64_t offset) noexcept {
  return or_without_memory([&] { return error.with_context(fmt::format("{} {} at {} of {}", verb, length, offset, file.name)); },
                           [&] { return error; });
}

// One system call, whose error may be that there is no memory to tell it.
result<std::size_t> pread(sys::kernel& kernel, int fd, void* target, std::uint64_t length, std::uint64_t offset) noexcept {
  return or_no_memory([&] { return kernel.pread(fd, target, length, offset); });
}

struct free_memory {
  void operator()(void* memory) const noexcept { std::free(memory); }
};
using aligned_memory = std::unique_ptr<void, free_memory>;

aligned_memory allocate_blocks(std::uint64_t bytes) { return aligned_memory(std::aligned_alloc(direct_alignment, bytes)); }

// Through O_DIRECT alone. Most file systems answer a read at or past the end before they look at its alignment.
result<bool> ends_at_by_blocks(sys::kernel& kernel, const file_view& file, std::uint64_t offset) {
  const auto block = allocate_blocks(direct_alignment);
  if (block == nullptr) return at({errc::out_of_memory, "no memory for a block"}, "direct read", file, 1, offset);
  if (const auto beyond = pread(kernel, file.direct_fd, block.get(), 1, offset)) return *beyond == 0;
  const std::uint64_t start = round_down(offset);
  const auto got = pread(kernel, file.direct_fd, block.get(), direct_alignment, start);
  if (!got) return at(got.error(), "direct read", file, direct_alignment, start);
  if (*got > offset - start) return false;
  // The block ends here twice in a row: a read that merely stopped early does not do that.
  const auto again = pread(kernel, file.direct_fd, block.get(), direct_alignment, start);
  if (!again) return at(again.error(), "direct read", file, direct_alignment, start);
  return *again == *got;
}

// Reads through an O_DIRECT descriptor where target, length or offset is not aligned.
io_result read_bounced(sys::kernel& kernel, const file_view& file, std::byte* target, std::uint64_t length, std::uint64_t offset) {
  const auto bounce = allocate_blocks(bounce_bytes + direct_alignment);
  if (bounce == nullptr) return {0, at({errc::out_of_memory, "no memory for a bounce buffer"}, "read", file, length, offset)};
  io_result total;
  while (total.bytes_done < length) {
    const std::uint64_t from = offset + total.bytes_done;
    const std::uint64_t want = std::min(length - total.bytes_done, bounce_bytes);
    auto* block = static_cast<std::byte*>(bounce.get());
    const auto got = read_blocks_around(kernel, file, block, want, from);
    std::memcpy(target + total.bytes_done, block + from % direct_alignment, got.bytes_done);
    total.bytes_done += got.bytes_done;
    total.error = got.error;
    if (!got.ok() || got.bytes_done < want) break;
  }
  return total;
}

}  // namespace

result<bool> ends_at(sys::kernel& kernel, const file_view& file, std::uint64_t offset) {
  if (file.cached_fd < 0) return ends_at_by_blocks(kernel, file, offset);
  std::byte unused{};
  const auto got = pread(kernel, file.cached_fd, &unused, 1, offset);
  if (!got) return at(got.error(), "read", file, 1, offset);
  return *got == 0;
}

io_result read_direct(sys::kernel& kernel, const file_view& file, std::byte* target, std::uint64_t length, std::uint64_t offset) {
  constexpr int most_idle_tries = 8;
  int idle_tries = 0;
  io_result total;
  while (total.bytes_done < length) {
    auto got = pread(kernel, file.direct_fd, target + total.bytes_done, length - total.bytes_done, offset + total.bytes_done);
    if (!got) {
      total.error = at(got.error(), "direct read", file, length, offset);
      break;
    }
    total.bytes_done += *got;
    if (*got == 0) break;
    if (total.bytes_done % direct_alignment == 0) continue;
    // An unaligned count is the end of the file, unless the read stopped early: then the last whole block is where it goes on.
    const auto ended = ends_at(kernel, file, offset + total.bytes_done);
    if (!ended) total.error = at(ended.error(), "direct read", file, length, offset);
    if (!ended || *ended) break;
    total.bytes_done = round_down(total.bytes_done);
    idle_tries = *got < direct_alignment ? idle_tries + 1 : 0;
    if (idle_tries > most_idle_tries) {
      total.error = at({errc::io, "the kernel reads less than a block"}, "direct read", file, length, offset);
      break;
    }
  }
  return total;
}

io_result read_blocks_around(sys::kernel& kernel, const file_view& file, std::byte* block, std::uint64_t length, std::uint64_t offset) {
  const std::uint64_t skip = offset % direct_alignment;
  auto got = read_direct(kernel, file, block, round_up(skip + length), offset - skip);
  got.bytes_done = std::min(length, got.bytes_done > skip ? got.bytes_done - skip : 0);
  return got;
}

io_result read_fully(sys::kernel& kernel, const file_view& file, std::byte* target, std::uint64_t length, std::uint64_t offset) {
  if (file.cached_fd < 0) {
    if (aligned(target, length, offset)) return read_direct(kernel, file, target, length, offset);
    return read_bounced(kernel, file, target, length, offset);
  }
  io_result total;
  while (total.bytes_done < length) {
    auto got = pread(kernel, file.cached_fd, target + total.bytes_done, length - total.bytes_done, offset + total.bytes_done);
    if (!got) {
      total.error = at(got.error(), "read", file, length, offset);
      break;
    }
    if (*got == 0) break;
    total.bytes_done += *got;
  }
  return total;
}

io_result read_streaming(sys::kernel& kernel, const file_view& file, std::byte* target, std::uint64_t length, std::uint64_t offset) {
  // Fits the second-level cache and stays there.
  constexpr std::uint64_t block_bytes = std::uint64_t{64} << 10;
  thread_local const aligned_memory block = allocate_blocks(block_bytes);
  if (block == nullptr) return read_fully(kernel, file, target, length, offset);
  io_result total;
  while (total.bytes_done < length) {
    const std::uint64_t want = std::min(length - total.bytes_done, block_bytes);
    auto got = read_fully(kernel, file, static_cast<std::byte*>(block.get()), want, offset + total.bytes_done);
    staging::stream_copy(target + total.bytes_done, static_cast<const std::byte*>(block.get()), got.bytes_done);
    total.bytes_done += got.bytes_done;
    total.error = std::move(got.error);
    if (!total.ok() || got.bytes_done < want) break;
  }
  return total;
}

namespace {

io_result write_loop(sys::kernel& kernel, int fd, const file_view& file, const std::byte* source, std::uint64_t length,
                     std::uint64_t offset) {
  io_result total;
  while (total.bytes_done < length) {
    auto put =
        or_no_memory([&] { return kernel.pwrite(fd, source + total.bytes_done, length - total.bytes_done, offset + total.bytes_done); });
    if (put && *put == 0) put = status(errc::io, "the kernel wrote nothing");
    if (!put) {
      total.error = at(put.error(), "write", file, length, offset);
      break;
    }
    total.bytes_done += *put;
  }
  return total;
}

}  // namespace

io_result write_direct(sys::kernel& kernel, const file_view& file, const std::byte* source, std::uint64_t length, std::uint64_t offset) {
  return write_loop(kernel, file.direct_fd, file, source, length, offset);
}

status writable(const file_view& file, const std::byte* source, std::uint64_t length, std::uint64_t offset) {
  if (file.cached_fd >= 0 || aligned(source, length, offset)) return {};
  return {errc::invalid_argument,
          fmt::format("the descriptor is O_DIRECT and could not be opened without it, so memory, length and offset must be multiples of {}",
                      direct_alignment)};
}

io_result write_fully(sys::kernel& kernel, const file_view& file, const std::byte* source, std::uint64_t length, std::uint64_t offset) {
  if (file.cached_fd >= 0) return write_loop(kernel, file.cached_fd, file, source, length, offset);
  if (auto refused = writable(file, source, length, offset); !refused.ok()) return {0, at(refused, "write", file, length, offset)};
  return write_direct(kernel, file, source, length, offset);
}

}  // namespace penstock::path
