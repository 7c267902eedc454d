#include "kv.hpp"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <penstock/penstock.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "buffers.hpp"
#include "device.hpp"
#include "errors.hpp"
#include "file.hpp"
#include "futures.hpp"
#include "gil.hpp"
#include "streams.hpp"
#include "to_python.hpp"

namespace penstock::python {

namespace {

using namespace nb::literals;

struct python_store {
  std::shared_ptr<kv::store> target;
  explicit python_store(kv::store opened) : target(std::make_shared<kv::store>(std::move(opened))) {}
  python_store(python_store&&) noexcept = default;
  python_store& operator=(python_store&&) = delete;
  // Closing waits for calls in progress, and for the disk.
  ~python_store() {
    if (target == nullptr) return;
    const without_gil unlocked;
    target.reset();
  }
};

python_store open_store(nb::handle folder, std::uint64_t capacity_bytes, bool read_only, bool checksums, bool durable, bool direct,
                        std::uint64_t most_put_bytes) {
  const std::string path = path_text(folder);
  const auto engine = shared_engine();
  auto opened = [&] {
    const without_gil unlocked;
    return kv::store::open(engine, path, {capacity_bytes, read_only, checksums, durable, direct, most_put_bytes});
  }();
  if (!opened) raise(opened.error(), {path});
  return python_store(*std::move(opened));
}

// --- arguments

// The keys of a call, with the objects that own their bytes. A str creates its UTF-8 bytes once and keeps them.
class key_names {
 public:
  explicit key_names(nb::list keys) {
    names_.reserve(keys.size());
    kept_.reserve(keys.size());
    for (const nb::handle each : keys) {
      if (PyUnicode_Check(each.ptr())) {
        add_text(each);
      } else if (PyBytes_Check(each.ptr())) {
        add_bytes(nb::borrow<nb::bytes>(each));
      } else {
        throw nb::type_error(("a key must be str or bytes, not " + type_of(each)).c_str());
      }
    }
  }
  [[nodiscard]] std::span<const std::string_view> views() const noexcept { return names_; }

 private:
  void add_text(nb::handle text) {
    Py_ssize_t length = 0;
    if (const char* const utf8 = PyUnicode_AsUTF8AndSize(text.ptr(), &length); utf8 != nullptr) {
      names_.emplace_back(utf8, static_cast<std::size_t>(length));
      kept_.push_back(nb::borrow(text));
    } else {  // it contains surrogates, as in a path that is not UTF-8
      PyErr_Clear();
      add_bytes(nb::borrow<nb::bytes>(made(PyUnicode_AsEncodedString(text.ptr(), "utf-8", "surrogateescape"))));
    }
  }
  void add_bytes(nb::bytes key) {
    names_.emplace_back(key.c_str(), key.size());
    kept_.push_back(std::move(key));
  }

