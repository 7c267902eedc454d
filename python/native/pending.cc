#include "pending.hpp"

#include <nanobind/stl/optional.h>

#include <mutex>
#include <new>
#include <optional>
#include <penstock/penstock.hpp>
#include <string>
#include <utility>

#include "errors.hpp"
#include "file.hpp"
#include "gil.hpp"

namespace penstock::python {

namespace {

using namespace nb::literals;

// Threads take turns: a call lets go of the GIL while it blocks.
class python_pending {
 public:
  explicit python_pending(pending_file made) : file_(std::move(made)), path_(file_.path()) {}
  python_pending(const python_pending&) = delete;
  python_pending& operator=(const python_pending&) = delete;
  ~python_pending() = default;

  [[nodiscard]] int descriptor() const {
    const std::scoped_lock mine(lock_);
    return file_.descriptor();
  }
  [[nodiscard]] const std::string& path() const { return path_; }
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
  std::string path_;
};

void make_pending(python_pending* self, nb::handle path, std::optional<unsigned> mode) {
  const auto text = path_text(path);
  auto made = [&] {
    const without_gil unlocked;
    return pending_file::create(text, {.mode = mode});
  }();
  if (!made) raise(made.error(), {text});
  new (self) python_pending(*std::move(made));
}

void publish_pending(python_pending& self, bool replace, bool durable) {
  const auto done = [&] {
    const without_gil unlocked;
    return self.publish({replace, durable});
  }();
  raise_unless_ok(done, {self.path()});
}

void drop_pending(python_pending& self) {
  const without_gil unlocked;
  self.drop();
}

nb::object pending_path(const python_pending& self) {
  nb::object path = nb::steal(PyUnicode_DecodeFSDefaultAndSize(self.path().data(), static_cast<Py_ssize_t>(self.path().size())));
  if (!path.is_valid()) throw nb::python_error();
  return path;
}

int descriptor_of(const python_pending& self) {
  const int descriptor = [&] {
    const without_gil unlocked;
    return self.descriptor();
  }();
  if (descriptor < 0) raise({errc::closed, "the pending file was dropped"}, {self.path()});
  return descriptor;
}

}  // namespace

void add_pending_files(nb::module_& module) {
  nb::class_<python_pending>(
      module, "PendingFile", nb::is_weak_referenceable(),
      "A file that has its name only once publish() gives it one. Until then whoever looks at the path sees what was there before; so it "
      "is\n"
      "also after a kill at any moment. Its permissions are mode, or those of the file that it replaces, or 0666 less the umask.\n"
      "What was not published when this is dropped, or garbage, is gone.")
      .def("__init__", &make_pending, "path"_a, "mode"_a = nb::none())
      .def("fileno", &descriptor_of, "Its descriptor, for reading and writing: penstock.open() takes it. Open until drop().")
      .def_prop_ro("path", &pending_path, "Where it will be: links are followed.")
      .def("publish", &publish_pending, nb::kw_only(), "replace"_a = true, "durable"_a = true,
           "Gives it its name, once. Close penstock.File objects over its descriptor before. replace=False: what has come meanwhile is "
           "kept,\n"
           "and FileExistsError raised. durable: the disk has the bytes before the name, and the name when this returns.")
      .def("drop", &drop_pending, "Closes the descriptor. What was not published is gone. A second time does nothing.")
      .def("__enter__", [](nb::object self) { return self; })
      .def(
          "__exit__", [](python_pending& self, nb::handle, nb::handle, nb::handle) { drop_pending(self); }, "type"_a.none(),
          "value"_a.none(), "traceback"_a.none());
}

}  // namespace penstock::python
