// Gets whose callers do not wait: a thread looks at what was read when a batch has ended. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "kv/fetch.hpp"
#include "kv/operations.hpp"
#include "penstock/engine.hpp"
#include "penstock/kv.hpp"

namespace penstock::kv {

class get_operation final : public key_operation {
 public:
  using key_operation::key_operation;

 private:
  friend class get_queue;
  ~get_operation() override = default;
  void end_queued() override;
  void run_by(batch now);

  std::optional<fetch> fetch_;
  std::vector<io_result> outcomes_;
  std::atomic<std::size_t> left_{0};  // requests that have not ended, and one while they are submitted
  std::mutex lock_;                   // guards what follows
  batch running_;
  bool stopped_ = false;
};

class get_queue {
 public:
  get_queue(const engine& with, volume& from, const store_options& options) : engine_(with), from_(from), checksums_(options.checksums) {}
  get_queue(const get_queue&) = delete;
  get_queue& operator=(const get_queue&) = delete;
  // Begins it, and ends it in time. Takes the running request's reference. Throws bad_alloc, or system_error where there is no thread:
  // nothing began then.
  void add(get_operation& op, std::span<const item> items);
  // Once none is under way. Ends the thread.
  void stop();

 private:
  void start_thread();
  void submit(get_operation& op);
  void one_less(get_operation& op);
  void go_on(get_operation& op) noexcept;
  static void end(get_operation& op) noexcept;
  void run();

  const engine& engine_;
  volume& from_;
  const bool checksums_;
  std::mutex lock_;  // guards what follows
  std::condition_variable wake_;
  std::deque<get_operation*> ended_;  // their batches
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace penstock::kv
