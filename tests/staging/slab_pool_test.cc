#include "staging/slab_pool.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "support/faulty_device.hpp"
#include "support/faulty_kernel.hpp"

namespace penstock::staging {
namespace {

constexpr std::size_t plenty = std::size_t{512} << 20;
constexpr std::size_t large_chunk_bytes = slab_classes.back().chunk_bytes;
constexpr std::size_t small_chunk_bytes = slab_classes.front().chunk_bytes;
constexpr std::size_t large_per_chunk = large_chunk_bytes / large_slab_bytes;
constexpr std::size_t small_per_chunk = small_chunk_bytes / small_slab_bytes;

// As a share: bytes of so many large slabs.
constexpr std::size_t large(std::size_t count) { return count * large_slab_bytes; }

class slab_pool_test : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = driver_->open(0, nullptr);
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    session_ = *opened;
  }

  slab take(slab_pool& pool, std::size_t bytes, slab_user user = slab_user::cpu) {
    auto taken = pool.try_take(bytes, *session_, user);
    EXPECT_TRUE(taken.ok()) << taken.error().message();
    return taken.value_or({});
  }
  std::vector<slab> take_all(slab_pool& pool, std::size_t bytes, slab_user user = slab_user::cpu) {
    std::vector<slab> taken;
    while (slab next = take(pool, bytes, user)) taken.push_back(next);
    return taken;
  }
  std::vector<slab> take_all_of(slab_pool& pool, std::size_t bytes, std::size_t count) {
    std::vector<slab> taken;
    while (taken.size() < count) taken.push_back(take(pool, bytes));
    return taken;
  }
  static void give_back(slab_pool& pool, std::vector<slab>& slabs) {
    for (const auto& each : slabs) pool.give_back(each);
    slabs.clear();
  }

  std::shared_ptr<testing::faulty_kernel> kernel_ = std::make_shared<testing::faulty_kernel>();
  std::shared_ptr<testing::faulty_driver> driver_ = testing::make_faulty_driver(device::make_host_driver());
  device::session* session_ = nullptr;
};

TEST_F(slab_pool_test, nothing_is_mapped_before_the_first_slab_is_asked_for) {
  pinned_budget budget(plenty);
  const slab_pool pool(*kernel_, budget, large(4), large(4));
  EXPECT_EQ(budget.used_bytes.load(), 0U);
  EXPECT_EQ(kernel_->mapped_bytes(), 0);
}

struct noted_waits final : slab_waits {
  void waited(std::int64_t began_ns, std::int64_t ended_ns) noexcept override {
    ++count;
    EXPECT_GT(began_ns, 0);
    EXPECT_GE(ended_ns, began_ns);
  }
  int count = 0;
};

TEST_F(slab_pool_test, waits_are_told_of_where_the_budget_is_used_up) {
  noted_waits waits;
  pinned_budget budget(2 * large_chunk_bytes);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  std::int64_t since = pool.begin_wait(slab_user::cpu);
  EXPECT_EQ(since, 0) << "nobody is told";
  pool.tell_of_waits(waits, false);
  auto some = take_all_of(pool, large_slab_bytes, large_per_chunk);
  EXPECT_EQ(pool.begin_wait(slab_user::cpu), 0) << "there is room for another chunk";
  auto others = take_all_of(pool, large_slab_bytes, large_per_chunk);
  since = pool.begin_wait(slab_user::disk);
  EXPECT_NE(since, 0);
  pool.end_wait(since);
  pool.end_wait(since);
  EXPECT_EQ(waits.count, 1);
  give_back(pool, some);
  give_back(pool, others);
}

TEST_F(slab_pool_test, each_link_has_so_much_before_it_grows_slowly) {
  constexpr std::size_t slab_bytes = 4 * mib;
  constexpr std::size_t of_chunk = slab_classes[2].chunk_bytes / slab_bytes;
  for (const std::size_t links : {1, 2, 3}) {
    pinned_budget budget(plenty);
    slab_pool pool(*kernel_, budget, plenty, plenty);
    pool.grow_slowly(slab_classes[2].chunk_bytes);
    for (std::size_t i = 0; i < links; ++i) pool.add_link();
    auto taken = take_all_of(pool, slab_bytes, links * of_chunk);  // each at once
    EXPECT_EQ(budget.used_bytes.load(), links * slab_classes[2].chunk_bytes);
    give_back(pool, taken);
  }
}

