// The path that cold bytes take, and what decides it.
#include "core/cache/cache_policy.hpp"

#include <gtest/gtest.h>

#include <optional>

#include "core/cache/memory_watch.hpp"
#include "support/forwarding_kernel.hpp"

namespace penstock::core::cache_policy_tests {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t gib = std::uint64_t{1} << 30;
constexpr std::int64_t second = 1'000'000'000;

// A whole file of 4 GiB, on a machine with 64 of which half are available.
cache_question usual() {
  cache_question asked;
  asked.file_bytes = asked.request_bytes = 4 * gib;
  asked.memory = sys::memory_state{64 * gib, 32 * gib};
  return asked;
}

void expect_way(const cache_question& asked, bool keeps, plan_reason why) {
  const auto way = choose_cold_way(asked);
  EXPECT_EQ(way.keeps, keeps);
  EXPECT_EQ(way.why, why);
}

TEST(cache_policy, keeps_where_memory_has_room) {
  expect_way(usual(), true, plan_reason::kept);
  EXPECT_EQ(choose_cold_way(usual()).tried_bytes, 0U);
}

TEST(cache_policy, does_what_it_is_asked_whatever_else_is_known) {
  auto asked = usual();
  asked.lent_past_cache = true;
  asked.memory = std::nullopt;
  asked.speeds = cold_speeds::verdict::bypass;
  asked.asked = cache_use::fill;
  expect_way(asked, true, plan_reason::kept_as_asked);
  asked = usual();
  asked.asked = cache_use::bypass;
  expect_way(asked, false, plan_reason::bypass_as_asked);
}

TEST(cache_policy, a_file_system_that_answers_late_is_read_past_the_cache) {
  auto asked = usual();
  asked.answers = staging::answer_times::verdict::late;
  expect_way(asked, false, plan_reason::bypass_late);
  EXPECT_EQ(choose_cold_way(asked).most_bytes, ~std::uint64_t{0});
  asked.asked = cache_use::fill;
  expect_way(asked, true, plan_reason::kept_as_asked);
}

TEST(cache_policy, how_late_a_file_system_answers_is_told_by_a_first_part) {
  auto asked = usual();
  asked.answers = staging::answer_times::verdict::unknown;
  expect_way(asked, false, plan_reason::bypass_untimed);
  EXPECT_EQ(choose_cold_way(asked).most_bytes, staging::answer_times::untimed_bytes);
}

TEST(cache_policy, a_descriptor_that_was_opened_past_the_cache_stays_there) {
  auto asked = usual();
  asked.lent_past_cache = true;
  expect_way(asked, false, plan_reason::bypass_as_lent);
}

TEST(cache_policy, memory_that_a_device_shares_with_the_host_holds_no_file_twice) {
  auto asked = usual();
  asked.shared_memory = true;
  expect_way(asked, false, plan_reason::bypass_shared_memory);
  asked.asked = cache_use::bypass;
  expect_way(asked, false, plan_reason::bypass_shared_memory);
  asked.asked = cache_use::fill;
  expect_way(asked, true, plan_reason::kept_as_asked);
}

TEST(cache_policy, an_eighth_of_all_memory_has_to_be_left) {
  auto asked = usual();
  asked.file_bytes = 24 * gib;
  expect_way(asked, true, plan_reason::kept);
  asked.file_bytes += 1;
  expect_way(asked, false, plan_reason::bypass_no_room);
  asked = usual();
  asked.memory->available_bytes = 7 * gib;
  asked.file_bytes = 1;
  expect_way(asked, false, plan_reason::bypass_no_room);
  asked.memory = std::nullopt;
  expect_way(asked, false, plan_reason::bypass_memory_unknown);
}

TEST(cache_policy, small_parts_are_kept_in_order_only_and_small_files_always) {
  auto asked = usual();
  asked.request_bytes = 4 * mib - 1;
  expect_way(asked, false, plan_reason::bypass_at_random);
  asked.in_order = true;
  expect_way(asked, true, plan_reason::kept);
  asked.in_order = false;
  asked.file_bytes = asked.request_bytes;
  expect_way(asked, true, plan_reason::kept);
  asked = usual();
  asked.request_bytes = 4 * mib;
  expect_way(asked, true, plan_reason::kept);
}

TEST(cache_policy, speed_decides_and_long_requests_find_it_out) {
  auto asked = usual();
  asked.speeds = cold_speeds::verdict::bypass;
  expect_way(asked, false, plan_reason::bypass_faster);
  asked.speeds = cold_speeds::verdict::try_direct;
  expect_way(asked, true, plan_reason::kept);
  EXPECT_EQ(choose_cold_way(asked).tried_bytes, cold_speeds::tried_bytes);
  asked.request_bytes = cold_speeds::least_trying_request_bytes - 1;
  EXPECT_EQ(choose_cold_way(asked).tried_bytes, 0U);
}

TEST(cache_policy, little_is_planned_while_little_is_known) {
  auto asked = usual();
  expect_way(asked, true, plan_reason::kept);
  EXPECT_EQ(choose_cold_way(asked).most_bytes, ~std::uint64_t{0});
  asked.speeds = cold_speeds::verdict::unknown;
  expect_way(asked, true, plan_reason::kept);
  EXPECT_EQ(choose_cold_way(asked).most_bytes, cold_speeds::planned_unknown_bytes);
  asked.speeds = cold_speeds::verdict::try_direct_now;
  expect_way(asked, false, plan_reason::bypass_tried);
  EXPECT_EQ(choose_cold_way(asked).most_bytes, cold_speeds::planned_unknown_bytes);
}

// Something has been read past the page cache.
class warm_speeds : public cold_speeds {
 public:
  explicit warm_speeds(unsigned threads) : cold_speeds(threads) { note({true, warm_up_bytes, 0, 1}); }
};

// Reads bytes at so many a second, from a time on; returns when that ended.
std::int64_t read(cold_speeds& speeds, bool direct, std::uint64_t bytes, std::uint64_t bytes_a_second, std::int64_t began_ns) {
  const auto ended = began_ns + static_cast<std::int64_t>(static_cast<double>(bytes) / static_cast<double>(bytes_a_second) * 1e9);
  speeds.note({direct, bytes, began_ns, ended});
  return ended;
}

// Kept, by the one thread that keeps, with so much CPU time for each GiB.
std::int64_t keep(cold_speeds& speeds, std::uint64_t bytes, std::uint64_t bytes_a_second, std::int64_t cpu_ns_a_gib,
                  std::int64_t began_ns) {
  const auto ended = began_ns + static_cast<std::int64_t>(static_cast<double>(bytes) / static_cast<double>(bytes_a_second) * 1e9);
  speeds.note({false, bytes, began_ns, ended, static_cast<std::int64_t>(bytes >> 20) * cpu_ns_a_gib / 1024});
  return ended;
}

TEST(cold_speeds, keeps_until_both_ways_are_known_and_tries_the_other_once) {
  warm_speeds speeds(1);
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::unknown);
  auto now = read(speeds, true, gib, 100 * gib, second);
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::unknown) << "nothing is known of keeping";
  now = read(speeds, false, cold_speeds::least_costed_bytes, gib, now);
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::keep) << "it is not the CPU that bounds it, and little is known";
  warm_speeds other(1);
  now = read(other, false, cold_speeds::least_kept_bytes, gib, now);
  EXPECT_EQ(other.advise(), cold_speeds::verdict::try_direct);
  other.tries(cold_speeds::tried_bytes);
  EXPECT_EQ(other.advise(), cold_speeds::verdict::keep) << "until it is known";
}

