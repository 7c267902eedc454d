// A tensor, or the part of one, that is read from a source into memory of a device in the order of the target's stream. A part of its
// message, which ends once the stream has the bytes.
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
  // source: of target.length bytes. ended: is called once with how it went, on a thread that may call the driver; the read may be gone on
  // return.
  stream_read(const tools& with, std::shared_ptr<core::file_core> source, const incoming_target& target,
              std::function<void(const status&)> ended);
  // Puts it onto the stream, once, before anything else lets go of this. Not with a lock.
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
