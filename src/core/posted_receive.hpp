// The next message and then its tensors, as one operation.
#pragma once

#include <memory>
#include <mutex>
#include <utility>

#include "core/operation.hpp"
#include "penstock/pipe.hpp"

namespace penstock::core {

class posted_receive final : public operation {
 public:
  posted_receive(std::shared_ptr<core::runtime> with, incoming_message& into, pipe_room room, const pipe_operation_options& options)
      : operation(std::move(with)), into_(into), room_(std::move(room)), options_(options) {}
  // Once.
  void begin(const penstock::pipe& from);
  void end_queued() override;

 private:
  ~posted_receive() override = default;
  void come(const io_result& outcome) noexcept;
  template <class Start>
  void go_on(Start start);

  incoming_message& into_;
  const pipe_room room_;
  const pipe_operation_options options_;
  std::recursive_mutex lock_;      // guards what follows; held while its operation is cancelled, whose callback may run in that call
  penstock::operation under_way_;  // next(), then receive()
  bool stopped_ = false;
};

}  // namespace penstock::core
