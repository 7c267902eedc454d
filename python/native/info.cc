#include "info.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <penstock/penstock.hpp>

#include "completions.hpp"
#include "device.hpp"
#include "errors.hpp"
#include "file.hpp"
#include "gil.hpp"
#include "options.hpp"
#include "to_python.hpp"

namespace penstock::python {

using namespace nb::literals;

namespace {

template <class Values>
nb::list numbers(const Values& values) {
  nb::list list;
  for (const auto each : values) list.append(each);
  return list;
}

nb::dict path_dict(const path_stats& path) {
  nb::dict told;
  told["operations"] = path.operations;
  told["bytes"] = path.bytes;
  told["errors"] = path.errors;
  told["fallbacks"] = path.fallbacks;
  told["last_fallback"] = words(path.last_fallback);
  told["busy_ns"] = path.busy_ns;
  told["active_ns"] = path.active_ns;
  told["size_histogram"] = numbers(path.size_histogram);
  told["latency_histogram"] = numbers(path.latency_histogram);
  return told;
}

nb::dict stats() {
  const auto seen = shared_engine().stats();
  nb::dict told;
  told["reads"] = seen.reads;
  told["writes"] = seen.writes;
  told["read_bytes"] = seen.read_bytes;
  told["written_bytes"] = seen.written_bytes;
  told["failed"] = seen.failed;
  told["cancelled"] = seen.cancelled;
  told["timed_out"] = seen.timed_out;
  told["pinned_bytes"] = seen.pinned_bytes;
  told["pinned_peak_bytes"] = seen.pinned_peak_bytes;
  told["pinned_file_bytes"] = seen.pinned_file_bytes;
  told["pinned_file_drops"] = seen.pinned_file_drops;
  nb::dict paths;
  for (std::size_t i = 1; i < seen.by_path.size(); ++i) paths[words(seen.by_path[i].name)] = path_dict(seen.by_path[i]);
  told["paths"] = paths;
  nb::dict channels;
  for (const auto& each : seen.by_channel) {
    nb::dict channel;
    channel["sent_tensors"] = each.sent_tensors;
    channel["sent_bytes"] = each.sent_bytes;
    channel["received_tensors"] = each.received_tensors;
    channel["received_bytes"] = each.received_bytes;
    channel["pushed_tensors"] = each.pushed_tensors;
    channels[words(each.name)] = channel;
  }
  told["channels"] = channels;
  nb::dict usage;
  for (const auto& each : usage_counters()) usage[nb::str(each.name.data(), each.name.size())] = seen.usage.*each.value;
  told["usage"] = usage;
  return told;
}

nb::list advice_given() {
  const auto engine = shared_engine();
  const auto found = [&] {
    const without_gil unlocked;
    return engine.advice();
  }();
  nb::list told;
  for (const auto& each : found) {
    nb::dict given;
    given["code"] = each.code;
    given["text"] = each.text;
    given["remedy"] = each.remedy;
    given["loss_seconds"] = each.loss_seconds ? nb::object(nb::float_(*each.loss_seconds)) : nb::none();
    told.append(given);
  }
  return told;
}

// penstock.Request is implemented in Python.
nb::list requests() {
  const auto engine = shared_engine();
  const auto seen = [&] {
    const without_gil unlocked;
    return engine.requests();
  }();
  const auto make = nb::module_::import_("penstock._core.requests").attr("Request");
  nb::list told;
  for (const auto& each : seen) {
    told.append(make(path_object(each.file), each.offset < 0 ? nb::none() : nb::object(nb::int_(each.offset)), each.length, each.is_write,
                     each.device.empty() ? nb::none() : words(each.device), each.since_ns, each.of_pipe, words(to_string(each.priority))));
  }
  return told;
}

void quiesce(std::optional<double> timeout) {
  const auto left = timeout ? deadline_after(*timeout) - deadline_clock::now() : std::chrono::nanoseconds::max();
  const auto outcome = [&] {
    const without_gil unlocked;
    return penstock::quiesce(left);
  }();
  if (!outcome.ok()) raise(outcome);
  rest_completions();
}

// Returns why something is unavailable; None if it is available.
nb::object reason(const status& error) { return error.ok() ? nb::none() : words(error.message()); }

}  // namespace

void add_info(nb::module_& module) {
  const auto text = version();
  module.attr("__version__") = nb::str(text.data(), text.size());
  module.def("stats", &stats,
             "Returns this process's counters: requests, bytes, and under \"paths\" what each path moved, with histograms by size\n"
             "(powers of two from 1 KiB) and time (from 1 microsecond). \"channels\" lists what its pipes moved over each channel,\n"
             "\"usage\" the counters from which advice is derived.");
  module.def("advice", &advice_given,
             "Returns usage patterns that cost this program speed, greatest loss first: a list of dicts with \"code\", \"text\",\n"
             "\"remedy\" and \"loss_seconds\" (None if unknown). Empty if there is no advice.");
  module.def("requests", &requests,
             "Returns this process's requests in flight, including those made through other interfaces: a list of penstock.Request.");
  module.def(
      "summary", [] { return shared_engine().summary(); },
      "Returns the counters as text: what each path moved, and why a faster one was not used.");
  module.def(
      "trim",
      [] {
        const auto engine = shared_engine();
        const without_gil unlocked;
        return engine.trim();
      },
      "Returns idle pinned staging memory to the system. Returns the number of bytes released. Later requests pin memory\n"
      "again.");
  module.def("quiesce", &quiesce, "timeout"_a = nb::none(),
             "Does the part of penstock.quiesce() that concerns no Python objects. timeout: seconds. Raises TimedOut, which names a\n"
             "request in flight, and Error, which names what cannot be frozen.");
  module.def(
      "cuda_status", [] { return reason(shared_engine().cuda_status()); }, "Returns why no CUDA device can be used; None if one can.");
  module.def(
      "gpu_direct_status", [] { return reason(shared_engine().gpu_direct_status()); },
      "Returns why no file on this machine can be read or written GPU-direct; None if some can.");
}

}  // namespace penstock::python
