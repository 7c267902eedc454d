// A link is one route to one device, with the objects that transfer bytes over it. A place is the kind of memory that contains a range, and
// the link that leads to it.
#pragma once

#include <array>
#include <atomic>

#include "device/device.hpp"
#include "staging/feeder.hpp"
#include "staging/slab_pool.hpp"

namespace penstock::staging {

// Thread-safe. Its session, feeder and pool must outlive it.
class link {
 public:
  link(device::session& session, feeder& feeder, slab_pool& pool, bool emulated)
      : session_(session), feeder_(feeder), pool_(pool), emulated_(emulated) {
    pool_.add_link();
  }
  link(const link&) = delete;
  link& operator=(const link&) = delete;
  ~link();

  [[nodiscard]] device::session& session() const noexcept { return session_; }
  [[nodiscard]] staging::feeder& feeder() const noexcept { return feeder_; }
  [[nodiscard]] slab_pool& pool() const noexcept { return pool_; }
  [[nodiscard]] bool emulated() const noexcept { return emulated_; }  // leads to the host device
  // The device's NUMA node; -1: unknown, or the machine has only one. Set before the link is used.
  [[nodiscard]] int numa_node() const noexcept { return numa_node_; }
  void set_numa_node(int node) noexcept { numa_node_ = node; }
  // Adds another route to the device: over a neighbour's link, through the neighbour's memory, and from there directly. Neighbours must
  // outlive this link. Only one thread at a time may add them. If there is no room, the neighbour is ignored.
  static constexpr std::size_t most_neighbours = 7;
  void add_neighbour(link& neighbour) noexcept;
  // Returns the least busy of this link and its first few neighbours. Prefers this link if it is equally good.
  [[nodiscard]] link& quietest(std::size_t neighbours) noexcept;
  // Removes a neighbour that has failed, so that it is not chosen again.
  void drop_neighbour(const link& failed) noexcept;
  [[nodiscard]] std::size_t neighbour_count() const noexcept { return neighbour_count_.load(std::memory_order_acquire); }
  // Returns null if the neighbour was removed.
  [[nodiscard]] link* neighbour(std::size_t index) const noexcept { return neighbours_[index].load(std::memory_order_acquire); }

  // Returns true on the first call only, because the resources of the first transfers are created in advance only once.
  [[nodiscard]] bool is_first_preparation() noexcept { return !prepared_.exchange(true); }

  // Returns the calling thread's stream for copies that it waits for. If there are many threads, they share streams.
  result<device::stream> small_stream();
  // Makes a small copy on such a stream and waits for it, bypassing the long copies in flight. The host memory must be pinned.
  status copy_little(void* target, const void* source, std::size_t bytes, device::stream on);
  // Marks the link as busy during its lifetime, because long copies not made by the feeder may be in flight.
  class occupation {
   public:
    explicit occupation(link& of) noexcept : of_(of) { of_.occupations_.fetch_add(1, std::memory_order_relaxed); }
    occupation(const occupation&) = delete;
    occupation& operator=(const occupation&) = delete;
    ~occupation() { of_.occupations_.fetch_sub(1, std::memory_order_relaxed); }

   private:
    link& of_;
  };

 private:
  device::session& session_;
  staging::feeder& feeder_;
  slab_pool& pool_;
  const bool emulated_;
  int numa_node_ = -1;
  std::atomic<bool> prepared_{false};
  std::atomic<int> occupations_{0};
  std::array<std::atomic<link*>, most_neighbours> neighbours_{};
  std::atomic<std::size_t> neighbour_count_{0};
  std::array<std::atomic<device::stream>, 16> small_streams_{};  // created on first use
};

struct place {
  device::memory_type type = device::memory_type::host;
  link* via = nullptr;  // null for host memory
  [[nodiscard]] bool on_device() const noexcept { return type == device::memory_type::device; }
  [[nodiscard]] bool emulated() const noexcept { return via != nullptr && via->emulated(); }
  // Returns true if the page cache reduces the memory available to the device, because both share it.
  [[nodiscard]] bool shares_host_memory() const noexcept { return on_device() && via != nullptr && via->session().shares_host_memory(); }
};

}  // namespace penstock::staging
