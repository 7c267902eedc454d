// Puts, in call order. A worker thread allocates extents for them, submits as many as the limit allows as one batch, and writes their
// records once the bytes are in the file. For a put in stream order, the calling thread allocates the extents and queues the writes on the
// stream; the worker thread writes the records. Other puts do not wait for it, because its stream may not get there for long: if a later
// put of the same key is recorded first, the earlier one counts as replaced by it. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "kv/operations.hpp"
#include "kv/volume.hpp"
#include "penstock/engine.hpp"
#include "penstock/kv.hpp"

namespace penstock::kv {

class put_operation final : public key_operation {
 public:
  put_operation(std::shared_ptr<core::runtime> with, under_way& among, std::span<const item> items)
      : key_operation(std::move(with), among, items.size()), parts_(parts_of(items, runtime().memory())), open_(items.size()) {}

 private:
  friend class put_queue;
  ~put_operation() override = default;
  std::vector<key_part> parts_;
  std::uint64_t number_ = 0;  // of its first key, in call order
  std::size_t open_;          // keys without a result; used by the thread that places the puts, then by the worker thread
};

class put_queue {
 public:
  put_queue(const engine& with, volume& to, const store_options& options)
      : engine_(with), to_(to), checksums_(options.checksums), most_bytes_(options.most_put_bytes_under_way) {}
  put_queue(const put_queue&) = delete;
  put_queue& operator=(const put_queue&) = delete;
  // Takes over a running request's reference and completes the request later. Throws bad_alloc, or system_error if the thread cannot be
  // started; in that case nothing has started.
  void add(put_operation& op);
  // The same for a put in stream order. May wait for the index if there is no room without dropping values.
  void add_on_stream(put_operation& op, void* stream);
  // Call when no puts are in flight. Stops the thread; the next put starts it again.
  void stop();
  void add_to(store_stats& told) const;

 private:
  struct put {
    put_operation* op;
    std::size_t index;  // of the key
    [[nodiscard]] std::uint64_t number() const noexcept { return op->number_ + index; }
  };
  struct placed_put {
    put what;
    value_facts facts{};
    std::size_t first_request = 0;
    std::size_t requests = 0;
    std::unique_ptr<coming_value> coming{};  // in stream order only
  };
  // Puts written as one batch, or those of one call in stream order.
  struct round {
    std::vector<placed_put> puts;
    std::vector<io_request> requests;
    std::uint64_t bytes = 0;
    stream_order on;
    batch running;
    std::vector<io_result> outcomes;   // one per request; of a batch, once it has completed
    std::atomic<std::size_t> left{0};  // requests in flight
    bool has_ended = false;            // guarded by the queue's lock
  };

  void run();
  void take_next();
  [[nodiscard]] bool may_begin() const noexcept;
  [[nodiscard]] bool front_has_ended() const noexcept;
  [[nodiscard]] std::list<round>::iterator ended_on_stream() noexcept;
  void begin_round();
  void gather(round& into);
  [[nodiscard]] bool place(round& into, const put& next);
  [[nodiscard]] status place_on_stream(round& into, const put& next);
  void add_requests(round& into, placed_put placed);
  [[nodiscard]] status check(const put& next, const stream_order& on) const;
  [[nodiscard]] status no_space_for(std::uint64_t length) const;
  void submit(round& of);
  void queue_on_stream(round& of);
  void one_less(round& of);
  void give_number(put_operation& op) noexcept { op.number_ = std::exchange(last_number_, last_number_ + op.parts_.size()); }
  void finish(std::list<round>& from, std::list<round>::iterator ended);
  void record(round& ended);
  void give_back(const placed_put& placed) noexcept;
  [[nodiscard]] static std::vector<const placed_put*> in_order_of_records(const round& ended);
  void end(const put& what, key_result outcome) noexcept;
  void refuse(const put& what, const status& why) noexcept { end(what, failed_with(why, part_of(what).key)); }
  void go_on(std::uint64_t length) noexcept;
  [[nodiscard]] static const key_part& part_of(const put& what) noexcept { return what.op->parts_[what.index]; }

  const engine& engine_;
  volume& to_;
  const bool checksums_;
  const std::uint64_t most_bytes_;

  // Used by the worker thread only:
  put next_{nullptr, 0};  // the next put; null operation: none
  std::size_t keys_ = 0;  // number of keys in its operation
  bool no_room_ = false;  // until a round completes

  mutable std::mutex lock_;  // guards the members below
  std::condition_variable wake_;
  std::deque<put_operation*> added_;  // waiting behind next_
  std::list<round> rounds_;           // in flight, in order; changed only by the worker thread
  std::list<round> on_streams_;       // in flight, in any order; removed only by the worker thread
  std::uint64_t last_number_ = 0;     // of all keys
  std::uint64_t bytes_under_way_ = 0;
  std::uint64_t bytes_on_streams_ = 0;
  std::uint64_t bytes_waiting_ = 0;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace penstock::kv
