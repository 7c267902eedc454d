// The map of an object in the node's cache: a file that says which object it is, of which version, and which of its blocks are there.
// Behind its head lies a byte for each block, and behind these the sum of each block. Values and pure functions: what is read of a folder
// is looked at here before it is believed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace penstock::source::remote {

// What a block of an object is kept by. A read of a few bytes fetches so many; the last block of an object may be shorter.
inline constexpr std::uint64_t cache_block_bytes = std::uint64_t{64} << 10;
inline constexpr std::uint64_t most_cached_object_bytes = std::uint64_t{1} << 44;  // whose map has 2.25 GiB
inline constexpr std::size_t cache_head_bytes = 4096;
inline constexpr std::size_t most_cache_text_bytes = 1024;
inline constexpr std::byte block_is_there{1};

[[nodiscard]] constexpr std::uint64_t cache_blocks_of(std::uint64_t size) noexcept {
  return (size + cache_block_bytes - 1) / cache_block_bytes;
}

// Of the whole map of an object.
[[nodiscard]] constexpr std::uint64_t cache_map_bytes_of(std::uint64_t size) noexcept {
  return cache_head_bytes + cache_blocks_of(size) * (1 + sizeof(std::uint64_t));
}
// Where in the map the sum of a block lies.
[[nodiscard]] constexpr std::uint64_t cache_sum_offset(std::uint64_t size, std::uint64_t block) noexcept {
  return cache_head_bytes + cache_blocks_of(size) + block * sizeof(std::uint64_t);
}
// XXH64 with seed 0 (https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md): 64 KiB take 5 us. It finds damage, not forgery.
[[nodiscard]] std::uint64_t cache_sum_of(std::span<const std::byte> block) noexcept;

struct cache_map_head {
  std::string identity;  // a hash of what tells this object from others; hexadecimal
  std::string shown;     // its URL, for people; cut
  std::string version;   // its ETag, or the time of its last change with its weak ETag
  std::uint64_t size = 0;
  std::uint64_t data_inode = 0;  // of the file with its bytes: neither has been copied or changed for another
  std::string boot;              // of the machine when it was made: what a crash of the machine has taken is known by that
  bool is_sealed = false;        // all of it is there, and on the disk
  // Of the data's inode (st_ctime), when all of it was there: who changes the data later changes that too. 0: not all of it was.
  std::int64_t data_changed_ns = 0;

  // Of the same object and version; the rest is not compared.
  [[nodiscard]] bool names_same(const cache_map_head& other) const noexcept {
    return identity == other.identity && version == other.version && size == other.size;
  }
};

using cache_head_text = std::array<std::byte, cache_head_bytes>;

// With a sum of what it has. shown is cut; of the other texts none is longer than most_cache_text_bytes, and all have room together.
[[nodiscard]] cache_head_text encode(const cache_map_head& head);
// Nothing where it is not what encode() makes.
[[nodiscard]] std::optional<cache_map_head> decode_cache_head(std::span<const std::byte> text);

// Gives a text the sum that it should have: for tests of what lies behind that.
void mend_cache_head(cache_head_text& text);

}  // namespace penstock::source::remote
