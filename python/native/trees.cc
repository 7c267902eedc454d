#include "trees.hpp"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <penstock/penstock.hpp>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "device.hpp"
#include "errors.hpp"
#include "gil.hpp"
#include "remote.hpp"

namespace penstock::python {

namespace {

using namespace nb::literals;

// Memory of several files, as a read-only buffer.
struct held_block {
  std::shared_ptr<const tree_block> block;
};

int get_buffer(PyObject* object, Py_buffer* view, int flags) noexcept {
  const auto& block = *nb::inst_ptr<held_block>(object)->block;
  return PyBuffer_FillInfo(view, object, block.memory.get(), static_cast<Py_ssize_t>(block.bytes), 1, flags);
}

PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

nb::object view_of(nb::handle whole, std::size_t begin, std::size_t end) {
  const auto part = nb::steal(PySlice_New(nb::int_(begin).ptr(), nb::int_(end).ptr(), nullptr));
  auto found = nb::steal(part.is_valid() ? PyObject_GetItem(whole.ptr(), part.ptr()) : nullptr);
  if (!found.is_valid()) throw nb::python_error();
  return found;
}

nb::dict read(nb::handle folder, nb::handle storage_options, std::uint64_t max_bytes, std::uint64_t max_files) {
  const std::string path = path_text(folder);
  const bool is_remote = is_url(path);
  const remote_options server = parse_storage_options(storage_options);
  if (!is_remote && !storage_options.is_none()) raise_not_a_url(path);
  const std::optional<engine> by = is_remote ? std::optional(shared_engine()) : std::nullopt;
  auto files = [&] {
    without_gil_until_signal unlocked;
    const tree_options how{max_bytes, static_cast<std::size_t>(max_files), 0, [&unlocked] { return unlocked.is_interrupted(); }};
    return by ? read_tree(*by, path, server, how) : read_tree(file_path(path), how);
  }();
  raise_if_interrupted();
  if (!files) raise(files.error(), {shown_name(path)});
  std::unordered_map<const tree_block*, nb::object> wholes;
  nb::dict found;
  for (auto& each : *files) {
    nb::object& whole = wholes[each.block.get()];
    if (!whole.is_valid()) whole = nb::steal(PyMemoryView_FromObject(nb::cast(held_block{each.block}).ptr()));
    const auto name = nb::steal(PyUnicode_DecodeFSDefaultAndSize(each.path.data(), static_cast<Py_ssize_t>(each.path.size())));
    if (!whole.is_valid() || !name.is_valid()) throw nb::python_error();
    found[name] = view_of(whole, each.offset, each.offset + each.bytes);
  }
  return found;
}

}  // namespace

void add_trees(nb::module_& module) {
  nb::class_<held_block>(module, "_TreeBlock", "Memory of several files.", nb::type_slots(buffer_slots));
  module.def(
      "read_tree", &read, "folder"_a, nb::kw_only(), "storage_options"_a = nb::none(), "max_bytes"_a = std::uint64_t{16} << 30,
      "max_files"_a = 1'000'000,
      "Reads all files of a folder and its subfolders into memory, with as many threads as the file system can use. Blocks.\n"
      "Returns a dict of read-only memoryviews by path, relative to the folder with \"/\" between names, sorted. The views of small\n"
      "files share blocks of 8 MiB, so copy the few that you keep for long. Follows links to files inside the folder. Raises an\n"
      "error that names the file if it vanishes, changes while it is read, cannot be read, or is a link that leads elsewhere,\n"
      "a socket or a device; InvalidArgument if there are more than max_bytes or max_files. folder may be s3://BUCKET/FOLDER or\n"
      "gs://BUCKET/FOLDER: each object takes one request, and an object that changed since it was listed is an error.\n"
      "storage_options: as for penstock.open().");
}

}  // namespace penstock::python
