#include "device/host_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iterator>
#include <utility>

#include "base/file_size_limit.hpp"
#include "base/no_memory.hpp"
#include "sys/memory_state.hpp"
#include "sys/page_size.hpp"

namespace penstock::device {
namespace {

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

// Addresses that an allocation occupies.
constexpr std::uint64_t footprint_of(std::uint64_t bytes) { return round_up(bytes, host_memory::granule_bytes) + host_memory::guard_bytes; }

// Returns the machine's memory size, or the cgroup's limit if that is lower.
std::uint64_t usable_memory() {
  const auto state = or_no_memory([] { return sys::memory_state_now(); });
  return state ? state->total_bytes : static_cast<std::uint64_t>(std::max(::sysconf(_SC_PHYS_PAGES), 0L)) * sys::page_size();
}

// Returns null and sets errno on failure.
void* map_shared(std::uint64_t bytes, int descriptor) {
  const int kind = descriptor < 0 ? MAP_SHARED | MAP_ANONYMOUS : MAP_SHARED;
  void* content = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, kind | MAP_NORESERVE, descriptor, 0);
  return content == MAP_FAILED ? nullptr : content;
}

// The kernel accounts for a memfd's pages when they are touched, even if overcommitting is forbidden. It accounts for all of an anonymous
// shared mapping at once, but no file size limit applies to it.
struct content {
  void* bytes;
  int descriptor;  // -1: none
};
result<content> map_content(std::uint64_t bytes) {
  int descriptor = fits_file_size_limit(bytes) ? ::memfd_create("penstock-host-device", MFD_CLOEXEC) : -1;
  if (descriptor >= 0 && ::ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) ::close(std::exchange(descriptor, -1));
  void* mapped = map_shared(bytes, descriptor);
  // A core dump would read every page and thereby allocate all of them, far more than the machine has.
  if (mapped != nullptr) (void)::madvise(mapped, bytes, MADV_DONTDUMP);
  if (mapped != nullptr) return content{mapped, descriptor};
  const int error = errno;
  if (descriptor >= 0) ::close(descriptor);
  return status::from_errno(error, fmt::format("host device: map {} bytes", bytes));
}

}  // namespace

host_memory::~host_memory() {
  std::byte* region = region_.load();
  if (region == nullptr) return;
  for (const auto& [offset, each] : imported_) ::munmap(each.pages, each.pages_bytes);
  ::munmap(region, region_bytes_);
  ::munmap(bytes_, region_bytes_);
  if (descriptor_ >= 0) ::close(descriptor_);
}

status host_memory::reserve() {
  if (region_.load(std::memory_order_relaxed) != nullptr) return {};
  status refused;
  for (std::uint64_t bytes = largest_region_bytes; bytes >= smallest_region_bytes; bytes /= 2) {
    refused = map_region(bytes);
    if (refused.ok()) break;
  }
  return refused;
}

status host_memory::map_region(std::uint64_t bytes) {
  ranges all{{0, bytes}};  // allocated before the mappings, which would leak if memory ran out
  void* region = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) return status::from_errno(errno, fmt::format("host device: reserve {} bytes of addresses", bytes));
  const auto made = map_content(bytes);
  if (!made) {
    ::munmap(region, bytes);
    return made.error();
  }
  region_bytes_ = bytes;
  capacity_ = std::min(usable_memory() / 4 * 3, bytes);
  bytes_ = static_cast<std::byte*>(made->bytes);
  descriptor_ = made->descriptor;
  free_ = std::move(all);
  region_.store(static_cast<std::byte*>(region), std::memory_order_release);
  return {};
}

result<std::uint64_t> host_memory::capacity() {
  const std::lock_guard guard(lock_);
  if (status reserved = reserve(); !reserved.ok()) return reserved;
  return capacity_;
}

