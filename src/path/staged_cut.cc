// How the staged path cuts ranges into pieces.
#include <algorithm>
#include <bit>

#include "path/staged.hpp"

namespace penstock::path {

namespace {

constexpr std::uint64_t kib = 1024;
constexpr std::uint64_t mib = 1024 * kib;
constexpr std::uint64_t most_direct = 4 * mib;
constexpr std::uint64_t least_direct = 128 * kib;
constexpr std::uint64_t least_wave = 512 * kib;
constexpr std::uint64_t least_wave_piece = 32 * kib;
// With longer waves, or more lanes per wave, the slabs of several links do not fit into the cores' shared cache. (Two H100s: 24 lanes reach
// 86 GB/s at 0.28 CPU s/GB; before, 20 lanes that shared waves of 8 MiB reached 56 to 63 at 0.31 to 0.35. With one link, they hardly
// differ.)
constexpr std::uint64_t most_wave = 4 * mib;
constexpr unsigned most_lanes_of_wave = 8;
// Whole blocks that are read into the page cache at a time (sys/cache_fill.hpp).
constexpr std::uint64_t filling_piece = 4 * mib;
// Writing to the page cache is fastest while the data is still in the CPU's cache, where the device's writes arrive.
constexpr std::uint64_t cached_write_piece = mib;

void cut_wave(std::uint64_t length, unsigned lanes, std::vector<cut_piece>& pieces) {
  const std::uint64_t share = std::bit_ceil((length + lanes - 1) / lanes);
  const std::uint64_t unit = lanes <= 1 ? length : std::max(share, least_wave_piece);
  const std::size_t first = pieces.size();
  for (std::uint64_t at = 0; at < length; at += unit) pieces.push_back({std::min(unit, length - at), 0});
  pieces[first].wave = static_cast<std::uint32_t>(pieces.size() - first);
}

// Cuts cached reads into a device into waves that start and end small, so that the first copy starts early and the last one completes soon
// after its read. Up to eight lanes share each wave. (H200: 16 MiB calls in 1 MiB pieces, each with its own copy, reach 20 GB/s.)
void cut_waves(const range_to_cut& range, std::vector<cut_piece>& pieces) {
  const bool alone = range.lanes <= 1;
  const std::uint64_t least = alone || range.shared_link ? mib : least_wave;
  const std::uint64_t part = std::bit_floor(std::max<std::uint64_t>(range.run_length / (alone ? 4 : 8), 1));
  const std::uint64_t usual = std::clamp(part, least, most_wave);
  for (std::uint64_t at = 0; at < range.length;) {
    const std::uint64_t before = range.follows_others ? usual : at;
    const std::uint64_t behind = range.precedes_others ? usual : range.length - at;
    const std::uint64_t ramp = std::bit_floor(std::max(std::min(before, behind), least));
    const std::uint64_t bytes = std::min(alone ? usual : std::min(usual, ramp), range.length - at);
    cut_wave(bytes, std::clamp(range.lanes, 1U, most_lanes_of_wave), pieces);
    at += bytes;
  }
}

// Direct pieces end at multiples of their unit, so that a piece extended to whole blocks fits into a slab.
std::uint64_t direct_unit(const range_to_cut& range) {
  const auto least = std::clamp(range.late_piece, least_direct, most_direct);
  return range.is_write ? most_direct : std::clamp(std::bit_ceil(range.run_length / 8), least, most_direct);
}

}  // namespace

void cut_for_staged(const range_to_cut& range, std::vector<cut_piece>& pieces) {
  switch (range.way) {
    case way::past_cache:
      return cut_at_multiples(range, direct_unit(range), pieces);
    case way::filling:
      return cut_at_multiples(range, range.late_piece > 0 ? range.late_piece : filling_piece, pieces);
    case way::cached:
    case way::pinned:
    case way::far:
      break;
  }
  if (range.is_write) return cut_at_multiples(range, cached_write_piece, pieces);
  cut_waves(range, pieces);
}

}  // namespace penstock::path
