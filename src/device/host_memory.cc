#include "device/host_memory.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>

namespace penstock::device {
namespace {

constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t to) { return (value + to - 1) / to * to; }

// Addresses that an allocation takes up.
constexpr std::uint64_t footprint_of(std::uint64_t bytes) { return round_up(bytes, host_memory::granule_bytes) + host_memory::guard_bytes; }

std::uint64_t physical_memory() {
  return static_cast<std::uint64_t>(std::max(::sysconf(_SC_PHYS_PAGES), 0L)) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Making a memfd larger than RLIMIT_FSIZE would raise SIGXFSZ.
std::uint64_t largest_file() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return host_memory::largest_region_bytes;
  return limit.rlim_cur / host_memory::granule_bytes * host_memory::granule_bytes;
}

}  // namespace

host_memory::~host_memory() {
  std::byte* region = region_.load();
  if (region == nullptr) return;
  ::munmap(region, region_bytes_);
  ::munmap(bytes_, region_bytes_);
  ::close(descriptor_);
}

status host_memory::reserve() {
  if (region_.load(std::memory_order_relaxed) != nullptr) return {};
  status refused(errc::out_of_memory, "host device: RLIMIT_FSIZE leaves no room for its memory");
  for (std::uint64_t bytes = std::min(largest_region_bytes, largest_file()); bytes >= smallest_region_bytes; bytes /= 2) {
    refused = map_region(round_up(bytes, granule_bytes));
    if (refused.ok()) return refused;
  }
  return refused;
}

status host_memory::map_region(std::uint64_t bytes) {
  // memfd pages are accounted when touched, also where overcommitting is forbidden.
  const int descriptor = ::memfd_create("penstock-host-device", MFD_CLOEXEC);
  if (descriptor < 0) return status::from_errno(errno, "host device: memfd_create");
  status taken = take_region(descriptor, bytes);
  if (!taken.ok()) ::close(descriptor);
  return taken;
}

status host_memory::take_region(int descriptor, std::uint64_t bytes) {
  if (::ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    return status::from_errno(errno, fmt::format("host device: size its memfd to {}", bytes));
  }
  void* region = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (region == MAP_FAILED) return status::from_errno(errno, fmt::format("host device: reserve {} bytes of addresses", bytes));
  void* content = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, descriptor, 0);
  if (content == MAP_FAILED) {
    const int error = errno;
    ::munmap(region, bytes);
    return status::from_errno(error, fmt::format("host device: map {} bytes", bytes));
  }
  region_bytes_ = bytes;
  capacity_ = std::min(physical_memory() / 4 * 3, bytes);
  bytes_ = static_cast<std::byte*>(content);
  descriptor_ = descriptor;
  free_.emplace(0, bytes);
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
  const std::uint64_t footprint = footprint_of(bytes);
  const auto gap = std::find_if(free_.begin(), free_.end(), [&](const auto& range) { return range.second >= footprint; });
  if (gap == free_.end()) return status(errc::out_of_memory, fmt::format("host:0: allocate {} bytes: no gap is that large", bytes));
  const auto [offset, length] = *gap;
  free_.erase(gap);
  if (length > footprint) free_.emplace(offset + footprint, length - footprint);
  live_.emplace(offset, bytes);
  used_ += bytes;
  return static_cast<void*>(region_.load(std::memory_order_relaxed) + offset);
}

status host_memory::release(void* base) {
  std::uint64_t offset = 0;
  std::uint64_t footprint = 0;
  {
    const std::lock_guard guard(lock_);
    offset = contains(base) ? static_cast<std::uint64_t>(static_cast<std::byte*>(base) - region_.load()) : 0;
    const auto found = contains(base) ? live_.find(offset) : live_.end();
    if (found == live_.end()) return {errc::bad_memory, fmt::format("host:0: free {}: not the start of an allocation", base)};
    footprint = footprint_of(found->second);
    used_ -= found->second;
    live_.erase(found);
  }
  // In between the range is neither live nor free, so the pages can go without the lock. A failure costs memory, not correctness.
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t first = round_up(offset, page);
  const std::uint64_t last = (offset + footprint) / page * page;
  if (first < last) {
    (void)::fallocate(descriptor_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first), static_cast<off_t>(last - first));
  }
  const std::lock_guard guard(lock_);
  give_back(offset, footprint);
  return {};
}

void host_memory::give_back(std::uint64_t offset, std::uint64_t footprint) {
  auto after = free_.lower_bound(offset);
  if (after != free_.end() && after->first == offset + footprint) {
    footprint += after->second;
    after = free_.erase(after);
  }
  if (after != free_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == offset) {
      before->second += footprint;
      return;
    }
  }
  free_.emplace(offset, footprint);
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
  return status(errc::bad_memory, fmt::format("host:0: {} lies in no live allocation", address));
}

result<std::byte*> host_memory::bytes_of(const void* address, std::uint64_t length) const {
  const auto found = find(address);
  if (!found) return found.error();
  const auto into = static_cast<std::uint64_t>(static_cast<const std::byte*>(address) - found->base);
  if (length > found->bytes - into) {
    return status(errc::bad_memory, fmt::format("host:0: {} bytes at {} go past the end of an allocation of {} bytes at {}", length,
                                                address, found->bytes, static_cast<void*>(found->base)));
  }
  return bytes_ + (static_cast<const std::byte*>(address) - region_.load(std::memory_order_relaxed));
}

}  // namespace penstock::device