TEST_F(slab_pool_test, it_may_grow_slowly_while_slabs_come_back) {
  constexpr std::size_t slab_bytes = 4 * mib;
  constexpr std::size_t of_chunk = slab_classes[2].chunk_bytes / slab_bytes;
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  pool.grow_slowly(slab_classes[2].chunk_bytes);
  auto first = take_all_of(pool, slab_bytes, of_chunk);
  const auto pinned = budget.used_bytes.load();
  pool.give_back(first.back());
  first.back() = take(pool, slab_bytes);
  // Nothing came back for a while, or enough has: only then is there more.
  slab more;
  while (!more) more = take(pool, slab_bytes);
  EXPECT_GT(budget.used_bytes.load(), pinned);
  pool.give_back(more);
  const auto grown = budget.used_bytes.load();
  auto second = take_all_of(pool, slab_bytes, of_chunk);
  for (std::size_t i = 0; i < slab_pool::returns_between_chunks; ++i) {
    pool.give_back(second.back());
    second.back() = take(pool, slab_bytes);
  }
  const slab at_once = take(pool, slab_bytes);
  EXPECT_TRUE(at_once);
  EXPECT_GT(budget.used_bytes.load(), grown);
  pool.give_back(at_once);
  give_back(pool, first);
  give_back(pool, second);
}

TEST_F(slab_pool_test, waits_for_a_share_are_told_of_where_the_budget_cut_it) {
  noted_waits waits;
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, large(1), large(1));
  pool.tell_of_waits(waits, true);
  EXPECT_NE(pool.begin_wait(slab_user::cpu), 0);
  EXPECT_EQ(pool.begin_wait(slab_user::disk), 0);
  pool.tell_of_waits(waits, false);
  EXPECT_EQ(pool.begin_wait(slab_user::cpu), 0);
}

TEST_F(slab_pool_test, the_first_small_slab_pins_a_small_chunk_only) {
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, large(4), large(4));
  const slab small = take(pool, 1);
  ASSERT_TRUE(small);
  EXPECT_EQ(small.size, small_slab_bytes);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(small.data) % small_slab_bytes, 0U);
  EXPECT_EQ(budget.used_bytes.load(), small_chunk_bytes);
  EXPECT_EQ(driver_->live().pinned_ranges, 1);
  EXPECT_EQ(pool.chunk(small.chunk).size(), small_chunk_bytes);
  pool.give_back(small);
}

TEST_F(slab_pool_test, it_grows_by_chunks_whose_slabs_do_not_overlap) {
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, plenty, large(4));
  std::vector<slab> taken;
  std::set<std::byte*> places;
  constexpr std::size_t count = 2 * large_per_chunk + 1;
  for (std::size_t i = 0; i < count; ++i) {
    taken.push_back(take(pool, large_slab_bytes));
    ASSERT_TRUE(taken.back());
    EXPECT_EQ(taken.back().size, large_slab_bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(taken.back().data) % small_slab_bytes, 0U);
    places.insert(taken.back().data);
    const auto chunk = pool.chunk(taken.back().chunk);
    EXPECT_GE(taken.back().data, chunk.data());
    EXPECT_LE(taken.back().data + large_slab_bytes, chunk.data() + chunk.size());
  }
  EXPECT_EQ(pool.slabs_out(), count);
  EXPECT_EQ(budget.used_bytes.load(), 3 * large_chunk_bytes);
  ASSERT_EQ(places.size(), count);
  for (auto at = places.begin(), next = std::next(at); next != places.end(); ++at, ++next) EXPECT_GE(*next - *at, large_slab_bytes);
  give_back(pool, taken);
  EXPECT_EQ(pool.slabs_out(), 0U);
  EXPECT_EQ(budget.peak_bytes.load(), 3 * large_chunk_bytes);
}

