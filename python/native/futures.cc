#include "futures.hpp"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <chrono>

#include "device.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "options.hpp"
#include "prelude.hpp"

namespace penstock::python {

namespace {

using namespace nb::literals;
using namespace std::chrono_literals;
using clock = std::chrono::steady_clock;

void call(const nb::object& callback, const nb::object& future) {
  PyObject* returned = PyObject_CallFunctionObjArgs(callback.ptr(), future.ptr(), nullptr);
  if (returned == nullptr) PyErr_WriteUnraisable(callback.ptr());
  Py_XDECREF(returned);
}

const char* word(flight::state state) {
  switch (state) {
    case flight::state::under_way:
      return "under way";
    case flight::state::ended:
      return "ended";
    case flight::state::left_in_parent:
      return "left in the parent process";
  }
  return "";
}

}  // namespace

void release_file(std::shared_ptr<file>& held) {
  if (held.use_count() == 1) {
    const without_gil unlocked;
    held.reset();
  } else {
    held.reset();
  }
}

void kept_objects::let_go() {
  // Move everything out first: releasing it may run Python code that calls this again.
  auto gone = std::move(memories);
  memories.clear();
  auto gone_owners = std::move(owners);
  owners.clear();
  auto file = std::move(target);
  auto files = std::move(others);
  others.clear();
  gone.clear();
  gone_owners.clear();
  if (file != nullptr) release_file(file);
  for (auto& each : files) release_file(each);
}

held_memory::part flight::keep_part(nb::handle buffer, memory_use use, argument_name name) {
  auto& memory = keep(buffer, use, memory_order::c, name);
  const held_memory::part kept{memory.data(), memory.size()};
  if (auto* const owner = memory.only_owner(); owner != nullptr) {
    kept_.owners.push_back(std::move(*owner));
    kept_.memories.pop_back();
  }
  return kept;
}

void flight::start_one(void* memory, std::uint64_t length, std::int64_t offset, bool is_write, const io_options& options) {
  file_name_ = target().path();
  offsets_ = {offset};
  auto held = kept_.target;  // the request may complete and be reported before the call returns
  const auto start = [&] {
    const auto told = [this](const io_result&) { tell(); };
    running_ =
        is_write ? held->write_async(memory, length, offset, options, told) : held->read_async(memory, length, offset, options, told);
  };
  begin_and([&] {
    // Releasing the GIL would let the completions thread take it for earlier requests every time.
    if (held->starts_without_blocking(length, options)) {
      start();
    } else {
      const without_gil unlocked;
      start();
    }
  });
  release_file(held);
  started();
}

// If start throws, for example for lack of memory, nothing has started.
template <class Start>
void flight::begin_and(Start start) {
  begin();
  try {
    start();
  } catch (...) {
    never_began();
    throw;
  }
}

file& flight::keep_file(std::shared_ptr<file> target) {
  file_names_.push_back(target->path());
  return *kept_.others.emplace_back(std::move(target));
}

void flight::start_many(std::vector<io_request> requests, const io_options& options) {
  if (kept_.target != nullptr) file_name_ = target().path();
  offsets_.reserve(requests.size());
  for (const auto& each : requests) offsets_.push_back(each.offset);
  const auto engine = shared_engine();
  auto held = kept_.target;
  auto others = kept_.others;
  begin_and([&] {
    const without_gil unlocked;
    running_ = engine.submit(requests, options, [this](const io_result&) { tell(); });
  });
  if (held != nullptr) release_file(held);
  for (auto& each : others) release_file(each);
  started();
}

void flight::start_in(std::shared_ptr<model_flow> flow, std::span<const file_range> ranges, std::span<void* const> memory) {
  file_name_ = target().path();
  for (const file_range& each : ranges) offsets_.push_back(static_cast<std::int64_t>(each.offset));
  auto held = kept_.target;
  begin_and([&] {
    const auto added = [&] {
      const without_gil unlocked;
      return flow->add(*held, ranges, memory, [this](const io_result&) { tell(); });
    }();
    if (!added) raise(added.error(), {file_name_});
    running_ = flow_item{std::move(flow), *added};
  });
  release_file(held);
  started();
}

void flight::start_other(const starter& begin, std::function<nb::object()> value) {
  make_value_ = std::move(value);
  begin_and([&] {
    const without_gil unlocked;
    running_ = begin([this](const io_result&) { tell(); });
  });
  started();
}

// At interpreter shutdown there may be no thread to report to.
void flight::started() {
  if (!must_wait()) return;
  {
    const without_gil unlocked;
    while (!wait_once(1s)) {
    }
  }
  report();
}

bool flight::wait_once(std::chrono::nanoseconds time) {
  return std::visit([&](auto& running) { return running.wait_for(time); }, running_);
}

bool flight::wait(std::optional<double> timeout_s) {
  const awaited by_this_thread(*this);
  const auto until = timeout_s ? deadline_after(*timeout_s) : deadline_clock::time_point::max();
  while (!done()) {
    const auto time = clock::now();
    if (time >= until) return false;
    wait_in_steps(std::min<clock::duration>(interrupt_interval, until - time));
    if (interrupted()) throw nb::python_error();
  }
  if (now() == state::ended) let_go();
  return true;
}

void flight::let_go() {
  kept_.let_go();
  if (!callbacks_.empty() || prelude_ != nullptr || must_wait()) return;
  reported_ = true;
  settle();
}

void flight::dropped() {
  if (!left_behind() && !settled() && now() == state::ended) let_go();
  if (settled()) let_go_of_python();
}

void flight::let_go_of_python() {
  value_.reset();
  raised_.reset();
  shown_.reset();
  make_value_ = {};
}

// Users' callbacks may run before the engine's callback (which calls this) has returned.
void flight::tell() noexcept {
  told_.store(true);
  ended();
}

flight::state flight::now() const {
  const auto step = step_.load();
  if (step == step::none) return state::ended;
  if (step == step::first || step == step::between) return prelude_->left_behind() ? state::left_in_parent : state::under_way;
  if (told_.load() || std::visit([](const auto& running) { return running.done(); }, running_)) return state::ended;
  return left_behind() ? state::left_in_parent : state::under_way;
}

bool flight::is_told_to_nobody() const {
  const auto is = now();
  return is == state::left_in_parent || (is == state::ended && left_behind() && !reported_);
}

void flight::cancel() {
  const auto step = step_.load();
  cancelled_ = true;
  if (step == step::first) prelude_->cancel();
  if (step == step::only || step == step::second) std::visit([](auto& running) { running.cancel(); }, running_);
}

std::optional<flight::failure> flight::first_failure() {
  if (now() == state::left_in_parent) {
    return failure{{errc::forked, "the request is running in the parent process"},
                   file_names_.empty() ? file_name_ : file_names_.front(),
                   offsets_.empty() ? std::nullopt : std::optional(offsets_.front()),
                   0};
  }
  if (outcomes_.empty()) {
    // It has completed, so this does not block.
    if (auto* one = std::get_if<operation>(&running_)) {
      outcomes_ = {one->wait()};
    } else if (auto* many = std::get_if<batch>(&running_)) {
      outcomes_ = many->wait();
    } else {
      outcomes_ = std::get<flow_item>(running_).wait();
    }
  }
  if (value_has_errors_) return std::nullopt;
  for (std::size_t i = 0; i < outcomes_.size(); ++i) {
    if (outcomes_[i].ok()) continue;
    const auto offset = offsets_.empty() ? std::nullopt : std::optional(offsets_[i]);
    return failure{outcomes_[i].error, file_names_.empty() ? file_name_ : file_names_[i], offset, outcomes_[i].bytes_done};
  }
  return std::nullopt;
}

nb::object flight::error() {
  if (raised_.is_valid()) return copy_of_raised();
  const auto failed = first_failure();
  return failed ? make_error(failed->error, {failed->file_name, failed->offset, failed->bytes_done}) : nb::none();
}

nb::object flight::value() {
  if (raised_.is_valid()) {
    const auto copy = copy_of_raised();
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(copy.ptr())), copy.ptr());
    throw nb::python_error();
  }
  if (const auto failed = first_failure()) raise(failed->error, {failed->file_name, failed->offset, failed->bytes_done});
  if (make_value_ != nullptr && !value_.is_valid()) value_ = make_value_();
  if (value_.is_valid()) return value_;
  if (std::holds_alternative<operation>(running_)) return nb::cast(outcomes_[0].bytes_done);
  nb::list counts;
  for (const auto& each : outcomes_) counts.append(each.bytes_done);
  return counts;
}

