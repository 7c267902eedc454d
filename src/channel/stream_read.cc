#include "channel/stream_read.hpp"

#include <utility>

#include "base/no_memory.hpp"
#include "core/stream/stream_queue.hpp"
#include "penstock/engine.hpp"

namespace penstock::channel {

stream_read::stream_read(const tools& with, std::shared_ptr<core::file_core> source, const incoming_target& target,
                         std::function<void(const status&)> ended)
    : with_(with), source_(std::move(source)), target_(target), ended_(std::move(ended)) {}

// The read may complete and be destroyed before the call that queues it returns. If that call fails, ended may already have been called.
void stream_read::begin() noexcept {
  const auto is_told = is_told_;
  const auto queued = or_no_memory([&, source = source_, runtime = with_.runtime] {
    const std::size_t length = target_.length;
    const std::int64_t offset = 0;
    stream_request what;
    what.stream = target_.stream;
    what.memory = target_.memory;
    what.length = &length;
    what.offset = &offset;
    what.constant_arguments = true;
    what.ended = [this, is_told](const io_result& outcome) {
      if (!is_told->exchange(true)) end(outcome.error);
    };
    return core::queue_on_stream(runtime, source, what, false);
  });
  if (!queued.ok() && !is_told->exchange(true)) end(queued);
}

// The stream continues when this returns, so the rest, which may call the driver, runs on another thread.
void stream_read::end(const status& outcome) noexcept {
  outcome_ = outcome;
  if (!with_.staging->pullers().push(list_, *this).ok()) (void)run();
}

bool stream_read::run() {
  const auto ended = std::move(ended_);
  ended(outcome_);
  return true;
}

}  // namespace penstock::channel