TEST_F(slab_pool_test, returned_slabs_serve_again_without_growth) {
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  for (int i = 0; i < 100; ++i) pool.give_back(take(pool, large_slab_bytes));
  EXPECT_EQ(budget.used_bytes.load(), large_chunk_bytes);
}

TEST_F(slab_pool_test, cpu_and_disk_users_have_shares_of_their_own) {
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, large(2), large(3));
  auto for_cpu = take_all(pool, large_slab_bytes, slab_user::cpu);
  EXPECT_EQ(for_cpu.size(), 2U);
  auto for_disk = take_all(pool, large_slab_bytes, slab_user::disk);
  EXPECT_EQ(for_disk.size(), 3U);
  pool.give_back(for_disk.back());
  for_disk.pop_back();
  EXPECT_FALSE(take(pool, large_slab_bytes, slab_user::cpu)) << "a slab that the disk gave back counts as the disk's share";
  pool.give_back(for_cpu.back());
  for_cpu.back() = take(pool, large_slab_bytes, slab_user::cpu);
  EXPECT_TRUE(for_cpu.back());
  give_back(pool, for_cpu);
  give_back(pool, for_disk);
}

TEST_F(slab_pool_test, a_used_up_budget_means_waiting_as_long_as_slabs_are_out) {
  pinned_budget budget(large_chunk_bytes + small_chunk_bytes);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  auto all = take_all(pool, large_slab_bytes);
  EXPECT_EQ(all.size(), large_per_chunk);
  EXPECT_LE(budget.used_bytes.load(), budget.limit_bytes);
  pool.give_back(all.back());
  all.back() = take(pool, large_slab_bytes);
  EXPECT_TRUE(all.back());
  auto small = take_all(pool, small_slab_bytes);
  EXPECT_EQ(small.size(), small_per_chunk);
  give_back(pool, small);
  give_back(pool, all);
}

TEST_F(slab_pool_test, pools_share_the_budget_and_give_it_back_when_they_end) {
  pinned_budget budget(large_chunk_bytes + small_chunk_bytes);
  {
    slab_pool first(*kernel_, budget, plenty, plenty);
    first.give_back(take(first, large_slab_bytes));
    slab_pool second(*kernel_, budget, plenty, plenty);
    EXPECT_EQ(second.try_take(large_slab_bytes, *session_, slab_user::cpu).error().code(), errc::out_of_memory);
    EXPECT_EQ(budget.used_bytes.load(), large_chunk_bytes);
  }
  EXPECT_EQ(budget.used_bytes.load(), 0U);
  EXPECT_EQ(budget.peak_bytes.load(), large_chunk_bytes);
  EXPECT_EQ(kernel_->mapped_bytes(), 0);
  EXPECT_TRUE(driver_->live().none());
}

TEST_F(slab_pool_test, a_first_chunk_that_cannot_be_mapped_is_an_error_and_a_later_call_tries_again) {
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  kernel_->fail({.call = "map_memory", .nth = 1, .error = ENOMEM});
  const auto refused = pool.try_take(large_slab_bytes, *session_, slab_user::cpu);
  EXPECT_EQ(refused.error().code(), errc::out_of_memory);
  EXPECT_EQ(budget.used_bytes.load(), 0U);
  const slab second = take(pool, large_slab_bytes);
  EXPECT_TRUE(second);
  pool.give_back(second);
}

TEST_F(slab_pool_test, a_first_chunk_that_cannot_be_pinned_is_an_error_and_nothing_stays_mapped) {
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  driver_->fail("pin", 1, status(errc::out_of_memory, "no more pinned memory"));
  const auto refused = pool.try_take(1, *session_, slab_user::disk);
  EXPECT_EQ(refused.error().code(), errc::out_of_memory);
  EXPECT_NE(refused.error().message().find("no more pinned memory"), std::string_view::npos) << refused.error().message();
  EXPECT_EQ(budget.used_bytes.load(), 0U);
  EXPECT_EQ(kernel_->mapped_bytes(), 0);
}