result<void*> host_memory::allocate(std::uint64_t bytes) {
  if (bytes == 0) return status(errc::invalid_argument, "host:0: allocate 0 bytes");
  const std::lock_guard guard(lock_);
  if (status reserved = reserve(); !reserved.ok()) return reserved;
  if (bytes > capacity_ - used_) {
    return status(errc::out_of_memory, fmt::format("host:0: allocate {} bytes: {} of {} are in use", bytes, used_, capacity_));
  }
  const auto offset = take_addresses(bytes);
  if (!offset) return offset.error();
  used_ += bytes;
  return static_cast<void*>(region_.load(std::memory_order_relaxed) + *offset);
}

result<std::uint64_t> host_memory::take_addresses(std::uint64_t bytes) {
  const std::uint64_t footprint = footprint_of(bytes);
  const auto gap = std::find_if(free_.begin(), free_.end(), [&](const auto& range) { return range.second >= footprint; });
  if (gap == free_.end()) return status(errc::out_of_memory, fmt::format("host:0: allocate {} bytes: no gap is that large", bytes));
  const auto [offset, length] = *gap;
  live_.emplace(offset, bytes);  // the only step that may run out of memory
  auto rest = free_.extract(gap);
  if (length > footprint) {
    rest.key() = offset + footprint;
    rest.mapped() = length - footprint;
    free_.insert(std::move(rest));
  }
  return offset;
}

status host_memory::release(void* base) {
  ranges::node_type range;
  {
    const std::lock_guard guard(lock_);
    if (contains(base)) range = live_.extract(static_cast<std::uint64_t>(static_cast<std::byte*>(base) - region_.load()));
    if (range.empty()) return {errc::bad_memory, fmt::format("host:0: free {}: not the start of an allocation", base)};
    const auto imported = imported_.extract(range.key());
    if (imported.empty()) {
      used_ -= range.mapped();
    } else {
      ::munmap(imported.mapped().pages, imported.mapped().pages_bytes);
    }
    range.mapped() = footprint_of(range.mapped());
  }
  // At this point the range is neither live nor free, so its pages can be freed without the lock. A failure costs memory, not correctness.
  const std::uint64_t first = sys::page_up(range.key());
  const std::uint64_t last = sys::page_down(range.key() + range.mapped());
  if (first < last) (void)::madvise(bytes_ + first, last - first, MADV_REMOVE);
  const std::lock_guard guard(lock_);
  give_back(std::move(range));
  return {};
}

// Merges the range with its neighbours. Allocates nothing, because it reuses the range's own map node.
void host_memory::give_back(ranges::node_type range) {
  const auto after = free_.lower_bound(range.key());
  if (after != free_.end() && after->first == range.key() + range.mapped()) {
    range.mapped() += after->second;
    free_.erase(after);
  }
  const auto at = free_.insert(std::move(range)).position;
  if (at == free_.begin()) return;
  const auto before = std::prev(at);
  if (before->first + before->second != at->first) return;
  before->second += at->second;
  free_.erase(at);
}

bool host_memory::contains(const void* address) const noexcept {
  const std::byte* region = region_.load(std::memory_order_acquire);
  return region != nullptr && address >= region && address < region + region_bytes_;
}

result<host_memory::allocation> host_memory::find(const void* address) const {
  if (contains(address)) {
    std::byte* region = region_.load(std::memory_order_relaxed);
    const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - region);
    const std::lock_guard guard(lock_);
    auto found = live_.upper_bound(offset);
    if (found != live_.begin() && offset - std::prev(found)->first < std::prev(found)->second) {
      --found;
      return allocation{region + found->first, found->second};
    }
  }
  return status(errc::bad_memory, fmt::format("host:0: {} is not in a live allocation", address));
}

result<std::byte*> host_memory::bytes_of(const void* address, std::uint64_t length) const {
  const auto found = find(address);
  if (!found) return found.error();
  const auto into = static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - found->base);
  if (length > found->bytes - into) {
    return status(errc::bad_memory, fmt::format("host:0: {} bytes at {} extend past the end of an allocation of {} bytes at {}", length,
                                                address, found->bytes, static_cast<void*>(found->base)));
  }
  const auto* const region = region_.load(std::memory_order_relaxed);
  {
    const std::lock_guard guard(lock_);
    const auto imported = imported_.find(static_cast<std::uint64_t>(found->base - region));
    if (imported != imported_.end()) return imported->second.content + into;
  }
  return bytes_ + (static_cast<const std::byte*>(address) - region);
}

