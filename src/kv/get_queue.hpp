// Asynchronous gets: when a batch completes, a worker thread checks what was read. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "kv/fetch.hpp"
#include "kv/operations.hpp"
#include "penstock/engine.hpp"
#include "penstock/kv.hpp"

namespace penstock::kv {

class get_operation final : public key_operation {
 public:
  get_operation(std::shared_ptr<core::runtime> with, under_way& among, std::size_t keys, const stream_order& on)
      : key_operation(std::move(with), among, keys), on_(on) {}

 private:
  friend class get_queue;
  ~get_operation() override = default;
  void end_queued() override;
  void run_by(batch now);

  const stream_order on_;
  std::optional<fetch> fetch_;
  std::vector<io_result> outcomes_;
  std::atomic<std::size_t> left_{0};  // requests in flight, plus one while they are being submitted
  std::mutex lock_;                   // guards the members below
  batch running_;
  bool stopped_ = false;
};

class get_queue {
 public:
  get_queue(const engine& with, volume& from, const store_options& options) : engine_(with), from_(from), checksums_(options.checksums) {}
  get_queue(const get_queue&) = delete;
  get_queue& operator=(const get_queue&) = delete;
  // Starts the get and completes it later. Takes over a running request's reference. Throws bad_alloc, or system_error if the thread cannot
  // be started; in that case nothing has started.
  void add(get_operation& op, std::span<const item> items);
  // Call when no gets are in flight. Stops the thread; the next get starts it again.
  void stop();

 private:
  void start_thread();
  void submit(get_operation& op);
  void queue_on_stream(get_operation& op);
  void request_ended(get_operation& op, std::size_t index, const io_result& outcome);
  void one_less(get_operation& op);
  void go_on(get_operation& op) noexcept;
  static void end(get_operation& op) noexcept;
  void run();

  const engine& engine_;
  volume& from_;
  const bool checksums_;
  std::mutex lock_;  // guards the members below
  std::condition_variable wake_;
  std::deque<get_operation*> ended_;  // operations whose batches have completed
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace penstock::kv
