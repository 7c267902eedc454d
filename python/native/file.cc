#include "file.hpp"

#include <fcntl.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <optional>
#include <penstock/penstock.hpp>
#include <string>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "buffers.hpp"
#include "device.hpp"
#include "errors.hpp"
#include "futures.hpp"
#include "gil.hpp"
#include "options.hpp"
#include "pinned.hpp"
#include "position.hpp"
#include "progress.hpp"
#include "ranges.hpp"
#include "remote.hpp"
#include "streams.hpp"

namespace penstock::python {

namespace {

using namespace nb::literals;

using optional_size = std::optional<std::int64_t>;

// --- opening

struct open_mode {
  open_options options;
  bool exclusive = false;
  std::string text;  // without "b"
};

open_mode parse_mode(const std::string& mode) {
  open_mode parsed;
  for (const char letter : mode) {
    if (letter != 'b') parsed.text += letter;
  }
  if (parsed.text == "a" || parsed.text == "a+") raise_invalid("mode 'a' is not supported: open with 'r+' and write at size()");
  const bool update = parsed.text.size() == 2 && parsed.text[1] == '+';
  const char kind =
      parsed.text.empty() || (parsed.text.size() > 1 && !update) || mode.size() - parsed.text.size() > 1 ? '?' : parsed.text[0];
  if (kind != 'r' && kind != 'w' && kind != 'x') raise_invalid("mode must be one of r, r+, w, w+, x, x+; not '" + mode + "'");
  auto& options = parsed.options;
  options.read = kind == 'r' || update;
  options.write = kind != 'r' || update;
  options.create = options.truncate = kind == 'w';
  options.mode = 0666;  // minus the umask, as in Python's open()
  parsed.exclusive = kind == 'x';
  return parsed;
}

// Adds what the engine's open does not support: failing if the file exists.
status create_anew(const std::string& path, unsigned mode) {
  const int descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
  if (descriptor < 0) return status::from_errno(errno, "create " + path);
  ::close(descriptor);
  return {};
}

result<file> open_path(const engine& engine, const std::string& path, const open_mode& how, const std::optional<remote_options>& server) {
  if (server) return engine.open_remote(path, *server, how.options);
  if (how.exclusive && path.find('\0') == std::string::npos) {
    if (auto problem = create_anew(path, how.options.mode); !problem.ok()) return problem;
  }
  return engine.open(path, how.options);
}

// Returns the public name of a File: the object that it was opened with, unless that is a URL with credentials.
nb::object public_name(nb::handle path, const std::string& text) {
  const auto shown = shown_name(text);
  return shown == text ? nb::borrow(path) : path_object(shown);
}

python_file open_file(nb::object path, const std::string& mode, bool direct, nb::handle cache, bool immutable, nb::handle bytes_per_second,
                      nb::handle storage_options) {
  auto how = parse_mode(mode);
  how.options.direct_writes = direct;
  how.options.cache = parse_cache(cache);
  how.options.immutable = immutable;
  const auto limit = signed_integer(bytes_per_second, "bytes_per_second");
  if (limit < 0) raise_invalid("bytes_per_second is " + std::to_string(limit) + ": it must be 0 (no limit) or more");
  how.options.bytes_per_second = static_cast<std::uint64_t>(limit);
  std::optional<remote_options> server;
  if (!storage_options.is_none()) server = parse_storage_options(storage_options);
  const auto engine = shared_engine();
  if (PyLong_Check(path.ptr()) && !PyBool_Check(path.ptr())) {
    if (immutable) raise_invalid("immutable: the file must be opened by path, not by descriptor");
    if (server) raise_invalid("storage_options applies only to URLs, not to a descriptor");
    const auto number = signed_integer(path, "a descriptor");
    if (number != static_cast<int>(number)) raise_invalid("not a valid descriptor: " + std::to_string(number));
    auto adopted = engine.adopt(static_cast<int>(number),
                                {.cache = how.options.cache, .bytes_per_second = how.options.bytes_per_second, .duplicate = true});
    if (!adopted) raise(adopted.error());
    return {std::move(*adopted), std::move(path), std::move(how.text)};
  }
  const auto text = path_text(path);
  if (!server && is_url(text)) server.emplace();
  auto opened = [&] {
    without_gil_until_signal unlocked;
    if (server) server->stop_requested = [&unlocked] { return unlocked.is_interrupted(); };
    return open_path(engine, text, how, server);
  }();
  raise_if_interrupted();
  if (!opened) raise(opened.error(), {shown_name(text)});
  return {std::move(*opened), public_name(path, text), std::move(how.text)};
}

// Returns a copy, so that Python code that runs concurrently cannot change it.
nb::object members_of(const nb::list& list) {
  nb::object members = nb::steal(PyList_AsTuple(list.ptr()));
  if (!members.is_valid()) throw nb::python_error();
  return members;
}

std::vector<result<file>> open_paths(const std::vector<std::string>& paths) {
  const auto engine = shared_engine();
  const auto how = parse_mode("r");
  std::vector<result<file>> opened;
  opened.reserve(paths.size());
  const without_gil unlocked;
  for (const auto& path : paths) opened.push_back(open_path(engine, path, how, std::nullopt));
  return opened;
}

// While other threads compute, reacquiring the GIL takes longer than opening a file, so all files are opened without it at once.
nb::list open_many(const nb::list& paths) {
  const auto names = members_of(paths);
  std::vector<std::string> texts;
  texts.reserve(nb::len(names));
  for (const nb::handle name : names) texts.push_back(path_text(name));
  auto opened = open_paths(texts);
  nb::list outcomes;
  for (std::size_t i = 0; i < opened.size(); ++i) {
    if (opened[i]) {
      outcomes.append(nb::cast(python_file(std::move(*opened[i]), public_name(names[i], texts[i]), "r")));
    } else {
      outcomes.append(make_error(opened[i].error(), {shown_name(texts[i])}));
    }
  }
  return outcomes;
}

// --- one request

void check_offset(std::int64_t offset) {
  if (offset < 0) raise_invalid("offset is " + std::to_string(offset) + ": it must be 0 or more");
}

std::uint64_t run(const python_file& self, nb::handle buffer, std::int64_t offset, optional_size size, std::int64_t buffer_offset,
                  memory_order order, const io_options& options, nb::handle progress, bool is_write) {
  check_offset(offset);
  const held_memory memory(buffer, is_write ? memory_use::source : memory_use::target, order);
  const auto part = memory.slice(buffer_offset, size);
  self.remember(memory);
  const auto target = self.target;
  const auto done = run_blocking({*target, part.data, part.size, offset, is_write}, options, progress);
  if (!done.ok()) raise(done.error, {target->path(), offset, done.bytes_done});
  return done.bytes_done;
}

template <bool is_write>
std::uint64_t run_bound(const python_file& self, nb::handle buffer, std::int64_t offset, optional_size size, std::int64_t buffer_offset,
                        nb::handle order, nb::handle path, nb::handle prefer, nb::handle cache, nb::handle links, nb::handle priority,
                        nb::handle timeout, nb::handle progress) {
  return run(self, buffer, offset, size, buffer_offset, parse_order(order), request_options(path, prefer, cache, links, priority, timeout),
             progress, is_write);
}

template <bool is_write>
future start_bound(const python_file& self, nb::handle buffer, std::int64_t offset, optional_size size, std::int64_t buffer_offset,
                   nb::handle order, nb::handle path, nb::handle prefer, nb::handle cache, nb::handle links, nb::handle priority,
                   nb::handle timeout) {
  check_offset(offset);
  const auto options = request_options(path, prefer, cache, links, priority, timeout);
  const auto allowed = parse_order(order);
  future made(new flight(self.target));
  const auto& memory = made->keep(buffer, is_write ? memory_use::source : memory_use::target, allowed);
  const auto part = memory.slice(buffer_offset, size);
  self.remember(memory);
  made->start_one(part.data, part.size, offset, is_write, options);
  return made;
}

// --- batches

// Waits for a batch. On destruction, cancels the batch and waits for it before its memory is released.
class running_batch {
 public:
  running_batch(const std::vector<io_request>& requests, const io_options& options) {
    const auto engine = shared_engine();
    const without_gil unlocked;
    running_ = engine.submit(requests, options);
  }
  running_batch(const running_batch&) = delete;
  running_batch& operator=(const running_batch&) = delete;
  ~running_batch() {
    if (ended_) return;
    const without_gil unlocked;
    running_.cancel();
    (void)running_.wait();
  }
  // Raises the exception of a signal handler.
  std::vector<io_result> wait() {
    while (!ended_) {
      {
        const without_gil unlocked;
        ended_ = running_.wait_for(interrupt_interval);
      }
      if (!ended_ && interrupted()) throw nb::python_error();
    }
    return running_.wait();
  }

