#include "tensors.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/tuple.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <penstock/penstock.hpp>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "arguments.hpp"
#include "device.hpp"
#include "errors.hpp"
#include "file.hpp"
#include "gil.hpp"
#include "packed.hpp"
#include "to_python.hpp"

namespace penstock::python {

namespace {

using namespace nb::literals;

// --- from C++ to Python

nb::object shape_of(const tensor_facts& tensor) { return shape_tuple(tensor.shape); }
nb::object name_of(const tensor_facts& tensor) { return words(tensor.name); }
nb::object offset_of(const tensor_facts& tensor) { return number(tensor.offset); }
nb::object nbytes_of(const tensor_facts& tensor) { return number(tensor.bytes); }
nb::object type_name_of(const tensor_facts& tensor) { return words(to_string(tensor.type)); }

nb::object names_of(const tensor_header& header) { return list_of(header.tensors(), name_of); }

// Creates the name of each type once.
nb::object type_names(const tensor_header& header) {
  std::array<nb::object, tensor_type_count> known;
  return list_of(header.tensors(), [&](const tensor_facts& each) {
    nb::object& word = known[static_cast<std::size_t>(each.type)];
    if (!word.is_valid()) word = type_name_of(each);
    return word;
  });
}

nb::object shapes_of(const tensor_header& header) { return list_of(header.tensors(), shape_of); }
nb::object offsets_of(const tensor_header& header) { return list_of(header.tensors(), offset_of); }
nb::object sizes_of(const tensor_header& header) { return list_of(header.tensors(), nbytes_of); }

nb::object kinds_of(const tensor_header& header) {
  std::array<bool, tensor_type_count> seen{};
  for (const auto& each : header.tensors()) seen[static_cast<std::size_t>(each.type)] = true;
  nb::object kinds = made(PySet_New(nullptr));
  for (std::size_t i = 0; i < seen.size(); ++i) {
    if (seen[i] && PySet_Add(kinds.ptr(), words(to_string(static_cast<tensor_type>(i))).ptr()) != 0) throw nb::python_error();
  }
  return kinds;
}

nb::tuple row(const tensor_facts& tensor) {
  return nb::make_tuple(name_of(tensor), type_name_of(tensor), shape_of(tensor), offset_of(tensor), nbytes_of(tensor));
}

nb::object metadata_of(const tensor_header& header) {
  if (!header.metadata()) return nb::none();
  nb::dict told;
  for (const auto& [key, value] : *header.metadata()) told[words(key)] = words(value);
  return told;
}

// --- from Python to C++

// Raises UnicodeEncodeError for lone surrogates, which Python strings may contain.
std::string utf8_of(nb::handle text, const char* what) {
  if (!PyUnicode_Check(text.ptr())) throw nb::type_error((std::string(what) + " must be a str, not " + type_of(text)).c_str());
  Py_ssize_t length = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &length);
  if (bytes == nullptr) throw nb::python_error();
  return {bytes, static_cast<std::size_t>(length)};
}

std::optional<tensor_metadata> metadata_from(nb::handle given) {
  if (given.is_none()) return std::nullopt;
  if (!PyDict_Check(given.ptr())) throw nb::type_error(("metadata must be a dict, not " + type_of(given)).c_str());
  tensor_metadata pairs;
  for (const auto& [key, value] : nb::borrow<nb::dict>(given)) {
    std::string name = utf8_of(key, "a metadata key");
    pairs.emplace_back(std::move(name), utf8_of(value, "a metadata value"));
  }
  return pairs;
}

const tensor_facts* found(const tensor_header& header, nb::handle name) {
  Py_ssize_t length = 0;
  const char* bytes = PyUnicode_Check(name.ptr()) ? PyUnicode_AsUTF8AndSize(name.ptr(), &length) : nullptr;
  if (bytes == nullptr) {
    PyErr_Clear();  // no file contains such a name
    return nullptr;
  }
  return header.find({bytes, static_cast<std::size_t>(length)});
}

nb::object find_tensor(const tensor_header& header, nb::handle name) {
  const tensor_facts* tensor = found(header, name);
  return tensor == nullptr ? nb::none() : nb::object(row(*tensor));
}

tensor_header only(const tensor_header& header, const nb::list& names) {
  std::vector<std::string> wanted;
  for (const nb::handle each : names) wanted.push_back(utf8_of(each, "a name"));
  std::vector<std::string_view> sorted(wanted.begin(), wanted.end());
  std::ranges::sort(sorted);
  return header.only(sorted);
}

// --- reading

tensor_header read_open(const file& from) {
  auto header = [&] {
    const without_gil unlocked;
    return read_safetensors(from);
  }();
  if (!header) raise(header.error(), {from.path()});
  return *std::move(header);
}

tensor_header read_tensors(nb::handle from) {
  if (nb::isinstance<python_file>(from)) {
    const auto target = nb::cast<const python_file&>(from).target;
    return read_open(*target);
  }
  const auto path = path_text(from);
  auto opened = [&] {
    const engine with = shared_engine();
    const without_gil unlocked;
    return with.open(path);
  }();
  if (!opened) raise(opened.error(), {path});
  return read_open(*opened);
}

// Parses a file in memory, or the start of one.
tensor_header parse_tensors(nb::handle beginning, std::optional<std::uint64_t> file_bytes) {
  Py_buffer view{};
  if (PyObject_GetBuffer(beginning.ptr(), &view, PyBUF_SIMPLE) != 0) throw nb::python_error();
  const std::string_view bytes(static_cast<const char*>(view.buf), static_cast<std::size_t>(view.len));
  const std::uint64_t whole = file_bytes.value_or(bytes.size());
  auto header = [&]() -> result<tensor_header> {
    const without_gil unlocked;
    const auto length = safetensors_header_bytes(bytes, whole);
    if (!length) return length.error();
    if (bytes.size() - safetensors_length_bytes < *length) {
      return status(errc::invalid_argument, "the header is " + std::to_string(*length) + " bytes long, but fewer were given");
    }
    return parse_safetensors(bytes.substr(safetensors_length_bytes, *length), whole);
  }();
  PyBuffer_Release(&view);
  if (!header) raise(header.error());
  return *std::move(header);
}

// --- layout

// Places the tensors one after the other in memory, starting at start.
nb::tuple place_all(const tensor_header& header, std::uint64_t alignment, std::uint64_t start) {
  if (!std::has_single_bit(alignment)) raise_invalid("the alignment must be a power of two");
  std::vector<std::int64_t> starts;
  packed_ranges ranges;
  starts.reserve(header.tensors().size());
  ranges.reserve(header.tensors().size());
  for (const auto& each : header.tensors()) {
    starts.push_back(static_cast<std::int64_t>(start));
    ranges.add(each.offset, each.bytes, start);
    start += (each.bytes + alignment - 1) & ~(alignment - 1);
  }
  return nb::make_tuple(start, packed(starts), packed(ranges));
}

std::vector<std::uint64_t> shape_from(nb::handle given) {
  std::vector<std::uint64_t> shape;
  for (const nb::handle length : given) shape.push_back(unsigned_integer(length, "a length in a shape"));
  return shape;
}

// An int, or a slice with a positive step.
dimension_selection selection_from(nb::handle given) {
  if (!PySlice_Check(given.ptr())) return signed_integer(given, "an index");
  Py_ssize_t first = 0, end = 0, step = 0;
  if (PySlice_Unpack(given.ptr(), &first, &end, &step) != 0) throw nb::python_error();
  return index_range{first, end, step};
}

// Returns an int or a slice; the cut of a part contains no ranks.
nb::object index_of(const dimension_selection& cut) {
  if (const auto* index = std::get_if<std::int64_t>(&cut)) return nb::int_(*index);
  nb::object first = nb::none(), end = nb::none(), step = nb::none();
  if (const auto* range = std::get_if<index_range>(&cut)) {
    step = nb::int_(range->step);
    if (range->end) first = nb::int_(range->first), end = nb::int_(*range->end);
  }
  return made(PySlice_New(first.ptr(), end.ptr(), step.ptr()));
}

// The elements of an array may have any size, so their bytes become its last dimension here.
using gaps_to_read = std::tuple<std::uint64_t, std::uint64_t, std::uint64_t, bool>;

nb::tuple part_of_array(nb::handle shape, std::uint64_t item_bytes, nb::handle index, const std::optional<gaps_to_read>& gaps) {
  tensor_facts array{"", tensor_type::u8, shape_from(shape)};
  array.shape.push_back(item_bytes);
  const auto bytes = tensor_bytes(array.type, array.shape);
  if (!bytes) raise(bytes.error());
  array.bytes = *bytes;
  tensor_selection selection;
  for (const nb::handle each : index) selection.push_back(selection_from(each));
  auto part = [&] {
    if (!gaps) return part_of(array, selection);
    const auto [short_row_bytes, short_run_bytes, many_runs, to_host] = *gaps;
    return part_of(array, selection, {short_row_bytes, short_run_bytes, many_runs, to_host});
  }();
  if (!part) raise(part.error());
  part->shape.pop_back();
  nb::list starts;
  for (std::uint64_t i = 0; part->run_bytes > 0 && i < part->runs(); ++i) starts.append(number(part->start_of(i)));
  if (part->cut.empty()) return nb::make_tuple(shape_tuple(part->shape), starts, part->run_bytes, nb::none());
  part->cut.pop_back();
  return nb::make_tuple(shape_tuple(part->shape), starts, part->run_bytes, nb::tuple(list_of(part->cut, index_of)));
}

// --- writing

std::vector<tensor_facts> facts_from(nb::handle all_names, nb::handle types, nb::handle shapes) {
  std::vector<tensor_facts> tensors;
  for (const nb::handle each : all_names) tensors.emplace_back().name = utf8_of(each, "a tensor's name");
  std::size_t at = 0;
  for (const nb::handle each : types) {
    if (at == tensors.size()) raise_invalid("there are more dtypes than names");
    const auto type = parse_tensor_type(utf8_of(each, "a dtype"));
    if (!type) raise_invalid("tensor \"" + tensors[at].name + "\": " + std::string(type.error().message()));
    tensors[at++].type = *type;
  }
  if (at < tensors.size()) raise_invalid("there are fewer dtypes than names");
  at = 0;
  for (const nb::handle each : shapes) {
    if (at == tensors.size()) raise_invalid("there are more shapes than names");
    tensors[at++].shape = shape_from(each);
  }
  if (at < tensors.size()) raise_invalid("there are fewer shapes than names");
  return tensors;
}

nb::tuple make_beginning(nb::handle all_names, nb::handle types, nb::handle shapes, nb::handle given_metadata) {
  const std::vector<tensor_facts> given = facts_from(all_names, types, shapes);
  const auto pairs = metadata_from(given_metadata);
  std::vector<tensor_facts> sorted = given;
  const auto beginning = [&] {
    const without_gil unlocked;
    return make_safetensors(sorted, pairs);
  }();
  if (!beginning) raise(beginning.error());
  std::unordered_map<std::string_view, std::size_t> places;
  for (std::size_t i = 0; i < given.size(); ++i) places.emplace(given[i].name, i);
  const auto place_of = [&](const tensor_facts& each) { return number(places.at(each.name)); };
  return nb::make_tuple(nb::bytes(beginning->data(), beginning->size()), list_of(sorted, place_of), list_of(sorted, offset_of),
                        list_of(sorted, nbytes_of));
}

}  // namespace

