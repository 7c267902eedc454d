#include "kv/operations.hpp"

#include <fmt/format.h>

#include "base/checked.hpp"
#include "base/no_memory.hpp"
#include "base/printable.hpp"

namespace penstock::kv {

namespace {

// Merges pieces with the ones before them. Caches the allocation of the last lookup, because a driver call takes half a microsecond. Use it
// for pieces that are checked in immediate succession.
class piece_joiner {
 public:
  explicit piece_joiner(core::memory_map& memory) noexcept : memory_(memory) {}

  // Appends `next` to `to` and returns true if they are adjacent in one allocation.
  bool join(memory_piece& to, const memory_piece& next) {
    const auto end = checked_add(reinterpret_cast<std::uintptr_t>(to.memory), to.length);
    const auto length = checked_add(to.length, next.length);
    if (!end || *end != reinterpret_cast<std::uintptr_t>(next.memory) || !length) return false;
    if (!is_one(static_cast<const std::byte*>(to.memory), to.length, *length)) return false;
    to.length = *length;
    return true;
  }

 private:
  // Two allocations stay separate, because each can have its own error or device.
  bool is_one(const std::byte* begin, std::uint64_t first_length, std::uint64_t length) {
    if (last_begin_ != begin && !holds(begin, length)) {
      const auto found = memory_.allocation_of(begin);
      if (!found) return false;
      last_ = *found;
      last_begin_ = begin;
    }
    if (last_.base != nullptr) return holds(begin, length);
    const auto behind = memory_.allocation_of(begin + first_length);
    return behind.ok() && behind->base == nullptr;
  }
  [[nodiscard]] bool holds(const std::byte* begin, std::uint64_t length) const noexcept {
    const auto skip = static_cast<std::uint64_t>(begin - last_.base);  // huge if begin is below the base
    return last_.base != nullptr && skip < last_.size && length <= last_.size - skip;
  }

  core::memory_map& memory_;
  const std::byte* last_begin_ = nullptr;  // the last lookup
  device::memory_info last_;               // and its result
};

}  // namespace

result<staging::place> place_on_stream(core::memory_map& memory, const memory_piece& piece) {
  if (piece.memory == nullptr) return status(errc::bad_memory, "null pointer");
  auto place = memory.place_of(piece.memory, piece.length);
  if (!place || place->on_device()) return place;
  return status(errc::unsupported, "a call in stream order needs memory on the stream's device, not host memory");
}

std::vector<key_part> parts_of(std::span<const item> items, core::memory_map& memory) {
  std::vector<key_part> parts;
  parts.reserve(items.size());
  piece_joiner joiner(memory);
  for (const item& each : items) {
    key_part& made = parts.emplace_back();
    made.key = each.key;
    for (const memory_piece& piece : each.pieces) {
      if (piece.length == 0) continue;
      made.length = checked_add(made.length, piece.length).value_or(~std::uint64_t{0});
      if (made.pieces.empty() || !joiner.join(made.pieces.back(), piece)) made.pieces.push_back(piece);
    }
  }
  return parts;
}

status check_key(std::string_view key) {
  if (!key.empty() && key.size() <= most_key_bytes) return {};
  return {errc::invalid_argument, fmt::format("a key must be 1 to {} bytes long, not {}", most_key_bytes, key.size())};
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
