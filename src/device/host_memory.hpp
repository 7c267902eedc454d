// The memory of the host device: an address space of its own, and the bytes behind it. Callers see addresses of a region that no CPU access
// survives (PROT_NONE), so a layer that touches device memory itself is found out at once; the bytes live in shared memory mapped
// elsewhere, and only this room translates. Owned by the driver; thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "penstock/status.hpp"
#include "sys/peer.hpp"

namespace penstock::device {

class host_memory {
 public:
  // Alignment of allocations, as of cudaMalloc. Smaller than a page on purpose: nothing above may count on more.
  static constexpr std::uint64_t granule_bytes = 512;
  // Unused addresses after each allocation, so that running past an end is always seen.
  static constexpr std::uint64_t guard_bytes = 512;
  static constexpr std::uint64_t largest_region_bytes = std::uint64_t{64} << 30;
  static constexpr std::uint64_t smallest_region_bytes = std::uint64_t{64} << 20;

  struct allocation {
    std::byte* base = nullptr;
    std::uint64_t bytes = 0;
  };

  host_memory() = default;
  host_memory(const host_memory&) = delete;
  host_memory& operator=(const host_memory&) = delete;
  ~host_memory();

  // Contents are undefined. The first call reserves addresses: the largest region, halved until the system grants it (ulimit -v).
  // Errors: invalid_argument (0 bytes), out_of_memory (over capacity, no gap that large, nothing to reserve).
  result<void*> allocate(std::uint64_t bytes);
  // base as allocate() returned it. Gives the pages back to the system. Does not wait for copies under way: they are the caller's mistake.
  // Errors: bad_memory.
  status release(void* base);
  // For import_shared() in another process: the allocation around an address, which lies at the offset in it. Errors: bad_memory,
  // unsupported.
  struct shared {
    std::string handle;
    std::uint64_t offset;
    std::uint64_t length = 0;  // from there to its end
  };
  result<shared> share(const void* address);
  // Addresses of this device behind which another process's allocation lies, until they are released. Errors: unsupported (not a handle),
  // and those of opening the process's memory.
  result<void*> import_shared(std::string_view handle, std::int64_t process, int passed);
  result<sys::owned_descriptor> export_shared(const void* address);
  // Bytes that can be allocated in all: 3/4 of the machine's memory, or of the cgroup's limit; at most the region. Reserves like
  // allocate().
  result<std::uint64_t> capacity();

  // Whether an address is one of this device, allocated or not.
  [[nodiscard]] bool contains(const void* address) const noexcept;
  // The live allocation around an address. Errors: bad_memory.
  result<allocation> find(const void* address) const;
  // Where the CPU finds [address, address+length) when that lies in one live allocation. Errors: bad_memory.
  result<std::byte*> bytes_of(const void* address, std::uint64_t length) const;

 private:
  status reserve();
  using ranges = std::map<std::uint64_t, std::uint64_t>;
  struct mapping {
    void* pages;
    std::uint64_t pages_bytes;
    std::byte* content;
  };

  result<std::uint64_t> take_addresses(std::uint64_t bytes);  // with the lock: their offset
  status map_region(std::uint64_t bytes);
  void give_back(ranges::node_type range);

  mutable std::mutex lock_;                  // guards everything but the atomic and what is fixed once it is set
  std::atomic<std::byte*> region_{nullptr};  // released after the next four were written
  std::uint64_t region_bytes_ = 0;
  std::uint64_t capacity_ = 0;
  std::byte* bytes_ = nullptr;
  int descriptor_ = -1;  // of the file behind bytes_; -1: there is none

  std::map<std::uint64_t, mapping> imported_;  // by offset in the region, of those live ranges that are another process's
  ranges live_;                                // offset in the region -> bytes asked for
  ranges free_;                                // offset -> bytes; neighbours are joined
  std::uint64_t used_ = 0;
};

}  // namespace penstock::device
