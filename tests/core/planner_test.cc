#include "core/planner.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace penstock::core {
namespace {

constexpr std::uint64_t kib = 1024;
constexpr std::uint64_t mib = 1024 * kib;
constexpr std::uint64_t page = path::direct_alignment;
// Direct pieces are cut so that a slab of this size holds the whole blocks around each.
constexpr std::uint64_t direct_slab = 4 * mib;

// Answers of a path for a range that it carries, or not.
std::optional<std::string> accepts(path_kind /*path*/, std::uint64_t /*offset*/, std::uint64_t /*length*/) { return std::nullopt; }

// What a file of the given page cache, on a machine without GPUDirect, would answer.
std::optional<std::string> usual(path_kind path, const plan_input& input) {
  switch (path) {
    case path_kind::direct:
    case path_kind::dma_buf:
      return "there is no GPUDirect";
    case path_kind::mapped:
      if (input.is_write) return "only reads can be mapped";
      if (!input.on_device || !input.has_cached) return "nothing to map";
      return std::nullopt;
    case path_kind::posix:
      return input.on_device ? std::optional<std::string>("the memory is on a device") : std::nullopt;
    case path_kind::staged:
      return input.on_device ? std::nullopt : std::optional<std::string>("the memory is the host's");
    case path_kind::automatic:
      break;
  }
  return std::nullopt;
}

// A read into a device, of a file that has both descriptors and is not in the page cache.
plan_input device_read(std::uint64_t offset, std::uint64_t length) {
  plan_input input;
  input.offset = offset;
  input.length = length;
  input.on_device = true;
  input.cache_page_bytes = page;
  input.has_direct = true;
  input.lanes = 6;
  input.refuses = [](path_kind path, std::uint64_t, std::uint64_t) {
    return path::built_in_paths().of(path).gpu_direct ? std::optional<std::string>("none") : std::nullopt;
  };
  input.resident = [](std::uint64_t, std::uint64_t) { return std::optional<std::uint64_t>(0); };
  return input;
}

plan_input device_write(std::uint64_t offset, std::uint64_t length) {
  auto input = device_read(offset, length);
  input.is_write = true;
  return input;
}

void make_resident(plan_input& input) {
  input.resident = [](std::uint64_t, std::uint64_t length) { return std::optional(length); };
}

std::vector<planned_piece> plan_of(const plan_input& input) {
  auto pieces = make_plan(input);
  EXPECT_TRUE(pieces.ok()) << pieces.error().message();
  return pieces.ok() ? *std::move(pieces) : std::vector<planned_piece>();
}

std::set<path_kind> paths_of(const std::vector<planned_piece>& pieces) {
  std::set<path_kind> found;
  for (const auto& piece : pieces) found.insert(piece.path);
  return found;
}

bool all_of_reason(const std::vector<planned_piece>& pieces, plan_reason reason) {
  return !pieces.empty() && std::all_of(pieces.begin(), pieces.end(), [&](const auto& piece) { return piece.reason == reason; });
}

void expect_covered_once_in_order(const plan_input& input, const std::vector<planned_piece>& pieces) {
  std::uint64_t next = input.offset;
  for (const auto& piece : pieces) {
    ASSERT_EQ(piece.offset, next);
    ASSERT_GT(piece.length, 0U);
    next += piece.length;
  }
  ASSERT_EQ(next, input.offset + input.length);
}

// A wave's pieces share one slab: they are neighbours of one kind, and fit it.
void expect_waves_fit(const std::vector<planned_piece>& pieces) {
  for (std::size_t i = 0; i < pieces.size(); i += pieces[i].wave) {
    const auto count = pieces[i].wave;
    ASSERT_GE(count, 1U) << "a piece that belongs to no wave";
    ASSERT_LE(i + count, pieces.size());
    if (count == 1) continue;
    std::uint64_t bytes = 0;
    for (std::size_t j = i; j < i + count; ++j) {
      ASSERT_EQ(j == i ? count : 0U, pieces[j].wave);
      ASSERT_EQ(pieces[j].path, path_kind::staged);
      ASSERT_FALSE(pieces[j].way == path::way::past_cache);
      bytes += pieces[j].length;
    }
    ASSERT_LE(bytes, 4 * mib);
  }
}

void expect_pieces_can_be_carried(const plan_input& input, const std::vector<planned_piece>& pieces) {
  for (const auto& piece : pieces) {
    ASSERT_NE(piece.path, path_kind::automatic);
    ASSERT_EQ(piece.path == path_kind::posix, !input.on_device);
    if (piece.path == path_kind::staged || piece.path == path_kind::posix) {
      ASSERT_LE(piece.length, 4 * mib);
    }
    if (piece.way != path::way::past_cache) continue;
    ASSERT_TRUE(piece.path == path_kind::staged || input.late_piece > 0);
    ASSERT_TRUE(input.has_direct);
    const std::uint64_t first_block = piece.offset / page * page;
    const std::uint64_t end = (piece.offset + piece.length + page - 1) / page * page;
    ASSERT_LE(end - first_block, direct_slab);
    if (input.is_write || !input.on_device) {
      ASSERT_EQ(piece.offset % page, 0U) << "an edge must not overwrite a neighbour's bytes";
      ASSERT_EQ(piece.length % page, 0U);
    }
  }
}

template <class Random>
std::uint64_t pick(Random& random, std::uint64_t least, std::uint64_t most) {
  return std::uniform_int_distribution<std::uint64_t>(least, most)(random);
}

template <class Random>
plan_input random_input(Random& random) {
  plan_input input;
  input.cache_page_bytes = page;
  const auto odd = [&](std::uint64_t value) { return pick(random, 0, 1) == 0 ? value / page * page : value; };
  input.offset = odd(pick(random, 0, std::uint64_t{1} << pick(random, 1, 45)));
  input.length = odd(pick(random, 0, std::uint64_t{1} << pick(random, 1, 29)));
  input.is_write = pick(random, 0, 1) == 0;
  input.on_device = pick(random, 0, 4) != 0;
  input.emulated_device = pick(random, 0, 3) == 0;
  input.direct_writes = pick(random, 0, 1) == 0;
  input.has_cached = pick(random, 0, 4) != 0;
  input.has_direct = !input.has_cached || pick(random, 0, 2) != 0;
  input.prefer = static_cast<preference>(pick(random, 0, 2));
  input.lanes = static_cast<unsigned>(pick(random, 1, 64));
  input.few_cores = pick(random, 0, 1) == 0;
  input.memory_file_system = pick(random, 0, 5) == 0;
  if (!input.is_write && pick(random, 0, 2) == 0) input.late_piece = pick(random, 0, 1) == 0 ? mib : mib - page;
  return input;
}

// Which pages are in the cache: runs drawn from a seed, so that every question about a range gets the same answer.
std::optional<std::uint64_t> resident_in_runs(std::uint64_t seed, std::uint64_t offset, std::uint64_t length) {
  constexpr std::uint64_t run = mib;
  std::uint64_t found = 0;
  for (std::uint64_t at = offset; at < offset + length;) {
    const std::uint64_t end = std::min(offset + length, (at / run + 1) * run);
    std::minstd_rand coin(static_cast<std::uint32_t>(seed + at / run / 5));
    coin.discard(3);
    if (coin() % 2 == 0) found += end - at;
    at = end;
  }
  return found;
}

TEST(planner, any_plan_covers_the_range_once_in_order_with_pieces_that_fit) {
  for (std::uint64_t seed = 1; seed <= 4000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    auto input = random_input(random);
    input.refuses = [&](path_kind path, std::uint64_t, std::uint64_t) { return usual(path, input); };
    const auto answer = pick(random, 0, 3);
    const cold_way cold{.keeps = pick(random, 0, 1) == 0, .why = plan_reason::kept, .tried_bytes = pick(random, 0, 2) * 3 * mib};
    if (pick(random, 0, 1) == 0) input.cold = [&] { return cold; };
    input.spares_cache = pick(random, 0, 4) == 0;
    input.resident = [&](std::uint64_t offset, std::uint64_t length) -> std::optional<std::uint64_t> {
      if (answer == 0) return std::nullopt;
      if (answer == 1) return length;
      if (answer == 2) return 0;
      return resident_in_runs(seed, offset, length);
    };
    const auto pieces = plan_of(input);
    ASSERT_NO_FATAL_FAILURE(expect_covered_once_in_order(input, pieces));
    ASSERT_NO_FATAL_FAILURE(expect_pieces_can_be_carried(input, pieces));
    ASSERT_NO_FATAL_FAILURE(expect_waves_fit(pieces));
    if (input.is_write && input.on_device && (!input.direct_writes && input.has_cached)) {
      EXPECT_TRUE(std::none_of(pieces.begin(), pieces.end(), [](const auto& piece) { return piece.way == path::way::past_cache; }));
    }
    if (HasFailure()) break;
  }
}

// --- a server that answers late

plan_input late_host_read(std::uint64_t offset, std::uint64_t length) {
  auto input = device_read(offset, length);
  input.on_device = false;
  input.late_piece = mib;
  return input;
}

TEST(planner, only_whole_blocks_come_past_the_cache_into_host_memory) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    auto input = random_input(random);
    input.on_device = input.is_write = false;
    input.late_piece = mib;
    input.refuses = [&](path_kind path, std::uint64_t, std::uint64_t) { return usual(path, input); };
    input.resident = [&](std::uint64_t offset, std::uint64_t length) { return resident_in_runs(seed, offset, length); };
    const auto pieces = plan_of(input);
    ASSERT_NO_FATAL_FAILURE(expect_covered_once_in_order(input, pieces));
    for (const auto& piece : pieces) {
      EXPECT_TRUE(piece.way != path::way::past_cache || (piece.offset | piece.length) % page == 0)
          << piece.length << " at " << piece.offset;
    }
    if (HasFailure()) break;
  }
}

