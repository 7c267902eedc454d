// penstock.Future: a request, or a batch of them, under way.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <penstock/penstock.hpp>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "buffers.hpp"
#include "completions.hpp"

namespace penstock::python {

// What a request keeps alive until it has ended. Let go of with the GIL.
struct kept_objects {
  std::list<held_memory> memories;
  std::vector<nb::object> owners;  // of memory that needs nothing else kept
  std::shared_ptr<file> target;
  std::vector<std::shared_ptr<file>> others;  // of a batch over many files, which has no target
  void let_go();
};

// Lets go of a file; closing it, where this was the last to hold it, is done without the GIL. With the GIL.
void release_file(std::shared_ptr<file>& held);

class prelude;

// A request or a batch under way. Fields of Python are touched with the GIL only.
class flight final : public under_way {
 public:
  using starter = std::function<operation(io_callback)>;  // of an operation that calls back
  explicit flight(std::shared_ptr<file> target) : under_way(true) { kept_.target = std::move(target); }
  flight() : under_way(true) {}  // a batch over many files: keep_file() for each request
  // What may wait for another process for ever: the interpreter's end does not wait for it.
  struct of_a_pipe {};
  explicit flight(of_a_pipe) : under_way(false) {}

  // --- before it starts, with the GIL
  held_memory& keep(nb::handle buffer, memory_use use, memory_order order = memory_order::c, argument_name name = {}) {
    return kept_.memories.emplace_back(buffer, use, order, name);
  }
  // For calls of a hundred thousand buffers: keeps no more of one than it takes.
  held_memory::part keep_part(nb::handle buffer, memory_use use, argument_name name);
  [[nodiscard]] file& target() const noexcept { return *kept_.target; }
  [[nodiscard]] std::list<held_memory>& held() noexcept { return kept_.memories; }
  file& keep_file(std::shared_ptr<file> target);
  void start_one(void* memory, std::uint64_t length, std::int64_t offset, bool is_write, const io_options& options);
  void start_many(std::vector<io_request> requests, const io_options& options);
  // begin is called without the GIL. value, with it, makes what comes of it; none: the count of bytes.
  void start_other(const starter& begin, std::function<nb::object()> value = {});
  // For start_other(): errors are in what value makes, and the request ends well.
  void leave_errors_to_value() noexcept { value_has_errors_ = true; }
  // An operation between whose beginning and end Python is needed. first is begun without the GIL; what it ended with goes to then, with
  // the GIL: on the thread that waits, or that of completions. Nothing from then: that was all. What then raises, the request ends with.
  void start_in_two(const starter& first, std::function<std::optional<starter>(const io_result&)> then, std::function<nb::object()> value);

  // --- with the GIL, which is released while they block. In a forked child what the parent left under way counts as ended: with forked.
  enum class state : std::uint8_t { under_way, ended, left_in_parent };
  [[nodiscard]] state now() const;
  [[nodiscard]] bool done() const { return now() != state::under_way; }
  // In a forked child: nobody tells those whom its parent would have told.
  [[nodiscard]] bool is_told_to_nobody() const;
  // Blocks until it has ended. False: not within the time. Raises what a signal handler raises.
  bool wait(std::optional<double> timeout_s);
  void cancel();
  // Once it has ended: the count or the list of counts; or the exception, else none.
  [[nodiscard]] nb::object value();
  [[nodiscard]] nb::object error();
  // Calls back with the future, when it has ended: from the thread of completions, or at once where that has been told.
  void call_back(nb::object callback, nb::object future);
  // Takes back one call_back() of that very object; nothing where it was called.
  void forget_callback(nb::handle callback);
  void report() override;
  [[nodiscard]] bool hurries() const noexcept override { return has_callbacks_.load(); }
  // Nobody can ask any more. With the GIL.
  void let_go_of_python();
  // Once it has ended: whether that was because it was cancelled.
  [[nodiscard]] bool was_cancelled();
  // What concurrent.futures looks at, made when it first does.
  [[nodiscard]] nb::object shown(const nb::object& future);

 private:
  struct failure {
    status error;
    std::string file_name;
    std::optional<std::int64_t> offset;
    std::uint64_t bytes_done;
  };
  friend class prelude;
  // Of one that is started in two: before the second is begun; while it is; then; and where there is none.
  enum class step : std::uint8_t { only, first, between, second, none };

  ~flight() override;
  bool wait_once(std::chrono::nanoseconds time);
  // The same with the GIL, which is released while it blocks; begins the second step.
  void wait_in_steps(std::chrono::nanoseconds time);
  void go_on(const io_result& outcome);
  void begin_second(const io_result& outcome);
  void move_to(step next);
  // What is raised gets a traceback, whose frames may hold the future: an exception that the future holds would keep both for ever.
  [[nodiscard]] nb::object copy_of_raised() const { return nb::module_::import_("copy").attr("copy")(raised_); }
  template <class Start>
  void begin_and(Start start);
  void started();
  void tell() noexcept;  // on a thread of the engine
  std::optional<failure> first_failure();

  kept_objects kept_;
  std::string file_name_;
  std::vector<std::string> file_names_;  // per request, of a batch over many files
  std::variant<operation, batch> running_;
  std::vector<std::int64_t> offsets_;
  std::vector<io_result> outcomes_;  // once asked for
  std::function<nb::object()> make_value_;
  nb::object value_;  // that it made
  bool value_has_errors_ = false;
  std::vector<std::pair<nb::object, nb::object>> callbacks_;
  std::atomic<bool> has_callbacks_{false};
  std::atomic<bool> told_{false};  // by the engine: it has ended
  nb::object shown_;
  bool reported_ = false;
  std::atomic<step> step_{step::only};  // changes with the GIL
  prelude* prelude_ = nullptr;          // of one that is started in two
  std::function<std::optional<starter>(const io_result&)> then_;
  bool cancelled_ = false;  // of one that is started in two
  nb::object raised_;       // by then_; without a traceback
};

// The handle that Python has.
class future {
 public:
  explicit future(flight* taken) noexcept : flight_(taken) {}
  future(future&& other) noexcept : flight_(std::exchange(other.flight_, nullptr)) {}
  future& operator=(future&&) = delete;
  ~future() {
    if (flight_ == nullptr) return;
    if (flight_->settled()) flight_->let_go_of_python();
    flight_->release();
  }
  [[nodiscard]] flight& operator*() const noexcept { return *flight_; }
  [[nodiscard]] flight* operator->() const noexcept { return flight_; }

 private:
  flight* flight_;
};

void add_futures(nb::module_& module);

}  // namespace penstock::python
