#include "pending.hpp"

#include <nanobind/stl/optional.h>

#include <mutex>
#include <new>
#include <optional>
#include <penstock/penstock.hpp>
#include <string>
#include <utility>

#include "device.hpp"
#include "errors.hpp"
#include "file.hpp"
#include "gil.hpp"
#include "remote.hpp"

namespace penstock::python {

namespace {

using namespace nb::literals;

// A lock serializes calls, because each call releases the GIL while it blocks.
class python_pending {
 public:
  python_pending(pending_file made, std::string given)
      : file_(std::move(made)), given_(std::move(given)), shown_(shown_name(given_)), path_(file_.path()), is_object_(file_.is_object()) {}
  python_pending(const python_pending&) = delete;
  python_pending& operator=(const python_pending&) = delete;
  // Discarding an object on a server sends a request to the server.
  ~python_pending() {
    if (!is_object_) return;
    const without_gil unlocked;
    file_.discard();
  }

  [[nodiscard]] int descriptor() const {
    const std::scoped_lock mine(lock_);
    return file_.descriptor();
  }
  [[nodiscard]] bool is_object() const { return is_object_; }
  [[nodiscard]] result<file> open(const engine& by, const adopt_options& options) const {
    const std::scoped_lock mine(lock_);
    return file_.open(by, options);
  }
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] const std::string& given() const { return given_; }
  [[nodiscard]] const std::string& shown() const { return shown_; }  // the name in errors: a URL's query may contain a secret
  status publish(const publish_options& options) {
    const std::scoped_lock mine(lock_);
    return file_.publish(options);
  }
  void drop() {
    const std::scoped_lock mine(lock_);
    file_.discard();
  }

 private:
  mutable std::mutex lock_;
  pending_file file_;
  std::string given_, shown_, path_;
  const bool is_object_;
};

void make_pending(python_pending* self, nb::handle path, std::optional<unsigned> mode, nb::handle storage_options) {
  const auto text = path_text(path);
  const auto by = shared_engine();
  const pending_file_options how{.mode = mode, .remote = parse_storage_options(storage_options)};
  auto made = [&] {
    const without_gil unlocked;
    return pending_file::create(by, text, how);
  }();
  if (!made) raise(made.error(), {shown_name(text)});
  if (!storage_options.is_none() && !made->is_object()) raise_not_a_url(text);
  new (self) python_pending(*std::move(made), text);
}

void publish_pending(python_pending& self, bool replace, bool durable) {
  const auto done = [&] {
    const without_gil unlocked;
    return self.publish({replace, durable});
  }();
  raise_unless_ok(done, {self.shown()});
}

void drop_pending(python_pending& self) {
  const without_gil unlocked;
  self.drop();
}

int descriptor_of(const python_pending& self) {
  if (self.is_object()) raise({errc::unsupported, "an object on a server has no descriptor"}, {self.shown()});
  const int descriptor = [&] {
    const without_gil unlocked;
    return self.descriptor();
  }();
  if (descriptor < 0) raise({errc::closed, "the pending file was dropped"}, {self.shown()});
  return descriptor;
}

python_file open_pending(const python_pending& self, bool direct) {
  const auto by = shared_engine();
  auto opened = [&] {
    const without_gil unlocked;  // may have to wait for another thread's publish()
    return self.open(by, {.direct_writes = direct, .name = self.shown()});
  }();
  if (!opened) raise(opened.error(), {self.shown()});
  return {std::move(*opened), path_object(self.given()), self.is_object() ? "w" : "r+"};
}

}  // namespace

void add_pending_files(nb::module_& module) {
  nb::class_<python_pending>(
      module, "PendingFile", nb::is_weak_referenceable(),
      "A file that appears under its name only when publish() is called. Until then, readers of the path see what was there\n"
      "before, even if the process is killed at any moment. Owner, group, permissions, access control list and user.*\n"
      "attributes are taken from the file that it replaces, if this process may set them; for a new file, permissions are\n"
      "0666 minus the umask. mode: these permissions instead. Only regular files are replaced. For a URL (s3://BUCKET/KEY),\n"
      "this is an object that appears when publish() returns; storage_options: as for penstock.open(). If this object is\n"
      "dropped or garbage collected before publish(), the data is discarded.")
      .def("__init__", &make_pending, "path"_a, "mode"_a = nb::none(), nb::kw_only(), "storage_options"_a = nb::none())
      .def("fileno", &descriptor_of,
           "Returns the descriptor, for reading and writing; penstock.open() accepts it. It is open until drop().")
      .def("open", &open_pending, nb::kw_only(), "direct"_a = false,
           "Returns a penstock.File for this file; close it before publish(). direct: large aligned writes bypass the page cache.")
      .def_prop_ro("is_object", &python_pending::is_object,
                   "True for an object on a server, which has no descriptor and can only be written.")
      .def_prop_ro(
          "path", [](const python_pending& self) { return path_object(self.path()); }, "The final path, with symbolic links followed.")
      .def("publish", &publish_pending, nb::kw_only(), "replace"_a = true, "durable"_a = true,
           "Moves the file to its name, once. Close penstock.File objects that use its descriptor first. replace=False: a file\n"
           "that already exists is kept, and FileExistsError is raised. durable: the bytes are on disk before the file gets its\n"
           "name, and the name is on disk when this returns.")
      .def("drop", &drop_pending, "Closes the descriptor and discards the file unless it was published. A second call does nothing.")
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__", [](python_pending& self, nb::handle, nb::handle, nb::handle) { drop_pending(self); }, "type"_a.none(),
          "value"_a.none(), "traceback"_a.none());
}

}  // namespace penstock::python
