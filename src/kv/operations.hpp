// Puts and gets of many keys, from the call to completion.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/memory_map.hpp"
#include "core/operation.hpp"
#include "penstock/kv.hpp"

namespace penstock::kv {

// Counts a store's operations in flight. Thread-safe.
class under_way {
 public:
  void begin() {
    const std::lock_guard guard(lock_);
    ++count_;
  }
  void end() {
    const std::lock_guard guard(lock_);
    if (--count_ == 0) none_.notify_all();
  }
  void wait_for_none() {
    std::unique_lock guard(lock_);
    none_.wait(guard, [this] { return count_ == 0; });
  }

 private:
  std::mutex lock_;  // guards the members below
  std::condition_variable none_;
  std::size_t count_ = 0;
};

// Counts a call that runs on its caller's thread, in its scope.
class counted_call {
 public:
  explicit counted_call(under_way& among) : among_(among) { among_.begin(); }
  counted_call(const counted_call&) = delete;
  counted_call& operator=(const counted_call&) = delete;
  ~counted_call() { among_.end(); }

 private:
  under_way& among_;
};

// The stream whose order a call keeps; none for other calls.
using stream_order = std::optional<void*>;
// Returns the place of memory that a stream can reach. Errors: unsupported, bad_memory.
[[nodiscard]] result<staging::place> place_on_stream(core::memory_map& memory, const memory_piece& piece);

// One key of a call, copied by the store.
struct key_part {
  std::string key;
  std::vector<memory_piece> pieces;  // none is empty
  std::uint64_t length = 0;          // total of all pieces; the maximum value on overflow
};
// Pieces that are adjacent in one allocation are merged, because they are adjacent in the file too.
[[nodiscard]] std::vector<key_part> parts_of(std::span<const item> items, core::memory_map& memory);
// Returns ok if the key is valid.
[[nodiscard]] status check_key(std::string_view key);
// Returns the key as shown in messages.
[[nodiscard]] std::string named(std::string_view key);
[[nodiscard]] key_result failed_with(const status& error, std::string_view key);
// Returns the sum of the bytes, and the first error.
[[nodiscard]] io_result sum_of(std::span<const key_result> results);

class key_operation : public core::operation {
 public:
  // Is counted in `among` from construction until end().
  key_operation(std::shared_ptr<core::runtime> with, under_way& among, std::size_t keys)
      : core::operation(std::move(with)), results_(std::make_shared<std::vector<key_result>>(keys)), among_(among) {
    among_.begin();
  }
  [[nodiscard]] const std::shared_ptr<std::vector<key_result>>& results() const noexcept { return results_; }
  // Call when the results are set. The operation and the store may be destroyed by the time this returns.
  void end() noexcept {
    has_ended_ = true;
    among_.end();
    complete(sum_of(*results_));
  }

 protected:
  // For when memory runs out during construction: end() is never called.
  ~key_operation() override {
    if (!has_ended_) among_.end();
  }

 private:
  const std::shared_ptr<std::vector<key_result>> results_;
  under_way& among_;
  bool has_ended_ = false;
};

}  // namespace penstock::kv
