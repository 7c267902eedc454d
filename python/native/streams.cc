#include "streams.hpp"

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <chrono>

#include "arguments.hpp"
#include "device.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "options.hpp"

namespace penstock::python {

using namespace nb::literals;

void* stream_handle(nb::handle stream) {
  if (stream.is_none()) return nullptr;
  if (PyLong_Check(stream.ptr())) return reinterpret_cast<void*>(unsigned_integer(stream, "stream"));
  if (nb::hasattr(stream, "__cuda_stream__")) {
    nb::object pair = stream.attr("__cuda_stream__");
    if (PyCallable_Check(pair.ptr()) != 0) pair = pair();
    return reinterpret_cast<void*>(unsigned_integer(pair[1], "the handle of __cuda_stream__"));
  }
  for (const char* name : {"cuda_stream", "ptr"}) {
    if (nb::hasattr(stream, name)) return reinterpret_cast<void*>(unsigned_integer(stream.attr(name), name));
  }
  throw nb::type_error(("stream must be an int, or an object with __cuda_stream__, cuda_stream or ptr, not " + type_of(stream)).c_str());
}

memory_place stream_flight::queue(nb::handle buffer, nb::handle stream, std::int64_t offset, std::optional<std::int64_t> size,
                                  std::int64_t buffer_offset, memory_order order, std::uint64_t result, bool is_write) {
  auto held = kept_.target;
  file_name_ = held->path();
  const auto& memory = kept_.memories.emplace_back(buffer, is_write ? memory_use::source : memory_use::target, order);
  const auto part = memory.slice(buffer_offset, size);
  const auto place = memory.place();
  length_ = part.size;
  offset_ = offset;
  auto* const count = result != 0 ? reinterpret_cast<std::int64_t*>(result) : nullptr;
  stream_request request{.stream = stream_handle(stream), .memory = part.data, .length = &length_, .offset = &offset_, .bytes_done = count};
  request.constant_arguments = true;
  request.ended = [this](const io_result& outcome) {
    outcome_ = outcome;
    {
      const std::lock_guard guard(lock_);
      ended_.store(true, std::memory_order_release);
      ended_now_.notify_all();
    }
    ended();
  };
  begin();
  if (must_wait()) {
    never_began();
    raise_invalid("the interpreter is shutting down: nothing can be queued on a stream");
  }
  status queued;
  try {
    const without_gil unlocked;
    queued = is_write ? held->write_on_stream(request) : held->read_on_stream(request);
  } catch (...) {
    never_began();
    throw;
  }
  if (!queued.ok()) never_began();
  release_file(held);
  raise_unless_ok(queued, {file_name_, offset, 0});
  return place;
}

bool stream_flight::wait(std::optional<double> timeout_s) {
  const auto until = timeout_s ? deadline_after(*timeout_s) : deadline_clock::time_point::max();
  while (!done()) {
    const auto now = deadline_clock::now();
    if (now >= until) return false;
    {
      const without_gil unlocked;
      std::unique_lock guard(lock_);
      ended_now_.wait_for(guard, std::min<deadline_clock::duration>(interrupt_interval, until - now), [this] { return done(); });
    }
    if (interrupted()) throw nb::python_error();
  }
  return true;
}

std::uint64_t stream_flight::bytes() {
  if (!done()) raise_invalid("the request has not completed: synchronize its stream first");
  if (!ended_.load(std::memory_order_acquire)) raise({errc::forked, "the request was queued in the parent process"}, {file_name_, offset_});
  kept_.let_go();
  raise_unless_ok(outcome_.error, {file_name_, offset_, outcome_.bytes_done});
  return outcome_.bytes_done;
}

void add_streams(nb::module_& module) {
  nb::class_<stream_result>(
      module, "StreamResult",
      "A request queued on a stream. Keeps its memory and its file alive until the stream has passed it. May be dropped at\n"
      "any time.")
      .def_prop_ro(
          "bytes", [](const stream_result& self) { return self->bytes(); },
          "The number of bytes moved, available once the stream has been synchronized. It is less than requested only at the end\n"
          "of the file. Raises the request's penstock.Error, or ValueError if it has not completed.")
      .def(
          "wait",
          [](const stream_result& self, std::optional<double> timeout) {
            if (self->wait(timeout)) return self->bytes();
            PyErr_SetString(PyExc_TimeoutError, "the stream has not passed the request yet");
            throw nb::python_error();
          },
          "timeout"_a = nb::none(),
          "Blocks until the stream has passed the request, and returns the number of bytes moved. timeout is in seconds. Raises\n"
          "as bytes does, and TimeoutError.")
      .def_prop_ro(
          "done", [](const stream_result& self) { return self->done(); },
          "Returns whether the stream has passed the request. Does not block.")
      .def("__repr__",
           [](const stream_result& self) { return nb::str("<penstock.StreamResult {}>").format(self->done() ? "ended" : "queued"); });
}

}  // namespace penstock::python