TEST_F(slab_pool_test, a_later_chunk_that_cannot_be_had_means_waiting) {
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  std::vector<slab> taken;
  for (std::size_t i = 0; i < large_per_chunk; ++i) taken.push_back(take(pool, large_slab_bytes));
  kernel_->fail({.call = "map_memory", .nth = 1, .error = ENOMEM});
  EXPECT_FALSE(take(pool, large_slab_bytes));
  driver_->fail("pin", 1, status(errc::out_of_memory, "no more pinned memory"));
  EXPECT_FALSE(take(pool, large_slab_bytes));
  EXPECT_EQ(budget.used_bytes.load(), large_chunk_bytes);
  EXPECT_EQ(kernel_->mapped_bytes(), static_cast<std::int64_t>(large_chunk_bytes));
  taken.push_back(take(pool, large_slab_bytes));
  EXPECT_TRUE(taken.back()) << "the next try succeeds";
  give_back(pool, taken);
}

TEST_F(slab_pool_test, a_slab_of_a_keeper_is_waited_for) {
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  const slab kept = take(pool, 1, slab_user::keeper);
  driver_->fail("pin", 1, status(errc::out_of_memory, "no more pinned memory"));
  EXPECT_FALSE(take(pool, large_slab_bytes)) << "it comes back with the last request in the order of a stream";
  pool.give_back(kept);
}

TEST_F(slab_pool_test, keepers_leave_three_quarters_of_the_budget) {
  pinned_budget budget(4 * large_chunk_bytes);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  auto kept = take_all(pool, large_slab_bytes, slab_user::keeper);
  EXPECT_EQ(kept.size(), large_per_chunk);
  auto others = take_all(pool, large_slab_bytes);
  EXPECT_EQ(others.size(), 3 * large_per_chunk);
  give_back(pool, kept);
  give_back(pool, others);
}

TEST_F(slab_pool_test, what_is_held_ahead_is_an_eighth_of_the_budget) {
  pinned_budget budget(8 * large(2));
  slab_pool pool(*kernel_, budget, plenty, plenty);
  auto ahead = take_all(pool, large_slab_bytes, slab_user::ahead);
  EXPECT_EQ(ahead.size(), 2U);
  give_back(pool, ahead);
}

TEST_F(slab_pool_test, what_is_held_ahead_is_asked_back_when_the_budget_is_used_up) {
  pinned_budget budget(large_chunk_bytes);
  slab_pool pool(*kernel_, budget, plenty, large(1));
  struct holder {
    slab_pool& from;
    slab held;
    int asked = 0;
  } ahead{pool, {}, 0};
  pool.ask_back(
      [](void* context) {
        auto& of = *static_cast<holder*>(context);
        ++of.asked;
        of.from.give_back(std::exchange(of.held, {}));
      },
      &ahead);
  ahead.held = take(pool, large_slab_bytes, slab_user::ahead);
  const slab of_disk = take(pool, large_slab_bytes, slab_user::disk);
  EXPECT_FALSE(take(pool, large_slab_bytes, slab_user::disk)) << "it has its share";
  EXPECT_EQ(ahead.asked, 0);
  auto others = take_all(pool, large_slab_bytes);
  EXPECT_EQ(others.size(), large_per_chunk - 2);
  EXPECT_EQ(ahead.asked, 1) << "who went away without one";
  others.push_back(take(pool, large_slab_bytes));
  EXPECT_TRUE(others.back());
  EXPECT_TRUE(pool.is_wanted());
  pool.give_back(of_disk);
  EXPECT_FALSE(take(pool, large_slab_bytes, slab_user::ahead)) << "others want some";
  give_back(pool, others);
  while (pool.is_wanted()) std::this_thread::yield();
  ahead.held = take(pool, large_slab_bytes, slab_user::ahead);
  EXPECT_TRUE(ahead.held);
  pool.give_back(ahead.held);
}

