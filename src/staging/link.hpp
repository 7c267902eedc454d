// A link: one way into one device, and what moves bytes over it. A place: what kind of memory a range lies in, and the link that leads
// there.
#pragma once

#include <array>
#include <atomic>

#include "device/device.hpp"
#include "staging/feeder.hpp"
#include "staging/slab_pool.hpp"

namespace penstock::staging {

// Thread-safe. Outlived by what it is made of.
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
  [[nodiscard]] bool emulated() const noexcept { return emulated_; }  // into the host device
  // Of the device; -1: not known, or the machine has only one. Set before the link is used.
  [[nodiscard]] int numa_node() const noexcept { return numa_node_; }
  void set_numa_node(int node) noexcept { numa_node_ = node; }
  // A further way into the device: over the link of a neighbour, whose memory the bytes pass through, and from there straight. Neighbours
  // outlive this, and are added by one thread at a time; one more than there is room for is left out.
  static constexpr std::size_t most_neighbours = 7;
  void add_neighbour(link& neighbour) noexcept;
  // The link, of this one and so many neighbours, that has least to do; this one where that is as good.
  [[nodiscard]] link& quietest(std::size_t neighbours) noexcept;
  // It failed, and is not chosen again.
  void drop_neighbour(const link& failed) noexcept;
  [[nodiscard]] std::size_t neighbour_count() const noexcept { return neighbour_count_.load(std::memory_order_acquire); }
  // Null: it has been dropped.
  [[nodiscard]] link* neighbour(std::size_t index) const noexcept { return neighbours_[index].load(std::memory_order_acquire); }

  // True for the first who asks: what its first transfers need is made ahead once.
  [[nodiscard]] bool is_first_preparation() noexcept { return !prepared_.exchange(true); }

  // The calling thread's stream for copies that it waits for; shared where there are many threads.
  result<device::stream> small_stream();
  // Copies a little, which is waited for, on such a stream: past the long copies that are under way. The host memory is pinned.
  status copy_little(void* target, const void* source, std::size_t bytes, device::stream on);
  // For as long as it lives long copies over the link may be under way that the feeder does not make.
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
  std::array<std::atomic<device::stream>, 16> small_streams_{};  // made when first asked for
};

struct place {
  device::memory_type type = device::memory_type::host;
  link* via = nullptr;  // null for host memory
  [[nodiscard]] bool on_device() const noexcept { return type == device::memory_type::device; }
  [[nodiscard]] bool emulated() const noexcept { return via != nullptr && via->emulated(); }
  // Whether what the page cache holds is memory that the device lacks.
  [[nodiscard]] bool shares_host_memory() const noexcept { return on_device() && via != nullptr && via->session().shares_host_memory(); }
};

}  // namespace penstock::staging
