// The format of the index: a header, then records, each with a checksum. Numbers are little-endian. A record is accepted only if it is
// complete, of a known kind, and within bounds. Pure functions.
//
//   header, 64 bytes:  magic[8]  version u32  block u32  id u64  capacity u64  zeros[28]  crc u32 (of all before)
//   record:            size u32  kind u16  key bytes u16  sequence u64  [offset u64  length u64  checksum u64  flags u64]  key, zeros to a
//                      multiple of 4, crc u32 (of the header's id and all before)
//
// Only value records have the part in brackets. size covers the whole record.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kv/extents.hpp"
#include "penstock/status.hpp"

namespace penstock::kv {

inline constexpr std::size_t header_bytes = 64;
inline constexpr std::size_t most_record_bytes = 1024;

struct index_header {
  std::uint64_t id = 0;  // random: records that belong to another index's id are rejected
  std::uint64_t capacity_bytes = 0;
};

// The place and properties of a value.
struct value_facts {
  std::uint64_t sequence = 0;  // assigned by its put: unique for as long as the folder exists
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::optional<std::uint64_t> checksum{};
  [[nodiscard]] extent place() const noexcept;  // whole blocks
};

// value: a put. dropped: the value with this sequence was dropped. synced: values up to this sequence are on disk. boot: the following
// records were written since the boot whose id is stored as the key; all earlier values have sequences up to this one.
enum class record_kind : std::uint16_t { value = 1, dropped, synced, boot };

struct record {
  record_kind kind = record_kind::value;
  std::string_view key{};  // points into the parsed bytes
  value_facts facts{};     // only the sequence, unless this is a value record
};

[[nodiscard]] std::uint64_t whole_blocks(std::uint64_t length) noexcept;

[[nodiscard]] std::array<std::byte, header_bytes> encode(const index_header& header) noexcept;
// Errors: unsupported (another version, or not an index), io (damaged).
[[nodiscard]] result<index_header> parse_header(std::span<const std::byte> bytes);

void append(std::vector<std::byte>& to, std::uint64_t id, const record& of);
[[nodiscard]] std::size_t encoded_bytes(record_kind kind, std::size_t key_bytes) noexcept;

// The record at the start of the bytes.
struct parsed_record {
  enum class state : std::uint8_t { whole, cut, wrong } is = state::wrong;  // cut: possibly a truncated record
  std::size_t bytes = 0;                                                    // of a whole record
  record content{};
};
[[nodiscard]] parsed_record parse_record(std::span<const std::byte> bytes, const index_header& of) noexcept;

}  // namespace penstock::kv
