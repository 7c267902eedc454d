// Waits for the next message and receives its tensors, as one operation.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "penstock/pipe.hpp"
#include "pipe/session.hpp"

namespace penstock::pipes {

class posted_receive final : public polled_operation {
 public:
  // If room is set, it returns the targets for the tensors; otherwise they are in targets.
  posted_receive(std::shared_ptr<session> from, incoming_message& into, pipe_room room, std::vector<incoming_target> targets,
                 const pipe_operation_options& options)
      : polled_operation(from, from->runtime()),
        from_(std::move(from)),
        into_(into),
        room_(std::move(room)),
        targets_(std::move(targets)),
        options_(options) {}
  // Call once.
  void begin();
  void end_queued() override;

 private:
  // awaits: waiting for the message. receives: receiving its tensors.
  enum class stage : std::uint8_t { made, awaits, receives };

  ~posted_receive() override = default;
  void come(const io_result& outcome) noexcept;
  template <class Start>
  void go_on(stage next, Start start);

  const std::shared_ptr<session> from_;
  incoming_message& into_;
  const pipe_room room_;
  std::vector<incoming_target> targets_;
  const pipe_operation_options options_;
  std::recursive_mutex lock_;      // guards the members below; held while cancelling the operation, whose callback may run in that call
  penstock::operation under_way_;  // the current stage's operation
  stage at_ = stage::made;
  bool stopped_ = false;
};

}  // namespace penstock::pipes
