// What of a file is in the page cache, and changing that. Free functions; safe from any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "penstock/status.hpp"

namespace penstock::bench {

// Bytes of the range in the page cache. Errors: os errors; unsupported where the kernel does not tell.
result<std::uint64_t> cached_bytes(const std::string& path, std::uint64_t offset, std::uint64_t length);
// Writes dirty pages of the file to the disk and drops those of the range; then looks whether that has worked.
// Errors: os errors; unsupported where pages stay (tmpfs, or mapped by another process).
status drop_cached(const std::string& path, std::uint64_t offset, std::uint64_t length);
// Reads the range plainly; then looks whether it stays. stop is asked between pieces, and may be empty.
// Errors: os errors; out_of_memory where not all of it stays; cancelled.
status fill_cached(const std::string& path, std::uint64_t offset, std::uint64_t length, const std::function<bool()>& stop = {});

}  // namespace penstock::bench
