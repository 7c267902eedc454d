#include "bench/page_cache.hpp"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <vector>

#include "bench/open_file.hpp"
#include "sys/kernel.hpp"
#include "sys/page_size.hpp"

namespace penstock::bench {
result<std::uint64_t> cached_bytes(const std::string& path, std::uint64_t offset, std::uint64_t length) {
  const auto kernel = sys::make_kernel();
  const auto file = open_file::open(*kernel, path, O_RDONLY);
  if (!file) return file.error();
  auto found = kernel->resident_bytes(file->fd(), offset, length);
  if (!found) return found.error();
  return std::min(*found, length);  // the kernel counts whole pages
}

status drop_cached(const std::string& path, std::uint64_t offset, std::uint64_t length) {
  const auto kernel = sys::make_kernel();
  const auto file = open_file::open(*kernel, path, O_RDONLY);
  if (!file) return file.error();
  if (status error = kernel->sync_data(file->fd()); !error.ok()) return error;
  if (status error = kernel->drop_cache(file->fd(), offset, length); !error.ok()) return error;
  // Keep pages that are only partly in the range.
  const std::uint64_t begin = sys::page_up(offset);
  const std::uint64_t end = sys::page_down(offset + length);
  if (end <= begin) return {};
  auto left = kernel->resident_bytes(file->fd(), begin, end - begin);
  if (!left) return left.error();
  if (*left == 0) return {};
  return {errc::unsupported, fmt::format("{}: {} of {} KiB stay in the page cache", path, *left >> 10, (end - begin) >> 10)};
}

status fill_cached(const std::string& path, std::uint64_t offset, std::uint64_t length, const std::function<bool()>& stop) {
  const auto kernel = sys::make_kernel();
  const auto file = open_file::open(*kernel, path, O_RDONLY);
  if (!file) return file.error();
  std::vector<std::byte> buffer(std::min<std::uint64_t>(length, 4 << 20));
  for (std::uint64_t done = 0; done < length;) {
    if (stop && stop()) return {errc::cancelled, "interrupted"};
    const std::uint64_t want = std::min<std::uint64_t>(buffer.size(), length - done);
    auto count = kernel->pread(file->fd(), buffer.data(), want, offset + done);
    if (!count) return count.error();
    if (*count == 0) return {errc::io, fmt::format("{} ends at {}", path, offset + done)};
    done += *count;
  }
  auto found = kernel->resident_bytes(file->fd(), offset, length);
  if (!found) return found.error();
  if (std::min(*found, length) == length) return {};
  return {errc::out_of_memory, fmt::format("{}: {} of {} KiB stay in the page cache", path, *found >> 10, length >> 10)};
}

}  // namespace penstock::bench