 private:
  batch running_;
  bool ended_ = false;
};

// Runs the requests as one batch. Raises the error of the first request that failed.
std::vector<io_result> run_batch(const std::vector<io_request>& requests, const io_options& options, const file& target) {
  auto outcomes = running_batch(requests, options).wait();
  for (std::size_t i = 0; i < outcomes.size(); ++i) {
    if (!outcomes[i].ok()) raise(outcomes[i].error, {target.path(), requests[i].offset, outcomes[i].bytes_done});
  }
  return outcomes;
}

template <bool is_write>
nb::list run_many(const python_file& self, nb::handle requests, nb::handle order, nb::handle path, nb::handle prefer, nb::handle cache,
                  nb::handle links, nb::handle priority, nb::handle timeout) {
  const auto options = request_options(path, prefer, cache, links, priority, timeout);
  const auto target = self.target;
  std::list<held_memory> held;
  const auto parsed = parse_requests(requests, *target, held, parse_order(order), is_write);
  if (!held.empty()) self.remember(held.back());
  nb::list counts;
  for (const auto& each : run_batch(parsed, options, *target)) counts.append(each.bytes_done);
  return counts;
}

template <bool is_write>
future start_many(const python_file& self, nb::handle requests, nb::handle order, nb::handle path, nb::handle prefer, nb::handle cache,
                  nb::handle links, nb::handle priority, nb::handle timeout) {
  const auto options = request_options(path, prefer, cache, links, priority, timeout);
  future made(new flight(self.target));
  auto parsed = parse_requests(requests, made->target(), made->held(), parse_order(order), is_write);
  if (!made->held().empty()) self.remember(made->held().back());
  made->start_many(std::move(parsed), options);
  return made;
}

// Each request has its own file.
template <bool is_write>
future start_over_files(nb::handle requests, nb::handle order, nb::handle path, nb::handle prefer, nb::handle cache, nb::handle links,
                        nb::handle priority, nb::handle timeout) {
  const auto options = request_options(path, prefer, cache, links, priority, timeout);
  const auto allowed = parse_order(order);
  future made(new flight());
  std::vector<io_request> parsed;
  for (const nb::handle each : requests) {
    const nb::object items = nb::steal(PySequence_Tuple(each.ptr()));
    if (!items.is_valid()) throw nb::python_error();
    const auto count = nb::len(items);
    if (count < 3 || count > 5 || !nb::isinstance<python_file>(items[0])) {
      raise_invalid("each request must be (file, buffer, offset[, size[, buffer_offset]])");
    }
    const auto& named = nb::cast<const python_file&>(items[0]);
    const auto& target = made->keep_file(named.target);
    parsed.push_back(parse_request(items, {1, parsed.size()}, target, made->held(), allowed, is_write));
    named.remember(made->held().back());
  }
  made->start_many(std::move(parsed), options);
  return made;
}

template <bool is_write>
std::uint64_t run_ranges(const python_file& self, nb::handle buffer, nb::handle offsets, nb::handle sizes, nb::handle buffer_offsets,
                         nb::handle order, nb::handle path, nb::handle prefer, nb::handle cache, nb::handle links, nb::handle priority,
                         nb::handle timeout) {
  const auto options = request_options(path, prefer, cache, links, priority, timeout);
  const auto target = self.target;
  const held_memory memory(buffer, is_write ? memory_use::source : memory_use::target, parse_order(order));
  self.remember(memory);
  std::uint64_t total = 0;
  for (const auto& each : run_batch(parse_ranges(memory, *target, offsets, sizes, buffer_offsets, is_write), options, *target)) {
    total += each.bytes_done;
  }
  return total;
}

template <bool is_write>
future start_ranges(const python_file& self, nb::handle buffer, nb::handle offsets, nb::handle sizes, nb::handle buffer_offsets,
                    nb::handle order, nb::handle path, nb::handle prefer, nb::handle cache, nb::handle links, nb::handle priority,
                    nb::handle timeout) {
  const auto options = request_options(path, prefer, cache, links, priority, timeout);
  const auto allowed = parse_order(order);
  future made(new flight(self.target));
  const auto& memory = made->keep(buffer, is_write ? memory_use::source : memory_use::target, allowed);
  self.remember(memory);
  made->start_many(parse_ranges(memory, made->target(), offsets, sizes, buffer_offsets, is_write), options);
  return made;
}

// The requests for each further buffer copy those for the previous buffer.
future start_copied_ranges(const python_file& self, nb::handle buffer, nb::handle offsets, nb::handle sizes, nb::handle buffer_offsets,
                           nb::handle copies, nb::handle order, nb::handle path, nb::handle prefer, nb::handle cache, nb::handle links,
                           nb::handle priority, nb::handle timeout) {
  const auto options = request_options(path, prefer, cache, links, priority, timeout);
  const auto allowed = parse_order(order);
  future made(new flight(self.target));
  const auto& memory = made->keep(buffer, memory_use::target, allowed);
  self.remember(memory);
  auto requests = parse_ranges(memory, made->target(), offsets, sizes, buffer_offsets, false);
  const auto count = requests.size();
  for (const nb::handle each : copies) {
    auto further = parse_ranges(made->keep(each, memory_use::target, allowed), made->target(), offsets, sizes, buffer_offsets, false);
    for (auto& request : further) {
      request.copy_of = static_cast<std::uint32_t>(requests.size() - count);
      requests.push_back(request);
    }
  }
  made->start_many(std::move(requests), options);
  return made;
}

template <bool is_write>
stream_result queue_bound(const python_file& self, nb::handle buffer, nb::handle stream, std::int64_t offset, optional_size size,
                          std::int64_t buffer_offset, nb::handle order, std::uint64_t result) {
  check_offset(offset);
  const auto allowed = parse_order(order);
  stream_result made(new stream_flight(self.target));
  self.last_memory = made->queue(buffer, stream, offset, size, buffer_offset, allowed, result, is_write);
  return made;
}

// --- other methods

void close(python_file& self) {
  if (std::exchange(self.closed, true)) return;
  const auto target = self.target;
  const auto closed = [&] {
    const without_gil unlocked;
    return target->close();
  }();
  raise_unless_ok(closed, {target->path()});
}

// Returns the files in `given` that are still open, and marks them as closed. Raises TypeError before marking any.
std::vector<std::shared_ptr<file>> take_open(nb::handle given) {
  for (const nb::handle each : given) {
    if (!nb::isinstance<python_file>(each)) throw nb::type_error(("files must be penstock.File objects, not " + type_of(each)).c_str());
  }
  std::vector<std::shared_ptr<file>> taken;
  taken.reserve(nb::len(given));
  for (const nb::handle each : given) {
    auto& self = nb::cast<python_file&>(each);
    if (!std::exchange(self.closed, true)) taken.push_back(self.target);
  }
  return taken;
}

void close_many(const nb::list& files) {
  const auto given = members_of(files);
  const auto closing = take_open(given);
  if (closing.empty()) return;
  const without_gil unlocked;
  for (const auto& each : closing) (void)each->close();  // errors are ignored, as when the last reference is dropped
}

void sync(const python_file& self) {
  const auto target = self.target;
  const auto done = [&] {
    const without_gil unlocked;
    return target->sync();
  }();
  raise_unless_ok(done, {target->path()});
}

pinned_file_memory pin(const python_file& self, std::int64_t offset, optional_size size) {
  check_offset(offset);
  if (size && *size < 0) raise_invalid("size is " + std::to_string(*size));
  const auto target = self.target;
  auto pinned = [&] {
    const without_gil unlocked;
    return target->pin(static_cast<std::uint64_t>(offset), size ? static_cast<std::uint64_t>(*size) : ~std::uint64_t{0});
  }();
  if (!pinned) raise(pinned.error(), {target->path(), offset});
  return pinned_file_memory(std::move(*pinned));
}

// Host memory needs no preparation.
void prepare(const python_file& self, nb::handle device) {
  const auto target = self.target;
  const auto name = known_device(device);
  if (name == "host") return;
  const auto made = [&] {
    const without_gil unlocked;
    return target->prepare(name);
  }();
  if (!made.ok()) raise(made, {target->path()});
}

// Returns the engine's name for the memory's device.
std::string device_of(const engine& engine, const memory_place& memory) {
  if (!memory.device.empty()) return memory.device;
  const auto facts = engine.describe(memory.address);
  if (!facts) raise(facts.error());
  return facts->kind == memory_kind::device ? facts->device : "host";
}

std::string default_device(const engine& engine) { return engine.cuda_status().ok() ? "cuda:0" : "host:0"; }

// Returns the device for explain(): from its arguments, otherwise from the last request, otherwise the first of devices().
std::string device_of(const engine& engine, const python_file& self, const std::optional<std::string>& memory, nb::handle device) {
  if (memory && *memory != "host" && *memory != "pinned" && *memory != "device") {
    raise_invalid("memory must be one of host, pinned, device; not '" + *memory + "'");
  }
  if (!device.is_none()) {
    const auto name = device_name(device);
    if (memory && *memory != "device" && name != "host") {
      raise_invalid("memory is '" + *memory + "', which is host memory, but device is '" + name + "'");
    }
    return known_device(device);
  }
  if (memory) return *memory == "device" ? default_device(engine) : "host";
  return self.last_memory.address != nullptr ? device_of(engine, self.last_memory) : default_device(engine);
}

// Returns the range for explain(): a number of bytes, or a buffer's, and the device.
struct explained_range {
  std::string device;
  std::uint64_t length = 0;
};

// PyTorch's tensors also have __index__ but are not sequences.
bool is_number(nb::handle object) {
  return PyIndex_Check(object.ptr()) != 0 && PySequence_Check(object.ptr()) == 0 && !nb::hasattr(object, "__dlpack__");
}

explained_range range_of(const engine& engine, const python_file& self, nb::handle size, std::int64_t offset,
                         const std::optional<std::string>& memory, nb::handle device) {
  const auto rest = [&] {
    const auto whole = size_of(self);
    const auto start = static_cast<std::uint64_t>(offset);
    return whole > start ? whole - start : 0;
  };
  if (size.is_none()) return {device_of(engine, self, memory, device), rest()};
  if (is_number(size)) {
    const auto number = signed_integer(size, "size");
    if (number < 0) raise_invalid("size is " + std::to_string(number));
    return {device_of(engine, self, memory, device), static_cast<std::uint64_t>(number)};
  }
  const held_memory buffer(size, memory_use::source, memory_order::any, {"size"});
  if (memory || !device.is_none()) raise_invalid("memory and device apply only to a number of bytes, not to a buffer");
  return {device_of(engine, buffer.place()), buffer.size()};
}

// penstock.Plan is implemented in Python.
nb::object explain(const python_file& self, nb::handle size, std::int64_t offset, const std::optional<std::string>& memory, bool write,
                   nb::handle path, nb::handle prefer, nb::handle cache, nb::handle links, nb::handle priority, nb::handle device) {
  const auto options = request_options(path, prefer, cache, links, priority, nb::none());
  const auto engine = shared_engine();
  const auto target = self.target;
  check_offset(offset);
  const auto asked = range_of(engine, self, size, offset, memory, device);
  const auto told = [&] {
    const without_gil unlocked;
    return engine.explain(*target, asked.device, asked.length, offset, write, options);
  }();
  if (!told) raise(told.error(), {target->path(), offset});
  nb::list parts;
  for (const auto& each : told->parts) {
    const auto word = to_string(each.path);
    parts.append(nb::make_tuple(each.offset, each.length, nb::str(word.data(), word.size()), nb::str(each.reason.c_str())));
  }
  nb::list remarks;
  for (const auto& each : told->remarks) remarks.append(nb::str(each.c_str()));
  return nb::module_::import_("penstock._core.plan")
      .attr("make_plan")(parts, remarks, told->cached_bytes ? nb::object(nb::int_(*told->cached_bytes)) : nb::none());
}

}  // namespace

std::string path_text(nb::handle path) {
  const nb::object plain = nb::steal(PyOS_FSPath(path.ptr()));
  if (!plain.is_valid()) throw nb::python_error();
  nb::object bytes = PyUnicode_Check(plain.ptr()) ? nb::steal(PyUnicode_EncodeFSDefault(plain.ptr())) : plain;
  if (!bytes.is_valid()) throw nb::python_error();
  return file_path({PyBytes_AsString(bytes.ptr()), static_cast<std::size_t>(PyBytes_Size(bytes.ptr()))});
}

nb::object path_object(std::string_view path) {
  nb::object made = nb::steal(PyUnicode_DecodeFSDefaultAndSize(path.data(), static_cast<Py_ssize_t>(path.size())));
  if (!made.is_valid()) throw nb::python_error();
  return made;
}

// --- pinned ranges

// Releases the GIL, because the driver takes some time to unregister memory.
void pinned_file_memory::release() {
  auto ended = std::exchange(range_, pinned_range());
  released_ = true;
  const without_gil unlocked;
  ended = pinned_range();
}

pinned_file_memory::~pinned_file_memory() {
  if (!released_ && range_.problem().code() != errc::closed) release();
}

nb::object pinned_file_memory::problem() const {
  if (released_) return nb::str("it was released");
  const auto why = range_.problem();
  if (why.ok()) return nb::none();
  const auto text = why.message();
  return nb::str(text.data(), text.size());
}

void add_pinned(nb::module_& module) {
  nb::class_<pinned_file_memory>(module, "PinnedRange", nb::is_weak_referenceable(),
                                 "The page cache of a file range, pinned for reads into device memory. Returned by File.pin().")
      .def_prop_ro("size", &pinned_file_memory::size, "The number of bytes currently pinned; 0 after the pin was released or dropped.")
      .def_prop_ro("problem", &pinned_file_memory::problem,
                   "Why the range is no longer pinned, for example because memory ran short; None while it is pinned.")
      .def("release", &pinned_file_memory::release, "Releases the pin. A second call does nothing.")
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__", [](pinned_file_memory& self, nb::handle, nb::handle, nb::handle) { self.release(); }, "type"_a.none(),
          "value"_a.none(), "traceback"_a.none())
      .def("__repr__", [](const pinned_file_memory& self) { return nb::str("<penstock.PinnedRange size={}>").format(self.size()); });
}