TEST(planner, what_a_late_server_brings_into_host_memory_goes_past_the_cache) {
  const auto pieces = plan_of(late_host_read(5, 9 * mib));
  EXPECT_EQ(pieces.front().reason, plan_reason::unaligned_read_edge);
  EXPECT_EQ(pieces.back().reason, plan_reason::unaligned_read_edge);
  for (const auto& piece : std::span(pieces).subspan(1, pieces.size() - 2)) EXPECT_TRUE(piece.way == path::way::past_cache && piece.waits);
}

TEST(planner, what_is_in_the_page_cache_is_not_waited_for) {
  auto input = late_host_read(0, 9 * mib);
  input.resident = [](std::uint64_t, std::uint64_t length) { return std::optional(length); };
  for (const auto& piece : plan_of(input))
    EXPECT_FALSE(piece.way == path::way::past_cache || piece.waits || piece.way == path::way::filling);
}

TEST(planner, without_direct_io_a_late_server_is_asked_through_the_cache) {
  for (const bool on_device : {false, true}) {
    auto input = late_host_read(5, 9 * mib);
    input.on_device = on_device;
    input.has_direct = false;
    const auto pieces = plan_of(input);
    EXPECT_GE(pieces.size(), 9U);
    for (const auto& piece : pieces)
      EXPECT_TRUE(piece.way == path::way::filling && piece.waits && piece.reason == plan_reason::no_direct_io);
    input.most_untimed = 2 * mib;
    const auto first = plan_of(input);
    EXPECT_LE(first.back().offset + first.back().length, 5 + 3 * mib);
  }
}

