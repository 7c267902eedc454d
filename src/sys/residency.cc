#include "sys/residency.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <utility>

#include "base/checked.hpp"
#include "sys/page_size.hpp"

namespace penstock::sys {
namespace {

// From linux/mman.h of Linux 6.5; repeated here because most libc and kernel headers are older.
constexpr long cachestat_number = 451;
struct cachestat_range {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;  // 0: to the end of the file
};
struct cachestat_counts {
  std::uint64_t cached = 0;
  std::uint64_t dirty = 0;
  std::uint64_t writeback = 0;
  std::uint64_t evicted = 0;
  std::uint64_t recently_evicted = 0;
};

struct file_range {
  int fd;
  std::uint64_t offset;
  std::uint64_t length;
};

// Converts a number of cached pages into a number of bytes in the range. The first and last pages may overlap the range only partially, so
// the result equals the length exactly if no page is missing.
std::uint64_t bytes_of(std::uint64_t pages, const file_range& range) noexcept {
  const std::uint64_t first = range.offset / page_size();
  const std::uint64_t last = (range.offset + range.length - 1) / page_size();
  return pages > last - first ? range.length : std::min(pages * page_size(), range.length - 1);
}

std::string described(const file_range& range) {
  return fmt::format("residency of {} at {} of fd {}", range.length, range.offset, range.fd);
}

// Returns 0 or an errno.
int call_cachestat(const file_range& range, cachestat_counts& counts) noexcept {
  cachestat_range asked{range.offset, range.length};
  return syscall(cachestat_number, range.fd, &asked, &counts, 0U) == 0 ? 0 : errno;
}

// Set once cachestat turns out to be missing or forbidden. Concurrent threads all set the same value.
std::atomic<bool> cachestat_missing{false};

// Returns true if the call itself is rejected, by an old kernel (ENOSYS) or a seccomp profile (ENOSYS, EPERM). Since Linux 6.13, EPERM may
// also concern only the file in question; trying our own file distinguishes the two cases.
bool refuses_every_file(int error) noexcept {
  if (error == ENOSYS) return true;
  if (error != EPERM) return false;
  const int own = memfd_create("penstock-probe", MFD_CLOEXEC);
  if (own < 0) return false;
  cachestat_counts counts;
  const int own_error = call_cachestat({own, 0, 1}, counts);
  ::close(own);
  return own_error == EPERM;
}

// mincore reports every page as resident to callers that neither own the file nor may write to it.
bool mincore_is_truthful(int fd, const struct stat& facts) noexcept {
  return facts.st_uid == geteuid() || faccessat(fd, "", W_OK, AT_EACCESS | AT_EMPTY_PATH) == 0;
}

// Counts the resident pages in [base, base+length); base must be page-aligned. Returns 0 or an errno.
int count_resident_pages(std::byte* base, std::uint64_t length, std::uint64_t& pages) noexcept {
  std::array<unsigned char, 8192> flags;
  const std::uint64_t window = flags.size() * page_size();
  for (std::uint64_t done = 0; done < length; done += window) {
    const std::uint64_t part = std::min(window, length - done);
    if (mincore(base + done, part, flags.data()) != 0) return errno;
    const std::uint64_t count = (part + page_size() - 1) / page_size();
    pages += static_cast<std::uint64_t>(std::count_if(flags.begin(), flags.begin() + static_cast<std::ptrdiff_t>(count),
                                                      [](unsigned char flag) { return (flag & 1U) != 0; }));
  }
  return 0;
}

result<std::uint64_t> resident_by_mincore(const file_range& range) {
  struct stat facts {};
  if (fstat(range.fd, &facts) != 0) return status::from_errno(errno, described(range));
  if (!S_ISREG(facts.st_mode)) return status(errc::unsupported, described(range) + ": not a regular file, and cachestat is missing");
  const auto size = static_cast<std::uint64_t>(facts.st_size);
  if (range.offset >= size) return std::uint64_t{0};
  if (!mincore_is_truthful(range.fd, facts)) {
    return status(errc::unsupported, described(range) + ": this requires write permission for the file, and cachestat is missing");
  }
  const std::uint64_t start = range.offset / page_size() * page_size();
  const std::uint64_t length = std::min(range.offset + range.length, size) - start;
  // PROT_NONE needs no page tables; the kernel queries the page cache itself.
  void* base = mmap(nullptr, length, PROT_NONE, MAP_SHARED, range.fd, static_cast<off_t>(start));
  if (base == MAP_FAILED) {
    // EACCES: the descriptor is write-only.
    return status(errc::unsupported, described(range) + ": the file cannot be mapped, and cachestat is missing", error_domain::os, errno);
  }
  std::uint64_t pages = 0;
  const int error = count_resident_pages(static_cast<std::byte*>(base), length, pages);
  munmap(base, length);
  if (error != 0) return status::from_errno(error, described(range));
  return bytes_of(pages, range);
}

//--- estimates
//
// Without write permission for the file, the only way to find out whether a page is cached is a non-blocking read (RWF_NOWAIT, Linux 4.14).
// If the page is missing, the read starts I/O for it: with read-ahead, or for only that page if the descriptor has POSIX_FADV_RANDOM.
// Read-ahead would fill the page cache with data that direct I/O is about to read and halve its speed. So the descriptor is used by this
// call only, and pages that the samples read are dropped. (If a sample hits the marker at the end of another reader's read-ahead, the
// kernel continues that read-ahead; this is rare and limited to one window.) mincore does not help with any kind of mapping, because its
// result depends on the permissions of the file.

constexpr std::uint64_t bytes_per_sample = std::uint64_t{1} << 20;
constexpr std::uint64_t least_samples = 4;
constexpr std::uint64_t most_samples = 64;
// The I/O that a sample starts may complete before the kernel checks the page, which then appears to be present: virtual machines are often
// preempted exactly there by the process that serves their disk. The kernel's per-thread I/O accounting reveals such cases. Without that
// accounting, one sample in samples_per_mistake, but at least one, may be mistakenly found present: on a busy machine it was one in 130.
constexpr std::uint64_t samples_per_mistake = 16;

// Sets POSIX_FADV_RANDOM on a descriptor for this object's lifetime.
class random_access {
 public:
  explicit random_access(int fd) noexcept : fd_(fd) { posix_fadvise(fd_, 0, 0, POSIX_FADV_RANDOM); }
  random_access(const random_access&) = delete;
  random_access& operator=(const random_access&) = delete;
  ~random_access() { posix_fadvise(fd_, 0, 0, POSIX_FADV_NORMAL); }

