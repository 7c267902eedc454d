// Reads a tensor, or a part of one, from a source into device memory, in the order of the target's stream. It is one part of its message,
// and completes once the bytes are in place in stream order.
#pragma once

#include <atomic>
#include <functional>
#include <memory>

#include "channel/carrier.hpp"
#include "core/file_core.hpp"
#include "staging/work.hpp"

namespace penstock::channel {

class stream_read final : public staging::work {
 public:
  // source: has target.length bytes. ended: called once with the outcome, on a thread that may call the driver; the read may be destroyed
  // when it returns.
  stream_read(const tools& with, std::shared_ptr<core::file_core> source, const incoming_target& target,
              std::function<void(const status&)> ended);
  // Queues the read on the stream. Call once, before this object's other references are released. Do not call with a lock held.
  void begin() noexcept;
  bool run() override;

 private:
  void end(const status& outcome) noexcept;

  const tools& with_;
  const std::shared_ptr<core::file_core> source_;
  const incoming_target target_;
  std::function<void(const status&)> ended_;
  const std::shared_ptr<std::atomic<bool>> is_told_ = std::make_shared<std::atomic<bool>>(false);
  status outcome_;
  staging::work_list list_;
};

}  // namespace penstock::channel