void add_tensors(nb::module_& module) {
  nb::class_<tensor_header> type(
      module, "TensorHeader",
      "The contents of a tensor file, in file order. A tensor is (name, dtype, shape, offset, nbytes): dtype is a word such\n"
      "as 'BF16', offset is relative to the start of the file.");
  type.def("__len__", [](const tensor_header& self) { return self.tensors().size(); })
      .def(
          "__contains__", [](const tensor_header& self, nb::handle name) { return found(self, name) != nullptr; }, "name"_a.none())
      .def("names", &names_of, "All names.")
      .def("dtypes", &type_names, "All dtypes.")
      .def("kinds", &kinds_of, "Returns the set of dtypes that occur.")
      .def("shapes", &shapes_of, "All shapes.")
      .def("offsets", &offsets_of, "All offsets.")
      .def("sizes", &sizes_of, "Returns the size of each tensor in bytes.")
      .def("place", &place_all, "alignment"_a, "start"_a = 0,
           "Places all tensors one after the other in memory, from start on, each at the next multiple of alignment: returns (end,\n"
           "starts, (offsets, nbytes, places)), 64-bit integers as bytes. The last three are only for tensors that have bytes.")
      .def("find", &find_tensor, "name"_a, "Returns the tensor with this name; None if there is none.")
      .def("only", &only, "names"_a, "Returns the same header with only the tensors that have one of these names.")
      .def_prop_ro("metadata", &metadata_of, "The file's metadata as a new dict on each access; None if the file has no metadata.")
      .def_prop_ro("data_offset", &tensor_header::data_offset, "The offset at which the header ends and the tensors' bytes start.");
  module.def("read_safetensors", &read_tensors, "file"_a,
             "Reads the contents of a safetensors file, given as a penstock.File or a path. Raises penstock.InvalidArgument if it is\n"
             "not a safetensors file or is incomplete.");
  module.def("parse_safetensors", &parse_tensors, "beginning"_a, "file_bytes"_a = nb::none(),
             "The same for a file in memory (bytes), or for its start and its size.");
  module.def(
      "part_of", &part_of_array, "shape"_a, "item_bytes"_a, "index"_a, "gaps"_a.none(),
      "Returns the bytes of a part of an array: (shape, starts of the runs, bytes in each run, index to apply after reading or\n"
      "None). index: ints and slices. gaps: (short row bytes, short run bytes, many runs, whether the target is on the host), or None\n"
      "to read no gaps.");
  module.def("make_safetensors", &make_beginning, "names"_a, "dtypes"_a, "shapes"_a, "metadata"_a = nb::none(),
             "Creates the start of a safetensors file: (beginning, order, offsets, nbytes). order contains indexes into names, in\n"
             "file order; offsets (from the start of the file) and nbytes are in that order.");
}

}  // namespace penstock::python