TEST(cold_speeds, what_is_much_faster_wins) {
  for (const bool much : {false, true}) {
    warm_speeds speeds(1);
    auto now = read(speeds, false, gib, 2 * gib, second);
    now = read(speeds, true, gib, much ? 3 * gib : 2 * gib + 200 * mib, now);
    EXPECT_EQ(speeds.advise(), much ? cold_speeds::verdict::bypass : cold_speeds::verdict::keep);
  }
}

TEST(cold_speeds, pieces_beside_each_other_take_the_time_of_one) {
  warm_speeds speeds(1);
  for (int i = 0; i < 4; ++i) speeds.note({false, gib, second, 2 * second});  // 4 GiB/s
  const auto now = read(speeds, true, gib, 3 * gib, 2 * second);
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::keep);
  (void)read(speeds, true, gib, 100 * gib, now);
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::bypass);
}

// Pieces of both ways are under way at once, at so many MiB a second each, until all that is tried has been read.
void read_beside(cold_speeds& speeds, std::uint64_t kept, std::uint64_t direct, std::int64_t began_ns) {
  constexpr std::uint64_t pieces = 16;
  constexpr auto piece_bytes = cold_speeds::tried_bytes / pieces;
  for (std::uint64_t i = 0; i < pieces; ++i) speeds.begins(true);
  for (std::uint64_t i = 0; i < pieces; ++i) {
    const auto ended = began_ns + static_cast<std::int64_t>((i + 1) * piece_bytes * 1000 / mib * 1'000'000 / direct);
    speeds.begins(false);
    speeds.note({false, piece_bytes * kept / direct, began_ns, ended});
    if (i * piece_bytes < cold_speeds::least_direct_bytes) {
      EXPECT_EQ(speeds.advise(), cold_speeds::verdict::keep) << "too little is known of it";
    }
    speeds.note({true, piece_bytes, began_ns, ended});
  }
}

