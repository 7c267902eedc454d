#include "position.hpp"

#include <fcntl.h>
#include <nanobind/stl/optional.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

#include "buffers.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "progress.hpp"

namespace penstock::python {

namespace {

using namespace nb::literals;

using optional_size = std::optional<std::int64_t>;

// Moves bytes at the position and advances it.
std::uint64_t run_on(python_file& self, std::byte* memory, std::uint64_t size, bool is_write) {
  const auto target = self.target;
  const auto offset = static_cast<std::int64_t>(self.position);
  const auto done = run_blocking({*target, memory, size, offset, is_write}, {}, nb::none());
  self.position = static_cast<std::uint64_t>(offset) + done.bytes_done;
  if (!done.ok()) raise(done.error, {target->path(), offset, done.bytes_done});
  return done.bytes_done;
}

template <bool is_write>
std::uint64_t run_buffer(python_file& self, nb::handle buffer) {
  const held_memory memory(buffer, is_write ? memory_use::source : memory_use::target);
  self.remember(memory);
  return run_on(self, memory.data(), memory.size(), is_write);
}

nb::object read(nb::object self, optional_size size) {
  auto& file = *nb::inst_ptr<python_file>(self);
  const bool to_the_end = !size || *size < 0;
  const auto whole = size_of(file);
  if (whole == 0) {  // empty, or its size is unknown
    nb::object content = nb::module_::import_("penstock._core.unsized")
                             .attr("read_to_the_end")(self.attr("read_into"), file.position, to_the_end ? nb::none() : nb::cast(*size));
    file.position += nb::len(content);
    return content;
  }
  auto wanted = whole > file.position ? whole - file.position : 0;
  if (!to_the_end) wanted = std::min(wanted, static_cast<std::uint64_t>(*size));
  auto content = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(wanted)));
  if (!content.is_valid()) throw nb::python_error();
  auto* const memory = PyBytes_AsString(content.ptr());
  file.last_memory = {"", memory};
  const auto done = run_on(file, reinterpret_cast<std::byte*>(memory), wanted, false);
  if (done != wanted)
    content =
        nb::steal(PyBytes_FromStringAndSize(memory, static_cast<Py_ssize_t>(done)));  // the file was truncated while it was being read
  if (!content.is_valid()) throw nb::python_error();
  return content;
}

void expect_open(const python_file& self) {
  if (self.closed) raise({errc::closed, self.target->path() + " was closed"}, {self.target->path()});
}

std::uint64_t seek(python_file& self, std::int64_t offset, int whence) {
  expect_open(self);
  if (whence < SEEK_SET || whence > SEEK_END) raise_invalid("whence must be 0, 1 or 2, not " + std::to_string(whence));
  const std::uint64_t from = whence == SEEK_SET ? 0 : whence == SEEK_CUR ? self.position : size_of(self);
  std::int64_t position = 0;
  if (__builtin_add_overflow(static_cast<std::int64_t>(from), offset, &position) || position < 0) {
    raise_invalid("offset is " + std::to_string(offset) + " from " + std::to_string(from) +
                  ": the position must be between 0 and 2**63 - 1");
  }
  return self.position = static_cast<std::uint64_t>(position);
}

std::uint64_t tell(const python_file& self) {
  expect_open(self);
  return self.position;
}

std::uint64_t truncate(const python_file& self, optional_size size) {
  if (size && *size < 0) raise_invalid("size is " + std::to_string(*size) + ": it must be 0 or more");
  const auto wanted = size ? static_cast<std::uint64_t>(*size) : self.position;
  const auto target = self.target;
  const auto done = [&] {
    const without_gil unlocked;
    return target->truncate(wanted);
  }();
  raise_unless_ok(done, {target->path()});
  return wanted;
}

int fileno(const python_file& self) {
  const auto descriptor = self.target->descriptor();
  if (!descriptor) raise(descriptor.error(), {self.target->path()});
  return *descriptor;
}