TEST(planner, plans_that_ask_about_little_at_a_time_cover_the_range_one_after_the_other) {
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    auto input = random_input(random);
    std::uint64_t asked = 0;
    input.refuses = [&](path_kind path, std::uint64_t, std::uint64_t) { return usual(path, input); };
    input.resident = [&](std::uint64_t offset, std::uint64_t length) {
      asked = std::max(asked, length);
      return resident_in_runs(seed, offset, length);
    };
    input.whole_length = input.length;
    std::vector<planned_piece> all;
    const auto whole = input;
    while (input.length > 0) {
      asked = 0;
      input.continues = input.offset > whole.offset;
      input.most_asked = pick(random, 1, 32 * mib);
      const auto pieces = plan_of(input);
      ASSERT_FALSE(pieces.empty());
      ASSERT_NO_FATAL_FAILURE(expect_waves_fit(pieces));
      ASSERT_NO_FATAL_FAILURE(expect_pieces_can_be_carried(input, pieces));
      const bool may_map = input.prefer == preference::cpu || (input.prefer == preference::automatic && input.few_cores);
      if (input.lanes > 1 && !may_map) {
        EXPECT_LE(asked, input.most_asked);
      }
      all.insert(all.end(), pieces.begin(), pieces.end());
      const auto planned = pieces.back().offset + pieces.back().length - input.offset;
      input.offset += planned;
      input.length -= planned;
    }
    ASSERT_NO_FATAL_FAILURE(expect_covered_once_in_order(whole, all));
    if (HasFailure()) break;
  }
}

TEST(planner, a_front_part_is_cut_as_what_it_is_a_part_of) {
  auto input = device_read(100 * mib + 5, 64 * mib);
  input.whole_length = input.length;
  const auto direct = plan_of(input);
  input.most_asked = 9 * mib;
  const auto front = plan_of(input);
  EXPECT_EQ(front.back().offset + front.back().length, 108 * mib) << "on a granule of the file";
  ASSERT_LT(front.size(), direct.size());
  for (std::size_t i = 0; i < front.size(); ++i) EXPECT_EQ(front[i].length, direct[i].length) << i;
  make_resident(input);
  const auto last = plan_of(input).back();
  EXPECT_GT(last.length * input.lanes, mib) << "copies are small at the end of the whole only";
}

TEST(planner, a_forced_path_carries_everything_or_the_plan_says_why_not) {
  for (std::uint64_t seed = 1; seed <= 1000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    auto input = random_input(random);
    input.length = std::max<std::uint64_t>(input.length, 1);
    input.refuses = [&](path_kind path, std::uint64_t, std::uint64_t) { return usual(path, input); };
    input.resident = [&](std::uint64_t offset, std::uint64_t length) { return resident_in_runs(seed, offset, length); };
    for (const auto forced : {path_kind::posix, path_kind::staged, path_kind::mapped, path_kind::direct, path_kind::dma_buf}) {
      input.forced = forced;
      const auto pieces = make_plan(input);
      const auto why = usual(forced, input);
      ASSERT_EQ(pieces.ok(), !why.has_value()) << to_string(forced);
      if (why) {
        EXPECT_EQ(pieces.error().code(), errc::unsupported);
        EXPECT_NE(pieces.error().message().find(to_string(forced)), std::string_view::npos) << pieces.error().message();
        EXPECT_NE(pieces.error().message().find(*why), std::string_view::npos) << pieces.error().message();
        continue;
      }
      EXPECT_EQ(paths_of(*pieces), std::set<path_kind>{forced});
      ASSERT_NO_FATAL_FAILURE(expect_covered_once_in_order(input, *pieces));
    }
    if (HasFailure()) break;
  }
}

