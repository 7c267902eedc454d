// Fills a slab from a source and drains it to one, for all code that uses slabs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "path/way.hpp"
#include "penstock/options.hpp"
#include "penstock/status.hpp"
#include "source/source.hpp"

namespace penstock::path {

struct slab_route {
  path::way way = path::way::cached;  // past_cache requires that the source's direct_problem() is ok
  bool spares_cache = false;          // nothing should stay in the page cache, if that is possible
  bool sent_at_once = false;          // for a fill: the device reads the slab while its lines would still be in this CPU's caches
  const source::stop_question* stopped = nullptr;  // for a drain: called where it has to wait; null: it waits as long as necessary
};

// Called with the reason if bytes that should have bypassed the page cache passed through it.
using told_of_fallback = std::function<void(const status& why)>;

// Reads length bytes at offset into a slab. Past the page cache, target must be offset % direct_alignment bytes after the start of a block,
// and the slab must have room for the whole blocks that contain the range. If that fails and told is given, reads through the page cache if
// possible. Returns a short count only at the end of the source. bytes_done is exact on failure.
io_result fill_slab(source::source& file, std::byte* target, std::uint64_t length, std::uint64_t offset, slab_route how,
                    const told_of_fallback& told = {});
// Writes in the same way. Past the page cache, memory, length and offset must be aligned.
io_result drain_slab(source::source& file, const std::byte* memory, std::uint64_t length, std::uint64_t offset, slab_route how,
                     const told_of_fallback& told = {});

// Returns true if a range should be read past the page cache and the file supports that. automatic: if none of it is cached; bypass: if any
// of it is uncached, because that part would enter the cache; keep: never. Queries the cache with cachestat, because a read with RWF_NOWAIT
// starts a read-ahead for the missing bytes, which halves the speed of the direct reads.
bool goes_past_cache(source::source& file, std::uint64_t offset, std::uint64_t length, cache_use asked);

}  // namespace penstock::path
