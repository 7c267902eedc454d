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
      : session_(session), feeder_(feeder), pool_(pool), emulated_(emulated) {}
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
  // The calling thread's stream for copies that it waits for; shared where there are many threads.
  result<device::stream> small_stream();

 private:
  device::session& session_;
  staging::feeder& feeder_;
  slab_pool& pool_;
  const bool emulated_;
  int numa_node_ = -1;
  std::array<std::atomic<device::stream>, 16> small_streams_{};  // made when first asked for
};

struct place {
  device::memory_type type = device::memory_type::host;
  link* via = nullptr;  // null for host memory
  [[nodiscard]] bool on_device() const noexcept { return type == device::memory_type::device; }
  [[nodiscard]] bool emulated() const noexcept { return via != nullptr && via->emulated(); }
};

}  // namespace penstock::staging