TEST(planner, nothing_is_planned_for_an_empty_range) { EXPECT_TRUE(plan_of(device_read(4096, 0)).empty()); }

TEST(planner, host_memory_takes_the_posix_path) {
  auto input = device_read(1, 100 * mib);
  input.on_device = false;
  const auto pieces = plan_of(input);
  EXPECT_EQ(paths_of(pieces), std::set<path_kind>{path_kind::posix});
  EXPECT_TRUE(all_of_reason(pieces, plan_reason::host_memory));
  EXPECT_GE(pieces.size(), input.lanes) << "work for every lane";
}

TEST(planner, gpu_direct_takes_the_whole_of_an_aligned_range_wherever_it_serves) {
  for (const bool is_write : {false, true}) {
    auto input = device_read(page, 100 * mib);
    input.is_write = is_write;
    input.refuses = accepts;
    make_resident(input);
    const auto pieces = plan_of(input);
    ASSERT_EQ(pieces.size(), 1U);
    EXPECT_EQ(pieces[0].path, path_kind::direct);
    EXPECT_EQ(pieces[0].reason, plan_reason::declared);
  }
}

// The paths of a plan in order, where those next to each other differ.
std::vector<path_kind> path_order(const std::vector<planned_piece>& pieces) {
  std::vector<path_kind> order;
  for (const auto& piece : pieces) {
    if (order.empty() || order.back() != piece.path) order.push_back(piece.path);
  }
  return order;
}

TEST(planner, gpu_direct_is_asked_of_the_body_and_its_edges_are_staged) {
  for (const bool is_write : {false, true}) {
    auto input = device_read(5 * page + 100, 20 * mib);
    input.is_write = is_write;
    input.refuses = [](path_kind path, std::uint64_t offset, std::uint64_t length) {
      const bool is_body = path == path_kind::direct && offset == 6 * page && length == 20 * mib - page;
      return is_body ? std::nullopt : std::optional<std::string>("not the body");
    };
    const auto pieces = plan_of(input);
    expect_covered_once_in_order(input, pieces);
    ASSERT_EQ(path_order(pieces), (std::vector{path_kind::staged, path_kind::direct, path_kind::staged}));
    EXPECT_EQ(pieces.size(), 3U);
    EXPECT_EQ(pieces[0].reason, is_write ? plan_reason::unaligned_edge : plan_reason::unaligned_read_edge);
    EXPECT_EQ(pieces[0].way == path::way::past_cache, !is_write) << "an edge of a write shares its page with neighbours";
    EXPECT_EQ(pieces[2].reason, pieces[0].reason);
    EXPECT_EQ(pieces[2].way == path::way::past_cache, !is_write);
  }
}

TEST(planner, too_small_a_body_between_edges_is_staged_with_them) {
  for (const bool is_write : {false, true}) {
    auto input = device_read(page + 1, 64 * kib);
    input.is_write = is_write;
    input.refuses = accepts;
    EXPECT_EQ(path_order(plan_of(input)), std::vector{path_kind::staged});
    input.length += 2 * page;
    EXPECT_EQ(path_order(plan_of(input)), (std::vector{path_kind::staged, path_kind::direct, path_kind::staged}));
    input.offset = page;
    input.length = 2 * page;
    EXPECT_EQ(path_order(plan_of(input)), std::vector{path_kind::direct}) << "it has no edges";
  }
}

TEST(planner, what_cannot_be_aligned_in_memory_and_file_is_read_direct_and_written_staged) {
  for (const std::uint64_t offset : {page, page + 5}) {
    auto input = device_read(offset, 20 * mib);
    input.refuses = accepts;
    input.aligned_together = false;
    const auto pieces = plan_of(input);
    ASSERT_EQ(pieces.size(), 1U);
    EXPECT_EQ(pieces[0].path, path_kind::direct);
    input.is_write = true;
    EXPECT_EQ(path_order(plan_of(input)), std::vector{path_kind::staged});
    input.forced = path_kind::direct;
    EXPECT_EQ(make_plan(input).error().code(), errc::unsupported);
  }
}

TEST(planner, a_forced_direct_read_is_direct_with_its_edges_and_a_write_stages_them) {
  auto input = device_read(page + 1, 100);
  input.refuses = accepts;
  input.forced = path_kind::direct;
  EXPECT_EQ(path_order(plan_of(input)), std::vector{path_kind::direct});
  input.is_write = true;
  const auto pieces = plan_of(input);
  expect_covered_once_in_order(input, pieces);
  EXPECT_EQ(path_order(pieces), std::vector{path_kind::staged});
  EXPECT_TRUE(all_of_reason(pieces, plan_reason::unaligned_edge));
  input.refuses = [](path_kind, std::uint64_t, std::uint64_t) { return std::optional<std::string>("the file is not served"); };
  EXPECT_EQ(make_plan(input).error().code(), errc::unsupported);
}

