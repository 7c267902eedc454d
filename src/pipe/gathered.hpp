// Receives tensors in stream order through channels that cannot keep that order: the tensors arrive in host memory, and the streams of
// their targets wait for them. Everything that the streams need is queued beforehand, so releasing them needs no thread that calls the
// driver.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "channel/carrier.hpp"
#include "channel/stream_read.hpp"
#include "penstock/pipe.hpp"
#include "source/awaited_memory.hpp"
#include "staging/work.hpp"

namespace penstock::pipes {

class gathered final {
 public:
  static constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30;  // per message, in host memory

  explicit gathered(const channel::tools& with) : with_(with) {}

  // Returns the host memory that receives the tensor in place of this target. Call before anything starts. Errors: unsupported (above the
  // limit).
  result<incoming_target> add(const incoming_target& target, const std::string& name);
  // Call one of these two, once, without a lock; this object may be destroyed by the time the call returns. put_onto_streams queues the
  // wait and the copy onto the streams, and may block until the tensors have arrived if a stream cannot wait by itself.
  void put_onto_streams() noexcept;
  void put_nothing() noexcept { one_ended({}); }
  // Called when all tensors have arrived or the transfer has failed; the work on the streams then continues. Calls then(outcome) on any
  // thread, once that work and the queueing are done. This object may be destroyed by the time the call returns.
  void come(const status& outcome, std::function<void(const status&)> then) noexcept;

 private:
  // Copies into staging buffers, so it does not run on the receiving thread.
  struct arrival final : staging::work {
    bool run() override;
    gathered* of = nullptr;
    staging::work_list list;
  };
  struct entry {
    source::awaited_memory* memory = nullptr;  // owned by the read
    std::unique_ptr<channel::stream_read> read;
  };
  void one_ended(const status& outcome) noexcept;

  const channel::tools& with_;
  std::uint64_t bytes_ = 0;
  std::vector<entry> entries_;
  arrival arrival_;
  status outcome_;
  std::atomic<std::size_t> left_{2};  // one per read on a stream, one for come(), and one for put_onto_streams() or put_nothing()
  std::atomic<bool> has_failed_{false};
  status error_;  // the first error
  std::function<void(const status&)> then_;
};

}  // namespace penstock::pipes