std::uint64_t size_of(const python_file& self) {
  const auto bytes = self.target->size();
  if (!bytes) raise(bytes.error(), {self.target->path()});
  return *bytes;
}

void add_files(nb::module_& module) {
  const auto none = nb::none();
  add_pinned(module);
  nb::class_<python_file> type(
      module, "File", nb::is_weak_referenceable(),
      "An open file, from penstock.open(). Any thread may use it. Offsets and sizes are in bytes.\n\n"
      "Requests take a buffer (penstock's documentation describes which objects are accepted), an offset in the file, a size\n"
      "(None: to the end of the buffer) and an offset in the buffer. An array in Fortran order is rejected unless order is\n"
      "'A', which moves the bytes in memory order. path forces one of Penstock's paths, prefer is 'speed' or 'cpu', cache\n"
      "selects how reads into device memory treat bytes that are not in the page cache ('fill', 'bypass' or 'auto'; None: as\n"
      "set when the file was opened), timeout is in seconds. A count below size always means the end of the file. Raises\n"
      "penstock.Error, and ValueError for invalid arguments.");
  type.def_ro("name", &python_file::name, "The path, URL (without its query) or descriptor that the file was opened with.")
      .def_ro("mode", &python_file::mode, "The mode that the file was opened with.")
      .def_ro("closed", &python_file::closed)
      .def("size", &size_of, "Returns the current size as reported by the kernel: 0 for files in /proc, regardless of their contents.")
      .def("sync", &sync, "Forces written data to the disk. Blocks.")
      .def("close", &close, "Waits for requests in flight, then closes the file. A second call does nothing.")
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__", [](python_file& self, nb::handle, nb::handle, nb::handle) { close(self); }, "type"_a.none(), "value"_a.none(),
          "traceback"_a.none())
      .def("read_into", &run_bound<false>, "buffer"_a.none(), "offset"_a = 0, "size"_a = none, "buffer_offset"_a = 0, nb::kw_only(),
           "order"_a = "C", "path"_a = none, "prefer"_a = none, "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
           "progress"_a = none,
           "Reads into buffer; blocks. Returns the number of bytes read. links: the number of PCIe links over which one GPU may be\n"
           "filled from the page cache, 1 to 8 or 'auto': its own, and those of GPUs that can copy to it directly, through 32 MiB\n"
           "of memory on each. progress: a callable that is called with the bytes of each piece, or an object with update(), such\n"
           "as tqdm's. priority: 'background' for requests whose results are not needed soon: other requests run first.")
      .def("write_from", &run_bound<true>, "buffer"_a.none(), "offset"_a = 0, "size"_a = none, "buffer_offset"_a = 0, nb::kw_only(),
           "order"_a = "C", "path"_a = none, "prefer"_a = none, "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
           "progress"_a = none,
           "Writes from buffer; blocks. Returns the number of bytes written, which is always all of them. progress as for\n"
           "read_into().")
      .def("pread", &start_bound<false>, "buffer"_a.none(), "offset"_a = 0, "size"_a = none, "buffer_offset"_a = 0, nb::kw_only(),
           "order"_a = "C", "path"_a = none, "prefer"_a = none, "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
           "Starts reading into buffer. Returns a Future for the number of bytes read.")
      .def("pwrite", &start_bound<true>, "buffer"_a.none(), "offset"_a = 0, "size"_a = none, "buffer_offset"_a = 0, nb::kw_only(),
           "order"_a = "C", "path"_a = none, "prefer"_a = none, "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
           "Starts writing from buffer. Returns a Future for the number of bytes written.")
      .def("read_many", &run_many<false>, "requests"_a, nb::kw_only(), "order"_a = "C", "path"_a = none, "prefer"_a = none,
           "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
           "Reads (buffer, offset[, size[, buffer_offset]]) for each of requests, as one batch; blocks. Returns the list of\n"
           "counts. Raises the error of the first request that failed; the others are not affected.")
      .def("write_many", &run_many<true>, "requests"_a, nb::kw_only(), "order"_a = "C", "path"_a = none, "prefer"_a = none,
           "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none, "Like read_many(), but writes.")
      .def("pread_many", &start_many<false>, "requests"_a, nb::kw_only(), "order"_a = "C", "path"_a = none, "prefer"_a = none,
           "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
           "Starts the same as read_many(). Returns a Future for the list of counts.")
      .def("pwrite_many", &start_many<true>, "requests"_a, nb::kw_only(), "order"_a = "C", "path"_a = none, "prefer"_a = none,
           "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
           "Starts the same as write_many(). Returns a Future for the list of counts.")
      .def("read_ranges", &run_ranges<false>, "buffer"_a.none(), "offsets"_a, "sizes"_a, "buffer_offsets"_a = none, nb::kw_only(),
           "order"_a = "C", "path"_a = none, "prefer"_a = none, "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
           "Reads many ranges into one buffer, as one batch; blocks. offsets, sizes and buffer_offsets are sequences of int or\n"
           "arrays; a single size applies to all ranges; without buffer_offsets the ranges are placed one after the other. Arrays\n"
           "of 64-bit integers are fastest. Returns the total number of bytes read.")
      .def("write_ranges", &run_ranges<true>, "buffer"_a.none(), "offsets"_a, "sizes"_a, "buffer_offsets"_a = none, nb::kw_only(),
           "order"_a = "C", "path"_a = none, "prefer"_a = none, "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
           "Like read_ranges(), but writes.")
      .def("pread_ranges", &start_copied_ranges, "buffer"_a.none(), "offsets"_a, "sizes"_a, "buffer_offsets"_a = none, nb::kw_only(),
           "copies"_a = nb::make_tuple(), "order"_a = "C", "path"_a = none, "prefer"_a = none, "cache"_a = none, "links"_a = none,
           "priority"_a = none, "timeout"_a = none,
           "Starts the same as read_ranges(). Returns a Future for the list of counts. copies: further buffers, on other devices,\n"
           "that receive the same ranges at the same places. The file is read once, and the bytes are copied from each buffer to\n"
           "the next if their devices can access each other. Ranges up to 32 MiB keep all devices busy. The counts of the copies\n"
           "follow those of buffer.")
      .def("pwrite_ranges", &start_ranges<true>, "buffer"_a.none(), "offsets"_a, "sizes"_a, "buffer_offsets"_a = none, nb::kw_only(),
           "order"_a = "C", "path"_a = none, "prefer"_a = none, "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
           "Starts the same as write_ranges(). Returns a Future for the list of counts.")
      .def("read_on_stream", &queue_bound<false>, "buffer"_a.none(), "stream"_a.none(), "offset"_a = 0, "size"_a = none,
           "buffer_offset"_a = 0, nb::kw_only(), "order"_a = "C", "result"_a = 0,
           "Queues a read into device memory on a stream, which is an address or an object from CuPy, PyTorch or cuda-python. Does\n"
           "not block. result: the address, in host or device memory, of 8 bytes that are set before later work on the stream\n"
           "starts: to the number of bytes read, or to -1. The file may be read immediately, but not before overlapping writes\n"
           "that were queued earlier on any stream; memory is written in stream order. Returns a StreamResult.")
      .def("write_on_stream", &queue_bound<true>, "buffer"_a.none(), "stream"_a.none(), "offset"_a = 0, "size"_a = none,
           "buffer_offset"_a = 0, nb::kw_only(), "order"_a = "C", "result"_a = 0,
           "Like read_on_stream(), but queues a write from device memory.")
      .def("pin", &pin, "offset"_a = 0, "size"_a = none,
           "Reads a range (size None: to the end of the file) into the page cache and pins it there: it is registered with the GPU\n"
           "driver, so that the GPU itself copies all later reads of it into device memory. Blocks. Returns a\n"
           "penstock.PinnedRange, which releases the pin at the end of a with statement, by release(), or with its last reference.")
      .def("prepare", &prepare, "device"_a.none(),
           "Prepares the first read into this device on the library's threads: pinned memory, streams, a kernel. For programs that\n"
           "know the target device early. Raises NotFound if there is no such device.")
      .def("explain", &explain, "size"_a = none, "offset"_a = 0, nb::kw_only(), "memory"_a = none, "write"_a = false, "path"_a = none,
           "prefer"_a = none, "cache"_a = none, "links"_a = none, "priority"_a = none, "device"_a = none,
           "Returns a penstock.Plan that says what a read (or write) of the range would do, and why. size: a number of bytes, None\n"
           "for the rest of the file, or a buffer: that many bytes, in memory like the buffer's. device: as for penstock.device().\n"
           "memory: 'host', 'pinned' or 'device'. Without either, the memory is like that of the last request on this file or,\n"
           "before the first request, that of the first of devices(). Does not create a context on a GPU.")
      .def("__repr__", [](const python_file& self) {
        return nb::str("<penstock.File name={!r} mode={!r}{}>").format(self.name, self.mode, self.closed ? " closed" : "");
      });
  add_position(type);
  module.def("open", &open_file, "path"_a, "mode"_a = "r", nb::kw_only(), "direct"_a = false, "cache"_a = none, "immutable"_a = false,
             "bytes_per_second"_a = 0, "storage_options"_a = none,
             "Opens a file, or (for reading) an object on a server: http://, https://, s3://BUCKET/KEY, hf://. path: str, bytes,\n"
             "PathLike, or an open descriptor, which is duplicated and not closed. mode: r, r+, w (create or truncate, write-only),\n"
             "w+, x (create, fail if it exists), x+; a 'b' is ignored. direct: large aligned writes bypass the page cache. cache:\n"
             "how reads of this file into device memory treat bytes that are not in the page cache: 'fill' it with them, 'bypass' the\n"
             "cache, or 'auto'. immutable: you guarantee that the file's bytes do not change while it is open here, so that for\n"
             "sequential blocking reads up to 16 MiB into device memory, the following bytes are read ahead from the page cache into\n"
             "pinned memory. For mode r. bytes_per_second: a limit for requests on this file, which are delayed when it is reached;\n"
             "0 means no limit. storage_options: a mapping that says how to reach a server: kind (auto, http, s3, s3_public,\n"
             "s3_presigned, webhdfs), size (in bytes: it is then not requested from the server), headers (for http), region,\n"
             "endpoint, profile, access_key_id, secret_access_key, session_token, anonymous, allow_credential_process,\n"
             "requester_pays, addressing_style, use_fips, use_dualstack, and for writing content_type, server_side_encryption,\n"
             "sse_kms_key_id, storage_class, acl, tags (for s3; values that are not given are looked up as the AWS tools do; the\n"
             "usual names of fsspec and object_store are also accepted), user (for webhdfs), attempts, retried_statuses, timeout and\n"
             "retry_pause in seconds (retries and waiting), cache_dir (a folder that caches what is read for later readers on this\n"
             "machine) and cache_bytes (its size limit), ranges_only (reads fail on a server without ranges, instead of reading the\n"
             "whole object once). Raises penstock.Error, which is also FileNotFoundError, PermissionError or FileExistsError, and\n"
             "ValueError for an invalid mode.");
  module.def("open_many", &open_many, "paths"_a,
             "Opens files for reading, as open(path) does, one after another. paths: a list of str, bytes, PathLike. Returns a list\n"
             "that contains, for each path, the File or the exception that open() would raise. Blocks, and releases the GIL once for\n"
             "all of them.");
  module.def("close_many", &close_many, "files"_a,
             "Closes a list of files that were only read, as dropping the last references to them would: errors are not reported.\n"
             "Waits for requests in flight on each. Closed files are skipped. Releases the GIL once for all of them.");
  module.def("pread_many", &start_over_files<false>, "requests"_a, nb::kw_only(), "order"_a = "C", "path"_a = none, "prefer"_a = none,
             "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
             "Starts reading (file, buffer, offset[, size[, buffer_offset]]) for each of requests, as one batch over any number of\n"
             "files. Returns a Future for the list of counts, which raises the error of the first request that failed; the others\n"
             "are not affected.");
  module.def("pwrite_many", &start_over_files<true>, "requests"_a, nb::kw_only(), "order"_a = "C", "path"_a = none, "prefer"_a = none,
             "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none, "Like pread_many(), but writes.");
}

}  // namespace penstock::python
