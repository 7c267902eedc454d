// How a path cuts a range that it is to carry in one way, for the lanes. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace penstock::path {

// Where a range comes from, or goes to, at the side of the file.
enum class file_side : std::uint8_t {
  cached,      // the page cache, as far as is known
  past_cache,  // the device, past the page cache
  filling,     // the device, through the page cache
};

struct range_to_cut {
  std::uint64_t offset = 0;  // in the file
  std::uint64_t length = 0;
  std::uint64_t run_length = 0;  // of the ranges alike that it is one of, as far as is known; length at least
  file_side side = file_side::cached;
  bool is_write = false;
  bool follows_others = false;   // of the request, which are under way when it begins
  bool precedes_others = false;  // and some begin when it ends
  unsigned lanes = 1;
  bool shared_link = false;      // with other requests: longer copies serve all better than an early first one serves this
  std::uint64_t most_bytes = 0;  // of a slab
  std::uint64_t late_piece = 0;  // of a server that answers late: what it is best asked for at a time; 0: there is none
};

// Pieces that cover it, in file order.
struct cut_piece {
  std::uint64_t length = 0;
  std::uint32_t wave = 1;  // pieces, from this one on, that share a slab and a copy; 0: shares an earlier one's
};
using cutter = void (*)(const range_to_cut& range, std::vector<cut_piece>& pieces);

// Of a late_piece, what goes into memory that is not aligned: FUSE counts the pages that a read lies in, and asks its server a second time
// for the last of them.
constexpr std::uint64_t late_piece_into_any_memory(std::uint64_t late_piece) { return late_piece - 4096; }

// Pieces that end on multiples of unit in the file.
inline void cut_at_multiples(const range_to_cut& range, std::uint64_t unit, std::vector<cut_piece>& pieces) {
  const std::uint64_t end = range.offset + range.length;
  for (std::uint64_t at = range.offset; at < end;) {
    const std::uint64_t next = std::min((at + unit) / unit * unit, end);
    pieces.push_back({next - at});
    at = next;
  }
}

}  // namespace penstock::path
