#include "ranges.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "arguments.hpp"
#include "errors.hpp"

namespace penstock::python {

namespace {

// Reads an array of 64-bit integers, signed or unsigned; returns nothing for any other object.
std::optional<std::vector<std::int64_t>> from_array(nb::handle object) {
  if (!PyObject_CheckBuffer(object.ptr())) return std::nullopt;
  Py_buffer view{};
  if (PyObject_GetBuffer(object.ptr(), &view, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return std::nullopt;
  }
  std::optional<std::vector<std::int64_t>> values;
  const char* format = view.format == nullptr ? "B" : view.format;
  if (*format == '=' || *format == '<' || *format == '@') ++format;
  const bool is_unsigned = *format == 'L' || *format == 'Q' || *format == 'N';
  if (view.itemsize == 8 && (is_unsigned || *format == 'l' || *format == 'q' || *format == 'n')) {
    values.emplace(static_cast<std::size_t>(view.len) / 8);
    if (view.len > 0) std::memcpy(values->data(), view.buf, static_cast<std::size_t>(view.len));
    // Values that do not fit into signed integers: the item-by-item path rejects them and reports the value.
    if (is_unsigned && std::any_of(values->begin(), values->end(), [](std::int64_t each) { return each < 0; })) values.reset();
  }
  PyBuffer_Release(&view);
  return values;
}

// name: the name of one item, for errors.
std::vector<std::int64_t> integers(nb::handle object, const char* name) {
  if (auto values = from_array(object)) return std::move(*values);
  std::vector<std::int64_t> values;
  values.reserve(nb::len_hint(object));
  for (const nb::handle each : object) values.push_back(signed_integer(each, name));
  return values;
}

void expect_count(const char* name, std::size_t count, std::size_t expected) {
  if (count == expected) return;
  raise_invalid(std::string(name) + " has " + std::to_string(count) + " items, but offsets has " + std::to_string(expected));
}

std::vector<std::int64_t> sizes_for(nb::handle sizes, std::size_t count) {
  if (PyIndex_Check(sizes.ptr()) && PySequence_Check(sizes.ptr()) == 0)
    return std::vector<std::int64_t>(count, signed_integer(sizes, "size"));
  auto values = integers(sizes, "a size");
  expect_count("sizes", values.size(), count);
  return values;
}

std::vector<std::int64_t> one_after_the_other(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> offsets;
  offsets.reserve(sizes.size());
  std::int64_t next = 0;
  for (const auto size : sizes) {
    offsets.push_back(next);
    // -1 makes slice() reject the range, and avoids the overflow.
    if (size < 0 || __builtin_add_overflow(next, size, &next)) next = -1;
  }
  return offsets;
}

io_request make_request(const held_memory::part& memory, const file& target, std::int64_t offset, bool is_write) {
  if (offset < 0) raise_invalid("an offset is " + std::to_string(offset) + ": it must be 0 or more");
  return {&target, memory.data, memory.size, offset, is_write};
}

}  // namespace

io_request parse_request(const nb::object& items, request_place place, const file& target, std::list<held_memory>& held, memory_order order,
                         bool is_write) {
  const auto skip = place.skip;
  const auto count = nb::len(items) - skip;
  const auto& memory = held.emplace_back(nb::object(items[skip]), is_write ? memory_use::source : memory_use::target, order,
                                         argument_name{"requests", place.index});
  const nb::object size = count > 2 ? nb::object(items[skip + 2]) : nb::none();
  const std::int64_t start = count > 3 ? signed_integer(items[skip + 3], "buffer_offset") : 0;
  const auto part = memory.slice(start, size.is_none() ? std::nullopt : std::optional(signed_integer(size, "size")));
  return make_request(part, target, signed_integer(items[skip + 1], "offset"), is_write);
}

std::vector<io_request> parse_requests(nb::handle requests, const file& target, std::list<held_memory>& held, memory_order order,
                                       bool is_write) {
  std::vector<io_request> parsed;
  for (const nb::handle each : requests) {
    const nb::object items = nb::steal(PySequence_Tuple(each.ptr()));
    if (!items.is_valid()) throw nb::python_error();
    const auto count = nb::len(items);
    if (count < 2 || count > 4) raise_invalid("each request must be (buffer, offset[, size[, buffer_offset]])");
    parsed.push_back(parse_request(items, {0, parsed.size()}, target, held, order, is_write));
  }
  return parsed;
}

std::vector<io_request> parse_ranges(const held_memory& memory, const file& target, nb::handle offsets, nb::handle sizes,
                                     nb::handle buffer_offsets, bool is_write) {
  const auto places = integers(offsets, "an offset");
  const auto lengths = sizes_for(sizes, places.size());
  const auto starts = buffer_offsets.is_none() ? one_after_the_other(lengths) : integers(buffer_offsets, "a buffer_offset");
  expect_count("buffer_offsets", starts.size(), places.size());
  std::vector<io_request> parsed;
  parsed.reserve(places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {
    parsed.push_back(make_request(memory.slice(starts[i], lengths[i]), target, places[i], is_write));
  }
  return parsed;
}

}  // namespace penstock::python
