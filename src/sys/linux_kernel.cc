#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/uio.h>
#include <sys/vfs.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <limits>
#include <optional>
#include <vector>

#include "base/checked.hpp"
#include "base/file_size_limit.hpp"
#include "base/no_memory.hpp"
#include "base/refused_call.hpp"
#include "sys/cache_fill.hpp"
#include "sys/cgroup.hpp"
#include "sys/core_use.hpp"
#include "sys/kept_descriptors.hpp"
#include "sys/kernel.hpp"
#include "sys/mounts.hpp"
#include "sys/page_size.hpp"
#include "sys/pci.hpp"
#include "sys/residency.hpp"
#include "sys/uninterrupted.hpp"
#include "sys/uring.hpp"

namespace penstock::sys {
namespace {

static_assert(sizeof(off_t) == 8, "files over 2 GiB need a 64-bit off_t");

constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;

// STATX_DIOALIGN (Linux 6.1), which many headers lack: the bit in stx_mask, and the offsets of the two fields in struct statx.
constexpr unsigned statx_dioalign = 0x2000U;
constexpr std::size_t dio_memory_align_at = 0x98;
constexpr std::size_t dio_offset_align_at = 0x9c;
static_assert(sizeof(struct statx) == 256);

// Describes the open mode for an error message. Empty for reading, the usual case.
std::string_view purpose(int flags) noexcept {
  const bool writes = (flags & O_ACCMODE) != O_RDONLY;
  if ((flags & O_DIRECT) != 0) return writes ? " for writing with O_DIRECT" : " with O_DIRECT";
  return writes ? " for writing" : "";
}

// A transfer call and its arguments, for error messages.
struct transfer {
  std::string_view call;
  int fd;
  std::size_t length;
  std::uint64_t offset;
};

std::string described(const transfer& asked) {
  return fmt::format("{} {} at {} of fd {}", asked.call, asked.length, asked.offset, asked.fd);
}

// read(2) and write(2) return EBADF both for a closed descriptor and for one that was not opened in the required mode.
status transfer_error(int error, const transfer& asked) {
  status failure = status::from_errno(error, described(asked));
  if (error == EBADF && fcntl(asked.fd, F_GETFL) >= 0) {
    return {errc::permission_denied, std::string(failure.message()), error_domain::os, error};
  }
  return failure;
}

file_type type_of(unsigned mode) noexcept {
  if (S_ISREG(mode)) return file_type::regular;
  if (S_ISBLK(mode)) return file_type::block_device;
  return file_type::other;
}

bool is_regular(const std::string& path) noexcept {
  struct stat facts {};
  return ::stat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode);
}

// File systems that reject O_DIRECT, or (tmpfs since Linux 6.6) accept it but copy through memory.
bool lives_in_memory(std::uint64_t magic) noexcept {
  switch (magic) {
    case TMPFS_MAGIC:
    case RAMFS_MAGIC:
    case HUGETLBFS_MAGIC:
    case PROC_SUPER_MAGIC:
    case SYSFS_MAGIC:
      return true;
    default:
      return false;
  }
}

void fill_direct_alignment(const struct statx& facts, file_info& info) noexcept {
  if (info.type == file_type::other) return;
  if ((facts.stx_mask & statx_dioalign) != 0) {
    const auto* bytes = reinterpret_cast<const char*>(&facts);
    std::memcpy(&info.direct_memory_alignment, bytes + dio_memory_align_at, sizeof info.direct_memory_alignment);
    std::memcpy(&info.direct_offset_alignment, bytes + dio_offset_align_at, sizeof info.direct_offset_alignment);
  } else if (!lives_in_memory(info.filesystem_magic)) {
    info.direct_memory_alignment = info.direct_offset_alignment = direct_alignment;
  }
}

// The fallback for a kernel or a sandbox without statx(2).
bool fstat_as_statx(int fd, struct statx& to) noexcept {
  struct stat facts {};
  if (fstat(fd, &facts) != 0) return false;
  to = {};
  to.stx_mask = STATX_BASIC_STATS;
  to.stx_mode = static_cast<decltype(to.stx_mode)>(facts.st_mode);
  to.stx_size = static_cast<std::uint64_t>(facts.st_size);
  to.stx_ino = facts.st_ino;
  to.stx_dev_major = major(facts.st_dev);
  to.stx_dev_minor = minor(facts.st_dev);
  to.stx_rdev_major = major(facts.st_rdev);
  to.stx_rdev_minor = minor(facts.st_rdev);
  to.stx_mtime.tv_sec = facts.st_mtim.tv_sec;
  to.stx_mtime.tv_nsec = static_cast<decltype(to.stx_mtime.tv_nsec)>(facts.st_mtim.tv_nsec);
  to.stx_ctime.tv_sec = facts.st_ctim.tv_sec;
  to.stx_ctime.tv_nsec = static_cast<decltype(to.stx_ctime.tv_nsec)>(facts.st_ctim.tv_nsec);
  return true;
}

result<std::uint64_t> block_device_size(int fd) {
  std::uint64_t bytes = 0;
  if (ioctl(fd, BLKGETSIZE64, &bytes) != 0) return status::from_errno(errno, fmt::format("BLKGETSIZE64 of fd {}", fd));
  return bytes;
}

void prefer_numa_node(void* base, std::size_t length, int node) noexcept {
  constexpr int policy_preferred = 1;  // MPOL_PREFERRED from linux/mempolicy.h
  constexpr unsigned bits_per_word = std::numeric_limits<unsigned long>::digits;
  std::array<unsigned long, 16> nodes{};
  const auto bit = static_cast<unsigned>(node);
  if (node < 0 || bit >= nodes.size() * bits_per_word) return;
  nodes[bit / bits_per_word] = 1UL << (bit % bits_per_word);
  // Only a preference: if Docker's seccomp profile or a kernel without NUMA rejects the call, memory comes from any node. The kernel reads
  // one bit less than the given count.
  syscall(SYS_mbind, base, length, policy_preferred, nodes.data(), nodes.size() * bits_per_word + 1, 0U);
}

// The file contains "0" on a single-node machine, otherwise "0-1" or similar.
bool find_many_nodes() noexcept {
  std::array<char, 64> text{};
  const int fd = ::open("/sys/devices/system/node/online", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const auto count = ::read(fd, text.data(), text.size() - 1);
  ::close(fd);
  return count > 0 && std::strpbrk(text.data(), "-,") != nullptr;
}

// Not a static local variable: a child forked while another thread initializes one would wait for that thread forever.
bool has_many_nodes() noexcept {
  enum class nodes : unsigned char { unknown, one, many };
  static std::atomic<nodes> known{nodes::unknown};
  if (known.load() == nodes::unknown) known.store(find_many_nodes() ? nodes::many : nodes::one);
  return known.load() == nodes::many;
}

// Returns 0 or an errno. Populating reports a lack of memory as an error, while touching the pages would raise a signal. Populates one huge
// page at a time: the kernel holds the address-space lock during each call (4 to 6 ms for 32 MiB), and threads that start a thread or map
// memory wait for it. Between calls they can take it.
int populate(void* base, std::size_t length) noexcept {
  constexpr int populate_write = 23;  // MADV_POPULATE_WRITE, Linux 5.14
  auto* const bytes = static_cast<char*>(base);
  for (std::size_t at = 0; at < length; at += huge_page_bytes) {
    const auto step = std::min(huge_page_bytes, length - at);
    if (uninterrupted([&] { return madvise(bytes + at, step, populate_write); }) == 0) continue;
    if (!is_refused_call(errno)) return errno;
    for (; at < length; at += page_size()) static_cast<volatile char*>(bytes)[at] = 0;
  }
  return 0;
}

// Maps length bytes of address space, aligned to 2 MiB. length must be a multiple of the page size. Returns null and sets errno on failure.
void* map_aligned(std::size_t length) noexcept {
  const std::size_t spare = huge_page_bytes;
  void* raw = mmap(nullptr, length + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (raw == MAP_FAILED) return nullptr;
  auto* start = static_cast<std::byte*>(raw);
  const std::size_t front = (huge_page_bytes - reinterpret_cast<std::uintptr_t>(raw) % huge_page_bytes) % huge_page_bytes;
  if (front > 0) munmap(start, front);
  if (spare > front) munmap(start + front + length, spare - front);
  return start + front;
}

unsigned cores_of_affinity_mask() {
  // The kernel returns EINVAL for a mask shorter than its own.
  for (std::size_t words = 16; words <= 4096; words *= 2) {
    std::vector<unsigned long> mask(words);
    auto* set = reinterpret_cast<cpu_set_t*>(mask.data());
    const std::size_t bytes = words * sizeof(unsigned long);
    if (sched_getaffinity(0, bytes, set) == 0) return static_cast<unsigned>(CPU_COUNT_S(bytes, set));
    if (errno != EINVAL) break;
  }
  return static_cast<unsigned>(std::max(1L, ::sysconf(_SC_NPROCESSORS_CONF)));
}

constexpr int dont_cache = 0x00000080;  // RWF_DONTCACHE from linux/fs.h 6.14

status no_uncached() { return {errc::unsupported, "RWF_DONTCACHE is not supported", error_domain::os, EOPNOTSUPP}; }

class linux_kernel final : public kernel {
 public:
  result<int> open(const std::string& path, int flags, unsigned mode) override {
    if ((flags & (O_TRUNC | O_EXCL)) == 0) {
      if (const auto kept = kept_.take(path, flags)) return *kept;
    }
    const auto attempt = [&](int with) {
      return uninterrupted([&] { return ::open(path.c_str(), with | O_CLOEXEC, static_cast<mode_t>(mode)); });
    };
    int fd = attempt(flags);
    // With O_NONBLOCK the kernel refuses to open a file on which another process holds a lease (F_SETLEASE). Without it, open(2) waits
    // until the lease is released.
    if (fd < 0 && errno == EWOULDBLOCK && (flags & O_NONBLOCK) != 0 && is_regular(path)) fd = attempt(flags & ~O_NONBLOCK);
    if (fd < 0) return status::from_errno(errno, fmt::format("open {}{}", path, purpose(flags)));
    return fd;
  }

  result<int> reopen(int fd, int flags) override {
    if (const auto kept = kept_.take(fd, flags)) return *kept;
    // Reopening the file would also break this process's own lease, so open() would wait for this process itself.
    if (fcntl(fd, F_GETLEASE) == F_WRLCK) {
      return status(errc::would_block, fmt::format("reopen fd {}: it holds a lease that reopening the file would break", fd));
    }
    const std::string link = fmt::format("/proc/self/fd/{}", fd);
    const int anew = uninterrupted([&] { return ::open(link.c_str(), flags | O_CLOEXEC); });
    if (anew < 0) return status::from_errno(errno, fmt::format("reopen fd {}{}", fd, purpose(flags)));
    return anew;
  }

  result<int> duplicate(int fd) override {
    constexpr int after_standard_streams = 3;
    const int second = fcntl(fd, F_DUPFD_CLOEXEC, after_standard_streams);
    // EINVAL: the descriptor limit is below that number.
    if (second < 0) return status::from_errno(errno == EINVAL ? EMFILE : errno, fmt::format("duplicate fd {}", fd));
    return second;
  }

  status close(int fd) override {
    const int error = kept_.close(fd);
    if (error == ENOMEM) return no_memory();
    return error == 0 ? status() : status::from_errno(error, fmt::format("close fd {}", fd));
  }

  result<file_info> describe(int fd) override;
  void read_ahead(int fd, std::uint64_t offset, std::uint64_t length) noexcept override {
    // For a longer range, the kernel would read only the first part.
    constexpr std::uint64_t step = std::uint64_t{128} << 10;
    for (std::uint64_t at = 0; at < length; at += step) {
      (void)posix_fadvise(fd, static_cast<off_t>(offset + at), static_cast<off_t>(std::min(step, length - at)), POSIX_FADV_WILLNEED);
    }
  }
  std::uint64_t most_read_at_once(std::uint64_t device) override { return sys::most_read_at_once(device); }

  int current_node() noexcept override {
    unsigned cpu = 0;
    unsigned node = 0;
    return has_many_nodes() && ::getcpu(&cpu, &node) == 0 ? static_cast<int>(node) : -1;
  }
  int node_of_memory(const void* address) noexcept override {
    constexpr unsigned of_address = 3;  // MPOL_F_NODE | MPOL_F_ADDR from linux/mempolicy.h
    int node = -1;
    return has_many_nodes() && syscall(SYS_get_mempolicy, &node, nullptr, 0UL, address, of_address) == 0 ? node : -1;
  }

  result<int> descriptor_flags(int fd) override {
    const int flags = fcntl(fd, F_GETFL);
    if (flags < 0) return status::from_errno(errno, fmt::format("F_GETFL of fd {}", fd));
    return flags;
  }

  result<std::uint64_t> file_size(int fd) override {
    struct stat facts {};
    if (fstat(fd, &facts) != 0) return status::from_errno(errno, fmt::format("fstat of fd {}", fd));
    if (S_ISBLK(facts.st_mode)) return block_device_size(fd);
    return static_cast<std::uint64_t>(facts.st_size);
  }

  result<std::size_t> pread(int fd, void* target, std::size_t length, std::uint64_t offset) override {
    const ssize_t count = uninterrupted([&] { return ::pread(fd, target, length, static_cast<off_t>(offset)); });
    if (count < 0) return transfer_error(errno, {"pread", fd, length, offset});
    return static_cast<std::size_t>(count);
  }

  result<std::size_t> pwrite(int fd, const void* source, std::size_t length, std::uint64_t offset) override {
    const ssize_t count = uninterrupted([&] { return ::pwrite(fd, source, length, static_cast<off_t>(offset)); });
    if (count < 0) return transfer_error(errno, {"pwrite", fd, length, offset});
    return static_cast<std::size_t>(count);
  }

  result<std::size_t> pread_uncached(int fd, void* target, std::size_t length, std::uint64_t offset) override {
    const iovec part{target, length};
    const ssize_t count = uninterrupted([&] { return ::preadv2(fd, &part, 1, static_cast<off_t>(offset), dont_cache); });
    if (count < 0 && is_refused_call(errno)) return no_uncached();
    if (count < 0) return transfer_error(errno, {"uncached pread", fd, length, offset});
    return static_cast<std::size_t>(count);
  }

  result<std::size_t> pwrite_uncached(int fd, const void* source, std::size_t length, std::uint64_t offset) override {
    const iovec part{const_cast<void*>(source), length};  // NOLINT(cppcoreguidelines-pro-type-const-cast): only read
    const ssize_t count = uninterrupted([&] { return ::pwritev2(fd, &part, 1, static_cast<off_t>(offset), dont_cache); });
    if (count < 0 && is_refused_call(errno)) return no_uncached();
    if (count < 0) return transfer_error(errno, {"uncached pwrite", fd, length, offset});
    return static_cast<std::size_t>(count);
  }

  result<std::uint64_t> resident_bytes(int fd, std::uint64_t offset, std::uint64_t length) override {
    auto known = sys::resident_bytes(fd, offset, length);
    if (known || known.error().code() != errc::unsupported || length < least_estimated_bytes) return known;
    const auto own = reopen(fd, O_RDONLY);
    if (!own) return known;
    auto estimated = estimate_resident_bytes(*own, offset, length);
    (void)close(*own);
    return estimated ? estimated : known;
  }

  status read_into_cache(int fd, std::uint64_t offset, std::uint64_t length) override { return sys::read_into_cache(fd, offset, length); }

  status drop_cache(int fd, std::uint64_t offset, std::uint64_t length) override {
    const int error = posix_fadvise(fd, static_cast<off_t>(offset), static_cast<off_t>(length), POSIX_FADV_DONTNEED);
    if (error != 0) return status::from_errno(error, described({"drop cache", fd, length, offset}));
    return {};
  }

  status sync_data(int fd) override {
    if (uninterrupted([&] { return fdatasync(fd); }) == 0) return {};
    if (is_refused_call(errno) && uninterrupted([&] { return fsync(fd); }) == 0) return {};
    return status::from_errno(errno, fmt::format("fdatasync of fd {}", fd));
  }

  status truncate(int fd, std::uint64_t size_bytes) override {
    struct stat now {};
    const bool fits = fits_file_size_limit(size_bytes) || (fstat(fd, &now) == 0 && static_cast<std::uint64_t>(now.st_size) >= size_bytes);
    if (fits && uninterrupted([&] { return ftruncate(fd, static_cast<off_t>(size_bytes)); }) == 0) return {};
    return status::from_errno(fits ? errno : EFBIG, fmt::format("truncate fd {} to {}", fd, size_bytes));
  }

  result<void*> map_file(int fd, std::uint64_t offset, std::size_t length) override {
    void* base = mmap(nullptr, length, PROT_READ, MAP_SHARED | MAP_POPULATE, fd, static_cast<off_t>(offset));
    if (base == MAP_FAILED) return status::from_errno(errno, described({"map", fd, length, offset}));
    return base;
  }

  result<void*> map_memory(std::size_t length, int numa_node) override;

  status unmap(void* base, std::size_t length) override {
    if (munmap(base, length) == 0) return {};
    return status::from_errno(errno, fmt::format("unmap {} bytes at {}", length, base));
  }

  result<memory_state> memory_now() override { return memory_state_now(); }

  result<std::unique_ptr<ring>> make_ring(unsigned entries) override { return make_uring(entries); }

  unsigned usable_cores() override {
    const unsigned cores = cores_of_affinity_mask();
    return std::max(1U, std::min(cores, cgroup_limits_now().cores.value_or(cores)));
  }

  core_use core_use_now() noexcept override {
    const int fd = ::open("/proc/stat", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return {};
    std::array<char, 256> told{};
    const auto got = ::read(fd, told.data(), told.size() - 1);
    ::close(fd);
    const auto found = core_use_in(told.data());
    const long cores = ::sysconf(_SC_NPROCESSORS_ONLN);
    const long ticks_per_second = ::sysconf(_SC_CLK_TCK);
    timespec own{};
    if (got <= 0 || !found || cores <= 0 || ticks_per_second <= 0 || ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &own) != 0) return {};
    core_use use = *found;
    use.cores = static_cast<unsigned>(cores);
    use.tick_ns = 1'000'000'000 / static_cast<std::uint64_t>(ticks_per_second);
    use.own_ns = static_cast<std::uint64_t>(own.tv_sec) * 1'000'000'000 + static_cast<std::uint64_t>(own.tv_nsec);
    return use;
  }

  pci_device describe_pci(const std::string& address) override { return describe_pci_device(address); }
  std::vector<std::string> pci_addresses() override { return list_pci_addresses(); }

  bool path_exists(const std::string& path) override { return ::access(path.c_str(), F_OK) == 0; }

 private:
  kept_descriptors kept_;
};

result<file_info> linux_kernel::describe(int fd) {
  struct statx facts {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | statx_dioalign, &facts) != 0) {
    if (!is_refused_call(errno) || !fstat_as_statx(fd, facts)) return status::from_errno(errno, fmt::format("statx of fd {}", fd));
  }
  // If fstatfs() fails, the file is treated as local.
  struct statfs filesystem {};
  (void)uninterrupted([&] { return fstatfs(fd, &filesystem); });
  file_info info;
  info.type = type_of(facts.stx_mode);
  info.size_bytes = facts.stx_size;
  info.device = makedev(facts.stx_dev_major, facts.stx_dev_minor);
  info.inode = facts.stx_ino;
  info.modified_ns = facts.stx_mtime.tv_sec * 1'000'000'000 + facts.stx_mtime.tv_nsec;
  info.changed_ns = facts.stx_ctime.tv_sec * 1'000'000'000 + facts.stx_ctime.tv_nsec;
  info.filesystem_magic = static_cast<std::uint64_t>(filesystem.f_type);
  // A FUSE file system on a block device (such as ntfs-3g) is local.
  info.from_server = info.type == file_type::regular && facts.stx_dev_major == 0 && is_from_server(info.filesystem_magic);
  fill_direct_alignment(facts, info);
  if (info.type == file_type::block_device) {
    info.block_device = makedev(facts.stx_rdev_major, facts.stx_rdev_minor);
    auto size = block_device_size(fd);
    if (!size) return size.error();
    info.size_bytes = *size;
  }
  return info;
}

result<void*> linux_kernel::map_memory(std::size_t length, int numa_node) {
  const auto failed = [&](int error) { return status::from_errno(error, fmt::format("map {} bytes on NUMA node {}", length, numa_node)); };
  const auto padded = checked_add(length, huge_page_bytes + page_size());
  if (length == 0 || !padded || *padded > max_file_offset) return failed(length == 0 ? EINVAL : ENOMEM);
  const std::size_t mapped = page_up(length);
  void* base = map_aligned(mapped);
  if (base == nullptr) return failed(errno);
  madvise(base, mapped, MADV_HUGEPAGE);  // fails on kernels without transparent huge pages
  prefer_numa_node(base, mapped, numa_node);
  if (const int error = populate(base, mapped); error != 0) {
    munmap(base, mapped);
    return failed(error);
  }
  return base;
}

}  // namespace

std::shared_ptr<kernel> make_kernel() { return std::make_shared<linux_kernel>(); }

}  // namespace penstock::sys
