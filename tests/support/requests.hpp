// One request or batch of any kind that a test can watch while it runs; shared by the stall, drop and storm tests. Owns its memory until
// the request has ended. One thread. Blocks only where a member says so.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/device.hpp"
#include "penstock/penstock.hpp"
#include "support/pattern.hpp"

namespace penstock::testing {

// The interface that submits the request.
enum class asked_by { call, operation, batch, stream };

struct request_kind {
  const char* name = "";
  asked_by way = asked_by::operation;
  bool on_device = false;
  std::uint64_t length = 0;  // of each request
  std::size_t count = 1;     // of a batch
  bool is_write = false;
};

inline void PrintTo(const request_kind& kind, std::ostream* out) { *out << kind.name; }

class running_request {
 public:
  // Reads the bytes that pattern::make(.., seed) put into the file, or writes them: count requests of the length, one after the other. The
  // file and the engine must outlive this object. on: a stream of the host device, for asked_by::stream.
  running_request(const engine& with, const file& target, const request_kind& kind, std::uint64_t seed, std::uint64_t offset = 0,
                  const io_options& options = {}, device::stream on = nullptr)
      : running_request(with, kind, seed, offset) {
    start(target, options, on);
  }
  // Only allocates the memory; call start() later.
  running_request(const engine& with, const request_kind& kind, std::uint64_t seed, std::uint64_t offset = 0)
      : engine_(&with), kind_(kind), seed_(seed), offset_(offset) {
    make_memory();
  }
  running_request(const running_request&) = delete;
  running_request& operator=(const running_request&) = delete;
  // Waits until the request has ended, since this object owns the memory.
  ~running_request() {
    while (started_ && !done()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (thread_.joinable()) thread_.join();
  }

  void start(const file& target, const io_options& options = {}, device::stream on = nullptr) {
    const auto at = static_cast<std::int64_t>(offset_);
    started_ = true;
    switch (kind_.way) {
      case asked_by::call:
        thread_ = std::thread([this, &target, options, at] {
          state_->outcome =
              kind_.is_write ? target.write(memory(), kind_.length, at, options) : target.read(memory(), kind_.length, at, options);
          state_->ended.store(true, std::memory_order_release);
        });
        break;
      case asked_by::operation:
        operation_ = kind_.is_write ? target.write_async(memory(), kind_.length, at, options)
                                    : target.read_async(memory(), kind_.length, at, options);
        break;
      case asked_by::batch: {
        std::vector<io_request> all;
        for (std::size_t i = 0; i < kind_.count; ++i) {
          all.push_back(
              {&target, memory() + i * kind_.length, kind_.length, static_cast<std::int64_t>(offset_ + i * kind_.length), kind_.is_write});
        }
        batch_ = engine_->submit(all, options);
        break;
      }
      case asked_by::stream:
        start_on_stream(target, at, on);
        break;
    }
  }

  [[nodiscard]] const char* name() const { return kind_.name; }
  [[nodiscard]] bool done() const {
    switch (kind_.way) {
      case asked_by::operation:
        return operation_.done();
      case asked_by::batch:
        return batch_.done();
      default:
        return state_->ended.load(std::memory_order_acquire);
    }
  }
  [[nodiscard]] bool can_be_cancelled() const { return kind_.way == asked_by::operation || kind_.way == asked_by::batch; }
  void cancel() { kind_.way == asked_by::batch ? batch_.cancel() : operation_.cancel(); }
  bool wait_for(std::chrono::nanoseconds time) { return kind_.way == asked_by::batch ? batch_.wait_for(time) : operation_.wait_for(time); }

  // Returns one outcome per request. Call after the end.
  std::vector<io_result> outcomes() {
    switch (kind_.way) {
      case asked_by::operation:
        return {operation_.wait()};
      case asked_by::batch:
        return batch_.wait();
      default:
        return {state_->outcome};
    }
  }

  // Call after the end. Checks that each request ended with the code and, if that is ok, moved all its bytes, otherwise that the first
  // bytes_done bytes are right. Returns what is wrong; empty: nothing.
  std::string wrong(errc code = errc::ok) {
    return wrong_if([code](errc seen) { return seen == code; });
  }
  template <class Allowed>
  std::string wrong_if(Allowed allowed) {
    const auto all = outcomes();
    if (all.size() != kind_.count) return fmt::format("{}: {} outcomes", kind_.name, all.size());
    std::vector<std::byte> seen(memory_bytes());
    const void* content = host_.data();
    if (kind_.on_device) {
      if (const auto copied = engine_->copy(seen.data(), device_.data(), seen.size()); !copied.ok()) return std::string(copied.message());
      content = seen.data();
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto& each = all[i];
      if (!allowed(each.error.code()))
        return fmt::format("{}: request {} ended with {} {}", kind_.name, i, to_string(each.error.code()), each.error.message());
      if (each.ok() && each.bytes_done != kind_.length) return fmt::format("{}: request {} moved {}", kind_.name, i, each.bytes_done);
      if (each.bytes_done > kind_.length) return fmt::format("{}: request {} claims {} bytes", kind_.name, i, each.bytes_done);
      if (kind_.is_write) continue;
      const std::span<const std::byte> got(static_cast<const std::byte*>(content) + i * kind_.length, each.bytes_done);
      if (const auto at = pattern::first_difference(got, seed_, offset_ + i * kind_.length))
        return fmt::format("{}: request {}: the byte at {} is wrong", kind_.name, i, *at);
    }
    return {};
  }

 private:
  // Outlives this object, since the request's callback writes it.
  struct state {
    std::atomic<bool> ended{false};
    io_result outcome;
    std::size_t length = 0;
    std::int64_t offset = 0;
  };

  [[nodiscard]] std::size_t memory_bytes() const { return kind_.length * kind_.count; }
  [[nodiscard]] std::byte* memory() { return kind_.on_device ? static_cast<std::byte*>(device_.data()) : host_.data(); }

  void make_memory() {
    if (kind_.is_write) {
      host_ = pattern::make(memory_bytes(), seed_, offset_);
    } else {
      host_.assign(memory_bytes(), std::byte{0xa7});
    }
    if (!kind_.on_device) return;
    auto made = engine_->allocate("host:0", memory_bytes());
    EXPECT_TRUE(made.ok()) << made.error().message();
    if (!made.ok()) return;
    device_ = *std::move(made);
    const auto copied = engine_->copy(device_.data(), host_.data(), host_.size());
    EXPECT_TRUE(copied.ok()) << copied.message();
  }

  void start_on_stream(const file& target, std::int64_t at, device::stream on) {
    state_->length = kind_.length;
    state_->offset = at;
    stream_request asked{.stream = on, .memory = memory(), .length = &state_->length, .offset = &state_->offset};
    asked.ended = [kept = state_](const io_result& outcome) {
      kept->outcome = outcome;
      kept->ended.store(true, std::memory_order_release);
    };
    const auto queued = kind_.is_write ? target.write_on_stream(asked) : target.read_on_stream(asked);
    if (queued.ok()) return;
    state_->outcome.error = queued;
    state_->ended.store(true);
  }

  const engine* engine_;
  const request_kind kind_;
  const std::uint64_t seed_;
  const std::uint64_t offset_;
  bool started_ = false;
  std::vector<std::byte> host_;
  device_buffer device_;
  std::shared_ptr<state> state_ = std::make_shared<state>();
  std::thread thread_;
  operation operation_;
  batch batch_;
};

}  // namespace penstock::testing