// A handle contains the position of the allocation in the underlying file, and identifies that file.
result<host_memory::shared> host_memory::share(const void* address) {
  const auto found = find(address);
  if (!found) return found.error();
  struct stat file {};
  const std::lock_guard guard(lock_);
  const auto offset = static_cast<std::uint64_t>(found->base - region_.load(std::memory_order_relaxed));
  if (descriptor_ < 0 || imported_.count(offset) > 0 || ::fstat(descriptor_, &file) != 0) {
    return status(errc::unsupported, "host:0: this memory has no file that another process could open");
  }
  const auto into = static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - found->base);
  return shared{fmt::format("host {} {} {} {}", descriptor_, file.st_ino, offset, found->bytes), into, found->bytes - into};
}

result<sys::owned_descriptor> host_memory::export_shared(const void* address) {
  if (const auto found = find(address); !found) return found.error();
  const std::lock_guard guard(lock_);
  sys::owned_descriptor made(::fcntl(descriptor_, F_DUPFD_CLOEXEC, 0));
  if (made.get() < 0) return status::from_errno(errno, "host:0: duplicate the descriptor of the memory");
  return made;
}

// passed: the file's descriptor. If it is -1, opens the file through the other process, which requires ptrace(2) access.
result<void*> host_memory::import_shared(std::string_view handle, std::int64_t process, int passed) {
  int descriptor = -1;
  unsigned long long inode = 0;
  unsigned long long offset = 0;
  unsigned long long bytes = 0;
  constexpr auto most = largest_region_bytes;
  if (std::sscanf(std::string(handle).c_str(), "host %d %llu %llu %llu", &descriptor, &inode, &offset, &bytes) != 4 || bytes == 0 ||
      bytes > most || offset > most) {
    return status(errc::unsupported, "host:0: this is not a handle of a host device");
  }
  const auto path = passed < 0 ? fmt::format("/proc/{}/fd/{}", process, descriptor) : std::string("the received descriptor");
  const int opened = passed < 0 ? ::open(path.c_str(), O_RDWR | O_CLOEXEC) : ::fcntl(passed, F_DUPFD_CLOEXEC, 0);
  if (opened < 0) return status::from_errno(errno, fmt::format("host:0: open {}, memory of another process", path));
  const std::uint64_t skip = offset % sys::page_size();
  struct stat file {};
  void* pages = MAP_FAILED;
  const bool is_it = ::fstat(opened, &file) == 0 && file.st_ino == inode && static_cast<std::uint64_t>(file.st_size) >= offset + bytes;
  if (is_it) pages = ::mmap(nullptr, bytes + skip, PROT_READ | PROT_WRITE, MAP_SHARED, opened, static_cast<off_t>(offset - skip));
  const int error = errno;
  ::close(opened);
  if (!is_it) return status(errc::bad_memory, fmt::format("host:0: {} is not the memory that was shared", path));
  if (pages == MAP_FAILED) return status::from_errno(error, fmt::format("host:0: map {} bytes of another process", bytes));
  const std::lock_guard guard(lock_);
  auto taken = or_no_memory([&]() -> result<std::uint64_t> {
    if (auto reserved = reserve(); !reserved.ok()) return reserved;
    auto at = take_addresses(bytes);
    if (at) imported_[*at] = {pages, bytes + skip, static_cast<std::byte*>(pages) + skip};
    return at;
  });
  if (!taken) {
    ::munmap(pages, bytes + skip);
    return taken.error();
  }
  return static_cast<void*>(region_.load(std::memory_order_relaxed) + *taken);
}

}  // namespace penstock::device