TEST_F(slab_pool_test, another_crew_brings_a_share_of_its_own) {
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, large(2), large(1));
  auto first = take_all(pool, large_slab_bytes);
  EXPECT_EQ(first.size(), 2U);
  pool.widen(large(2), large(1));
  auto second = take_all(pool, large_slab_bytes);
  EXPECT_EQ(second.size(), 2U);
  give_back(pool, first);
  give_back(pool, second);
}

TEST_F(slab_pool_test, small_requests_take_free_large_slabs_rather_than_fail) {
  pinned_budget budget(large_chunk_bytes);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  pool.give_back(take(pool, large_slab_bytes));
  const slab small = take(pool, 1);
  ASSERT_TRUE(small);
  EXPECT_EQ(small.size, large_slab_bytes);
  pool.give_back(small);
}

constexpr std::size_t second_slab_bytes = slab_classes[1].slab_bytes;
constexpr std::size_t second_per_chunk = slab_classes[1].chunk_bytes / second_slab_bytes;
constexpr std::size_t third_slab_bytes = slab_classes[2].slab_bytes;

TEST_F(slab_pool_test, the_first_of_a_size_is_a_larger_slab_that_is_free) {
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  pool.give_back(take(pool, third_slab_bytes));
  pool.give_back(take(pool, large_slab_bytes));
  const auto pinned = budget.used_bytes.load();
  for (const auto user : {slab_user::cpu, slab_user::disk}) {
    const slab next_larger = take(pool, second_slab_bytes, user);
    EXPECT_EQ(next_larger.size, third_slab_bytes);
    pool.give_back(next_larger);
  }
  auto third = take_all_of(pool, third_slab_bytes, slab_classes[2].chunk_bytes / third_slab_bytes);
  auto largest = take_all_of(pool, second_slab_bytes, large_per_chunk);
  for (const auto& each : largest) EXPECT_EQ(each.size, large_slab_bytes);
  EXPECT_EQ(budget.used_bytes.load(), pinned);
  // All larger ones are out: there are some of the size from now on, and they are what it is served from.
  auto second = take_all_of(pool, second_slab_bytes, second_per_chunk);
  EXPECT_EQ(budget.used_bytes.load(), pinned + slab_classes[1].chunk_bytes);
  give_back(pool, third);
  give_back(pool, largest);
  second.push_back(take(pool, second_slab_bytes));
  for (const auto& each : second) EXPECT_EQ(each.size, second_slab_bytes);
  give_back(pool, second);
}

TEST_F(slab_pool_test, a_trimmed_size_is_served_from_larger_slabs_again) {
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  pool.give_back(take(pool, second_slab_bytes));
  const slab largest = take(pool, large_slab_bytes);
  EXPECT_EQ(pool.trim(), slab_classes[1].chunk_bytes);
  const slab instead = take(pool, second_slab_bytes);
  EXPECT_EQ(instead.size, large_slab_bytes);
  pool.give_back(instead);
  pool.give_back(largest);
}

TEST_F(slab_pool_test, small_requests_and_who_holds_slabs_for_long_leave_larger_ones_alone) {
  for (const auto user : {slab_user::cpu, slab_user::disk, slab_user::keeper, slab_user::ahead}) {
    pinned_budget budget(plenty);
    slab_pool pool(*kernel_, budget, plenty, plenty);
    pool.give_back(take(pool, large_slab_bytes));
    const bool returns_soon = user == slab_user::cpu || user == slab_user::disk;
    const std::size_t bytes = returns_soon ? 1 : second_slab_bytes;
    const slab taken = take(pool, bytes, user);
    EXPECT_EQ(taken.size, returns_soon ? small_slab_bytes : second_slab_bytes);
    pool.give_back(taken);
  }
}

TEST_F(slab_pool_test, larger_slabs_serve_for_half_a_share_only) {
  for (const auto user : {slab_user::cpu, slab_user::disk}) {
    pinned_budget budget(plenty);
    slab_pool pool(*kernel_, budget, large(4), large(4));
    pool.give_back(take(pool, large_slab_bytes));
    std::vector<slab> taken;
    for (const std::size_t expected : {large_slab_bytes, large_slab_bytes, second_slab_bytes}) {
      taken.push_back(take(pool, second_slab_bytes, user));
      EXPECT_EQ(taken.back().size, expected);
    }
    give_back(pool, taken);
  }
}