TEST(planner, a_path_of_whole_blocks_leaves_edges_of_reads_also_where_it_is_forced_and_refuses_what_cannot_be_aligned) {
  auto input = device_read(page + 1, 20 * mib);
  input.refuses = accepts;
  input.forced = path_kind::dma_buf;
  const auto pieces = plan_of(input);
  expect_covered_once_in_order(input, pieces);
  EXPECT_EQ(path_order(pieces), (std::vector{path_kind::staged, path_kind::dma_buf, path_kind::staged}));
  EXPECT_EQ(pieces[1].offset % page + pieces[1].length % page, 0U);
  input.aligned_together = false;
  EXPECT_EQ(make_plan(input).error().code(), errc::unsupported);
  input.forced = path_kind::automatic;
  input.refuses = [](path_kind path, std::uint64_t, std::uint64_t) {
    return path == path_kind::direct ? std::optional<std::string>("none") : std::nullopt;
  };
  for (const auto path : path_order(plan_of(input))) EXPECT_NE(path, path_kind::dma_buf);
}

TEST(planner, a_gpu_direct_write_leaves_whole_pages_of_the_cache_to_its_edges) {
  constexpr std::uint64_t large_page = 64 << 10;
  auto input = device_write(4096 * 5, 20 * mib);
  input.refuses = accepts;
  input.cache_page_bytes = large_page;
  const auto pieces = plan_of(input);
  expect_covered_once_in_order(input, pieces);
  EXPECT_EQ(path_order(pieces), (std::vector{path_kind::staged, path_kind::direct, path_kind::staged}));
  EXPECT_EQ(pieces[1].offset % large_page + pieces[1].length % large_page, 0U);
}

TEST(planner, any_plan_of_gpu_direct_covers_the_range_once_and_writes_whole_blocks) {
  for (std::uint64_t seed = 1; seed <= 2000; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    auto input = random_input(random);
    input.refuses = accepts;
    input.resident = [&](std::uint64_t offset, std::uint64_t length) { return resident_in_runs(seed, offset, length); };
    input.aligned_together = pick(random, 0, 3) != 0;
    const auto pieces = plan_of(input);
    ASSERT_NO_FATAL_FAILURE(expect_covered_once_in_order(input, pieces));
    for (const auto& piece : pieces) {
      if (piece.path != path_kind::direct || !input.is_write) continue;
      EXPECT_TRUE(input.aligned_together);
      EXPECT_EQ(piece.offset % page + piece.length % page, 0U);
    }
    if (HasFailure()) break;
  }
}

TEST(planner, what_is_in_the_page_cache_is_staged_from_there) {
  auto input = device_read(3, 64 * mib + 5);
  make_resident(input);
  const auto pieces = plan_of(input);
  EXPECT_EQ(paths_of(pieces), std::set<path_kind>{path_kind::staged});
  EXPECT_TRUE(all_of_reason(pieces, plan_reason::resident));
  for (const auto& piece : pieces) EXPECT_FALSE(piece.way == path::way::past_cache);
}

TEST(planner, what_is_not_in_the_page_cache_is_read_past_it) {
  const auto pieces = plan_of(device_read(3, 64 * mib + 5));
  EXPECT_TRUE(all_of_reason(pieces, plan_reason::not_resident));
  for (const auto& piece : pieces) EXPECT_TRUE(piece.way == path::way::past_cache);
}

TEST(planner, a_half_resident_range_is_read_from_where_each_part_is) {
  constexpr std::uint64_t half = 32 * mib;
  auto input = device_read(0, 2 * half);
  input.resident = [&](std::uint64_t offset, std::uint64_t length) -> std::optional<std::uint64_t> {
    const std::uint64_t end = offset + length;
    return end > half ? end - std::max(offset, half) : 0;  // the second half is cached
  };
  for (const auto& piece : plan_of(input)) {
    EXPECT_EQ(piece.way == path::way::past_cache, piece.offset < half) << piece.offset;
    EXPECT_EQ(piece.reason, piece.offset < half ? plan_reason::not_resident : plan_reason::resident) << piece.offset;
  }
}

TEST(planner, a_granule_that_is_mostly_cached_is_read_through_the_cache_and_else_past_it) {
  for (const bool mostly : {true, false}) {
    auto input = device_read(0, 4 * mib);
    input.resident = [&](std::uint64_t, std::uint64_t) { return std::optional<std::uint64_t>(mostly ? 3 * mib : mib); };
    const auto pieces = plan_of(input);
    EXPECT_TRUE(all_of_reason(pieces, plan_reason::partly_resident));
    for (const auto& piece : pieces) EXPECT_EQ(piece.way == path::way::past_cache, !mostly);
  }
}

