// Parses and formats sizes. Free functions; thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "penstock/status.hpp"

namespace penstock::cli {

// Parses a number and a unit, like coreutils: 4096, 4k, 4K and 4KiB are 4096 bytes, 4KB is 4000 bytes; M, G and T work the same way; B
// alone means bytes. 1.5G is 1.5 GiB; fractions of a byte are dropped. Case does not matter, blanks are not allowed.
// Errors: invalid_argument, whose message quotes the word (empty, unknown unit, fraction of a byte, more than 2^63-1 bytes).
result<std::uint64_t> parse_size(std::string_view text);

// Parses a size the way gdsio does: "4K", "4KB" and "4KiB" are 4096 bytes; M, G and T work the same way. Errors: invalid_argument, whose
// message quotes the word.
result<std::uint64_t> parse_gdsio_size(std::string_view text);

// Returns "512 B", "4 KiB" or "1.5 GiB": the largest unit with a value of at least 1, and at most two decimals.
std::string format_size(std::uint64_t bytes);

// Returns "1 file" or "2 files". several: the plural if it is irregular, as in "1 process", "2 processes".
std::string counted(std::uint64_t count, std::string_view one, std::string_view several = {});

}  // namespace penstock::cli
