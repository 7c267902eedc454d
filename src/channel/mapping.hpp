// The carrier for tensors between devices of two processes on one host. Each process maps the other's memory: the receiver's device copies
// from the sender's memory or, if the receiver has posted its targets beforehand, the sender's device writes into them.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "channel/carrier.hpp"
#include "channel/imports.hpp"
#include "channel/imports_ahead.hpp"
#include "channel/permit.hpp"
#include "core/deadlines.hpp"
#include "sys/peer.hpp"

namespace penstock::channel {

class mapping final : public carrier, public pusher {
 public:
  using carrier::carrier;
  ~mapping() override;

  void agreed(const agreement& on) override;
  // --- copies from the sender's memory
  std::optional<std::string> take(incoming& message, std::size_t tensor) override;
  delivery& delivery_of(incoming& message) override;
  void has_come(const announcement& facts) override;
  void prepare(outgoing& message, bool in_time) noexcept override;
  std::shared_ptr<void> announce(outgoing& message, std::vector<tensor_facts>& told, endings& ended) override;
  // --- writes into the receiver's memory: the receiver
  [[nodiscard]] pusher* as_pusher() noexcept override { return this; }
  std::unique_ptr<posting> prepare_posting(const std::vector<incoming_target>& targets) noexcept override;
  bool poll() noexcept override;
  void lost(const status& why, endings& ended) override;
  // Checks whether the writes of a disconnected sender are complete.
  void look_at_pushes() noexcept;
  // --- writes into the receiver's memory: the sender
  void in_time(outgoing& message) noexcept override { (void)prepare_push(message); }
  std::uint32_t push(outgoing& message, std::uint64_t place, endings& ended) override;

  result<frame_room> begins(const frame_head& head) override;
  status arrived(const frame_head& head, std::span<const std::byte> body) override;
  void close() noexcept override { imports_->clear(); }

 private:
  enum own_kind : std::uint8_t {
    posted = 1,  // message: number of the message whose tensors may be pushed. code: the permit, part: its turn. Body: an
                 // announcement whose tensors are the targets
    pushed,      // message: its tensors are in their targets, or code and body: why not. Nothing is written there after this
  };
  // The descriptor for a part of a tensor, not yet passed to the peer.
  struct exported_part {
    std::size_t tensor;
    std::size_t part;
    sys::owned_descriptor by;
  };
  // Targets that the peer has posted.
  struct push_targets {
    std::vector<tensor_facts> tensors;
    std::uint32_t slot = 0;  // the permit's
    std::uint32_t turn = 0;
  };
  struct given_targets;
  struct pushed_part;
  class leaving;
  class watch;

  void share(tensor_facts& told, std::size_t tensor, std::vector<exported_part>& exports, device::session& session, const void* memory,
             bool& told_why);
  void share_all(outgoing& message, leaving& of);
  std::shared_ptr<void> pass(std::vector<tensor_facts>& told, std::vector<exported_part>& exports);
  [[nodiscard]] bool watches_process() noexcept;
  [[nodiscard]] permit permit_of(const push_targets& to) const noexcept { return owner_.over()->permit_of_other(to.slot, to.turn); }
  [[nodiscard]] staging::link* likely_sender(bool emulated) noexcept;
  bool prepare_push(outgoing& message) noexcept;
  void pin_permits(device::session& session, bool emulated) noexcept;
  bool ends_of_pushes() noexcept;
  void copied(pushed_part& part, const status& outcome) noexcept;
  // --- with the lock held
  void post(given_targets& where, std::uint64_t place);
  [[nodiscard]] std::shared_ptr<const push_targets> targets_for(const outgoing& message) const;
  status told_of_targets(const frame_head& head, std::span<const std::byte> body);
  void map_ahead(const std::shared_ptr<const push_targets>& to) noexcept;
  void told_of_push(const frame_head& head, std::span<const std::byte> body, endings& ended);
  void has_been_written(given_targets& where, const status& outcome, endings& ended);

  const std::shared_ptr<pipe_imports> imports_ = std::make_shared<pipe_imports>();
  const std::shared_ptr<imports_ahead> ahead_ = std::make_shared<imports_ahead>(with_.staging->mapper(), imports_);
  std::array<std::atomic<staging::link*>, 2> sent_from_{};  // the last links used, for GPUs and for the host device
  std::atomic<bool> shares_{true};                          // the peer can use handles of device memory, as far as known
  std::atomic<bool> may_be_pushed_{false};                  // the peer may push
  std::array<std::once_flag, 2> permits_tried_;             // for GPUs, and for the host device
  std::array<std::atomic<device::session*>, 2> pinned_permits_{};
  std::atomic<std::size_t> pushes_here_{0};  // messages being pushed by the peer
  std::atomic<bool> pushes_lost_{false};     // their completion will not be reported by the peer
  std::once_flag process_tried_;
  sys::owned_descriptor process_;  // the peer's process, watched

  // --- with the lock held
  // Allocations whose descriptors the peer has received, latest last.
  std::set<std::pair<std::string, std::uint64_t>> passed_;
  std::deque<std::pair<std::string, std::uint64_t>> passed_in_order_;
  // Descriptors passed ahead of frames that have not been sent yet.
  const std::shared_ptr<std::atomic<std::uint32_t>> passed_ahead_ = std::make_shared<std::atomic<std::uint32_t>>(0);
  std::map<std::uint64_t, std::shared_ptr<const push_targets>>
      postings_;                             // posted by the peer, by number of the message that will use them
  std::uint64_t announced_so_far_ = 0;       // local messages
  std::vector<std::uint32_t> free_permits_;  // local permits
  std::array<std::uint32_t, permit::count> permit_turns_{};
  std::vector<given_targets*> being_pushed_;  // targets that the peer may be writing to
  core::timed* watch_ = nullptr;              // checks whether the peer still writes after it has disconnected
  bool watches_ = false;                      // watch_ will check again
};

}  // namespace penstock::channel
