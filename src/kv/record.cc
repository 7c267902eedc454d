#include "kv/record.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

#include "base/checked.hpp"
#include "kv/checksum.hpp"
#include "penstock/kv.hpp"

namespace penstock::kv {

namespace {

static_assert(std::endian::native == std::endian::little, "the index is little-endian");

constexpr std::string_view index_magic = "PSTKVIDX";
constexpr std::uint32_t index_version = 1;
constexpr std::size_t plain_bytes = 16;  // before the value-only part
constexpr std::size_t value_bytes = 32;
constexpr std::size_t crc_bytes = 4;
constexpr std::uint64_t has_checksum = 1;

template <class T>
T number_at(const std::byte* at) noexcept {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <class T>
void put_number(std::byte* at, T value) noexcept {
  std::memcpy(at, &value, sizeof value);
}

std::uint32_t record_crc(std::span<const std::byte> bytes, std::uint64_t id) noexcept {
  return crc32c(bytes, crc32c(std::as_bytes(std::span(&id, 1))));
}

bool has_value(record_kind kind) noexcept { return kind == record_kind::value; }

bool keys_fit(record_kind kind, std::size_t key_bytes) noexcept {
  switch (kind) {
    case record_kind::value:
    case record_kind::dropped:
      return key_bytes >= 1 && key_bytes <= most_key_bytes;
    case record_kind::synced:
      return key_bytes == 0;
    case record_kind::boot:
      return key_bytes <= most_key_bytes;
  }
  return false;
}

bool lies_inside(const value_facts& facts, std::uint64_t capacity) noexcept {
  return facts.length > 0 && facts.length <= capacity && facts.offset % block_bytes == 0 && facts.offset <= capacity &&
         whole_blocks(facts.length) <= capacity - facts.offset;
}

void parse_value(const std::byte* at, value_facts& facts) noexcept {
  facts.offset = number_at<std::uint64_t>(at);
  facts.length = number_at<std::uint64_t>(at + 8);
  if ((number_at<std::uint64_t>(at + 24) & has_checksum) != 0) facts.checksum = number_at<std::uint64_t>(at + 16);
}

}  // namespace

std::uint64_t whole_blocks(std::uint64_t length) noexcept { return (length + block_bytes - 1) / block_bytes * block_bytes; }

extent value_facts::place() const noexcept { return {offset, whole_blocks(length)}; }

std::array<std::byte, header_bytes> encode(const index_header& header) noexcept {
  std::array<std::byte, header_bytes> bytes{};
  std::memcpy(bytes.data(), index_magic.data(), index_magic.size());
  put_number(&bytes[8], index_version);
  put_number(&bytes[12], static_cast<std::uint32_t>(block_bytes));
  put_number(&bytes[16], header.id);
  put_number(&bytes[24], header.capacity_bytes);
  put_number(&bytes[header_bytes - crc_bytes], crc32c(std::span(bytes).first(header_bytes - crc_bytes)));
  return bytes;
}

result<index_header> parse_header(std::span<const std::byte> bytes) {
  if (bytes.size() < header_bytes || std::memcmp(bytes.data(), index_magic.data(), index_magic.size()) != 0)
    return status(errc::unsupported, "not a store index");
  if (number_at<std::uint32_t>(&bytes[8]) != index_version || number_at<std::uint32_t>(&bytes[12]) != block_bytes)
    return status(errc::unsupported, fmt::format("the index has version {}, but this library supports version {}",
                                                 number_at<std::uint32_t>(&bytes[8]), index_version));
  if (number_at<std::uint32_t>(&bytes[header_bytes - crc_bytes]) != crc32c(bytes.first(header_bytes - crc_bytes)))
    return status(errc::io, "the index header is corrupt");
  const index_header header{number_at<std::uint64_t>(&bytes[16]), number_at<std::uint64_t>(&bytes[24])};
  if (header.capacity_bytes == 0 || header.capacity_bytes % block_bytes != 0 || header.capacity_bytes > max_file_offset)
    return status(errc::io, fmt::format("invalid capacity of {} bytes in the index header", header.capacity_bytes));
  return header;
}

std::size_t encoded_bytes(record_kind kind, std::size_t key_bytes) noexcept {
  const std::size_t before = plain_bytes + (has_value(kind) ? value_bytes : 0) + key_bytes;
  return (before + 3) / 4 * 4 + crc_bytes;
}

void append(std::vector<std::byte>& to, std::uint64_t id, const record& of) {
  assert(keys_fit(of.kind, of.key.size()));
  const std::size_t begin = to.size();
  const std::size_t size = encoded_bytes(of.kind, of.key.size());
  to.resize(begin + size);
  std::byte* at = &to[begin];
  put_number(at, static_cast<std::uint32_t>(size));
  put_number(at + 4, static_cast<std::uint16_t>(of.kind));
  put_number(at + 6, static_cast<std::uint16_t>(of.key.size()));
  put_number(at + 8, of.facts.sequence);
  if (has_value(of.kind)) {
    put_number(at + plain_bytes, of.facts.offset);
    put_number(at + plain_bytes + 8, of.facts.length);
    put_number(at + plain_bytes + 16, of.facts.checksum.value_or(0));
    put_number(at + plain_bytes + 24, of.facts.checksum ? has_checksum : std::uint64_t{0});
  }
  of.key.copy(reinterpret_cast<char*>(at) + plain_bytes + (has_value(of.kind) ? value_bytes : 0), of.key.size());
  put_number(at + size - crc_bytes, record_crc({at, size - crc_bytes}, id));
}

parsed_record parse_record(std::span<const std::byte> bytes, const index_header& of) noexcept {
  using state = parsed_record::state;
  if (bytes.size() < plain_bytes) return {state::cut};
  const auto size = number_at<std::uint32_t>(bytes.data());
  const auto kind = static_cast<record_kind>(number_at<std::uint16_t>(&bytes[4]));
  const auto key_bytes = number_at<std::uint16_t>(&bytes[6]);
  if (!keys_fit(kind, key_bytes) || size != encoded_bytes(kind, key_bytes)) return {state::wrong};
  if (bytes.size() < size) return {state::cut};
  if (number_at<std::uint32_t>(&bytes[size - crc_bytes]) != record_crc(bytes.first(size - crc_bytes), of.id)) return {state::wrong};
  parsed_record parsed{state::whole, size, {kind}};
  parsed.content.facts.sequence = number_at<std::uint64_t>(&bytes[8]);
  if (has_value(kind)) {
    parse_value(&bytes[plain_bytes], parsed.content.facts);
    if (!lies_inside(parsed.content.facts, of.capacity_bytes)) return {state::wrong};
  }
  const std::size_t key_at = plain_bytes + (has_value(kind) ? value_bytes : 0);
  parsed.content.key = {reinterpret_cast<const char*>(bytes.data()) + key_at, key_bytes};
  return parsed;
}

}  // namespace penstock::kv