TEST_F(slab_pool_test, while_one_thread_adds_memory_others_take_larger_slabs_that_are_free) {
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  auto second = take_all_of(pool, second_slab_bytes, second_per_chunk);
  pool.give_back(take(pool, large_slab_bytes));
  int asked = 0;
  kernel_->set_hook([&](std::string_view call, std::uint64_t) -> std::optional<int> {
    if (call != "map_memory") return std::nullopt;
    ++asked;
    for (const std::size_t bytes : {std::size_t{1}, second_slab_bytes}) {
      EXPECT_FALSE(take(pool, bytes, slab_user::keeper));
      const slab instead = take(pool, bytes);
      EXPECT_EQ(instead.size, large_slab_bytes);
      if (instead) pool.give_back(instead);
    }
    return std::nullopt;
  });
  second.push_back(take(pool, second_slab_bytes));
  EXPECT_EQ(second.back().size, second_slab_bytes) << "who adds memory gets some of it";
  EXPECT_EQ(asked, 1);
  kernel_->disarm();
  give_back(pool, second);
}

TEST_F(slab_pool_test, while_one_thread_adds_memory_others_wait_instead_of_adding_too) {
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  int asked = 0;
  kernel_->set_hook([&](std::string_view call, std::uint64_t) -> std::optional<int> {
    if (call != "map_memory") return std::nullopt;
    ++asked;
    EXPECT_FALSE(take(pool, large_slab_bytes));
    return std::nullopt;
  });
  const slab got = take(pool, large_slab_bytes);
  EXPECT_TRUE(got);
  EXPECT_EQ(asked, 1);
  pool.give_back(got);
}

TEST_F(slab_pool_test, no_memory_is_no_error_where_some_was_trimmed_meanwhile) {
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  auto taken = take_all_of(pool, large_slab_bytes, large_per_chunk);
  kernel_->set_hook([&](std::string_view call, std::uint64_t number) -> std::optional<int> {
    if (call != "map_memory" || number != 2) return std::nullopt;
    give_back(pool, taken);
    EXPECT_EQ(pool.trim(), large_chunk_bytes);
    return ENOMEM;
  });
  EXPECT_FALSE(take(pool, large_slab_bytes)) << "none now, and no error";
  const slab next = take(pool, large_slab_bytes);
  EXPECT_TRUE(next);
  pool.give_back(next);
}

TEST_F(slab_pool_test, an_abandoned_slab_is_never_handed_out_again_nor_unmapped) {
  pinned_budget budget(large_chunk_bytes);
  {
    slab_pool pool(*kernel_, budget, plenty, plenty);
    const slab lost = take(pool, large_slab_bytes, slab_user::disk);
    pool.abandon(lost);
    EXPECT_EQ(pool.slabs_out(), 0U);
    auto others = take_all(pool, large_slab_bytes, slab_user::disk);
    EXPECT_EQ(others.size(), 2 * large_per_chunk - 1) << "the budget has room for a chunk in place of the one that lost a slab";
    for (const auto& each : others) EXPECT_NE(each.data, lost.data);
    give_back(pool, others);
  }
  EXPECT_EQ(budget.used_bytes.load(), 0U);
  EXPECT_EQ(kernel_->mapped_bytes(), static_cast<std::int64_t>(large_chunk_bytes)) << "the kernel may still write to it";
  EXPECT_EQ(driver_->live().pinned_ranges, 1);
}

TEST_F(slab_pool_test, an_abandoned_slab_does_not_count_against_a_share) {
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, large(1), large(1));
  pool.abandon(take(pool, large_slab_bytes, slab_user::disk));
  const slab next = take(pool, large_slab_bytes, slab_user::disk);
  EXPECT_TRUE(next);
  pool.give_back(next);
}

