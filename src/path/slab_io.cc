#include "path/slab_io.hpp"

namespace penstock::path {

namespace {

template <class Move>
io_result by_route(source::source& file, bool past_cache, const told_of_fallback& told, Move move) {
  auto moved = move(past_cache);
  if (moved.ok() || !past_cache || told == nullptr || !file.cached_problem().ok()) return moved;
  told(moved.error);
  return move(false);
}

}  // namespace

io_result fill_slab(source::source& file, std::byte* target, std::uint64_t length, std::uint64_t offset, slab_route how,
                    const told_of_fallback& told) {
  return by_route(file, how.way == way::past_cache, told, [&](bool past_cache) {
    if (past_cache) return file.fill_direct(target - offset % source::direct_alignment, length, offset);
    if (how.spares_cache) return file.fill_uncached(target, length, offset);
    if (how.way == way::filling) return file.fill_cold(target, length, offset);
    return how.sent_at_once ? file.fill_streaming(target, length, offset) : file.fill(target, length, offset);
  });
}

io_result drain_slab(source::source& file, const std::byte* memory, std::uint64_t length, std::uint64_t offset, slab_route how,
                     const told_of_fallback& told) {
  return by_route(file, how.way == way::past_cache, told, [&](bool past_cache) {
    if (past_cache) return file.drain_direct(memory, length, offset);
    if (how.spares_cache) return file.drain_uncached(memory, length, offset);
    return how.stopped != nullptr ? file.drain_unless(*how.stopped, memory, length, offset) : file.drain(memory, length, offset);
  });
}

bool goes_past_cache(source::source& file, std::uint64_t offset, std::uint64_t length, cache_use asked) {
  if (!file.direct_problem().ok()) return false;
  if (!file.cached_problem().ok()) return true;
  switch (asked) {
    case cache_use::keep:
      return false;
    case cache_use::bypass:
      return file.resident_bytes(offset, length).value_or(0) < length;
    case cache_use::automatic:
      break;
  }
  return file.resident_bytes(offset, length).value_or(length) == 0;
}

}  // namespace penstock::path