// Of a read of which nothing is in the page cache.
std::vector<planned_piece> plan_of_cold(const cold_way& way, std::uint64_t offset, std::uint64_t length) {
  auto input = device_read(offset, length);
  input.cold = [&] { return way; };
  return plan_of(input);
}

TEST(planner, what_shall_be_kept_is_read_through_the_cache_in_pieces_for_few_threads) {
  const auto pieces = plan_of_cold({.keeps = true, .why = plan_reason::kept}, 3, 64 * mib + 5);
  EXPECT_TRUE(all_of_reason(pieces, plan_reason::kept));
  expect_covered_once_in_order(device_read(3, 64 * mib + 5), pieces);
  for (const auto& piece : pieces) {
    EXPECT_FALSE(piece.way == path::way::past_cache);
    EXPECT_TRUE(piece.way == path::way::filling);
    EXPECT_EQ(piece.wave, 1U);
    EXPECT_LE(piece.length, 4 * mib);
    EXPECT_EQ(piece.path, path_kind::staged);
  }
  EXPECT_EQ(pieces.size(), 17U);
}

TEST(planner, a_part_of_what_is_kept_may_be_tried_past_the_cache) {
  const auto pieces = plan_of_cold({.keeps = true, .why = plan_reason::kept, .tried_bytes = 8 * mib}, 0, 64 * mib);
  expect_covered_once_in_order(device_read(0, 64 * mib), pieces);
  for (const auto& piece : pieces) {
    EXPECT_EQ(piece.way == path::way::past_cache, piece.offset < 8 * mib) << piece.offset;
    EXPECT_EQ(piece.way == path::way::filling, piece.offset >= 8 * mib) << piece.offset;
    EXPECT_EQ(piece.reason, piece.offset < 8 * mib ? plan_reason::bypass_tried : plan_reason::kept) << piece.offset;
  }
}

TEST(planner, what_is_tried_goes_on_behind_what_is_in_the_cache) {
  auto input = device_read(0, 64 * mib);
  input.cold = [] { return cold_way{.keeps = true, .why = plan_reason::kept, .tried_bytes = 24 * mib}; };
  const auto is_resident = [](std::uint64_t offset) { return offset >= 16 * mib && offset < 32 * mib; };
  input.resident = [](std::uint64_t offset, std::uint64_t length) -> std::optional<std::uint64_t> {
    const auto begins = std::max(offset, 16 * mib);
    const auto ends = std::min(offset + length, 32 * mib);
    return ends > begins ? ends - begins : 0;
  };
  const auto pieces = plan_of(input);
  expect_covered_once_in_order(input, pieces);
  for (const auto& piece : pieces) {
    EXPECT_EQ(piece.way == path::way::past_cache, piece.offset < 40 * mib && !is_resident(piece.offset)) << piece.offset;
    EXPECT_EQ(piece.way == path::way::filling, piece.offset >= 40 * mib) << piece.offset;
  }
}

TEST(planner, what_goes_past_the_cache_says_why) {
  for (const auto why : {plan_reason::bypass_as_asked, plan_reason::bypass_as_lent, plan_reason::bypass_at_random,
                         plan_reason::bypass_memory_unknown, plan_reason::bypass_no_room, plan_reason::bypass_faster}) {
    const auto pieces = plan_of_cold({.why = why}, 0, 16 * mib);
    EXPECT_TRUE(all_of_reason(pieces, why));
    for (const auto& piece : pieces) EXPECT_TRUE(piece.way == path::way::past_cache);
  }
}

TEST(planner, what_is_cached_is_read_from_there_whatever_becomes_of_the_rest) {
  auto input = device_read(0, 16 * mib);
  make_resident(input);
  input.spares_cache = true;
  input.cold = []() -> cold_way {
    ADD_FAILURE() << "nothing is cold";
    return {};
  };
  EXPECT_TRUE(all_of_reason(plan_of(input), plan_reason::resident));
}

TEST(planner, a_granule_that_is_not_wholly_cached_is_kept_or_goes_past_a_cache_that_is_to_be_spared) {
  for (const std::uint64_t cached : {mib, 3 * mib}) {
    auto input = device_read(0, 4 * mib);
    input.resident = [&](std::uint64_t, std::uint64_t) { return std::optional<std::uint64_t>(cached); };
    input.cold = [] { return cold_way{.keeps = true, .why = plan_reason::kept}; };
    const bool mostly = cached > 2 * mib;
    EXPECT_TRUE(all_of_reason(plan_of(input), mostly ? plan_reason::partly_resident : plan_reason::kept));
    input.spares_cache = true;
    input.cold = [] { return cold_way{.why = plan_reason::bypass_as_asked}; };
    const auto pieces = plan_of(input);
    EXPECT_TRUE(all_of_reason(pieces, plan_reason::bypass_as_asked));
    for (const auto& piece : pieces) EXPECT_TRUE(piece.way == path::way::past_cache);
  }
}

