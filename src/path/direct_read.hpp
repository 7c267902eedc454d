// An extent that a ring reads past the page cache, for the paths that do so: its pieces, and what has come of them. Free functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "path/data_path.hpp"
#include "penstock/status.hpp"
#include "staging/disk_lanes.hpp"

namespace penstock::path {

// Of the pieces of an extent: the bytes moved without a gap from the first on, and the first error at their end.
struct tally {
  std::uint64_t bytes = 0;
  int error = 0;
};
tally contiguous(const std::vector<staging::ring_piece>& pieces);

// A direct read may stop early on some file systems; only the kernel tells that from the end of the file. Reads a byte.
bool ends_at(source::source& file, std::uint64_t offset);

// Adds pieces between memory, from its start, and so many bytes of the file from an offset.
void add_ring_pieces(staging::ring_task& ring, source::source& file, std::byte* memory, std::uint64_t offset, std::uint64_t bytes);

// What a ring has brought of the whole blocks around a job's extent, as source::fill() would return it. Not ok: another way has to be
// tried, also where fewer bytes came than there are before the end of the file.
io_result ring_read_outcome(const job& item, const staging::ring_task& ring);

}  // namespace penstock::path
