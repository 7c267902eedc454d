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
  if (parsed.text == "a" || parsed.text == "a+") raise_invalid("mode 'a': an append has no offset; open with 'r+' and write at size()");
  const bool update = parsed.text.size() == 2 && parsed.text[1] == '+';
  const char kind =
      parsed.text.empty() || (parsed.text.size() > 1 && !update) || mode.size() - parsed.text.size() > 1 ? '?' : parsed.text[0];
  if (kind != 'r' && kind != 'w' && kind != 'x') raise_invalid("mode is one of r, r+, w, w+, x, x+; not '" + mode + "'");
  auto& options = parsed.options;
  options.read = kind == 'r' || update;
  options.write = kind != 'r' || update;
  options.create = options.truncate = kind == 'w';
  options.mode = 0666;  // minus the umask, as in Python's open()
  parsed.exclusive = kind == 'x';
  return parsed;
}

// What opening in the engine lacks: failing if the file exists.
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

// The public name of a File: the object that it was opened with, unless that is a URL with credentials.
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
  if (limit < 0) raise_invalid("bytes_per_second is " + std::to_string(limit) + ": 0 means no limit");
  how.options.bytes_per_second = static_cast<std::uint64_t>(limit);
  std::optional<remote_options> server;
  if (!storage_options.is_none()) server = parse_storage_options(storage_options);
  const auto engine = shared_engine();
  if (PyLong_Check(path.ptr()) && !PyBool_Check(path.ptr())) {
    if (immutable) raise_invalid("immutable: needs a file opened by its path, not by a descriptor");
    if (server) raise_invalid("storage_options: they are for URLs, not for a descriptor");
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

// Returns a copy, so that Python code that runs meanwhile cannot change it.
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

// While other threads compute, taking the GIL back takes longer than opening a file, so all files are opened in one go.
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
  // Raises what a signal handler raises.
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

// Runs the requests as one batch. Raises the error of the first that failed.
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
      raise_invalid("a request over many files is (file, buffer, offset[, size[, buffer_offset]])");
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

// Returns the files of `given` that are still open, and marks them as closed. Raises TypeError before it marks any.
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
  for (const auto& each : closing) (void)each->close();  // errors are dropped, as when the last reference goes
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

// The engine's name for the device of the memory.
std::string device_of(const engine& engine, const memory_place& memory) {
  if (!memory.device.empty()) return memory.device;
  const auto facts = engine.describe(memory.address);
  if (!facts) raise(facts.error());
  return facts->kind == memory_kind::device ? facts->device : "host";
}

std::string default_device(const engine& engine) { return engine.cuda_status().ok() ? "cuda:0" : "host:0"; }

// The device for explain(): from its arguments, else from the last request, else the first of devices().
std::string device_of(const engine& engine, const python_file& self, const std::optional<std::string>& memory, nb::handle device) {
  if (memory && *memory != "host" && *memory != "pinned" && *memory != "device") {
    raise_invalid("memory is one of host, pinned, device; not '" + *memory + "'");
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

// The range for explain(): a number of bytes or those of a buffer, and their device.
struct explained_range {
  std::string device;
  std::uint64_t length = 0;
};

// PyTorch's tensors also have __index__ and are not sequences.
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
  if (memory || !device.is_none()) raise_invalid("a buffer already has its memory: memory and device apply only to a number of bytes");
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
  return nb::module_::import_("penstock._plan")
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

// Releases the GIL, because the driver takes a while to unregister memory.
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
                                 "The page cache of a range of a file, pinned for reads into device memory. From File.pin().")
      .def_prop_ro("size", &pinned_file_memory::size, "Bytes that are pinned now: 0 once it was released, or given up.")
      .def_prop_ro("problem", &pinned_file_memory::problem, "Why it is no longer pinned, as where memory ran short; None while it is.")
      .def("release", &pinned_file_memory::release, "Gives it back. A second time does nothing.")
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
      "Requests take a buffer (see penstock's documentation for what is one), the offset in the file, the size\n"
      "(None: to the end of the buffer) and the offset in the buffer. An array in Fortran's order is refused, unless order is 'A': then\n"
      "its bytes go as they lie in memory. path forces one of Penstock's paths, prefer is\n"
      "'speed' or 'cpu', cache is what reads into device memory do with what is not in the page cache ('keep', 'bypass' or 'auto'; None:\n"
      "as the file was opened), timeout is in seconds. A count below size means the end of the file, and nothing else.\n"
      "Raises penstock.Error; ValueError for what the caller got wrong.");
  type.def_ro("name", &python_file::name, "What it was opened by; of a URL without its query.")
      .def_ro("mode", &python_file::mode, "How it was opened.")
      .def_ro("closed", &python_file::closed)
      .def("size", &size_of, "Its size now, as the kernel tells it: 0 for files of /proc, whatever they hold.")
      .def("sync", &sync, "Forces written data to the disk. Blocks.")
      .def("close", &close, "Waits for requests under way, then closes. A second time does nothing.")
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__", [](python_file& self, nb::handle, nb::handle, nb::handle) { close(self); }, "type"_a.none(), "value"_a.none(),
          "traceback"_a.none())
      .def(
          "read_into", &run_bound<false>, "buffer"_a.none(), "offset"_a = 0, "size"_a = none, "buffer_offset"_a = 0, nb::kw_only(),
          "order"_a = "C", "path"_a = none, "prefer"_a = none, "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
          "progress"_a = none,
          "Reads into buffer; blocks. Returns the bytes read. links: PCIe links that one GPU may be filled over from the page cache, 1 to\n"
          "8 or 'auto': its own, and those of GPUs that copy to it straight, through 32 MiB of the memory of each. progress is told the\n"
          "bytes of each piece: a callable, or an object with update(), such as tqdm's. priority: 'background' for what nobody waits for: "
          "other\n"
          "requests go first.")
      .def("write_from", &run_bound<true>, "buffer"_a.none(), "offset"_a = 0, "size"_a = none, "buffer_offset"_a = 0, nb::kw_only(),
           "order"_a = "C", "path"_a = none, "prefer"_a = none, "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
           "progress"_a = none, "Writes from buffer; blocks. Returns the bytes written, which are all. progress as for read_into().")
      .def("pread", &start_bound<false>, "buffer"_a.none(), "offset"_a = 0, "size"_a = none, "buffer_offset"_a = 0, nb::kw_only(),
           "order"_a = "C", "path"_a = none, "prefer"_a = none, "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
           "Begins to read into buffer. Returns a Future of the bytes read.")
      .def("pwrite", &start_bound<true>, "buffer"_a.none(), "offset"_a = 0, "size"_a = none, "buffer_offset"_a = 0, nb::kw_only(),
           "order"_a = "C", "path"_a = none, "prefer"_a = none, "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
           "Begins to write from buffer. Returns a Future of the bytes written.")
      .def(
          "read_many", &run_many<false>, "requests"_a, nb::kw_only(), "order"_a = "C", "path"_a = none, "prefer"_a = none, "cache"_a = none,
          "links"_a = none, "priority"_a = none, "timeout"_a = none,
          "Reads (buffer, offset[, size[, buffer_offset]]) for each of requests, as one batch; blocks. Returns the list of counts. Raises\n"
          "as the first that failed; the others are not disturbed.")
      .def("write_many", &run_many<true>, "requests"_a, nb::kw_only(), "order"_a = "C", "path"_a = none, "prefer"_a = none,
           "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none, "Writes; otherwise as read_many().")
      .def("pread_many", &start_many<false>, "requests"_a, nb::kw_only(), "order"_a = "C", "path"_a = none, "prefer"_a = none,
           "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
           "Begins what read_many() does. Returns a Future of the list of counts.")
      .def("pwrite_many", &start_many<true>, "requests"_a, nb::kw_only(), "order"_a = "C", "path"_a = none, "prefer"_a = none,
           "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
           "Begins what write_many() does. Returns a Future of the list of counts.")
      .def("read_ranges", &run_ranges<false>, "buffer"_a.none(), "offsets"_a, "sizes"_a, "buffer_offsets"_a = none, nb::kw_only(),
           "order"_a = "C", "path"_a = none, "prefer"_a = none, "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
           "Reads many ranges into one buffer, as one batch; blocks. offsets, sizes and buffer_offsets are sequences of int or arrays; a\n"
           "single size holds for all; without buffer_offsets the ranges lie one after the other. Arrays of 64-bit integers are the quick\n"
           "way. Returns the total of bytes read.")
      .def("write_ranges", &run_ranges<true>, "buffer"_a.none(), "offsets"_a, "sizes"_a, "buffer_offsets"_a = none, nb::kw_only(),
           "order"_a = "C", "path"_a = none, "prefer"_a = none, "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
           "Writes; otherwise as read_ranges().")
      .def(
          "pread_ranges", &start_copied_ranges, "buffer"_a.none(), "offsets"_a, "sizes"_a, "buffer_offsets"_a = none, nb::kw_only(),
          "copies"_a = nb::make_tuple(), "order"_a = "C", "path"_a = none, "prefer"_a = none, "cache"_a = none, "links"_a = none,
          "priority"_a = none, "timeout"_a = none,
          "Begins what read_ranges() does. Returns a Future of the list of counts.\n"
          "copies: further buffers, of other devices, that get the same ranges at the same places: the file is read once, and the bytes go "
          "on\n"
          "from each buffer to the next, where their devices reach each other. Ranges of 32 MiB and less keep all of them busy. Their "
          "counts "
          "follow.")
      .def("pwrite_ranges", &start_ranges<true>, "buffer"_a.none(), "offsets"_a, "sizes"_a, "buffer_offsets"_a = none, nb::kw_only(),
           "order"_a = "C", "path"_a = none, "prefer"_a = none, "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
           "Begins what write_ranges() does. Returns a Future of the list of counts.")
      .def("read_on_stream", &queue_bound<false>, "buffer"_a.none(), "stream"_a.none(), "offset"_a = 0, "size"_a = none,
           "buffer_offset"_a = 0, nb::kw_only(), "order"_a = "C", "result"_a = 0,
           "Queues a read into device memory onto a stream: an address, or an object of CuPy, PyTorch or cuda-python. Does not block.\n"
           "result: an address, of the host or of a device, where 8 bytes are set before later work of the stream starts: to the bytes\n"
           "read, or to -1. The file may be read from the call on, but after writes onto streams that were queued before and overlap it;\n"
           "memory is written to in the order of the stream. Returns a StreamResult.")
      .def("write_on_stream", &queue_bound<true>, "buffer"_a.none(), "stream"_a.none(), "offset"_a = 0, "size"_a = none,
           "buffer_offset"_a = 0, nb::kw_only(), "order"_a = "C", "result"_a = 0,
           "Queues a write from device memory onto a stream; otherwise as read_on_stream().")
      .def("pin", &pin, "offset"_a = 0, "size"_a = none,
           "Brings a range (size None: to the end) into the page cache and pins it there: it is registered with the GPU's\n"
           "driver, so that reads into device memory are copied from it by the GPU, however often they come. Blocks. Returns\n"
           "a penstock.PinnedRange, which gives it back at the end of a with statement, by release(), or with its last\n"
           "reference.")
      .def("prepare", &prepare, "device"_a.none(),
           "Begins to make, on the library's threads, what the first read into that device needs: pinned memory, streams, a kernel. For "
           "programs\n"
           "that know where the bytes will go before they ask for them. Raises NotFound where there is no such device.")
      .def("explain", &explain, "size"_a = none, "offset"_a = 0, nb::kw_only(), "memory"_a = none, "write"_a = false, "path"_a = none,
           "prefer"_a = none, "cache"_a = none, "links"_a = none, "priority"_a = none, "device"_a = none,
           "What a read of the range (or a write) would do, and why: a penstock.Plan. size: a number of bytes, None for the rest of the\n"
           "file, or a buffer: that many bytes with memory like it. device: a device, as for penstock.device(); memory: 'host', 'pinned' "
           "or\n"
           "'device'. Without either it is memory like that of the last request on this file, and before the first one that of the first\n"
           "of devices(). Makes no context on a GPU.")
      .def("__repr__", [](const python_file& self) {
        return nb::str("<penstock.File name={!r} mode={!r}{}>").format(self.name, self.mode, self.closed ? " closed" : "");
      });
  add_position(type);
  module.def(
      "open", &open_file, "path"_a, "mode"_a = "r", nb::kw_only(), "direct"_a = false, "cache"_a = none, "immutable"_a = false,
      "bytes_per_second"_a = 0, "storage_options"_a = none,
      "Opens a file, or an object on a server for reading: http://, https://, s3://BUCKET/KEY, hf://. path: str, bytes, PathLike, or an "
      "open descriptor, which is duplicated and not closed. mode: r, r+, w (create or empty, write\n"
      "only), w+, x (create, fail where it is there), x+; a 'b' is ignored. direct: large aligned writes bypass the page cache. cache: "
      "what\n"
      "reads of this file into device memory do with what is not in the page cache: 'keep' it there, 'bypass' the cache, or 'auto'.\n"
      "immutable: nobody changes the bytes of the file while it is open here, so that blocking reads of up to 16 MiB into device memory\n"
      "that each begin where the last one ended find what is in the page cache in pinned memory already. For mode r.\n"
      "bytes_per_second: a limit for what requests of this file move, which are delayed where it is reached; 0 is none.\n"
      "storage_options: how a server is reached, a mapping: kind (auto, http, s3, s3_public, s3_presigned, webhdfs), size (bytes: then "
      "the\n"
      "server is not asked), headers (of http), region, endpoint, profile, access_key_id, secret_access_key, session_token, anonymous,\n"
      "allow_credential_process, requester_pays, addressing_style, use_fips, use_dualstack, and of what is written content_type,\n"
      "server_side_encryption, sse_kms_key_id, storage_class, acl, tags (of s3; what is not given is looked for where the AWS tools do; "
      "the\n"
      "usual names of fsspec and object_store mean the same), user (of webhdfs), attempts,\n"
      "retried_statuses, timeout and retry_pause in seconds (patience with the server),\n"
      "cache_dir (a folder in which what is read is kept for the next reader on this machine) and cache_bytes (that it may hold),\n"
      "ranges_only (reads of a server without ranges fail, instead of reading the whole object once).\n"
      "Raises penstock.Error, which is also FileNotFoundError, PermissionError or FileExistsError; ValueError for a wrong mode.");
  module.def(
      "open_many", &open_many, "paths"_a,
      "Opens files for reading, as open(path) does, one after another. paths: a list of str, bytes, PathLike. Returns a list with, for\n"
      "each, the File, or the exception that open() would raise. Blocks, and releases the GIL once for all of them.");
  module.def("close_many", &close_many, "files"_a,
             "Closes a list of files that were only read, as dropping the last references to them would: what goes wrong is not told.\n"
             "Waits for requests under way on each. Files that are closed are passed over. Releases the GIL once for all of them.");
  module.def("pread_many", &start_over_files<false>, "requests"_a, nb::kw_only(), "order"_a = "C", "path"_a = none, "prefer"_a = none,
             "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none,
             "Begins to read (file, buffer, offset[, size[, buffer_offset]]) for each of requests, as one batch over any number of files.\n"
             "Returns a Future of the list of counts, which raises as the first that failed; the others are not disturbed.");
  module.def("pwrite_many", &start_over_files<true>, "requests"_a, nb::kw_only(), "order"_a = "C", "path"_a = none, "prefer"_a = none,
             "cache"_a = none, "links"_a = none, "priority"_a = none, "timeout"_a = none, "Begins to write; otherwise as pread_many().");
}

}  // namespace penstock::python
