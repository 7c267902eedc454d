#include "kv/get_queue.hpp"

#include <utility>

#include "base/no_memory.hpp"
#include "staging/worker.hpp"

namespace penstock::kv {

void get_operation::end_queued() {
  const std::lock_guard guard(lock_);
  stopped_ = true;
  running_.cancel();
}

void get_operation::run_by(batch now) {
  const std::lock_guard guard(lock_);
  running_ = std::move(now);
  if (stopped_) running_.cancel();
}

void get_queue::add(get_operation& op, std::span<const item> items) {
  start_thread();
  try {
    op.fetch_.emplace(engine_, from_, items, checksums_, *op.results(), op.on_);
    if (op.fetch_->begin()) {
      submit(op);
      return;
    }
  } catch (...) {
    op.fetch_.reset();
    throw;
  }
  end(op);
}

// The store may be destroyed before the operation.
void get_queue::end(get_operation& op) noexcept {
  op.fetch_.reset();
  op.end();
}

void get_queue::start_thread() {
  const std::lock_guard guard(lock_);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
}

void get_queue::submit(get_operation& op) {
  const auto requests = op.fetch_->requests();
  op.outcomes_.assign(requests.size(), {});
  op.left_.store(requests.size() + 1);
  const core::timed_ref<get_operation> held(op);  // the operation may complete before the code below is done
  if (op.on_) {
    queue_on_stream(op);
  } else {
    op.run_by(
        engine_.submit(requests, {}, {}, [this, &op](std::size_t index, const io_result& outcome) { request_ended(op, index, outcome); }));
  }
  one_less(op);
}

void get_queue::queue_on_stream(get_operation& op) {
  const auto requests = op.fetch_->requests();
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const std::size_t length = requests[i].length;
    const status queued = or_no_memory([&] {
      stream_request one{.stream = *op.on_, .memory = requests[i].memory, .length = &length, .offset = &requests[i].offset};
      one.constant_arguments = true;
      one.passes_early = !op.fetch_->checks(i);
      one.ended = [this, &op, i](const io_result& outcome) { request_ended(op, i, outcome); };
      return from_.data().read_on_stream(one);
    });
    if (!queued.ok()) request_ended(op, i, {0, queued});
  }
}

void get_queue::request_ended(get_operation& op, std::size_t index, const io_result& outcome) {
  op.outcomes_[index] = outcome;
  op.fetch_->request_ended(index);
  one_less(op);
}

void get_queue::one_less(get_operation& op) {
  if (op.left_.fetch_sub(1) > 1) return;
  const std::lock_guard guard(lock_);
  ended_.push_back(&op);
  wake_.notify_one();
}

void get_queue::go_on(get_operation& op) noexcept {
  const bool goes_on = or_without_memory(
      [&] {
        op.fetch_->finish(op.outcomes_);
        if (op.on_ || !op.fetch_->begin()) return false;  // a second read would be out of order
        submit(op);
        return true;
      },
      [&] {
        op.fetch_->fail_all(no_memory());
        return false;
      });
  if (!goes_on) end(op);
}

void get_queue::run() {
  staging::become_worker("penstock-kv-get");
  std::unique_lock guard(lock_);
  while (true) {
    wake_.wait(guard, [this] { return stopping_ || !ended_.empty(); });
    if (ended_.empty()) return;
    auto& op = *ended_.front();
    ended_.pop_front();
    guard.unlock();
    go_on(op);
    guard.lock();
  }
}

void get_queue::stop() {
  {
    const std::lock_guard guard(lock_);
    stopping_ = true;
    wake_.notify_one();
  }
  if (thread_.joinable()) thread_.join();
  const std::lock_guard guard(lock_);
  stopping_ = false;
}

}  // namespace penstock::kv
