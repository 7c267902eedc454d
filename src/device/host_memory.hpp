// The memory of the host devices. Callers see addresses in an inaccessible region (PROT_NONE), so code that accesses device memory directly
// fails at once. The bytes are in shared memory mapped elsewhere, and only this class translates addresses. Owned by the driver;
// thread-safe.
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
  // Alignment of allocations, the same as for cudaMalloc. Deliberately smaller than a page, so that no code relies on more.
  static constexpr std::uint64_t granule_bytes = 512;
  // Unused addresses after each allocation, so that an overrun is always detected.
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

  // Contents are undefined. The first call reserves addresses: it starts with the largest region and halves it until the system grants it
  // (ulimit -v). Errors: invalid_argument (0 bytes), out_of_memory (over capacity, no gap that large, or no addresses to reserve).
  result<void*> allocate(std::uint64_t bytes);
  // base must come from allocate(). Returns the pages to the system. Does not wait for copies in flight; if there are any, the caller made
  // a mistake. Errors: bad_memory.
  status release(void* base);
  // Describes the allocation that contains an address, for import_shared() in another process. `offset` is the position of the address in
  // it. Errors: bad_memory, unsupported.
  struct shared {
    std::string handle;
    std::uint64_t offset;
    std::uint64_t length = 0;  // from there to the end of the allocation
  };
  result<shared> share(const void* address);
  // Maps another process's allocation at addresses of this device until they are released. Errors: unsupported (not a handle), and those
  // from opening the process's memory.
  result<void*> import_shared(std::string_view handle, std::int64_t process, int passed);
  result<sys::owned_descriptor> export_shared(const void* address);
  // Returns the total number of bytes that can be allocated: 3/4 of the machine's memory or of the cgroup's limit, but at most the size of
  // the region. Reserves addresses as allocate() does.
  result<std::uint64_t> capacity();

  // Returns true if an address belongs to these devices, allocated or not.
  [[nodiscard]] bool contains(const void* address) const noexcept;
  // Returns the live allocation that contains an address. Errors: bad_memory.
  result<allocation> find(const void* address) const;
  // Returns the CPU address of [address, address+length), which must be in one live allocation. Errors: bad_memory.
  result<std::byte*> bytes_of(const void* address, std::uint64_t length) const;

 private:
  status reserve();
  using ranges = std::map<std::uint64_t, std::uint64_t>;
  struct mapping {
    void* pages;
    std::uint64_t pages_bytes;
    std::byte* content;
  };

  result<std::uint64_t> take_addresses(std::uint64_t bytes);  // with the lock held; returns their offset
  status map_region(std::uint64_t bytes);
  void give_back(ranges::node_type range);

  mutable std::mutex lock_;                  // guards everything except the atomic and members that never change once set
  std::atomic<std::byte*> region_{nullptr};  // set (release) after the next four were written
  std::uint64_t region_bytes_ = 0;
  std::uint64_t capacity_ = 0;
  std::byte* bytes_ = nullptr;
  int descriptor_ = -1;  // of the file that contains the bytes; -1: none

  std::map<std::uint64_t, mapping> imported_;  // live ranges from other processes, by offset in the region
  ranges live_;                                // offset in the region -> requested bytes
  ranges free_;                                // offset -> bytes; adjacent ranges are merged
  std::uint64_t used_ = 0;
};

}  // namespace penstock::device
