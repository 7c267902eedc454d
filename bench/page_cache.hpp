// Queries and changes which parts of a file are in the page cache. Free functions; safe from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "penstock/status.hpp"

namespace penstock::bench {

// Returns the cached bytes of the range. Errors: os errors; unsupported if the kernel does not report them.
result<std::uint64_t> cached_bytes(const std::string& path, std::uint64_t offset, std::uint64_t length);
// Writes dirty pages of the file to the disk, drops those of the range, and checks the result.
// Errors: os errors; unsupported if pages stay (tmpfs, or mapped by another process).
status drop_cached(const std::string& path, std::uint64_t offset, std::uint64_t length);
// Reads the range without the engine, and checks that it stays in the page cache. stop is polled between pieces, and may be empty.
// Errors: os errors; out_of_memory if part of it does not stay; cancelled.
status fill_cached(const std::string& path, std::uint64_t offset, std::uint64_t length, const std::function<bool()>& stop = {});

}  // namespace penstock::bench