TEST_F(slab_pool_test, a_slab_is_of_the_least_size_that_serves) {
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  for (const auto& each : slab_classes) {
    for (const std::size_t bytes : {each.slab_bytes - 1, each.slab_bytes}) {
      const slab taken = take(pool, bytes);
      EXPECT_EQ(taken.size, each.slab_bytes) << bytes;
      pool.give_back(taken);
    }
  }
}

TEST_F(slab_pool_test, the_least_budget_serves_every_size_whatever_was_asked_for_before) {
  for (const auto& before : slab_classes) {
    for (const auto& after : slab_classes) {
      SCOPED_TRACE(std::to_string(before.slab_bytes) + " then " + std::to_string(after.slab_bytes));
      pinned_budget budget(least_budget_bytes);
      slab_pool pool(*kernel_, budget, plenty, plenty);
      pool.give_back(take(pool, before.slab_bytes));
      const slab taken = take(pool, after.slab_bytes);
      EXPECT_TRUE(taken);
      if (taken) pool.give_back(taken);
    }
  }
}

TEST_F(slab_pool_test, a_return_wakes_who_waits) {
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, large(1), large(1));
  slab only = take(pool, large_slab_bytes);
  std::atomic<bool> woken{false};
  std::thread waiter([&] {
    pool.wait_for_return(std::chrono::hours(1));
    woken.store(true);
  });
  while (!woken.load()) {
    pool.give_back(only);
    only = take(pool, large_slab_bytes);
    std::this_thread::yield();
  }
  waiter.join();
  pool.give_back(only);
}

TEST_F(slab_pool_test, threads_never_hold_the_same_slab) {
  pinned_budget budget(large_chunk_bytes + small_chunk_bytes);
  slab_pool pool(*kernel_, budget, large(3), large(3));
  std::vector<std::thread> crew;
  for (int t = 0; t < 4; ++t) {
    crew.emplace_back([&, t] {
      for (int i = 0; i < 300;) {
        const slab mine = take(pool, i % 2 == 0 ? large_slab_bytes : 1, t % 2 == 0 ? slab_user::cpu : slab_user::disk);
        if (!mine) {
          pool.wait_for_return(std::chrono::milliseconds(1));
          continue;
        }
        ++i;
        // A race here is what the thread sanitizer would see.
        mine.data[0] = static_cast<std::byte>(t);
        mine.data[mine.size - 1] = static_cast<std::byte>(t);
        EXPECT_EQ(mine.data[0], static_cast<std::byte>(t));
        pool.give_back(mine);
      }
    });
  }
  for (auto& each : crew) each.join();
  EXPECT_EQ(pool.slabs_out(), 0U);
}

TEST_F(slab_pool_test, trimming_gives_back_what_no_slab_is_out_of) {
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  EXPECT_EQ(pool.trim(), 0U);
  auto large_ones = take_all_of(pool, large_slab_bytes, large_per_chunk + 1);
  const slab small = take(pool, 1);
  ASSERT_EQ(budget.used_bytes.load(), 2 * large_chunk_bytes + small_chunk_bytes);
  const slab kept = large_ones.back();
  large_ones.pop_back();
  give_back(pool, large_ones);
  EXPECT_EQ(pool.trim(), large_chunk_bytes);
  EXPECT_EQ(budget.used_bytes.load(), large_chunk_bytes + small_chunk_bytes);
  EXPECT_EQ(driver_->live().pinned_ranges, 2);
  kept.data[0] = kept.data[kept.size - 1] = std::byte{1};
  pool.give_back(kept);
  pool.give_back(small);
  EXPECT_EQ(pool.trim(), large_chunk_bytes + small_chunk_bytes);
  EXPECT_EQ(budget.used_bytes.load(), 0U);
  EXPECT_EQ(driver_->live().pinned_ranges, 0);
  EXPECT_EQ(kernel_->mapped_bytes(), 0);
}