bool flight::was_cancelled() {
  if (raised_.is_valid()) return nb::isinstance(raised_, nb::module_::import_("penstock._core.errors").attr("Cancelled"));
  const auto failed = first_failure();
  return failed && failed->error.code() == errc::cancelled;
}

nb::object flight::shown(const nb::object& future) {
  if (shown_.is_valid()) return shown_;
  nb::object made = nb::module_::import_("penstock._core.futures").attr("Shown")();
  if (shown_.is_valid()) return shown_;  // another thread held the GIL in between
  shown_ = made;
  call_back(made.attr("tell"), future);
  return made;
}

void flight::call_back(nb::object callback, nb::object future) {
  if (reported_ || left_behind()) {
    call(callback, future);
  } else {
    callbacks_.emplace_back(std::move(callback), std::move(future));
    has_callbacks_.store(true);
    if (told_.load() || step_.load() == step::none) hurry();
  }
}

void flight::forget_callback(nb::handle callback) {
  const auto found = std::find_if(callbacks_.begin(), callbacks_.end(), [&](const auto& each) { return each.first.is(callback); });
  if (found == callbacks_.end()) return;
  const auto gone = std::move(*found);  // released after it is removed from the list, because that may run Python code
  callbacks_.erase(found);
}

void flight::report() {
  while (step_.load() == step::between)
    wait_in_steps(1s);  // the second step may complete before the thread that started it has recorded it
  reported_ = true;
  kept_.let_go();
  const auto callbacks = std::exchange(callbacks_, {});
  for (const auto& [callback, future] : callbacks) call(callback, future);
}

