// A blocking request that reports its progress and can be interrupted by a signal.
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

// Runs the request to completion with the GIL released. progress: None, a callable that takes a number of bytes, or an object with
// update(bytes), such as tqdm's. It is called for each piece in order, and the numbers add up to the bytes moved. If progress or a signal
// handler raises, stops the request and raises the exception.
io_result run_blocking(const blocking_request& request, const io_options& options, nb::handle progress);

}  // namespace penstock::python
