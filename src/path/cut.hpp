// How a path cuts a range into pieces for worker threads. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "path/way.hpp"

namespace penstock::path {

struct range_to_cut {
  std::uint64_t offset = 0;  // in the file
  std::uint64_t length = 0;
  std::uint64_t run_length = 0;  // length of the run of similar ranges that contains it, if known; at least `length`
  path::way way = path::way::cached;
  bool is_write = false;
  bool follows_others = false;   // other ranges of the request are in flight when it starts
  bool precedes_others = false;  // other ranges start when it completes
  unsigned lanes = 1;
  bool shared_link = false;      // with other requests, which benefit more from longer copies than this one does from an early first copy
  std::uint64_t late_piece = 0;  // the best size of one read from a slow server; 0: the server is not slow
};

// The pieces cover the range, in file order.
struct cut_piece {
  std::uint64_t length = 0;
  std::uint32_t wave = 1;  // number of pieces, starting with this one, that share a slab and a copy; 0: shares an earlier piece's
};
using cutter = void (*)(const range_to_cut& range, std::vector<cut_piece>& pieces);

// Returns the part of a late_piece to read into unaligned memory. FUSE counts the pages that a read touches, and sends its server a second
// request for the last one.
constexpr std::uint64_t late_piece_into_any_memory(std::uint64_t late_piece) { return late_piece - 4096; }

// Cuts the range into pieces that end at multiples of unit in the file.
inline void cut_at_multiples(const range_to_cut& range, std::uint64_t unit, std::vector<cut_piece>& pieces) {
  const std::uint64_t end = range.offset + range.length;
  for (std::uint64_t at = range.offset; at < end;) {
    const std::uint64_t next = std::min((at + unit) / unit * unit, end);
    pieces.push_back({next - at});
    at = next;
  }
}

}  // namespace penstock::path
