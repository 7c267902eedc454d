#include "kv/operations.hpp"

#include <fmt/format.h>

#include "base/checked.hpp"
#include "base/no_memory.hpp"
#include "base/printable.hpp"

namespace penstock::kv {

std::vector<key_part> parts_of(std::span<const item> items) {
  std::vector<key_part> parts;
  parts.reserve(items.size());
  for (const item& each : items) {
    key_part& made = parts.emplace_back();
    made.key = each.key;
    made.pieces.assign(each.pieces.begin(), each.pieces.end());
    for (const memory_piece& piece : each.pieces) made.length = checked_add(made.length, piece.length).value_or(~std::uint64_t{0});
  }
  return parts;
}

status check_key(std::string_view key) {
  if (!key.empty() && key.size() <= most_key_bytes) return {};
  return {errc::invalid_argument, fmt::format("a key has 1 to {} bytes, not {}", most_key_bytes, key.size())};
}

std::string named(std::string_view key) { return "key " + printable_text(std::string(key.substr(0, most_key_bytes))); }

key_result failed_with(const status& error, std::string_view key) {
  return or_without_memory(
      [&] {
        return key_result{outcome::failed, 0, error.with_context(named(key))};
      },
      [&] {
        return key_result{outcome::failed, 0, error};
      });
}

io_result sum_of(std::span<const key_result> results) {
  io_result sum;
  for (const key_result& each : results) {
    sum.bytes_done += each.bytes;
    if (sum.error.ok()) sum.error = each.error;
  }
  return sum;
}

}  // namespace penstock::kv