 private:
  int fd_;
};

// Waits for the I/O that a sample started, then drops its page.
void drop_sample(int fd, std::uint64_t at) noexcept {
  char byte = 0;
  if (pread(fd, &byte, 1, static_cast<off_t>(at)) < 0) return;
  const std::uint64_t page = at / page_size() * page_size();
  posix_fadvise(fd, static_cast<off_t>(page), static_cast<off_t>(page_size()), POSIX_FADV_DONTNEED);
}

// Returns the number of 512-byte blocks that this thread has read from disks so far; always 0 if the kernel does not count them
// (TASK_IO_ACCOUNTING).
long blocks_read() noexcept {
  rusage used{};
  return getrusage(RUSAGE_THREAD, &used) == 0 ? used.ru_inblock : 0;
}

// Returns a different position in each part of the file on each call, so that concurrent callers do not find each other's samples.
std::uint64_t place_in(std::uint64_t part_bytes) noexcept {
  static std::atomic<std::uint64_t> sequence{0};
  constexpr std::uint64_t golden = 0x9e3779b97f4a7c15;
  return (sequence.fetch_add(1, std::memory_order_relaxed) * golden >> 16) % part_bytes;
}

}  // namespace

result<std::uint64_t> estimate_resident_bytes(int fd, std::uint64_t offset, std::uint64_t length) {
  const file_range range{fd, offset, length};
  struct stat facts {};
  if (fstat(fd, &facts) != 0) return status::from_errno(errno, described(range));
  const auto size = static_cast<std::uint64_t>(facts.st_size);
  const std::uint64_t there = !S_ISREG(facts.st_mode) ? length : offset < size ? std::min(length, size - offset) : 0;
  if (there == 0) return std::uint64_t{0};
  const random_access scope(fd);
  const std::uint64_t count = std::clamp(there / bytes_per_sample, std::min(least_samples, there), most_samples);
  // Missing samples fill the array from the front, present ones from the back.
  std::array<std::uint64_t, most_samples> sampled;
  std::uint64_t absent_count = 0;
  std::uint64_t present_count = 0;
  int error = 0;
  long read_before = blocks_read();
  // Samples backwards, so that any read-ahead a sample triggers covers only places that were already sampled.
  for (std::uint64_t i = count; i-- > 0 && error == 0;) {
    const std::uint64_t at = offset + there / count * i + place_in(there / count);
    char byte = 0;
    const iovec target{&byte, 1};
    const ssize_t got = preadv2(fd, &target, 1, static_cast<off_t>(at), RWF_NOWAIT);
    const int problem = got < 0 ? errno : 0;
    const long read_now = blocks_read();
    const bool fetched = std::exchange(read_before, read_now) != read_now;
    if (problem == EAGAIN || (got > 0 && fetched)) {
      sampled[absent_count++] = at;
    } else if (got > 0) {
      sampled[most_samples - ++present_count] = at;
    } else {
      error = problem;
    }
  }
  if (absent_count > 0 && present_count <= std::max<std::uint64_t>(count / samples_per_mistake, 1)) {
    for (; present_count > 0; --present_count) sampled[absent_count++] = sampled[most_samples - present_count];
  }
  for (std::uint64_t i = 0; i < absent_count; ++i) drop_sample(fd, sampled[i]);
  if (error != 0) return status(errc::unsupported, described(range) + ": the file cannot be sampled", error_domain::os, error);
  if (present_count == 0) return std::uint64_t{0};
  if (absent_count == 0) return length;
  return std::clamp(there / count * present_count, page_size(), there - 1);
}

result<std::uint64_t> resident_bytes(int fd, std::uint64_t offset, std::uint64_t length) {
  const file_range range{fd, offset, length};
  if (!range_end(offset, length)) return status::from_errno(EINVAL, described(range));
  if (length == 0) return std::uint64_t{0};
  if (cachestat_missing.load(std::memory_order_relaxed)) return resident_by_mincore(range);
  cachestat_counts counts;
  const int error = call_cachestat(range, counts);
  if (error == 0) return bytes_of(counts.cached, range);
  if (refuses_every_file(error)) {
    cachestat_missing.store(true, std::memory_order_relaxed);
    return resident_by_mincore(range);
  }
  if (error == EPERM)
    return status(errc::unsupported, described(range) + ": this requires write permission for the file", error_domain::os, EPERM);
  return status::from_errno(error, described(range));
}

}  // namespace penstock::sys
