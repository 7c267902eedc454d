// Hashes the bytes of a source, for commands that verify what they read. A free function; thread-safe.
#pragma once

#include <cstdint>

#include "bench/sample_data.hpp"
#include "bench/verify.hpp"
#include "penstock/penstock.hpp"

namespace penstock::cli {

// Adds the bytes of a range to the hash. Reads a file without the engine; requests an object on a server, which only the engine can read,
// again into host memory. Errors: cancelled if stop returns true; io if the source is shorter than the range; read errors.
status hash_source(bench::hasher& into, const file& source, std::uint64_t offset, std::uint64_t length, const bench::stop_function& stop);

}  // namespace penstock::cli
