// The requests of a batch, as Python gives them.
#pragma once

#include <nanobind/nanobind.h>

#include <list>
#include <penstock/penstock.hpp>
#include <vector>

#include "buffers.hpp"

namespace penstock::python {

namespace nb = nanobind;

// An iterable of (buffer, offset[, size[, buffer_offset]]); the buffers are added to held.
std::vector<io_request> parse_requests(nb::handle requests, const file& target, std::list<held_memory>& held, memory_order order,
                                       bool is_write);

// One of them. items: a tuple, of which the first `skip` are not looked at.
struct request_place {
  std::size_t skip;
  std::size_t index;  // of the request in its batch
};
io_request parse_request(const nb::object& items, request_place place, const file& target, std::list<held_memory>& held, memory_order order,
                         bool is_write);

// Many ranges of one buffer. offsets: sequence or array of integers. sizes: the same, or one integer for all. buffer_offsets: the same as
// offsets, or None for one range after the other. An array of 64-bit integers is read without making objects of its items.
std::vector<io_request> parse_ranges(const held_memory& memory, const file& target, nb::handle offsets, nb::handle sizes,
                                     nb::handle buffer_offsets, bool is_write);

}  // namespace penstock::python
