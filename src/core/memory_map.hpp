// What a pointer is: the place of a range, the links that are in use, and the ranges that the user has registered. Thread-safe.
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
#include "penstock/facts.hpp"
#include "staging/feeder.hpp"
#include "staging/link.hpp"
#include "staging/slab_pool.hpp"
#include "sys/fork_guard.hpp"
#include "sys/kernel.hpp"

namespace penstock::core {

// The allocation that the last of several ranges was found in: of its neighbours there the driver is not asked again
// (cuPointerGetAttributes: half a microsecond). For ranges that are placed one right after the other, since an allocation may go.
struct seen_allocation {
  const std::byte* base = nullptr;
  std::uint64_t size = 0;
  staging::place place;
  [[nodiscard]] bool holds(const void* memory, std::uint64_t length) const noexcept {
    const auto skip = static_cast<std::uint64_t>(static_cast<const std::byte*>(memory) - base);  // huge where memory lies below
    return skip < size && length <= size - skip;
  }
};

// As in device_info::name. kind: device::driver::kind().
std::string device_name(std::string_view kind, int ordinal);
// Of the device that it is on, or "host": as in request_info::device.
std::string name_of(const staging::place& place);

class memory_map {
 public:
  // Drivers may be null: there are no such devices then.
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

  // The link into the device of that name, in use from here on. Errors: of session_named(), out_of_memory.
  result<staging::link*> link_named(std::string_view device);
  // The context of a GPU that is current on the calling thread, in a process that uses CUDA already; and the link there, in use from then
  // on, which any thread may ask for.
  [[nodiscard]] std::optional<device::driver::current_context> current_context();
  result<staging::link*> link_to_context(const device::driver::current_context& of);
  // Where a range lies, and that all of it does. seen: of the range before this one, if any. Errors: bad_memory.
  result<staging::place> place_of(const void* memory, std::uint64_t length, seen_allocation* seen = nullptr);
  // The allocation that memory lies in; base null: memory of the host that no device knows. Counts as no use of a registration.
  result<device::memory_info> allocation_of(const void* memory);
  // Memory of the device of that name (device_info::name), for questions; "" and "host": of the host. Makes no context on a GPU, so there
  // is no link to one that is not in use yet. Errors: of session_named().
  result<staging::place> place_on(std::string_view device);

  // One for each driver that has a link in use; null where it has none. GPUs, then the host device.
  [[nodiscard]] std::array<staging::link*, 2> links_in_use();
  // Of GPUs, or of the host device. Null: none is in use, or several are.
  [[nodiscard]] staging::link* only_link_in_use(bool emulated) noexcept;

  // The user keeps this range until unregister_range(): its place is found at once, and host memory is pinned.
  result<staging::place> register_range(void* memory, std::size_t bytes);
  // What it took to begin this registration.
  void note_cost(const void* memory, std::int64_t nanoseconds);
  // How many requests it served, and what it took to begin. Nothing where there was none.
  struct registration_facts {
    std::uint64_t served = 0;
    std::int64_t cost_ns = 0;
  };
  std::optional<registration_facts> unregister_range(void* memory);

  // Gives the link further ways in: over devices of its driver whose copies to it go straight, of those in use (wanted: 0) or of any, until
  // there are so many. Returns how many there are. Thread-safe.
  std::uint32_t find_neighbours(staging::link& of, std::size_t wanted);

  // --- what the public engine offers under these names
  result<memory_facts> describe(const void* memory);
  std::vector<device_info> devices();
  status cuda_status();
  result<void*> allocate(std::string_view device, std::size_t bytes);
  void release(std::string_view device, void* memory);
  status copy(void* target, const void* source, std::size_t bytes);
  result<void*> cpu_address(const void* memory, std::size_t bytes);

 private:
  // A context of a device, and the link that leads there.
  struct known_context {
    device::driver* driver = nullptr;
    int ordinal = -1;
    void* context = nullptr;
    std::optional<staging::link> link;
    std::uint64_t asked_neighbours = 0;  // ordinals, as bits; with neighbours_lock_
  };
  struct registered_range {
    std::size_t length;
    staging::place place;
    device::session* pinned_by = nullptr;  // host memory; null: not pinned, for want of a GPU in use
    std::uint64_t served = 0;              // ranges that were found in it
    std::int64_t cost_ns = 0;
  };

  [[nodiscard]] status usable() const;
  result<std::pair<device::driver*, device::memory_info>> classify(const void* memory);
  int node_of(device::driver& driver, int ordinal);
  result<staging::link*> link_to(device::driver& driver, int ordinal, void* context);
  // The first; ordinal: -1 for any device of the driver. Null: none is in use.
  [[nodiscard]] staging::link* link_in_use(const device::driver& driver, int ordinal);
  [[nodiscard]] staging::link* gpu_link_in_use() { return cuda_ == nullptr ? nullptr : link_in_use(*cuda_, -1); }
  // Errors: invalid_argument or not_found, with the names that there are; or why there are no such devices.
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
  std::mutex neighbours_lock_;  // held while neighbours are found, which asks the driver
  spin_lock contexts_lock_;     // guards additions to contexts_
  std::array<known_context, staging::feeders::capacity> contexts_;
  std::atomic<std::size_t> context_count_{0};
  std::mutex registered_lock_;                                    // guards registered_; held while memory is pinned, which asks the driver
  std::multimap<const std::byte*, registered_range> registered_;  // by base
  std::atomic<std::size_t> registered_count_{0};
};

}  // namespace penstock::core