TEST(cold_speeds, what_is_tried_beside_kept_reads_counts_with_these) {
  struct disk {
    std::uint64_t kept_alone, kept, direct;  // MiB a second
    cold_speeds::verdict verdict;
  };
  for (const auto& each : {disk{1500, 1500, 64, cold_speeds::verdict::keep},     // the disk has no more
                           disk{1500, 800, 700, cold_speeds::verdict::keep},     // likewise
                           disk{1500, 1500, 900, cold_speeds::verdict::bypass},  // the page cache is what is slow
                           disk{700, 600, 1800, cold_speeds::verdict::bypass}}) {
    warm_speeds speeds(1);
    const auto now = read(speeds, false, gib, each.kept_alone * mib, second);
    speeds.tries(cold_speeds::tried_bytes);
    read_beside(speeds, each.kept, each.direct, now);
    EXPECT_EQ(speeds.advise(), each.verdict) << each.kept << " and " << each.direct << " of " << each.kept_alone;
  }
}

TEST(cold_speeds, beside_what_has_been_tried_long_ago_kept_reads_count_for_themselves) {
  warm_speeds speeds(1);
  auto now = read(speeds, false, gib, gib, second);
  speeds.tries(cold_speeds::tried_bytes);
  now = read(speeds, true, cold_speeds::tried_bytes, gib, now);
  read_beside(speeds, 1024, 1024, now);
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::keep) << "the 2 GiB/s of both are no merit of one";
}

TEST(cold_speeds, the_first_bytes_past_the_page_cache_tell_nothing) {
  cold_speeds speeds(1);
  auto now = keep(speeds, cold_speeds::least_costed_bytes, gib, second, second);
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::try_direct_now);
  now = read(speeds, true, cold_speeds::warm_up_bytes, gib / 100, now);
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::try_direct_now);
  (void)read(speeds, true, cold_speeds::least_direct_bytes, 2 * gib, now);
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::bypass);
}

TEST(cold_speeds, a_short_try_goes_on) {
  warm_speeds speeds(1);
  const auto now = read(speeds, false, gib, gib, second);
  speeds.tries(cold_speeds::least_direct_bytes - 1);
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::try_direct);
  speeds.tries(1);
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::keep) << "until it is known";
  (void)read(speeds, true, cold_speeds::least_direct_bytes, 2 * gib, now);
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::bypass);
}

TEST(cold_speeds, what_was_not_read_counts_for_nothing) {
  warm_speeds speeds(1);
  (void)read(speeds, false, gib, gib, second);
  speeds.tries(cold_speeds::tried_bytes);
  speeds.begins(true);
  speeds.note({true, 0, 0, 10 * second});
  // Nothing is under way past the page cache any more.
  speeds.note({false, gib, 10 * second, 11 * second});
  speeds.begins(true);
  speeds.note({true, cold_speeds::least_direct_bytes, 11 * second, 11 * second + second / 32});
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::keep) << "1 GiB/s both";
}

