#include "sys/cache_fill.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/utsname.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>

#include "sys/uninterrupted.hpp"

namespace penstock::sys {
namespace {

// From linux/mman.h of Linux 5.14; repeated here because older libc headers lack it.
constexpr int populate_read = 22;

// With huge-page advice, a page fault in a mapping reads a 2 MiB page. Random-access advice keeps the kernel from also reading the next
// page, which another thread may be about to request; on older kernels it makes the fault read single 4 KiB pages.
bool reads_huge_pages() noexcept {
  static const bool known = [] {
    utsname self{};
    unsigned major = 0;
    unsigned minor = 0;
    if (::uname(&self) != 0 || std::sscanf(self.release, "%u.%u", &major, &minor) != 2) return false;
    return major > 6 || (major == 6 && minor >= 16);
  }();
  return known;
}

bool populate_huge(std::byte* mapped, std::uint64_t length) noexcept {
  if (::madvise(mapped, length, MADV_HUGEPAGE) != 0 || ::madvise(mapped, length, MADV_RANDOM) != 0) return false;
  for (std::uint64_t at = 0; at < length; at += cache_block_bytes) {
    if (uninterrupted([&] { return ::madvise(mapped + at, cache_block_bytes, populate_read); }) != 0) return false;
  }
  return true;
}

}  // namespace

status read_into_cache(int fd, std::uint64_t offset, std::uint64_t length) {
  const std::uint64_t end = (offset + length) / cache_block_bytes * cache_block_bytes;
  const std::uint64_t start = (offset + cache_block_bytes - 1) / cache_block_bytes * cache_block_bytes;
  if (start >= end) return {};
  if (!reads_huge_pages()) return {errc::unsupported, "the kernel does not read files into huge pages"};
  void* const mapped = ::mmap(nullptr, end - start, PROT_READ, MAP_SHARED, fd, static_cast<off_t>(start));
  if (mapped == MAP_FAILED)
    return status::from_errno(errno, fmt::format("map {} bytes at {} of fd {} to read them", end - start, start, fd));
  const int error = populate_huge(static_cast<std::byte*>(mapped), end - start) ? 0 : errno;
  ::munmap(mapped, end - start);
  if (error == 0) return {};
  return status::from_errno(error, fmt::format("read {} bytes at {} of fd {} into the page cache", end - start, start, fd));
}

}  // namespace penstock::sys