TEST(planner, what_nobody_knows_goes_past_a_cache_that_is_to_be_spared) {
  auto input = device_read(0, 16 * mib);
  input.resident = [](std::uint64_t, std::uint64_t) { return std::optional<std::uint64_t>(); };
  input.spares_cache = true;
  input.cold = [] { return cold_way{.why = plan_reason::bypass_as_asked}; };
  EXPECT_TRUE(all_of_reason(plan_of(input), plan_reason::bypass_as_asked));
}

// What is registered lies from 10 to 200 MiB of the file.
plan_input read_of_registered(std::uint64_t offset, std::uint64_t length) {
  auto input = device_read(offset, length);
  input.registered = [](std::uint64_t from, std::uint64_t bytes) -> plan_input::part {
    const auto begins = std::max(from, 10 * mib);
    const auto ends = std::min(from + bytes, 200 * mib);
    return begins < ends ? plan_input::part{begins, ends - begins} : plan_input::part{from + bytes, 0};
  };
  return input;
}

TEST(planner, what_is_registered_is_mapped_in_one_piece_and_the_rest_goes_its_way) {
  const auto input = read_of_registered(5, 256 * mib);
  const auto pieces = plan_of(input);
  expect_covered_once_in_order(input, pieces);
  for (const auto& piece : pieces) {
    const bool inside = piece.offset >= 10 * mib && piece.offset < 200 * mib;
    EXPECT_EQ(piece.way == path::way::pinned, inside) << piece.offset;
    EXPECT_EQ(piece.path, inside ? path_kind::mapped : path_kind::staged) << piece.offset;
    EXPECT_EQ(piece.reason, inside ? plan_reason::registered : plan_reason::not_resident) << piece.offset;
  }
  EXPECT_EQ(std::count_if(pieces.begin(), pieces.end(), [](const auto& piece) { return piece.way == path::way::pinned; }), 1);
}

// As it is kept: piece beside piece, the first of which is cut short by the request.
TEST(planner, what_is_registered_in_pieces_is_mapped_in_one) {
  auto input = device_read(64 * mib - 4096, 256 * mib);
  input.registered = [](std::uint64_t from, std::uint64_t bytes) -> plan_input::part {
    if (from >= 192 * mib) return {from + bytes, 0};
    const auto ends = std::min({from + bytes, (from / (64 * mib) + 1) * 64 * mib, 192 * mib});
    return {from, ends - from};
  };
  const auto pieces = plan_of(input);
  expect_covered_once_in_order(input, pieces);
  ASSERT_FALSE(pieces.empty());
  EXPECT_TRUE(pieces[0].way == path::way::pinned);
  EXPECT_EQ(pieces[0].length, 128 * mib + 4096);
}

TEST(planner, what_is_registered_is_not_mapped_where_little_forced_elsewhere_or_on_tmpfs) {
  EXPECT_EQ(paths_of(plan_of(read_of_registered(20 * mib, mib - 1))), std::set<path_kind>{path_kind::staged});
  EXPECT_EQ(paths_of(plan_of(read_of_registered(20 * mib, mib))), std::set<path_kind>{path_kind::mapped});
  auto input = read_of_registered(20 * mib, 8 * mib);
  input.forced = path_kind::staged;
  EXPECT_EQ(paths_of(plan_of(input)), std::set<path_kind>{path_kind::staged});
  input.forced = path_kind::automatic;
  input.memory_file_system = true;
  EXPECT_EQ(paths_of(plan_of(input)), std::set<path_kind>{path_kind::staged});
  input.prefer = preference::cpu;
  EXPECT_EQ(paths_of(plan_of(input)), std::set<path_kind>{path_kind::mapped});
}

TEST(planner, where_the_kernel_cannot_say_the_cache_is_used) {
  auto input = device_read(0, 16 * mib);
  input.resident = [](std::uint64_t, std::uint64_t) { return std::optional<std::uint64_t>(); };
  const auto pieces = plan_of(input);
  EXPECT_TRUE(all_of_reason(pieces, plan_reason::residency_unknown));
  for (const auto& piece : pieces) EXPECT_FALSE(piece.way == path::way::past_cache);
}

TEST(planner, without_direct_io_everything_goes_through_the_cache_and_nothing_is_asked) {
  auto input = device_read(0, 16 * mib);
  input.has_direct = false;
  input.resident = [](std::uint64_t, std::uint64_t) -> std::optional<std::uint64_t> {
    ADD_FAILURE() << "residency does not matter";
    return std::nullopt;
  };
  EXPECT_TRUE(all_of_reason(plan_of(input), plan_reason::no_direct_io));
}

TEST(planner, few_cores_map_what_is_resident_on_a_gpu) {
  auto input = device_read(0, 64 * mib);
  make_resident(input);
  input.few_cores = true;
  const auto pieces = plan_of(input);
  ASSERT_EQ(pieces.size(), 1U);
  EXPECT_EQ(pieces[0].path, path_kind::mapped);
  EXPECT_EQ(pieces[0].reason, plan_reason::declared);

  input.emulated_device = true;
  EXPECT_EQ(paths_of(plan_of(input)), std::set<path_kind>{path_kind::staged}) << "the host device saves no CPU time by mapping";
}