  std::vector<std::string_view> names_;
  std::vector<nb::object> kept_;
};

// The items of a call; the flight keeps their memory alive.
struct parsed_items {
  key_names names;
  std::vector<kv::memory_piece> pieces;  // of all items
  std::vector<kv::item> items;
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return std::accumulate(pieces.begin(), pieces.end(), std::uint64_t{0}, [](auto sum, const auto& each) { return sum + each.length; });
  }
};

parsed_items parse_items(flight& keeper, nb::list keys, nb::list buffers, memory_use use) {
  parsed_items parsed{key_names(keys), {}, {}};
  const auto names = parsed.names.views();
  if (names.size() != buffers.size()) raise_invalid("the numbers of keys and buffers differ");
  std::vector<std::size_t> counts;
  counts.reserve(names.size());
  const auto add = [&](nb::handle buffer, std::optional<std::size_t> piece) {
    const auto kept = keeper.keep_part(buffer, use, {"items", piece, false, names[counts.size()]});
    parsed.pieces.push_back({kept.data, kept.size});
  };
  for (std::size_t i = 0; i < names.size(); ++i) {
    const nb::object value = buffers[i];
    const auto before = parsed.pieces.size();
    if (PyList_Check(value.ptr()) || PyTuple_Check(value.ptr())) {
      for (const nb::handle each : value) add(each, parsed.pieces.size() - before);
    } else {
      add(value, std::nullopt);
    }
    counts.push_back(parsed.pieces.size() - before);
  }
  parsed.items.reserve(names.size());
  auto rest = std::span<const kv::memory_piece>(parsed.pieces);
  for (std::size_t i = 0; i < names.size(); ++i) {
    parsed.items.push_back({names[i], rest.first(counts[i])});
    rest = rest.subspan(counts[i]);
  }
  return parsed;
}

// --- results

using shared_results = std::shared_ptr<const std::vector<kv::key_result>>;

nb::object outcome_of(const kv::key_result& result, const std::string& folder) {
  if (result.ended == kv::outcome::failed) return make_error(result.error, {folder});
  return nb::bool_(result.ended == kv::outcome::done);
}

nb::object outcomes_of(const std::vector<kv::key_result>& results, const std::string& folder) {
  return list_of(results, [&](const kv::key_result& each) { return outcome_of(each, folder); });
}

void raise_first_of(const std::vector<kv::key_result>& results, const std::string& folder) {
  for (const auto& each : results) raise_unless_ok(each.error, {folder});
}

// The same error as that of the future.
void raise_sum_of(const std::vector<kv::key_result>& results) {
  const auto failed = std::ranges::find_if(results, [](const auto& each) { return !each.error.ok(); });
  if (failed == results.end()) return;
  raise(failed->error, {.bytes_done = std::accumulate(results.begin(), results.end(), std::uint64_t{0},
                                                      [](auto sum, const auto& each) { return sum + each.bytes; })});
}

// --- calls

// stream: None for a call that is not in stream order.
template <bool is_put>
void start_parsed(const python_store& self, flight& made, const parsed_items& parsed, bool return_exceptions,
                  nb::handle stream = nb::none()) {
  const auto on = stream.is_none() ? std::nullopt : std::optional(stream_handle(stream));
  const auto results = std::make_shared<shared_results>();
  if (return_exceptions) made.leave_errors_to_value();
  made.start_other(
      [&, target = self.target](io_callback told) {
        const auto ended = [told = std::move(told)](std::span<const kv::key_result>) { told({}); };
        auto running = [&] {
          if (on) return is_put ? target->put_on_stream(*on, parsed.items, ended) : target->get_on_stream(*on, parsed.items, ended);
          return is_put ? target->put_async(parsed.items, ended) : target->get_async(parsed.items, ended);
        }();
        *results = running.results();
        return std::move(running.running());
      },
      [results, folder = self.target->folder()] { return outcomes_of(**results, folder); });
}

template <bool is_put>
future start(const python_store& self, nb::list keys, nb::list buffers, bool return_exceptions, nb::object stream) {
  future made(stream.is_none() ? new flight() : new flight(flight::may_never_end{}));
  const auto parsed = parse_items(*made, keys, buffers, is_put ? memory_use::source : memory_use::target);
  start_parsed<is_put>(self, *made, parsed, return_exceptions, stream);
  return made;
}

// Runs on the calling thread. A call for many bytes waits for a future instead, so that a signal can end the wait; so does a call without
// keys, whose results have no place for the error of a closed store.
nb::object get(const python_store& self, nb::list keys, nb::list buffers, bool return_exceptions) {
  future made(new flight());
  const auto parsed = parse_items(*made, keys, buffers, memory_use::target);
  if (parsed.items.empty() || parsed.bytes() > uninterrupted_bytes) {
    start_parsed<false>(self, *made, parsed, return_exceptions);
    made->wait(std::nullopt);
    return made->value();
  }
  const auto results = [&, target = self.target] {
    const without_gil unlocked;
    return target->get(parsed.items);
  }();
  if (!return_exceptions) raise_sum_of(results);
  return outcomes_of(results, self.target->folder());
}

nb::object sizes(const python_store& self, nb::list keys) {
  const key_names names(keys);
  const auto results = [&, target = self.target] {
    const without_gil unlocked;
    return target->sizes(names.views());
  }();
  raise_first_of(results, self.target->folder());
  return list_of(results,
                 [](const kv::key_result& each) { return each.ended == kv::outcome::done ? number(each.bytes) : nb::object(nb::none()); });
}

nb::object drop(const python_store& self, nb::list keys) {
  const key_names names(keys);
  const auto results = [&, target = self.target] {
    const without_gil unlocked;
    return target->drop(names.views());
  }();
  raise_first_of(results, self.target->folder());
  return outcomes_of(results, self.target->folder());
}

void sync_store(const python_store& self) {
  const auto done = [&, target = self.target] {
    const without_gil unlocked;
    return target->sync();
  }();
  raise_unless_ok(done, {self.target->folder()});
}

void close_store(const python_store& self) {
  const auto done = [&, target = self.target] {
    const without_gil unlocked;
    return target->close();
  }();
  raise_unless_ok(done, {self.target->folder()});
}

// In the order of penstock.kv.Stats.
nb::object stats_of(const python_store& self) {
  const auto told = self.target->stats();
  return nb::make_tuple(told.keys, told.bytes, told.capacity_bytes, told.wasted_bytes, told.hits, told.misses, told.evicted, told.damaged,
                        told.put_bytes_under_way, told.put_bytes_waiting);
}

}  // namespace

void add_kv(nb::module_& module) {
  nb::class_<python_store>(module, "KVStore", "A key-value store in a folder. Users see penstock.kv.Store.")
      .def("put", &start<true>, "keys"_a, "buffers"_a, "return_exceptions"_a = false, "stream"_a = nb::none(),
           "Stores the bytes of buffers, or of lists or tuples of them, concatenated, under keys. The future returns True for each\n"
           "key, or raises. stream: reads the buffers in the order of this stream.")
      .def("get", &get, "keys"_a, "buffers"_a, "return_exceptions"_a = false,
           "Fetches into buffers, or lists or tuples of them. Blocks. Returns for each key whether it was found, or raises.")
      .def("get_async", &start<false>, "keys"_a, "buffers"_a, "return_exceptions"_a = false, "stream"_a = nb::none(),
           "Fetches into buffers, or lists or tuples of them. The future returns for each key whether it was found, or raises.\n"
           "stream: fills the buffers in the order of this stream.")
      .def("sizes", &sizes, "keys"_a, "Returns the length of each value in bytes, or None. Raises penstock.Error.")
      .def("drop", &drop, "keys"_a, "Drops values. Returns for each key whether it had one. Raises penstock.Error.")
      .def("sync", &sync_store, "Makes all completed puts durable. Raises penstock.Error.")
      .def("stats", &stats_of, "Returns a tuple of numbers in the order of penstock.kv.Stats.")
      .def("close", &close_store, "Waits for calls in progress, then syncs. Raises penstock.Error.");
  module.def("open_kv", &open_store, "folder"_a, "capacity_bytes"_a, "read_only"_a, "checksums"_a, "durable"_a, "direct"_a,
             "max_put_bytes"_a, "Opens a store. Raises penstock.Error.");
}

}  // namespace penstock::python
