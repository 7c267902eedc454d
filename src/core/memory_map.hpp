// Classifies pointers: finds the device that holds a memory range. Also keeps the links in use and the ranges that the user has registered.
// Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/spin_lock.hpp"
#include "device/device.hpp"
#include "penstock/detail/shared_memory.hpp"
#include "penstock/facts.hpp"
#include "staging/feeder.hpp"
#include "staging/link.hpp"
#include "staging/slab_pool.hpp"
#include "sys/fork_guard.hpp"
#include "sys/kernel.hpp"

namespace penstock::core {

// The allocation that contained the last of several ranges. Further ranges in the same allocation need no driver call
// (cuPointerGetAttributes takes half a microsecond). Use it only for ranges that are classified in immediate succession: the allocation
// could be freed in between.
struct seen_allocation {
  const std::byte* base = nullptr;
  std::uint64_t size = 0;
  staging::place place;
  [[nodiscard]] bool holds(const void* memory, std::uint64_t length) const noexcept {
    const auto skip = static_cast<std::uint64_t>(static_cast<const std::byte*>(memory) - base);  // huge if memory is below base
    return skip < size && length <= size - skip;
  }
};

// Returns a name in the format of device_info::name. kind: device::driver::kind().
std::string device_name(std::string_view kind, int ordinal);
// Returns the name of the device that holds the memory, or "host", in the format of request_info::device.
std::string name_of(const staging::place& place);

class memory_map {
 public:
  // A null driver means that no devices of its kind exist.
  memory_map(std::shared_ptr<device::driver> cuda, std::shared_ptr<device::driver> host, sys::kernel& kernel, staging::feeders& feeders,
             staging::slab_pool& cuda_pool, staging::slab_pool& host_pool, const sys::fork_guard& fork)
      : cuda_(std::move(cuda)),
        host_(std::move(host)),
        kernel_(kernel),
        feeders_(feeders),
        cuda_pool_(cuda_pool),
        host_pool_(host_pool),
        fork_(fork) {}
  memory_map(const memory_map&) = delete;
  memory_map& operator=(const memory_map&) = delete;

  // Returns the link to the named device and marks it as in use. Errors: those of session_named(), out_of_memory.
  result<staging::link*> link_named(std::string_view device);
  // current_context() returns the GPU context that is current on the calling thread, or nullopt if the process does not use CUDA yet.
  // link_to_context() returns its link and marks it as in use; any thread may call it.
  [[nodiscard]] std::optional<device::driver::current_context> current_context();
  result<staging::link*> link_to_context(const device::driver::current_context& of);
  // Returns the place of a range and checks that the whole range is there. seen: the allocation of the previous range, if any. Error:
  // bad_memory.
  result<staging::place> place_of(const void* memory, std::uint64_t length, seen_allocation* seen = nullptr);
  // Returns the allocation that contains memory. base is null for host memory unknown to all drivers. Does not count as a use of a
  // registration.
  result<device::memory_info> allocation_of(const void* memory);
  // Returns the place of memory on the named device (device_info::name), for queries only. "" and "host" mean host memory. Creates no GPU
  // context, so a GPU that is not in use yet has no link. Errors: those of session_named().
  result<staging::place> place_on(std::string_view device);

  // Returns one link in use per driver, or null if the driver has none: first GPUs, then the host device.
  [[nodiscard]] std::array<staging::link*, 2> links_in_use();
  // Returns the only link in use to a GPU, or to the host device (emulated). Returns null if none or several are in use.
  [[nodiscard]] staging::link* only_link_in_use(bool emulated) noexcept;

  // Registers a range until unregister_range(). Its place is then found without a search, and host memory is pinned.
  result<staging::place> register_range(void* memory, std::size_t bytes);
  // Records how long the registration took.
  void note_cost(const void* memory, std::int64_t nanoseconds);
  // The number of requests that a registration served, and how long registering took. unregister_range() returns nullopt if the range was
  // not registered.
  struct registration_facts {
    std::uint64_t served = 0;
    std::int64_t cost_ns = 0;
  };
  std::optional<registration_facts> unregister_range(void* memory);
  // Unpins registered host memory, and ends the threads of the host device. wake() pins the memory again.
  void rest() noexcept;
  void wake() noexcept;