TEST(planner, busy_cores_are_spared_like_few_ones) {
  auto input = device_read(0, 64 * mib);
  make_resident(input);
  input.busy_cores = true;
  EXPECT_EQ(paths_of(plan_of(input)), std::set<path_kind>{path_kind::mapped});
  input.prefer = preference::speed;
  EXPECT_EQ(paths_of(plan_of(input)), std::set<path_kind>{path_kind::staged});
}

TEST(planner, preferences_decide_between_staged_and_mapped) {
  auto input = device_read(0, 64 * mib);
  make_resident(input);
  input.prefer = preference::cpu;
  EXPECT_EQ(paths_of(plan_of(input)), std::set<path_kind>{path_kind::mapped});
  input.few_cores = true;
  input.prefer = preference::speed;
  EXPECT_EQ(paths_of(plan_of(input)), std::set<path_kind>{path_kind::staged});
}

TEST(planner, nothing_is_mapped_on_tmpfs_nor_when_small_refused_or_not_resident) {
  const auto saver = [] {
    auto input = device_read(0, 64 * mib);
    make_resident(input);
    input.prefer = preference::cpu;
    return input;
  };
  auto input = saver();
  input.memory_file_system = true;
  EXPECT_EQ(paths_of(plan_of(input)), std::set<path_kind>{path_kind::staged});
  input = saver();
  input.length = 2 * mib;
  EXPECT_EQ(paths_of(plan_of(input)), std::set<path_kind>{path_kind::staged});
  input = saver();
  input.refuses = [](path_kind, std::uint64_t, std::uint64_t) { return std::optional<std::string>("no"); };
  EXPECT_EQ(paths_of(plan_of(input)), std::set<path_kind>{path_kind::staged});
  input = saver();
  input.resident = device_read(0, 1).resident;
  EXPECT_EQ(paths_of(plan_of(input)), std::set<path_kind>{path_kind::staged});
}

TEST(planner, writes_go_through_the_cache_unless_asked_otherwise) {
  const auto pieces = plan_of(device_write(0, 64 * mib));
  EXPECT_TRUE(all_of_reason(pieces, plan_reason::buffered_write));
  for (const auto& piece : pieces) EXPECT_FALSE(piece.way == path::way::past_cache);
}

TEST(planner, direct_writes_send_their_edges_through_the_cache) {
  auto input = device_write(4096 * 5 + 100, 20 * mib);
  input.direct_writes = true;
  const auto pieces = plan_of(input);
  ASSERT_GE(pieces.size(), 3U);
  EXPECT_EQ(pieces.front().reason, plan_reason::unaligned_edge);
  EXPECT_FALSE(pieces.front().way == path::way::past_cache);
  EXPECT_EQ(pieces.front().length, 4096U - 100U);
  EXPECT_EQ(pieces.back().reason, plan_reason::unaligned_edge);
  EXPECT_FALSE(pieces.back().way == path::way::past_cache);
  EXPECT_EQ(pieces.back().length, 100U);
  for (std::size_t i = 1; i + 1 < pieces.size(); ++i) {
    EXPECT_TRUE(pieces[i].way == path::way::past_cache);
    EXPECT_EQ(pieces[i].reason, plan_reason::direct_write);
  }
}

TEST(planner, no_page_of_the_cache_holds_an_edge_and_a_direct_body_however_long_pages_are) {
  constexpr std::uint64_t large_page = 64 << 10;
  auto input = device_write(4096 * 5, 20 * mib);
  input.direct_writes = true;
  input.cache_page_bytes = large_page;
  for (const auto& piece : plan_of(input)) {
    if (piece.way != path::way::past_cache) continue;
    EXPECT_EQ(piece.offset % large_page + piece.length % large_page, 0U);
  }
  EXPECT_EQ(plan_of(input).front().length, large_page - std::uint64_t{4096} * 5);
  input.has_cached = false;
  EXPECT_TRUE(all_of_reason(plan_of(input), plan_reason::direct_write));
}

TEST(planner, small_direct_writes_and_files_without_direct_io_use_the_cache) {
  auto input = device_write(4096, mib / 2);
  input.direct_writes = true;
  EXPECT_TRUE(all_of_reason(plan_of(input), plan_reason::buffered_write));
  input = device_write(0, 16 * mib);
  input.direct_writes = true;
  input.has_direct = false;
  EXPECT_TRUE(all_of_reason(plan_of(input), plan_reason::buffered_write));
}

TEST(planner, every_reason_is_a_sentence) {
  std::set<std::string> said;
  for (int i = 0; i <= static_cast<int>(plan_reason::forced); ++i)
    said.insert(describe(static_cast<plan_reason>(i), path::built_in_paths().of(path_kind::direct)));
  EXPECT_EQ(said.size(), static_cast<std::size_t>(plan_reason::forced) + 1);
  EXPECT_FALSE(said.contains(""));
}

}  // namespace
}  // namespace penstock::core