// Returns O_RDONLY, O_WRONLY or O_RDWR, regardless of the mode given for a borrowed descriptor.
int access_of(const python_file& self) {
  const int flags = ::fcntl(fileno(self), F_GETFL);
  if (flags < 0) raise(status::from_errno(errno, "F_GETFL of " + self.target->path()), {self.target->path()});
  return flags & O_ACCMODE;
}

bool is_terminal(const python_file& self) {
  expect_open(self);
  return ::isatty(fileno(self)) == 1;
}

// Reading lines is implemented in Python.
template <class... Arguments>
nb::object line_function(const char* name, Arguments... arguments) {
  return nb::module_::import_("penstock._core.lines").attr(name)(arguments...);
}

// Coroutines are implemented in Python.
nb::object from_python(const char* name, nb::handle self) { return nb::module_::import_("penstock._core.futures").attr(name)(self); }

}  // namespace

void add_position(nb::class_<python_file>& type) {
  const auto none = nb::none();
  type.def("read", &read, "size"_a.none() = -1,
           "Reads size bytes at the position and advances it; blocks. None or a negative number: to the end of the file. Returns\n"
           "bytes, fewer than requested at the end. All users share one position: use it from one thread at a time.")
      .def("readinto", &run_buffer<false>, "buffer"_a.none(),
           "Reads into buffer at the position and advances it; blocks. Returns the number of bytes read, 0 at the end of the file.")
      .def("write", &run_buffer<true>, "buffer"_a.none(),
           "Writes all of buffer at the position and advances it; blocks. Returns the number of bytes written.")
      .def("seek", &seek, "offset"_a, "whence"_a = 0,
           "Moves the position used by read(), readinto() and write() to offset from the start (whence 0), the position (1) or the\n"
           "end (2). Returns the position. Requests with an explicit offset do not use it.")
      .def("tell", &tell, "The position.")
      .def("truncate", &truncate, "size"_a = none,
           "Truncates the file to size bytes, or extends it with zeros; None: to the position, which does not change. Returns the\n"
           "size.")
      .def("fileno", &fileno,
           "Returns the descriptor, which is closed with the file; for a file opened by descriptor, a duplicate of it. Writes\n"
           "through it bypass Penstock, but its requests see them.")
      .def(
          "flush", [](const python_file& self) { expect_open(self); },
          "Does nothing; exists for compatibility: written data is already in the kernel. sync() forces it to the disk.")
      .def(
          "readable", [](const python_file& self) { return access_of(self) != O_WRONLY; }, "Returns whether the file is open for reading.")
      .def(
          "writable", [](const python_file& self) { return access_of(self) != O_RDONLY; }, "Returns whether the file is open for writing.")
      .def(
          "seekable",
          [](const python_file& self) {
            expect_open(self);
            return true;
          },
          "True.")
      .def(
          "readline", [](nb::handle self, nb::handle size) { return line_function("readline", self, size); }, "size"_a.none() = -1,
          "Reads from the position up to and including the next newline, at most size bytes; None or a negative number means no\n"
          "limit. Returns bytes, empty at the end of the file.")
      .def(
          "readlines", [](nb::handle self, nb::handle hint) { return line_function("readlines", self, hint); }, "hint"_a.none() = -1,
          "Returns a list of the lines from the position to the end. With a positive hint, stops after that many bytes.")
      .def(
          "writelines", [](nb::handle self, nb::handle lines) { line_function("writelines", self, lines); }, "lines"_a.none(),
          "Writes the lines at the position, one after the other.")
      .def(
          "readall", [](nb::object self) { return read(std::move(self), std::nullopt); }, "Reads from the position to the end of the file.")
      .def("isatty", &is_terminal, "Returns whether the file is a terminal.")
      .def("__iter__", [](nb::object self) { return self; })
      .def("__next__", [](nb::handle self) { return line_function("next_line", self); })
      .def("__aenter__", [](nb::handle self) { return from_python("itself", self); })
      .def(
          "__aexit__", [](nb::handle self, nb::handle, nb::handle, nb::handle) { return from_python("close", self); }, "type"_a.none(),
          "value"_a.none(), "traceback"_a.none());
}

}  // namespace penstock::python
