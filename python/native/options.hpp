// The keyword arguments shared by requests.
#pragma once

#include <nanobind/nanobind.h>

#include <penstock/penstock.hpp>

namespace penstock::python {

namespace nb = nanobind;

// Returns the time this many seconds from now; zero or less means at once. Raises penstock.InvalidArgument for NaN.
deadline_clock::time_point deadline_after(double seconds);

// cache: a word for parse_cache_use(), or None.
cache_use parse_cache(nb::handle cache);

// path: a word for parse_path_kind(). prefer: for parse_preference(). cache: as above. links: 1 to 8, or "auto". priority: for
// parse_request_priority(). timeout: seconds. Each may be None.
io_options request_options(nb::handle path, nb::handle prefer, nb::handle cache, nb::handle links, nb::handle priority, nb::handle timeout);

}  // namespace penstock::python