  // Adds further routes to the device of a link, over other devices of its driver that can copy to it directly. Uses either devices in use
  // (wanted: 0) or any device, until there are `wanted` routes. Returns the number of routes. Thread-safe.
  std::uint32_t find_neighbours(staging::link& of, std::size_t wanted);

  // --- implement the public engine functions of the same names
  result<memory_facts> describe(const void* memory);
  std::vector<device_info> devices();
  status cuda_status();
  result<void*> allocate(std::string_view device, std::size_t bytes);
  void release(std::string_view device, void* memory);
  status copy(void* target, const void* source, std::size_t bytes);
  result<detail::shared_allocation> share(const void* memory);
  // Returns the base of the mapping.
  result<void*> open_shared(std::string_view device, const detail::shared_allocation& what, std::size_t bytes, std::int64_t process);
  void close_shared(std::string_view device, void* base);
  // Returns the number of mappings from open_shared() that are still open.
  [[nodiscard]] std::size_t opened_shared() const noexcept { return opened_shared_.load(); }
  result<void*> cpu_address(const void* memory, std::size_t bytes);
  status add_to_digest(std::span<const detail::digest_part> parts, std::uint64_t* sums, void* stream);

 private:
  // A context on a device, and the link to it.
  struct known_context {
    device::driver* driver = nullptr;
    int ordinal = -1;
    void* context = nullptr;
    std::optional<staging::link> link;
    std::uint64_t asked_neighbours = 0;  // ordinals, as bits; guarded by neighbours_lock_
  };
  struct registered_range {
    std::size_t length;
    staging::place place;
    device::session* pinned_by = nullptr;  // for host memory; null: not pinned, because no GPU was in use
    std::uint64_t served = 0;              // number of ranges found in it
    std::int64_t cost_ns = 0;
  };

  [[nodiscard]] status usable() const;
  result<std::pair<device::driver*, device::memory_info>> classify(const void* memory);
  int node_of(device::driver& driver, int ordinal);
  result<staging::link*> link_to(device::driver& driver, int ordinal, void* context);
  // Returns the first link in use, or null if there is none. ordinal: -1 for any device of the driver.
  [[nodiscard]] staging::link* link_in_use(const device::driver& driver, int ordinal);
  [[nodiscard]] staging::link* gpu_link_in_use() { return cuda_ == nullptr ? nullptr : link_in_use(*cuda_, -1); }
  // Errors: invalid_argument or not_found. Both list the existing names or say why there are no such devices.
  result<std::pair<device::driver*, int>> device_named(std::string_view device);
  [[nodiscard]] std::string names_of_devices();
  result<device::session*> session_named(std::string_view device);
  status pin_registered(device::session& session);
  status copy_over_host(void* target, const void* source, std::size_t bytes);

  const std::shared_ptr<device::driver> cuda_;
  const std::shared_ptr<device::driver> host_;
  sys::kernel& kernel_;
  staging::feeders& feeders_;
  staging::slab_pool& cuda_pool_;
  staging::slab_pool& host_pool_;
  const sys::fork_guard& fork_;
  std::mutex neighbours_lock_;  // held during the search for neighbours, which calls the driver
  spin_lock contexts_lock_;     // guards additions to contexts_
  std::array<known_context, staging::feeders::capacity> contexts_;
  std::atomic<std::size_t> context_count_{0};
  std::mutex registered_lock_;                                    // guards registered_; held while memory is pinned, which calls the driver
  std::multimap<const std::byte*, registered_range> registered_;  // by base
  std::atomic<std::size_t> registered_count_{0};
  std::atomic<std::size_t> opened_shared_{0};
};

}  // namespace penstock::core
