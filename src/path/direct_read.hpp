// Helpers for paths that read an extent past the page cache through a ring: its pieces and their outcome. Free functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "path/data_path.hpp"
#include "penstock/status.hpp"
#include "staging/disk_lanes.hpp"

namespace penstock::path {

// The outcome of an extent's pieces: the bytes transferred without a gap starting with the first piece, and the first error after them.
struct tally {
  std::uint64_t bytes = 0;
  int error = 0;
};
tally contiguous(const std::vector<staging::ring_piece>& pieces);

// Returns true if the file ends at offset. On some file systems a direct read may stop early, and only the kernel can distinguish that from
// the end of the file. Reads one byte.
bool ends_at(source::source& file, std::uint64_t offset);

// Adds pieces that transfer this many bytes between the start of memory and an offset in the file.
void add_ring_pieces(staging::ring_task& ring, source::source& file, std::byte* memory, std::uint64_t offset, std::uint64_t bytes);

// Returns what a ring has read of the whole blocks that contain a job's extent, in the form in which source::fill() would. On error, or if
// fewer bytes arrived than the file contains there, try another way.
io_result ring_read_outcome(const job& item, const staging::ring_task& ring);

}  // namespace penstock::path
