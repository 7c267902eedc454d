// The map for an object in the node's cache: a file that records the object, its version and which of its blocks are present. Layout: a
// head, one byte per block, one checksum per block. This file has values, and pure functions that validate data read from the folder.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace penstock::source::remote {

// The unit of caching. Even a read of a few bytes fetches a whole block; the last block of an object may be shorter.
inline constexpr std::uint64_t cache_block_bytes = std::uint64_t{64} << 10;
inline constexpr std::uint64_t most_cached_object_bytes = std::uint64_t{1} << 44;  // its map takes 2.25 GiB
inline constexpr std::size_t cache_head_bytes = 4096;
inline constexpr std::size_t most_cache_text_bytes = 1024;
inline constexpr std::byte block_is_there{1};

[[nodiscard]] constexpr std::uint64_t cache_blocks_of(std::uint64_t size) noexcept {
  return (size + cache_block_bytes - 1) / cache_block_bytes;
}

// The size of an object's map file.
[[nodiscard]] constexpr std::uint64_t cache_map_bytes_of(std::uint64_t size) noexcept {
  return cache_head_bytes + cache_blocks_of(size) * (1 + sizeof(std::uint64_t));
}
// The offset of a block's checksum in the map.
[[nodiscard]] constexpr std::uint64_t cache_sum_offset(std::uint64_t size, std::uint64_t block) noexcept {
  return cache_head_bytes + cache_blocks_of(size) + block * sizeof(std::uint64_t);
}
// XXH64 with seed 0 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md): 64 KiB take 5 us. It detects corruption, not forgery.
[[nodiscard]] std::uint64_t cache_sum_of(std::span<const std::byte> block) noexcept;

struct cache_map_head {
  std::string identity;  // a hash of everything that identifies the object; hexadecimal
  std::string shown;     // its URL, for display; truncated
  std::string version;   // its ETag, or its modification time and weak ETag
  std::uint64_t size = 0;
  std::uint64_t data_inode = 0;  // the inode of the data file: shows that neither file was copied or replaced
  std::string boot;              // the machine's boot ID at creation; detects data that a system crash may have lost
  bool is_sealed = false;        // all bytes are present and on disk
  // st_ctime of the data file when all bytes were present; changing the data later changes it too. 0: not all were present yet.
  std::int64_t data_changed_ns = 0;

  // Returns true for the same object and version; ignores the other fields.
  [[nodiscard]] bool names_same(const cache_map_head& other) const noexcept {
    return identity == other.identity && version == other.version && size == other.size;
  }
};

using cache_head_text = std::array<std::byte, cache_head_bytes>;

// Encodes a head with its checksum. Truncates `shown`; no other text may be longer than most_cache_text_bytes, and together they must fit.
[[nodiscard]] cache_head_text encode(const cache_map_head& head);
// Returns nullopt for anything that encode() does not produce.
[[nodiscard]] std::optional<cache_map_head> decode_cache_head(std::span<const std::byte> text);

// Recomputes the checksum of a modified head, so that tests reach the checks that follow.
void mend_cache_head(cache_head_text& text);

}  // namespace penstock::source::remote