namespace {

void wait_or_raise(const future& self, std::optional<double> timeout_s) {
  if (self->wait(timeout_s)) return;
  PyErr_SetString(PyExc_TimeoutError, "the request has not completed yet");
  throw nb::python_error();
}

// Returns an attribute of the object for concurrent.futures.
nb::object shown_of(const nb::object& self, const char* name) {
  auto& flight = *nb::inst_ptr<future>(self)->operator->();
  if (flight.is_told_to_nobody() && std::string_view(name) == "state") return nb::str("FINISHED");
  return flight.shown(self).attr(name);
}

// For isinstance(future, concurrent.futures.Future), which asyncio.wrap_future() checks; its caller has imported that module.
PyObject* class_of(PyObject* self, void* /*closure*/) noexcept {
  try {
    const nb::dict modules = nb::module_::import_("sys").attr("modules");
    constexpr auto asked = "concurrent.futures._base";
    const nb::object found = modules.contains(asked) ? nb::object(modules[asked].attr("Future")) : nb::borrow(nb::handle(self).type());
    return nb::object(found).release().ptr();
  } catch (nb::python_error& problem) {
    problem.restore();
    return nullptr;
  }
}

// A slot is used because setting the attribute on a type would change the type's own class.
PyGetSetDef class_property[] = {{"__class__", class_of, nullptr, nullptr, nullptr}, {nullptr, nullptr, nullptr, nullptr, nullptr}};
PyType_Slot class_slots[] = {{Py_tp_getset, class_property}, {0, nullptr}};

// The rest of the asyncio support is in Python, in python/penstock/_core/futures.py.
nb::object await_future(nb::handle self) {
  return nb::module_::import_("penstock._core.futures").attr("await_future")(self).attr("__await__")();
}

}  // namespace

void add_futures(nb::module_& module) {
  auto type =
      nb::class_<future>(
          module, "Future", nb::is_weak_referenceable(), nb::type_slots(class_slots),
          "A request or batch in flight. Keeps its memory and its file alive until it has completed. May be dropped at any time,\n"
          "which does not stop the request. Can be awaited, and is accepted by wait() and as_completed() in concurrent.futures\n"
          "and by asyncio.wrap_future().")
          .def(
              "result",
              [](const future& self, std::optional<double> timeout) {
                wait_or_raise(self, timeout);
                return self->value();
              },
              "timeout"_a = nb::none(),
              "Blocks until the request has completed. Returns the number of bytes moved, which is less than requested only at the\n"
              "end of the file. A batch returns a list of these. timeout is in seconds. Raises the request's penstock.Error, or\n"
              "TimeoutError if it has not completed in time.")
          .def(
              "exception",
              [](const future& self, std::optional<double> timeout) {
                wait_or_raise(self, timeout);
                return self->error();
              },
              "timeout"_a = nb::none(), "As result(), but returns the error, or None.")
          .def(
              "done", [](const future& self) { return self->done(); }, "Returns whether the request has completed. Does not block.")
          .def(
              "cancel",
              [](const future& self) {
                if (self->done()) return false;
                self->cancel();
                return true;
              },
              "Requests cancellation. Returns False if the request has already completed. It completes soon: with penstock.Cancelled,\n"
              "or normally if it was too late to stop it. Until then its memory is in use.")
          .def(
              "add_done_callback", [](nb::object self, nb::object fn) { nb::inst_ptr<future>(self)->operator*().call_back(fn, self); },
              "fn"_a,
              "Calls fn(future) when the request has completed: on one of Penstock's threads, or immediately if it has already\n"
              "completed. fn must not block. Exceptions that it raises are passed to sys.unraisablehook.")
          .def(
              "_forget_callback", [](const future& self, nb::handle fn) { self->forget_callback(fn); }, "fn"_a,
              "Undoes one add_done_callback(fn), by identity. For wait() and as_completed().")
          .def(
              "running", [](const future& self) { return !self->done(); },
              "Returns whether the request is still in flight. Does not block.")
          .def(
              "cancelled", [](const future& self) { return self->done() && self->was_cancelled(); },
              "Returns whether the request was cancelled (penstock.Cancelled). Does not block.")
          .def("__await__", &await_future)
          .def_prop_ro("_condition", [](const nb::object& self) { return shown_of(self, "condition"); })
          .def_prop_ro("_state", [](const nb::object& self) { return shown_of(self, "state"); })
          .def_prop_ro("_waiters", [](const nb::object& self) { return shown_of(self, "waiters"); })
          .def("__repr__", [](const future& self) {
            return nb::str("<penstock.Future {} at {:#x}>").format(word(self->now()), reinterpret_cast<std::uint64_t>(&*self));
          });
  // For annotations such as Future[int].
  type.attr("__class_getitem__") = nb::module_::import_("builtins").attr("classmethod")(nb::module_::import_("types").attr("GenericAlias"));
}

}  // namespace penstock::python
