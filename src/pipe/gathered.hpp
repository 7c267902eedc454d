// Tensors of a message that are received in the order of streams by channels that cannot keep it: they come into memory of the host, and
// the streams of their targets wait for them. The streams have all that they need for that beforehand, so that no thread that calls the
// driver has to let them go on.
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
  static constexpr std::uint64_t most_bytes = std::uint64_t{1} << 30;  // of one message, in memory of the host

  explicit gathered(const channel::tools& with) : with_(with) {}

  // Where the tensor for this target is to come instead. Before anything begins. Errors: unsupported (above the limit).
  result<incoming_target> add(const incoming_target& target, const std::string& name);
  // Puts the rest of their way onto the streams, or nothing: one of them, once, without a lock. It may be gone on return. May wait until
  // the tensors have come, where a stream does not take it.
  void put_onto_streams() noexcept;
  void put_nothing() noexcept { one_ended({}); }
  // All tensors have come, or why not; what was put onto the streams goes on from there. Calls then(how that ended) once that, and putting,
  // is over, on any thread. It may be gone on return.
  void come(const status& outcome, std::function<void(const status&)> then) noexcept;

 private:
  // Fills slabs: not a work of the thread that receives.
  struct arrival final : staging::work {
    bool run() override;
    gathered* of = nullptr;
    staging::work_list list;
  };
  struct entry {
    source::awaited_memory* memory = nullptr;  // the read's
    std::unique_ptr<channel::stream_read> read;
  };
  void one_ended(const status& outcome) noexcept;

  const channel::tools& with_;
  std::uint64_t bytes_ = 0;
  std::vector<entry> entries_;
  arrival arrival_;
  status outcome_;
  std::atomic<std::size_t> left_{2};  // reads that were put onto streams, one for come(), and one for who puts
  std::atomic<bool> has_failed_{false};
  status error_;  // of the first that failed
  std::function<void(const status&)> then_;
};

}  // namespace penstock::pipes
