// The keyword arguments shared by requests.
#pragma once

#include <nanobind/nanobind.h>

#include <penstock/penstock.hpp>

namespace penstock::python {

namespace nb = nanobind;

// Returns the time that many seconds from now; zero or less means at once. Raises penstock.InvalidArgument for NaN.
deadline_clock::time_point deadline_after(double seconds);

// cache: a word of parse_cache_use(), or None.
cache_use parse_cache(nb::handle cache);

// path: a word of parse_path_kind(). prefer: of parse_preference(). cache: as above. links: 1 to 8, or "auto". priority: of
// parse_request_priority(). timeout: seconds. Each may be None.
io_options request_options(nb::handle path, nb::handle prefer, nb::handle cache, nb::handle links, nb::handle priority, nb::handle timeout);

}  // namespace penstock::python
