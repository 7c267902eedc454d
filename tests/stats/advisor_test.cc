// The advisor over counters alone: each finding by itself, its cost, and when it gives none.
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "stats/advisor.hpp"

namespace penstock::testing {
namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t second = 1'000'000'000;

// Of a process that had `beside` pieces under way on the average, for so many seconds.
engine_stats busy(double seconds, double beside = 1) {
  engine_stats stats;
  auto& path = stats.by_path.emplace_back();
  path.name = "posix";
  path.operations = 1000;
  path.bytes = 1024 * mib;
  path.active_ns = static_cast<std::uint64_t>(seconds * 1e9);
  path.busy_ns = static_cast<std::uint64_t>(seconds * beside * 1e9);
  stats.usage.copy_ns_per_mib = 100'000;
  stats.usage.lanes = 8;
  return stats;
}

engine_stats tiny_reads(double beside = 1) {
  auto stats = busy(2, beside);
  stats.usage.sequential_reads = 12'480;
  stats.usage.sequential_read_bytes = 12'480 * 4096;
  stats.usage.sequential_read_ns = second;
  return stats;
}

// The one thing that is found; one without a code where that is not so.
advice only(const engine_stats& stats) {
  auto found = advise(stats);
  EXPECT_EQ(found.size(), 1U) << stats::advice_lines(found);
  return found.size() == 1 ? found.front() : advice{};
}

TEST(advisor, says_nothing_of_a_process_that_did_nothing_or_nothing_wrong) {
  EXPECT_TRUE(advise({}).empty());
  EXPECT_TRUE(stats::advise({}, {0, 0}).empty());
  EXPECT_TRUE(stats::advise(busy(100), {0, 0}).empty());
}

TEST(advisor, tiny_calls_lose_what_calls_of_a_mebibyte_would_not_take) {
  const auto found = only(tiny_reads());
  EXPECT_EQ(found.code, "tiny-sequential-calls");
  // 48.75 MiB: copying them 4.9 ms, and 48.75 calls of 80 us 3.9 ms.
  ASSERT_TRUE(found.loss_seconds.has_value());
  EXPECT_NEAR(*found.loss_seconds, 1 - 0.0049 - 0.0039, 1e-4);
  EXPECT_EQ(found.text,
            "12,480 sequential reads of 4 KiB on average came from one thread (48.8 MiB): 1 MiB reads would save about 1.0 s of 1.0 s.");
  EXPECT_EQ(found.remedy, "Read larger pieces, or use a batch.");
  EXPECT_EQ(stats::advice_lines({found}), "advice: " + found.text + " " + found.remedy + " [tiny-sequential-calls]\n");
}

TEST(advisor, tiny_writes_are_told_of_as_writes) {
  auto stats = busy(2);
  stats.usage.sequential_writes = 100'000;
  stats.usage.sequential_write_bytes = 100'000 * 512;
  stats.usage.sequential_write_ns = second;
  const auto found = only(stats);
  EXPECT_EQ(found.code, "tiny-sequential-calls");
  EXPECT_NE(found.text.find("100,000 sequential writes of 512 bytes"), std::string::npos) << found.text;
  EXPECT_EQ(found.remedy, "Write larger pieces, or use a batch.");
}

TEST(advisor, what_ran_side_by_side_is_lost_once) {
  EXPECT_NEAR(*only(tiny_reads(4)).loss_seconds, *only(tiny_reads(1)).loss_seconds / 4, 1e-6);
}

TEST(advisor, nothing_is_said_of_tiny_calls_where_copying_was_not_measured_or_is_as_slow) {
  auto stats = tiny_reads();
  stats.usage.copy_ns_per_mib = 0;
  EXPECT_TRUE(stats::advise(stats, {0, 0}).empty());
  stats.usage.copy_ns_per_mib = second / 48;
  EXPECT_TRUE(stats::advise(stats, {0, 0}).empty());
}

TEST(advisor, a_loss_counts_from_both_limits_on) {
  const auto with = [](double active_seconds, std::uint64_t wait_ns) {
    auto stats = busy(active_seconds);
    stats.usage.slab_waits = 100;
    stats.usage.slab_wait_ns = wait_ns;
    return advise(stats).size();
  };
  EXPECT_EQ(with(1, second / 10), 1U);       // 100 ms of 1 s
  EXPECT_EQ(with(1, second / 10 - 1), 0U);   // less than 100 ms
  EXPECT_EQ(with(100, 5 * second), 1U);      // a twentieth
  EXPECT_EQ(with(100, 5 * second - 1), 0U);  // less than a twentieth
}

TEST(advisor, one_thread_on_a_hot_file_loses_what_four_lanes_would_save) {
  auto stats = busy(2);
  stats.usage.lone_reads = 100'000;
  stats.usage.lone_read_bytes = 100'000 * 65536ULL;
  stats.usage.lone_read_ns = 2 * second;
  const auto found = only(stats);
  EXPECT_EQ(found.code, "one-thread-on-a-hot-file");
  EXPECT_NEAR(*found.loss_seconds, 1.5, 1e-6);
  EXPECT_NE(found.text.find("8 lanes were idle"), std::string::npos) << found.text;
  auto with_others = stats;
  with_others.by_path.front().busy_ns *= 2;
  EXPECT_TRUE(stats::advise(with_others, {0, 0}).empty());
  stats.usage.lanes = 3;
  EXPECT_TRUE(stats::advise(stats, {0, 0}).empty());
}

TEST(advisor, registrations_of_few_requests_lose_the_time_that_they_took) {
  auto stats = busy(1);
  stats.usage.registrations = 1010;
  stats.usage.registration_ns = 5 * second;
  stats.usage.short_registrations = 1000;
  stats.usage.short_registration_ns = 2 * second;
  stats.usage.short_registration_requests = 1500;
  const auto found = only(stats);
  EXPECT_EQ(found.code, "register-in-a-loop");
  EXPECT_NEAR(*found.loss_seconds, 2 * 0.999, 1e-6);
  EXPECT_NE(found.text.find("1,000 buffers were registered and deregistered for 1.5 requests each"), std::string::npos) << found.text;
  stats.usage.short_registrations = 15;
  EXPECT_TRUE(stats::advise(stats, {0, 0}).empty());
}

TEST(advisor, unaligned_pieces_lose_what_they_took_beyond_the_speed_of_the_others) {
  auto stats = busy(10);  // 1024 MiB, of which 24 in 2 s were unaligned: the others took 8 ms a MiB
  stats.usage.unaligned_pieces = 24;
  stats.usage.unaligned_bytes = 24 * mib;
  stats.usage.unaligned_ns = 2 * second;
  const auto found = only(stats);
  EXPECT_EQ(found.code, "unaligned");
  EXPECT_NEAR(*found.loss_seconds, 2 - 24 * 0.008, 1e-6);
  stats.usage.unaligned_ns = second / 10;  // quicker than the others
  EXPECT_TRUE(stats::advise(stats, {0, 0}).empty());
}

TEST(advisor, whole_blocks_lose_the_share_that_nobody_asked_for) {
  auto stats = busy(10);
  stats.usage.block_reads = 5;
  stats.usage.block_read_bytes = 300 * mib;
  stats.usage.block_extra_bytes = 100 * mib;
  stats.usage.block_read_ns = 4 * second;
  const auto found = only(stats);
  EXPECT_EQ(found.code, "unaligned");
  EXPECT_NEAR(*found.loss_seconds, 1, 1e-6);
  EXPECT_EQ(
      found.text,
      "To read 300 MiB past the page cache, 100 MiB more than requested were read, because only whole blocks can be read: about 1.0 s "
      "lost.");
}

TEST(advisor, reading_again_from_the_disk_loses_all_but_the_copying) {
  auto stats = busy(10);
  stats.usage.cold_read_bytes = 1000 * mib;
  stats.usage.cold_read_ns = 8 * second;
  stats.usage.reread_bytes = 500 * mib;
  const auto found = only(stats);
  EXPECT_EQ(found.code, "cold-file-read-twice");
  EXPECT_NEAR(*found.loss_seconds, 4 - 0.05, 1e-6);
  EXPECT_EQ(found.text.find("Of 1000 MiB read from disk past the page cache, 500 MiB had been read that way before"), 0U) << found.text;
  stats.usage.reread_bytes = 0;
  EXPECT_TRUE(stats::advise(stats, {0, 0}).empty());
}

TEST(advisor, the_wrong_node_loses_what_the_right_one_would_not_take) {
  auto stats = busy(10);
  stats.usage.far_pieces = 100;
  stats.usage.far_bytes = 100 * mib;
  stats.usage.far_ns = 4 * second;
  stats.usage.near_pieces = 100;
  stats.usage.near_bytes = 100 * mib;
  stats.usage.near_ns = second;
  const auto found = only(stats);
  EXPECT_EQ(found.code, "wrong-numa-node");
  EXPECT_NEAR(*found.loss_seconds, 3, 1e-6);
  stats.usage.near_ns = 4 * second;  // as slow
  EXPECT_TRUE(stats::advise(stats, {0, 0}).empty());
}

TEST(advisor, a_loss_that_nothing_can_be_compared_with_is_not_made_up) {
  auto stats = busy(10);
  stats.usage.far_pieces = 100;
  stats.usage.far_bytes = 100 * mib;
  stats.usage.far_ns = 4 * second;
  const auto found = only(stats);
  EXPECT_EQ(found.code, "wrong-numa-node");
  EXPECT_FALSE(found.loss_seconds.has_value());
  EXPECT_NE(found.text.find("which took 4.0 s; the possible saving is not known"), std::string::npos) << found.text;
}

TEST(advisor, servers_that_put_requests_off_lose_the_time_with_one_put_off) {
  auto stats = busy(2);
  stats.usage.remote_requests = 12'000;
  stats.usage.remote_put_offs = 1'200;
  stats.usage.remote_put_off_ns = second;
  const auto found = only(stats);
  EXPECT_EQ(found.code, "server-throttles");
  EXPECT_NEAR(found.loss_seconds.value_or(0), 1, 1e-9);
  EXPECT_NE(found.text.find("delayed 1,200 of 12,000 requests"), std::string::npos) << found.text;
  stats.usage.remote_put_offs = 15;
  EXPECT_TRUE(advise(stats).empty()) << "now and then it is no matter";
}

TEST(advisor, a_core_that_is_busy_with_tls_is_told_without_a_loss) {
  auto stats = busy(2);
  stats.usage.remote_bytes = stats.usage.remote_tls_bytes = 1024 * mib;
  stats.usage.remote_tls_bound_ns = 3 * second / 2;
  const auto found = only(stats);
  EXPECT_EQ(found.code, "tls-binds");
  EXPECT_FALSE(found.loss_seconds.has_value());
  EXPECT_NE(found.text.find("For 1.5 s, receiving over TLS (1 GiB in total)"), std::string::npos) << found.text;
}

TEST(advisor, reads_from_servers_that_wait_for_memory_lose_that_time) {
  auto stats = busy(2);
  stats.usage.remote_memory_waits = 100;
  stats.usage.remote_memory_wait_ns = second;
  const auto found = only(stats);
  EXPECT_EQ(found.code, "remote-reads-lack-memory");
  EXPECT_NE(found.remedy.find("PENSTOCK_PINNED_MIB"), std::string::npos) << found.remedy;
}

TEST(advisor, the_greatest_loss_comes_first) {
  auto stats = tiny_reads();
  stats.usage.slab_waits = 100;
  stats.usage.slab_wait_ns = second / 2;
  stats.usage.short_registrations = 100;
  stats.usage.short_registration_ns = stats.usage.registration_ns = 3 * second;
  const auto found = advise(stats);
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].code, "register-in-a-loop");
  EXPECT_EQ(found[1].code, "tiny-sequential-calls");
  EXPECT_EQ(found[2].code, "pinned-budget-exhausted");
}

}  // namespace
}  // namespace penstock::testing
