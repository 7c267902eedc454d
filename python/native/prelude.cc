#include "prelude.hpp"

#include <exception>
#include <new>
#include <utility>

#include "errors.hpp"
#include "gil.hpp"

namespace penstock::python {

using namespace std::chrono_literals;

void prelude::start(const flight::starter& first) {
  begin();
  of_.retain();
  try {
    const without_gil unlocked;
    running_ = first([this](const io_result& outcome) {
      outcome_ = outcome;
      ended();
    });
  } catch (...) {
    never_began();
    of_.release();
    throw;
  }
}

void prelude::report() {
  of_.go_on(outcome_);
  of_.release();
}

std::optional<io_result> prelude::wait(std::chrono::nanoseconds time) {
  const without_gil unlocked;
  if (!running_.wait_for(time)) return std::nullopt;
  return running_.wait();
}

void prelude::wait_between(std::chrono::nanoseconds time) {
  const without_gil unlocked;
  std::unique_lock guard(lock_);
  changed_.wait_for(guard, time, [this] { return of_.step_.load() != flight::step::between; });
}

void prelude::step_has_changed() {
  const std::lock_guard guard(lock_);
  changed_.notify_all();
}

// --- flight::start_in_two()

flight::~flight() {
  if (prelude_ != nullptr) prelude_->release();
}

void flight::start_in_two(const starter& first, std::function<std::optional<starter>(const io_result&)> then,
                          std::function<nb::object()> value) {
  make_value_ = std::move(value);
  then_ = std::move(then);
  prelude_ = new prelude(*this);
  step_ = step::first;
  prelude_->start(first);
  if (!prelude_->must_wait()) return;
  while (!done()) wait_in_steps(1s);
  report();
  release();  // otherwise this happens when the first step is reported
}

void flight::move_to(step next) {
  step_ = next;
  prelude_->step_has_changed();
}

void flight::wait_in_steps(std::chrono::nanoseconds time) {
  switch (step_.load()) {
    case step::first:
      if (const auto outcome = prelude_->wait(time)) go_on(*outcome);
      break;
    case step::between:
      prelude_->wait_between(time);
      break;
    case step::only:
    case step::second: {
      const without_gil unlocked;
      (void)wait_once(time);
      break;
    }
    case step::none:
      break;
  }
}

// Called by the waiting thread and by the completions thread; the first caller continues.
void flight::go_on(const io_result& outcome) {
  if (step_.load() != step::first) return;
  step_ = step::between;
  try {
    begin_second(outcome);
  } catch (nb::python_error& problem) {
    raised_ = nb::borrow(problem.value());
    PyException_SetTraceback(raised_.ptr(), Py_None);
    PyException_SetContext(raised_.ptr(), nullptr);
  } catch (const std::bad_alloc&) {
    outcomes_ = {{0, {errc::out_of_memory, "out of memory"}}};
  } catch (const std::exception& problem) {
    outcomes_ = {{0, {errc::internal, problem.what()}}};
  }
  then_ = {};
  if (step_.load() == step::second) return;
  if (raised_.is_valid() || !outcomes_.front().ok()) make_value_ = {};  // also releases what it keeps
  move_to(step::none);
  begin();  // only the report remains
  ended();
}

void flight::begin_second(const io_result& outcome) {
  const auto second = then_(outcome);
  if (!second || cancelled_) {
    outcomes_ = {second ? io_result{0, {errc::cancelled, "cancelled"}} : outcome};
    return;
  }
  begin();
  if (must_wait() && !prelude_->must_wait()) {
    never_began();
    raise({errc::cancelled, "the interpreter is shutting down: no requests can be started"});
  }
  operation begun;
  try {
    const without_gil unlocked;
    begun = (*second)([this](const io_result&) { tell(); });
  } catch (...) {
    never_began();
    throw;
  }
  running_ = std::move(begun);
  move_to(step::second);
  if (cancelled_) cancel();
}

}  // namespace penstock::python
