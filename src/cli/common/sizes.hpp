// Sizes as people write and read them. Free functions; safe from any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "penstock/status.hpp"

namespace penstock::cli {

// Parses a number and a unit, as coreutils do: 4096, 4k, 4K, 4KiB = 4096 bytes; 4KB = 4000; likewise M, G, T; B alone is bytes. 1.5G is
// 1.5 GiB; what is left of a byte is dropped. Case does not matter, blanks are not allowed.
// Errors: invalid_argument naming the word (empty, unknown unit, part of a byte, more than 2^63-1 bytes).
result<std::uint64_t> parse_size(std::string_view text);

// "4K", "4KB" and "4KiB" are 4096 bytes, as they are for gdsio; likewise M, G and T. Errors: invalid_argument, naming the word.
result<std::uint64_t> parse_gdsio_size(std::string_view text);

// "512 B", "4 KiB", "1.5 GiB": the largest unit that leaves 1 or more, at most two decimals.
std::string format_size(std::uint64_t bytes);

// "1 file", "2 files"; "1 process", "2 processes" with the word for several.
std::string counted(std::uint64_t count, std::string_view one, std::string_view several = {});

}  // namespace penstock::cli
