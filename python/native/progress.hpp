// A blocking request that tells how far it is, and that a signal can stop.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <penstock/penstock.hpp>

namespace penstock::python {

namespace nb = nanobind;

struct blocking_request {
  const file& target;
  std::byte* memory;
  std::uint64_t length;
  std::int64_t offset;
  bool is_write;
};

// Runs it to its end, with the GIL released. progress: None, a callable that takes a number of bytes, or an object with update(bytes),
// such as tqdm's; it is called for each piece in order, and the numbers add up to what was moved. Raises what progress or a handler of a
// signal raises, after the request has been stopped.
io_result run_blocking(const blocking_request& request, const io_options& options, nb::handle progress);

}  // namespace penstock::python
