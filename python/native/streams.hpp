// penstock.StreamResult: a request in CUDA stream order.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <penstock/penstock.hpp>
#include <string>
#include <utility>

#include "completions.hpp"
#include "futures.hpp"

namespace penstock::python {

// stream: an integer, a stream object from CuPy (ptr) or PyTorch (cuda_stream), or one with cuda-python's protocol (__cuda_stream__). None:
// the default stream.
[[nodiscard]] void* stream_handle(nb::handle stream);

class stream_flight final : public under_way {
 public:
  explicit stream_flight(std::shared_ptr<file> target) : under_way(false) { kept_.target = std::move(target); }
  // Queues the request. Raises penstock.Error if nothing was queued. result: a host or device address, or 0. The 8 bytes there are set to
  // the number of bytes moved, or -1, before later work on the stream starts. Returns the memory's location.
  memory_place queue(nb::handle buffer, nb::handle stream, std::int64_t offset, std::optional<std::int64_t> size,
                     std::int64_t buffer_offset, memory_order order, std::uint64_t result, bool is_write);
  // In a forked child, requests on the parent's streams count as failed, with the error forked.
  [[nodiscard]] bool done() const noexcept { return ended_.load(std::memory_order_acquire) || left_behind(); }
  // Blocks, without the GIL, until the request has completed. Returns false on timeout. Raises a signal handler's exception.
  bool wait(std::optional<double> timeout_s);
  // Call after completion. Raises the request's error.
  [[nodiscard]] std::uint64_t bytes();
  void report() override { kept_.let_go(); }

 private:
  ~stream_flight() override = default;

  kept_objects kept_;
  std::string file_name_;
  // Read by the engine when the stream reaches the request.
  std::size_t length_ = 0;
  std::int64_t offset_ = 0;
  io_result outcome_;  // valid once ended_ is set
  std::mutex lock_;    // with ended_now_, for waiting threads
  std::condition_variable ended_now_;
  std::atomic<bool> ended_{false};
};

class stream_result {
 public:
  explicit stream_result(stream_flight* taken) noexcept : flight_(taken) {}
  stream_result(stream_result&& other) noexcept : flight_(std::exchange(other.flight_, nullptr)) {}
  stream_result& operator=(stream_result&&) = delete;
  ~stream_result() {
    if (flight_ != nullptr) flight_->release();
  }
  [[nodiscard]] stream_flight* operator->() const noexcept { return flight_; }

 private:
  stream_flight* flight_;
};

void add_streams(nb::module_& module);

}  // namespace penstock::python
