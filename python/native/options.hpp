// The keyword arguments that requests share.
#pragma once

#include <nanobind/nanobind.h>

#include <penstock/penstock.hpp>

namespace penstock::python {

namespace nb = nanobind;

// The time so many seconds from now. Raises penstock.InvalidArgument for what is no number; at or below zero is at once.
deadline_clock::time_point deadline_after(double seconds);

// A word of parse_cache_use(), or None.
cache_use parse_cache(nb::handle cache);

// path: a word of parse_path_kind(). prefer: of parse_preference(). cache: as above. links: 1 to 8, or "auto". priority: of
// parse_request_priority(). timeout: seconds. Each may be None.
io_options request_options(nb::handle path, nb::handle prefer, nb::handle cache, nb::handle links, nb::handle priority, nb::handle timeout);

}  // namespace penstock::python