TEST_F(slab_pool_test, a_trimmed_pool_grows_anew_and_tells_its_chunks_apart) {
  pinned_budget budget(least_budget_bytes);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  for (std::uint32_t round = 0; round < 3; ++round) {
    auto all = take_all(pool, large_slab_bytes);
    EXPECT_EQ(all.size(), large_per_chunk);
    for (const auto& each : all) {
      each.data[0] = each.data[each.size - 1] = std::byte{2};
      EXPECT_EQ(pool.generation(each.chunk), round) << "the number was used again";
    }
    give_back(pool, all);
    const slab small = take(pool, 1);
    ASSERT_TRUE(small);
    pool.give_back(small);
    EXPECT_GE(pool.trim(), large_chunk_bytes);
    EXPECT_EQ(budget.used_bytes.load(), 0U);
  }
}

TEST_F(slab_pool_test, a_chunk_that_cannot_be_unpinned_stays_in_use) {
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  pool.give_back(take(pool, large_slab_bytes));
  driver_->fail("unpin", 1, status(errc::device, "unpin"));
  EXPECT_EQ(pool.trim(), 0U);
  EXPECT_EQ(budget.used_bytes.load(), large_chunk_bytes);
  auto all = take_all_of(pool, large_slab_bytes, large_per_chunk);
  EXPECT_EQ(all.size(), large_per_chunk);
  EXPECT_EQ(budget.used_bytes.load(), large_chunk_bytes) << "its slabs are there, each once";
  give_back(pool, all);
}

TEST_F(slab_pool_test, an_abandoned_chunk_is_never_trimmed) {
  pinned_budget budget(plenty);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  pool.abandon(take(pool, large_slab_bytes));
  EXPECT_EQ(pool.trim(), 0U);
  EXPECT_EQ(kernel_->mapped_bytes(), static_cast<std::int64_t>(large_chunk_bytes));
}

TEST_F(slab_pool_test, slabs_are_taken_while_others_trim) {
  pinned_budget budget(least_budget_bytes);
  slab_pool pool(*kernel_, budget, large(3), large(3));
  std::atomic<int> running{3};
  std::vector<std::thread> crew;
  for (int t = 0; t < 3; ++t) {
    crew.emplace_back([&, t] {
      for (int i = 0; i < 200;) {
        const slab mine = take(pool, (i + t) % 2 == 0 ? large_slab_bytes : 1);
        if (!mine) {
          pool.wait_for_return(std::chrono::milliseconds(1));
          continue;
        }
        ++i;
        mine.data[0] = mine.data[mine.size - 1] = static_cast<std::byte>(t);
        EXPECT_EQ(mine.data[0], static_cast<std::byte>(t));
        pool.give_back(mine);
      }
      --running;
    });
  }
  std::size_t trimmed = 0;
  while (running > 0) trimmed += pool.trim();
  for (auto& each : crew) each.join();
  trimmed += pool.trim();
  EXPECT_GT(trimmed, 0U);
  EXPECT_EQ(budget.used_bytes.load(), 0U);
  EXPECT_EQ(driver_->live().pinned_ranges, 0);
}

TEST_F(slab_pool_test, what_is_in_the_background_leaves_slabs_of_each_size_for_others) {
  pinned_budget budget(least_budget_bytes);
  slab_pool pool(*kernel_, budget, plenty, plenty);
  auto large_ones = take_all(pool, large_slab_bytes, slab_user::background);
  EXPECT_EQ(large_ones.size(), 1U);
  auto small_ones = take_all(pool, small_slab_bytes, slab_user::background);
  EXPECT_TRUE(small_ones.empty()) << "they count like large ones";
  auto of_others = take_all(pool, large_slab_bytes);
  EXPECT_EQ(of_others.size(), large_per_chunk - 1);
  give_back(pool, large_ones);
  small_ones = take_all(pool, small_slab_bytes, slab_user::background);
  EXPECT_FALSE(small_ones.empty());
  EXPECT_LE(small_ones.size() * small_slab_bytes, share_background(least_budget_bytes));
  if (slab other = take(pool, small_slab_bytes)) of_others.push_back(other);
  give_back(pool, small_ones);
  give_back(pool, of_others);
}

}  // namespace
}  // namespace penstock::staging
