// File ranges as the bytes of 64-bit integers, which array.array accepts directly, thousands at a time.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

namespace penstock::python {

namespace nb = nanobind;

// Contains only non-empty ranges.
struct packed_ranges {
  std::vector<std::int64_t> offsets;
  std::vector<std::int64_t> sizes;
  std::vector<std::int64_t> places;

  void reserve(std::size_t count) {
    for (auto* each : {&offsets, &sizes, &places}) each->reserve(count);
  }
  void add(std::uint64_t offset, std::uint64_t size, std::uint64_t place) {
    if (size == 0) return;
    offsets.push_back(static_cast<std::int64_t>(offset));
    sizes.push_back(static_cast<std::int64_t>(size));
    places.push_back(static_cast<std::int64_t>(place));
  }
};

inline nb::bytes packed(const std::vector<std::int64_t>& integers) {
  return nb::bytes(integers.data(), integers.size() * sizeof(std::int64_t));
}

inline nb::tuple packed(const packed_ranges& ranges) {
  return nb::make_tuple(packed(ranges.offsets), packed(ranges.sizes), packed(ranges.places));
}

}  // namespace penstock::python
