// penstock.Future: a request, or a batch of them, in flight.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <penstock/penstock.hpp>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "buffers.hpp"
#include "completions.hpp"
#include "gil.hpp"

namespace penstock::python {

// The objects that a request keeps alive until it completes. Releasing them needs the GIL.
struct kept_objects {
  std::list<held_memory> memories;
  std::vector<nb::object> owners;  // memory owners for which a reference is enough
  std::shared_ptr<file> target;
  std::vector<std::shared_ptr<file>> others;  // for a batch over many files, which has no target
  void let_go();
};

// Releases a file; if this was the last reference, closes it with the GIL released. Call with the GIL.
void release_file(std::shared_ptr<file>& held);

class prelude;

// One item of a flow, in the form of a batch.
struct flow_item {
  std::shared_ptr<model_flow> of;
  std::size_t number = 0;
  [[nodiscard]] bool wait_for(std::chrono::nanoseconds time) const { return of->wait_for(number, time); }
  [[nodiscard]] static bool done() noexcept { return false; }  // its callback reports the end
  void cancel() const {
    const without_gil unlocked;  // it may start the reads of other items
    of->drop(number);
  }
  [[nodiscard]] std::vector<io_result> wait() const { return *of->results(number); }
};

// A request or a batch in flight. Its Python fields need the GIL.
class flight final : public under_way {
 public:
  using starter = std::function<operation(io_callback)>;  // starts an operation that calls back
  explicit flight(std::shared_ptr<file> target) : under_way(true) { kept_.target = std::move(target); }
  flight() : under_way(true) {}  // a batch over many files: call keep_file() for each request
  // A request that may wait for another process or a stream forever; the interpreter does not wait for it before it exits.
  struct may_never_end {};
  explicit flight(may_never_end) : under_way(false) {}

  // --- before the start, with the GIL
  held_memory& keep(nb::handle buffer, memory_use use, memory_order order = memory_order::c, argument_name name = {}) {
    return kept_.memories.emplace_back(buffer, use, order, name);
  }
  // For calls with a hundred thousand buffers: keeps only a buffer's owner if that is enough.
  held_memory::part keep_part(nb::handle buffer, memory_use use, argument_name name);
  [[nodiscard]] file& target() const noexcept { return *kept_.target; }
  [[nodiscard]] std::list<held_memory>& held() noexcept { return kept_.memories; }
  file& keep_file(std::shared_ptr<file> target);
  void start_one(void* memory, std::uint64_t length, std::int64_t offset, bool is_write, const io_options& options);
  void start_many(std::vector<io_request> requests, const io_options& options);
  // Adds ranges of the target to a flow, which starts them in order.
  void start_in(std::shared_ptr<model_flow> flow, std::span<const file_range> ranges, std::span<void* const> memory);
  // Calls begin without the GIL. value runs with the GIL and creates the result; without it the result is the number of bytes.
  void start_other(const starter& begin, std::function<nb::object()> value = {});
  // For start_other(): value reports errors in its result, and the request itself succeeds.
  void leave_errors_to_value() noexcept { value_has_errors_ = true; }
  // For an operation that needs Python between two steps. Starts `first` without the GIL, and passes its outcome to `then`, with the GIL,
  // on the waiting thread or the completions thread. `then` returns the second step, or nothing if there is none. If `then` raises, the
  // request fails with that exception.
  void start_in_two(const starter& first, std::function<std::optional<starter>(const io_result&)> then, std::function<nb::object()> value);

  // --- with the GIL, released while blocked. In a forked child, the parent's requests count as failed, with the error forked.
  enum class state : std::uint8_t { under_way, ended, left_in_parent };
  [[nodiscard]] state now() const;
  [[nodiscard]] bool done() const { return now() != state::under_way; }
  // Returns true in a forked child if callbacks of the parent's request will never run.
  [[nodiscard]] bool is_told_to_nobody() const;
  // Blocks until the request has completed. Returns false on timeout. Raises a signal handler's exception.
  bool wait(std::optional<double> timeout_s);
  void cancel();
  // After completion: the count or the list of counts; the exception, or None.
  [[nodiscard]] nb::object value();
  [[nodiscard]] nb::object error();
  // Calls back with the future when the request has completed, on the completions thread; immediately if completion was already reported.
  void call_back(nb::object callback, nb::object future);
  // Cancels one call_back() with this same object; does nothing if it was already called.
  void forget_callback(nb::handle callback);
  void report() override;
  [[nodiscard]] bool hurries() const noexcept override { return has_callbacks_.load(); }
  // Call with the GIL when no future refers to this any more: releases Python objects if it has completed.
  void dropped();
  // After completion: true if the request was cancelled.
  [[nodiscard]] bool was_cancelled();
  // Returns the object for concurrent.futures, created on first use.
  [[nodiscard]] nb::object shown(const nb::object& future);

 private:
  struct failure {
    status error;
    std::string file_name;
    std::optional<std::int64_t> offset;
    std::uint64_t bytes_done;
  };
  friend class prelude;
  // For start_in_two(): first step; between the steps, while the second is being started; second step; no second step.
  enum class step : std::uint8_t { only, first, between, second, none };

  ~flight() override;
  bool wait_once(std::chrono::nanoseconds time);
  // The same with the GIL, released while blocked; also starts the second step.
  void wait_in_steps(std::chrono::nanoseconds time);
  void go_on(const io_result& outcome);
  void begin_second(const io_result& outcome);
  void move_to(step next);
  // Raising adds a traceback, whose frames may refer to the future. If the future held that exception, both would live forever, so each
  // raise uses a copy.
  [[nodiscard]] nb::object copy_of_raised() const { return nb::module_::import_("copy").attr("copy")(raised_); }
  template <class Start>
  void begin_and(Start start);
  void started();
  void let_go();
  void let_go_of_python();
  void tell() noexcept;  // called on an engine thread
  std::optional<failure> first_failure();

  kept_objects kept_;
  std::string file_name_;
  std::vector<std::string> file_names_;  // one per request, for a batch over many files
  std::variant<operation, batch, flow_item> running_;
  std::vector<std::int64_t> offsets_;
  std::vector<io_result> outcomes_;  // empty until first requested
  std::function<nb::object()> make_value_;
  nb::object value_;  // the result of make_value_
  bool value_has_errors_ = false;
  std::vector<std::pair<nb::object, nb::object>> callbacks_;
  std::atomic<bool> has_callbacks_{false};
  std::atomic<bool> told_{false};  // the engine has reported completion
  nb::object shown_;
  bool reported_ = false;
  std::atomic<step> step_{step::only};  // changes only with the GIL
  prelude* prelude_ = nullptr;          // for start_in_two()
  std::function<std::optional<starter>(const io_result&)> then_;
  bool cancelled_ = false;  // for start_in_two()
  nb::object raised_;       // the exception raised by then_; without its traceback
};

// The handle held by Python.
class future {
 public:
  explicit future(flight* taken) noexcept : flight_(taken) {}
  future(future&& other) noexcept : flight_(std::exchange(other.flight_, nullptr)) {}
  future& operator=(future&&) = delete;
  ~future() {
    if (flight_ == nullptr) return;
    flight_->dropped();
    flight_->release();
  }
  [[nodiscard]] flight& operator*() const noexcept { return *flight_; }
  [[nodiscard]] flight* operator->() const noexcept { return flight_; }

 private:
  flight* flight_;
};

void add_futures(nb::module_& module);

}  // namespace penstock::python
