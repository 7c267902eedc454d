// Parses the requests of a batch.
#pragma once

#include <nanobind/nanobind.h>

#include <list>
#include <penstock/penstock.hpp>
#include <vector>

#include "buffers.hpp"

namespace penstock::python {

namespace nb = nanobind;

// requests: an iterable of (buffer, offset[, size[, buffer_offset]]); adds the buffers to held.
std::vector<io_request> parse_requests(nb::handle requests, const file& target, std::list<held_memory>& held, memory_order order,
                                       bool is_write);

// One request of a batch. Its first `skip` items are ignored.
struct request_place {
  std::size_t skip;
  std::size_t index;  // index in the batch
};
io_request parse_request(const nb::object& items, request_place place, const file& target, std::list<held_memory>& held, memory_order order,
                         bool is_write);

// Parses many ranges of one buffer. offsets: a sequence or array of integers. sizes: the same, or one integer for all. buffer_offsets: like
// offsets, or None for consecutive ranges. Reads an array of 64-bit integers without creating Python objects for its items.
std::vector<io_request> parse_ranges(const held_memory& memory, const file& target, nb::handle offsets, nb::handle sizes,
                                     nb::handle buffer_offsets, bool is_write);

}  // namespace penstock::python
