// Hashes of what a source holds, for commands that verify what they have read. A free function; safe from any thread.
#pragma once

#include <cstdint>

#include "bench/sample_data.hpp"
#include "bench/verify.hpp"
#include "penstock/penstock.hpp"

namespace penstock::cli {

// Adds the bytes of a range. A file is read plainly, beside the engine; an object on a server, which only the engine reads, is asked for
// once more, into host memory. Errors: cancelled, when stop answers true; io, where the source ends before the range; those of reading.
status hash_source(bench::hasher& into, const file& source, std::uint64_t offset, std::uint64_t length, const bench::stop_function& stop);

}  // namespace penstock::cli
