// Between a source and a slab, for all who have one: how it is filled, and how it is drained.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "penstock/options.hpp"
#include "penstock/status.hpp"
#include "source/source.hpp"

namespace penstock::path {

struct slab_route {
  bool past_cache = false;    // for which the source's direct_problem() is ok
  bool fills_cache = false;   // of a fill: not all of it is in the page cache yet
  bool spares_cache = false;  // nothing is to stay in the page cache, as far as that can be had
  bool sent_at_once = false;  // likewise: the device reads the slab while its lines would still be in this CPU's caches
  const source::stop_question* stopped = nullptr;  // of a drain: asked where it has to wait; null: it waits as long as it takes
};

// Told why what was to go past the page cache went through it.
using told_of_fallback = std::function<void(const status& why)>;

// Reads length bytes at offset into a slab. Past the cache target lies offset % direct_alignment behind the start of a block, and the slab
// has room for the whole blocks around the range. Where that fails, and told is given, it is done through the cache, if that can be.
// Short count only at the end of the source; bytes_done is true on failure.
io_result fill_slab(source::source& file, std::byte* target, std::uint64_t length, std::uint64_t offset, slab_route how,
                    const told_of_fallback& told = {});
// Writes likewise. Past the cache memory, length and offset are aligned.
io_result drain_slab(source::source& file, const std::byte* memory, std::uint64_t length, std::uint64_t offset, slab_route how,
                     const told_of_fallback& told = {});

// Whether a range is to be read past the page cache, where the file can be: automatic, if nothing of it is in there; bypass, if not all of
// it is, since the rest would enter it; keep, never. Asks with cachestat: a read that is told not to wait (RWF_NOWAIT) starts a read-ahead
// for what it does not find, which halves the speed of the direct reads.
bool goes_past_cache(source::source& file, std::uint64_t offset, std::uint64_t length, cache_use asked);

}  // namespace penstock::path
