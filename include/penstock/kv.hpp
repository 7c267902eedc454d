// Limits of a key-value store in a folder.
#pragma once

#include <cstddef>
#include <cstdint>

namespace penstock::kv {

inline constexpr std::size_t most_key_bytes = 512;
// Each value takes a whole number of these, in bytes.
inline constexpr std::uint64_t block_bytes = 4096;

}  // namespace penstock::kv
