// Host memory of the receiver into which the sender's device writes if both processes are on one host. If no device can read the other's
// memory, a tensor then takes two device copies and no CPU copy. Each pipe has its own inbox and frees it when it closes, so late writes by
// a disconnected sender do no harm. Thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "device/device.hpp"
#include "staging/landing.hpp"
#include "staging/slab_pool.hpp"
#include "sys/peer.hpp"

namespace penstock::channel {

// Mapped memory that devices can reach too.
class pinned_region {
 public:
  explicit pinned_region(sys::shared_region memory) noexcept : memory_(std::move(memory)) {}
  pinned_region(const pinned_region&) = delete;
  pinned_region& operator=(const pinned_region&) = delete;
  ~pinned_region();
  // Pins the memory for the devices of the session's driver. The first call takes milliseconds. Returns false if the devices cannot use it.
  bool pin_for(const staging::link& via);
  [[nodiscard]] bool pinned_for(const staging::link& via) const noexcept { return by_[kind_of(via)].load() != nullptr; }
  [[nodiscard]] std::byte* data() const noexcept { return memory_.data(); }

 private:
  static std::size_t kind_of(const staging::link& via) noexcept { return via.emulated() ? 1 : 0; }

  const sys::shared_region memory_;
  std::mutex pinning_;
  std::array<bool, 2> tried_{};                        // guarded by pinning_
  std::array<std::atomic<device::session*>, 2> by_{};  // by driver
};

class pipe_inbox : public std::enable_shared_from_this<pipe_inbox> {
 public:
  static constexpr std::size_t slot_bytes = staging::landing::piece_bytes;
  static constexpr std::uint32_t slots = 12;
  static constexpr std::size_t bytes = slots * slot_bytes;

  // A slot of the inbox, in use until its last holder releases it.
  struct lent_slot {
    staging::landing::lease memory;
    std::uint32_t number = 0;
  };

  // budget: shared by all inboxes of the engine. Returns null if it is used up, or if no memory can be shared.
  static std::shared_ptr<pipe_inbox> make(sys::peer& door, staging::pinned_budget& budget, sys::owned_descriptor& by);
  pipe_inbox(sys::shared_region memory, staging::pinned_budget& budget) : budget_(budget), region_(std::move(memory)) {}
  pipe_inbox(const pipe_inbox&) = delete;
  pipe_inbox& operator=(const pipe_inbox&) = delete;
  ~pipe_inbox() { budget_.release(bytes); }

  [[nodiscard]] pinned_region& region() noexcept { return region_; }
  // Lends a slot to the peer, which must report either that it has written there or that it will not.
  std::optional<lent_slot> lend();
  // Returns false if no reply was expected.
  bool answered(std::uint32_t number);

 private:
  void let_go(std::uint32_t number) noexcept;

  staging::pinned_budget& budget_;
  pinned_region region_;
  std::mutex lock_;                 // guards the members below
  std::array<bool, slots> held_{};  // in use locally
  std::array<bool, slots> unanswered_{};
};

}  // namespace penstock::channel
