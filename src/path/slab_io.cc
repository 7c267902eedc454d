#include "path/slab_io.hpp"

namespace penstock::path {

using source::caching;

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
    return file.fill(target, length, offset,
                     past_cache                ? caching::direct
                     : how.spares_cache        ? caching::uncached
                     : how.way == way::filling ? caching::filling
                     : how.sent_at_once        ? caching::streaming
                                               : caching::usual);
  });
}

io_result drain_slab(source::source& file, const std::byte* memory, std::uint64_t length, std::uint64_t offset, slab_route how,
                     const told_of_fallback& told) {
  return by_route(file, how.way == way::past_cache, told, [&](bool past_cache) {
    return file.drain(memory, length, offset,
                      {past_cache         ? caching::direct
                       : how.spares_cache ? caching::uncached
                                          : caching::usual,
                       how.stopped});
  });
}

bool goes_past_cache(source::source& file, std::uint64_t offset, std::uint64_t length, cache_use asked) {
  if (!file.direct_problem().ok()) return false;
  if (!file.cached_problem().ok()) return true;
  switch (asked) {
    case cache_use::fill:
      return false;
    case cache_use::bypass:
      return file.resident_bytes(offset, length).value_or(0) < length;
    case cache_use::automatic:
      break;
  }
  return file.resident_bytes(offset, length).value_or(length) == 0;
}

}  // namespace penstock::path
