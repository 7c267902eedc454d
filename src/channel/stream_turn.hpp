// Reports when streams have finished the work that was queued on them when they were added. No thread blocks for this.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "device/owned.hpp"
#include "staging/feeder.hpp"
#include "staging/link.hpp"

namespace penstock::channel {

// For one thread at a time, until await(). Must not be destroyed between await() and its callback.
class stream_turn {
 public:
  stream_turn() = default;
  stream_turn(const stream_turn&) = delete;
  stream_turn& operator=(const stream_turn&) = delete;

  // Adds the work now queued on a stream of the link's device. on: null for the default stream. Errors: no such stream, and those of the
  // device.
  status add(const staging::link& via, device::stream on);
  // Returns true if everything added is already done.
  [[nodiscard]] bool over() const noexcept { return pending_.empty(); }
  // Calls then(argument, outcome) once, on the thread that finds all work done; this may be the calling thread. Call only if over() is
  // false.
  void await(staging::feeders& watched, void (*then)(void*, const status&), void* argument) noexcept;

 private:
  struct pending {
    const staging::link* via = nullptr;
    device::stream on = nullptr;
    device::owned_event event;
    staging::copy_task task;
  };
  static void event_reached(staging::copy_task& task, status outcome) noexcept;
  void one_reached(const status& outcome) noexcept;

  std::vector<std::unique_ptr<pending>> pending_;
  std::vector<std::pair<const staging::link*, device::stream>> done_;
  std::atomic<std::size_t> left_{0};
  void (*then_)(void*, const status&) = nullptr;
  void* argument_ = nullptr;
  std::mutex lock_;  // guards error_
  status error_;
};

}  // namespace penstock::channel
