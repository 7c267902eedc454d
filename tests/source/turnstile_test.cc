// Fills of sources: what ends a fill, and how many are started at once.
#include "source/turnstile.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "source/source.hpp"
#include "staging/slab_pool.hpp"

namespace penstock::source {
namespace {

class noted_fill final : public far_fill {
 public:
  explicit noted_fill(std::byte& target) { aim(&target, 1, 7); }
  int ends = 0;
  io_result outcome;

 private:
  void ended(io_result how) noexcept override {
    ++ends;
    outcome = std::move(how);
  }
};

class far_away final : public source {
 public:
  far_away() : source("far") { facts_.fills_at_once = 3; }
  result<std::uint64_t> size() override { return std::uint64_t{8}; }
  status sync() override { return {}; }
  result<bool> ends_at(std::uint64_t offset) override { return offset >= 8; }
  void begin_fill(far_fill& what) noexcept override {
    *what.target() = std::byte{5};
    what.tell({what.length(), {}});
  }
  io_result drain(const std::byte* /*memory*/, std::uint64_t /*length*/, std::uint64_t /*offset*/, const drain_manner& /*how*/) override {
    return {};
  }
};

TEST(far_fill, ends_once_it_has_been_told_and_whoever_began_it_is_done_with_it) {
  std::byte target{};
  noted_fill told_first(target);
  told_first.tell({1, {}});
  EXPECT_EQ(told_first.ends, 0);
  told_first.begun();
  EXPECT_EQ(told_first.ends, 1);
  noted_fill told_last(target);
  told_last.begun();
  EXPECT_EQ(told_last.ends, 0);
  told_last.tell({0, {errc::io, "lost"}});
  EXPECT_EQ(told_last.ends, 1);
  EXPECT_EQ(told_last.outcome.error.code(), errc::io);
}

TEST(far_fill, who_calls_fill_of_a_far_source_waits_for_one) {
  far_away from;
  std::array<std::byte, 4> target{};
  EXPECT_EQ(from.fill(target.data(), target.size(), 0).bytes_done, target.size());
  EXPECT_EQ(target[0], std::byte{5});
}

// A fill that begins, and ends when the test says so.
struct beginning final : staging::work {
  bool run() override {
    turns->began(1);
    return true;
  }
  turnstile* turns = nullptr;
};

class turnstile_test : public ::testing::Test {
 protected:
  void push(const std::shared_ptr<turnstile>& turns, std::size_t count) {
    staging::work_chain chain;
    for (std::size_t i = 0; i < count; ++i) {
      auto& each = *works_.emplace_back(std::make_unique<beginning>());
      each.turns = turns.get();
      chain.add(each);
    }
    turns->push(list_, chain);
  }

  turnstile::share share_{128 * staging::mib};
  staging::lanes lanes_{1, std::chrono::microseconds(0), nullptr};
  staging::work_list list_;
  std::vector<std::unique_ptr<beginning>> works_;
};

TEST_F(turnstile_test, pieces_are_as_short_as_it_takes_to_have_so_many_under_way) {
  const turnstile few(lanes_, share_, [] { return 8U; });
  EXPECT_EQ(few.piece_bytes(100), 256 * staging::kib);
  EXPECT_EQ(few.piece_bytes(7 * staging::mib), staging::mib);
  EXPECT_EQ(few.piece_bytes(std::uint64_t{4} << 30), 4 * staging::mib);
  EXPECT_EQ(few.piece_bytes(4 * staging::mib, 1), 4 * staging::mib) << "a limit of one lane asks for the largest pieces";
  EXPECT_EQ(few.piece_bytes(4 * staging::mib, 100), staging::mib);
  const turnstile many(lanes_, share_, [] { return 1000U; });
  EXPECT_EQ(many.piece_bytes(std::uint64_t{4} << 30), 256 * staging::kib);
  EXPECT_EQ(many.piece_bytes(4 * staging::mib, 1), 4 * staging::mib) << "fewer fills share the memory";
}

TEST_F(turnstile_test, lets_as_many_begin_as_its_source_wants_and_one_more_for_each_that_ends) {
  const auto turns = std::make_shared<turnstile>(lanes_, share_, [] { return 3U; });
  push(turns, 5);
  for (int ended = 0; ended < 3; ++ended) {
    while (turns->under_way() < 3) std::this_thread::yield();
    EXPECT_EQ(turns->under_way(), 3U);
    turns->ended(1);
  }
  EXPECT_EQ(turns->under_way(), 2U);
  EXPECT_FALSE(turns->help(list_)) << "nothing waits any more";
  turns->ended(1);
  turns->ended(1);
}

struct counted_waits final : staging::slab_waits {
  void waited(std::int64_t began_ns, std::int64_t ended_ns) noexcept override {
    EXPECT_LE(began_ns, ended_ns);
    ++count;
  }
  std::atomic<int> count{0};
};

TEST_F(turnstile_test, tells_of_the_times_when_works_waited_for_memory_alone) {
  counted_waits waits;
  turnstile::share share(128 * staging::mib, &waits);
  const auto turns = std::make_shared<turnstile>(lanes_, share, [] { return 3U; });
  const auto settled_with = [&](unsigned under_way) { return turns->under_way() == under_way && turns.use_count() == 1; };
  share.used_bytes.fetch_add(share.limit_bytes);  // by others
  push(turns, 4);
  while (!settled_with(1)) std::this_thread::yield();
  EXPECT_EQ(waits.count.load(), 0) << "it has not ended";
  share.used_bytes.fetch_sub(share.limit_bytes);
  turns->ended(1);
  while (!settled_with(3)) std::this_thread::yield();
  EXPECT_EQ(waits.count.load(), 1);
  for (int i = 0; i < 3; ++i) turns->ended(1);
  EXPECT_EQ(waits.count.load(), 1);
}

}  // namespace
}  // namespace penstock::source