TEST(cold_speeds, after_much_past_the_cache_keeping_has_another_chance) {
  warm_speeds speeds(1);
  auto now = read(speeds, false, gib, gib, second);
  now = read(speeds, true, gib, 10 * gib, now);
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::bypass);
  for (std::uint64_t at = 0; at < cold_speeds::direct_bytes_between; at += gib) now = read(speeds, true, gib, 10 * gib, now);
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::unknown);
  (void)read(speeds, false, gib, 20 * gib, now);
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::keep) << "it is faster now";
}

// --- where CPU time bounds what is kept

constexpr std::int64_t slow_memory = second;  // of CPU time a GiB, as where the host hands out memory page by page
constexpr std::int64_t usual_memory = second / 5;

TEST(cold_speeds, the_other_way_is_tried_at_once_where_the_cpu_bounds_keeping) {
  warm_speeds speeds(1);
  auto now = keep(speeds, cold_speeds::least_costed_bytes, 3 * gib / 4, slow_memory, second);
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::try_direct_now);
  speeds.tries(cold_speeds::least_direct_bytes);
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::try_direct_now) << "until it is known";
  now = read(speeds, true, cold_speeds::least_direct_bytes, gib, now);
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::bypass);
}

TEST(cold_speeds, several_threads_are_bound_once_all_of_them_are_busy) {
  for (const unsigned threads : {1U, 4U}) {
    warm_speeds speeds(threads);
    (void)keep(speeds, cold_speeds::least_costed_bytes, 3 * gib / 4, slow_memory, second);
    EXPECT_EQ(speeds.advise(), threads == 1 ? cold_speeds::verdict::try_direct_now : cold_speeds::verdict::keep);
  }
}

TEST(cold_speeds, keeping_goes_on_where_the_other_way_is_no_faster_or_never_comes) {
  warm_speeds slow(1);
  auto now = keep(slow, cold_speeds::least_costed_bytes, 3 * gib / 4, slow_memory, second);
  (void)read(slow, true, cold_speeds::least_direct_bytes, 3 * gib / 4, now);
  EXPECT_EQ(slow.advise(), cold_speeds::verdict::keep);
  warm_speeds refused(1);
  (void)keep(refused, cold_speeds::least_costed_bytes, 3 * gib / 4, slow_memory, second);
  refused.tries(2 * cold_speeds::least_direct_bytes);
  EXPECT_EQ(refused.advise(), cold_speeds::verdict::keep);
}

TEST(cold_speeds, memory_that_becomes_slow_is_found_out_after_any_number_of_bytes) {
  warm_speeds speeds(1);
  auto now = keep(speeds, 4 * gib, 3 * gib, usual_memory / 4, second);
  now = read(speeds, true, gib, 3 * gib, now);
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::keep);
  for (int i = 0; i < 16; ++i) now = keep(speeds, 16 * mib, 3 * gib / 4, slow_memory, now);
  EXPECT_EQ(speeds.advise(), cold_speeds::verdict::bypass);
}

class counting_kernel final : public testing::forwarding_kernel {
 public:
  result<sys::memory_state> memory_now() override {
    ++asked;
    return asked < 3 ? result<sys::memory_state>(sys::memory_state{100, asked}) : status(errc::unsupported, "no");
  }
  std::uint64_t asked = 0;
};

TEST(memory_watch, asks_once_a_second_and_when_it_has_to_forget) {
  counting_kernel kernel;
  memory_watch watch(kernel);
  ASSERT_TRUE(watch.at(0));
  EXPECT_EQ(watch.at(0)->available_bytes, 1U);
  EXPECT_EQ(watch.at(memory_watch::interval_ns - 1)->available_bytes, 1U);
  EXPECT_EQ(watch.at(memory_watch::interval_ns)->available_bytes, 2U);
  EXPECT_EQ(kernel.asked, 2U);
  watch.forget();
  EXPECT_FALSE(watch.at(memory_watch::interval_ns)) << "the kernel does not say";
  EXPECT_EQ(kernel.asked, 3U);
}

}  // namespace
}  // namespace penstock::core::cache_policy_tests
