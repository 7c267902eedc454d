// Read-ahead of a source into slabs: when it reads, what a reader finds, and when slabs are returned.
#include "source/read_ahead.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <semaphore>
#include <thread>
#include <vector>

#include "support/memory_source.hpp"
#include "support/pattern.hpp"
#include "sys/kernel.hpp"

namespace penstock::source {
namespace {

namespace pattern = penstock::testing::pattern;
using penstock::testing::memory_bytes;
using penstock::testing::memory_source;

constexpr std::uint64_t ahead_mib = std::uint64_t{1} << 20;
constexpr std::uint64_t ahead_size = 40 * ahead_mib + 777;
constexpr auto no_deadline = deadline_clock::time_point::max();

class changing_source final : public source {
 public:
  explicit changing_source(source& of) : source(of.name()), of_(of) {}
  result<std::uint64_t> size() override { return of_.size(); }
  status sync() override { return {}; }
  result<bool> ends_at(std::uint64_t offset) override { return of_.ends_at(offset); }
  result<std::uint64_t> resident_bytes(std::uint64_t offset, std::uint64_t length) override { return of_.resident_bytes(offset, length); }
  io_result fill(std::byte* target, std::uint64_t length, std::uint64_t offset, caching by) override {
    return of_.fill(target, length, offset, by);
  }
  io_result drain(const std::byte* memory, std::uint64_t length, std::uint64_t offset, const drain_manner& how) override {
    return of_.drain(memory, length, offset, how);
  }
  bool changed() override { return changed_; }
  void change() { changed_ = true; }

 private:
  source& of_;
  std::atomic<bool> changed_{false};
};

// Keeps a lane.
struct stuck_work final : staging::work {
  bool run() override {
    begun.release();
    go_on.acquire();
    return true;
  }
  std::binary_semaphore begun{0};
  std::binary_semaphore go_on{0};
};

class read_ahead_of_a_source : public ::testing::Test {
 protected:
  read_ahead_of_a_source() {
    bytes_->content = pattern::make(ahead_size, 11);
    auto opened = driver_->open(0, nullptr);
    EXPECT_TRUE(opened.ok());
    feeder_.emplace(**opened);
    link_.emplace(**opened, *feeder_, pool_, true);
    make(read_ahead::most_slabs);
  }
  ~read_ahead_of_a_source() override {
    if (ahead_) ahead_->stop();
    ahead_.reset();
    EXPECT_EQ(pool_.slabs_out(), 0U);
  }
  void make(std::size_t slabs, std::uint64_t size = ahead_size) {
    if (ahead_) ahead_->stop();
    ahead_.emplace(source_, lanes_, size, slabs);
  }

  [[nodiscard]] read_ahead::call call(std::uint64_t offset, std::uint64_t length) { return {offset, length, &*link_}; }
  // Until lanes have done all that it asked them to.
  void settle() {
    while (!ahead_->idle()) std::this_thread::yield();
  }
  // One read. True: it was served, by the right bytes.
  bool read(std::uint64_t offset, std::uint64_t length) {
    const auto what = call(offset, length);
    if (!ahead_->begin(what)) {
      ahead_->passed(what);
      settle();
      return false;
    }
    const auto there = std::min(length, ahead_->size() - offset);
    std::uint64_t done = 0;
    while (done < there) {
      const auto part = ahead_->part(offset + done, there - done, no_deadline);
      if (part.length == 0) break;
      EXPECT_EQ(pattern::first_difference({part.data, part.length}, 11, offset + done), std::nullopt);
      done += part.length;
    }
    ahead_->end(what, done == there);
    settle();
    return done == there;
  }
  // Calls of 1 MiB from the beginning on, the last of which is served. Where the next one begins.
  std::uint64_t begin_in_order() {
    for (std::uint64_t at = 0; at < 3 * ahead_mib; at += ahead_mib) EXPECT_FALSE(read(at, ahead_mib));
    EXPECT_TRUE(read(3 * ahead_mib, ahead_mib));
    return 4 * ahead_mib;
  }

  std::shared_ptr<sys::kernel> kernel_ = sys::make_kernel();
  std::shared_ptr<device::driver> driver_ = device::make_host_driver();
  staging::pinned_budget budget_{std::size_t{512} << 20};
  staging::slab_pool pool_{*kernel_, budget_, budget_.limit_bytes / 2, budget_.limit_bytes / 4};
  std::optional<staging::feeder> feeder_;
  std::optional<staging::link> link_;
  std::shared_ptr<memory_bytes> bytes_ = std::make_shared<memory_bytes>();
  std::function<status(std::uint64_t)> before_read_ = [](std::uint64_t) { return status(); };
  memory_source inner_{"data", {}, true, bytes_, [this](bool, std::uint64_t offset) { return before_read_(offset); }};
  changing_source source_{inner_};
  std::array<stuck_work, 2> stuck_;
  staging::work_list stuck_list_;
  staging::lanes lanes_{2, std::chrono::microseconds(0), nullptr};
  std::optional<read_ahead> ahead_;
};

TEST_F(read_ahead_of_a_source, serves_from_the_fourth_call_in_order_on) { EXPECT_EQ(begin_in_order(), 4 * ahead_mib); }

TEST_F(read_ahead_of_a_source, reads_each_byte_once) {
  std::uint64_t by_callers = 0;
  for (std::uint64_t at = 0; at < ahead_size; at += ahead_mib) {
    if (!read(at, ahead_mib)) by_callers += ahead_mib;
  }
  EXPECT_EQ(by_callers, 3 * ahead_mib);
  EXPECT_EQ(ahead_->filled_bytes(), ahead_size - by_callers);
  EXPECT_EQ(pool_.slabs_out(), 0U) << "at the end there is nothing more to read ahead";
}

TEST_F(read_ahead_of_a_source, serves_calls_of_any_length_and_alignment) {
  std::uint64_t served = 0;
  std::uint64_t calls = 0;
  for (std::uint64_t at = 5; at < ahead_size; ++calls) {
    const std::uint64_t length = 1 + pattern::word_at(3, at) % (6 * ahead_mib);
    served += read(at, length) ? 1 : 0;
    at += length;
  }
  EXPECT_GE(served, calls / 2) << "of " << calls;
}

TEST_F(read_ahead_of_a_source, serves_calls_of_16_mib) {
  constexpr std::uint64_t length = 16 * ahead_mib;
  bytes_->content = pattern::make(6 * length - 1, 11);
  make(read_ahead::most_slabs, 6 * length - 1);
  for (std::uint64_t i = 0; i < 6; ++i) EXPECT_EQ(read(i * length, length), i >= 3) << i;
  EXPECT_EQ(ahead_->filled_bytes(), 3 * length - 1);
}

TEST_F(read_ahead_of_a_source, begins_anew_where_calls_become_longer_than_what_it_has) {
  bytes_->content = pattern::make(100 * ahead_mib, 11);
  make(read_ahead::most_slabs, 100 * ahead_mib);
  std::uint64_t at = 0;
  for (; at < 4000; at += 1000) EXPECT_EQ(read(at, 1000), at == 3000);
  EXPECT_FALSE(read(at, 16 * ahead_mib));
  EXPECT_FALSE(read(at + 16 * ahead_mib, 16 * ahead_mib)) << "slabs are being taken";
  EXPECT_TRUE(read(at + 32 * ahead_mib, 16 * ahead_mib));
}

TEST_F(read_ahead_of_a_source, calls_out_of_order_begin_nothing) {
  for (unsigned i = 0; i < 40; ++i) EXPECT_FALSE(read(i * 7 % 40 * ahead_mib, ahead_mib));
  EXPECT_EQ(ahead_->filled_bytes(), 0U);
  EXPECT_EQ(pool_.slabs_out(), 0U);
}

TEST_F(read_ahead_of_a_source, a_longer_call_than_any_begins_nothing) {
  const std::uint64_t length = read_ahead::most_call_bytes + 1;
  EXPECT_FALSE(ahead_->may_begin(call(0, length)));
}

TEST_F(read_ahead_of_a_source, goes_on_while_others_read_elsewhere) {
  std::uint64_t at = begin_in_order();
  for (; at < 20 * ahead_mib; at += ahead_mib) {
    EXPECT_FALSE(read(39 * ahead_mib - at, 1000));
    EXPECT_TRUE(read(at, ahead_mib));
  }
}

TEST_F(read_ahead_of_a_source, is_given_back_when_calls_go_elsewhere) {
  (void)begin_in_order();
  EXPECT_GT(pool_.slabs_out(), 0U);
  for (unsigned i = 0; i < read_ahead::most_strangers; ++i) EXPECT_FALSE(read((39 - i) * ahead_mib, 1000));
  EXPECT_EQ(pool_.slabs_out(), 0U);
}

TEST_F(read_ahead_of_a_source, waits_longer_after_it_was_of_no_use) {
  (void)begin_in_order();
  for (unsigned i = 0; i < read_ahead::most_strangers; ++i) EXPECT_FALSE(read((39 - i) * ahead_mib, 1000));
  unsigned not_served = 0;
  for (std::uint64_t at = 0; !read(at, 1000); at += 1000) ++not_served;
  EXPECT_EQ(not_served, 5U);
}

TEST_F(read_ahead_of_a_source, is_given_back_when_nobody_goes_on) {
  (void)begin_in_order();
  EXPECT_TRUE(ahead_->give_back_unless_used()) << "a call was served since the last question";
  EXPECT_GT(pool_.slabs_out(), 0U);
  EXPECT_FALSE(ahead_->give_back_unless_used());
  EXPECT_EQ(pool_.slabs_out(), 0U);
}

TEST_F(read_ahead_of_a_source, is_given_back_once_nobody_copies_from_it) {
  const auto at = begin_in_order();
  const auto what = call(at, ahead_mib);
  ASSERT_TRUE(ahead_->begin(what));
  const auto part = ahead_->part(at, ahead_mib, no_deadline);
  ahead_->give_back();
  EXPECT_GT(pool_.slabs_out(), 0U);
  EXPECT_EQ(pattern::first_difference({part.data, part.length}, 11, at), std::nullopt);
  ahead_->end(what, true);
  settle();
  EXPECT_EQ(pool_.slabs_out(), 0U);
}

TEST_F(read_ahead_of_a_source, serves_one_call_at_a_time) {
  const auto at = begin_in_order();
  ASSERT_TRUE(ahead_->begin(call(at, ahead_mib)));
  EXPECT_FALSE(ahead_->begin(call(at + ahead_mib, ahead_mib)));
  ahead_->end(call(at, ahead_mib), true);
  EXPECT_TRUE(read(at + ahead_mib, ahead_mib));
}

TEST_F(read_ahead_of_a_source, leaves_what_is_not_in_the_page_cache) {
  bytes_->cold_from = 8 * ahead_mib;
  bytes_->cold_to = ~std::uint64_t{0};
  (void)begin_in_order();
  for (std::uint64_t at = 4 * ahead_mib; at < ahead_size; at += ahead_mib) {
    if (at >= 8 * ahead_mib) {
      EXPECT_FALSE(read(at, ahead_mib));
    } else {
      (void)read(at, ahead_mib);
    }
  }
  EXPECT_LE(ahead_->filled_bytes(), 5 * ahead_mib);
}

TEST_F(read_ahead_of_a_source, an_error_is_left_to_the_reader) {
  before_read_ = [](std::uint64_t offset) { return offset == 9 * ahead_mib ? status(errc::io, "a bad block") : status(); };
  auto at = begin_in_order();
  for (; at < 9 * ahead_mib && read(at, ahead_mib); at += ahead_mib) {
  }
  EXPECT_FALSE(read(9 * ahead_mib, ahead_mib));
  EXPECT_TRUE(ahead_->problem().ok());
}

TEST_F(read_ahead_of_a_source, a_short_read_is_left_to_the_reader) {
  bytes_->content.resize(9 * ahead_mib + 5);
  auto at = begin_in_order();
  for (; at < 9 * ahead_mib && read(at, ahead_mib); at += ahead_mib) {
  }
  EXPECT_FALSE(read(9 * ahead_mib, ahead_mib));
}

TEST_F(read_ahead_of_a_source, ends_for_good_once_the_source_has_changed) {
  auto at = begin_in_order();
  source_.change();
  for (; read(at, ahead_mib); at += ahead_mib) ASSERT_LT(at, ahead_size);
  for (at = 0; at < ahead_size; at += ahead_mib) EXPECT_FALSE(read(at, ahead_mib));
  EXPECT_FALSE(ahead_->problem().ok());
  EXPECT_EQ(pool_.slabs_out(), 0U);
}

TEST_F(read_ahead_of_a_source, a_wait_ends_at_the_deadline) {
  for (std::uint64_t at = 0; at < 2 * ahead_mib; at += ahead_mib) EXPECT_FALSE(read(at, ahead_mib));
  std::counting_semaphore<64> go_on(0);
  std::atomic<unsigned> waiting{0};
  before_read_ = [&](std::uint64_t) {
    ++waiting;
    go_on.acquire();
    return status();
  };
  const auto third = call(2 * ahead_mib, ahead_mib);
  EXPECT_FALSE(ahead_->begin(third));
  ahead_->passed(third);
  while (waiting.load() < 2) std::this_thread::yield();
  const auto fourth = call(3 * ahead_mib, ahead_mib);
  ASSERT_TRUE(ahead_->begin(fourth));
  const auto part = ahead_->part(3 * ahead_mib, ahead_mib, deadline_clock::now());
  EXPECT_EQ(part.length, 0U);
  EXPECT_EQ(part.problem.code(), errc::timed_out);
  ahead_->end(fourth, false);
  go_on.release(64);
  settle();
  EXPECT_EQ(pool_.slabs_out(), 0U);
}

TEST_F(read_ahead_of_a_source, a_reader_fills_what_no_lane_has_begun) {
  for (std::uint64_t at = 0; at < 2 * ahead_mib; at += ahead_mib) EXPECT_FALSE(read(at, ahead_mib));
  for (auto& each : stuck_) ASSERT_TRUE(lanes_.push(stuck_list_, each).ok());
  for (auto& each : stuck_) each.begun.acquire();
  const auto third = call(2 * ahead_mib, ahead_mib);
  EXPECT_FALSE(ahead_->begin(third));
  ahead_->passed(third);
  const auto fourth = call(3 * ahead_mib, ahead_mib);
  ASSERT_TRUE(ahead_->begin(fourth));
  const auto part = ahead_->part(3 * ahead_mib, ahead_mib, no_deadline);
  EXPECT_EQ(part.length, ahead_mib);
  EXPECT_EQ(ahead_->filled_bytes(), ahead_mib);
  ahead_->end(fourth, true);
  ahead_->stop();  // does not wait for the lanes, since none is at work for it
  for (auto& each : stuck_) each.go_on.release();
}

TEST_F(read_ahead_of_a_source, has_nothing_where_others_want_slabs) {
  for (std::uint64_t at = 0; at < 2 * ahead_mib; at += ahead_mib) EXPECT_FALSE(read(at, ahead_mib));
  EXPECT_GT(pool_.slabs_out(), 0U);
  pool_.ask_back([](void* of) { static_cast<read_ahead*>(of)->give_back(); }, &*ahead_);
  std::vector<staging::slab> taken;
  for (bool any = true; any;) {
    any = false;
    for (const auto user : {staging::slab_user::cpu, staging::slab_user::disk, staging::slab_user::keeper}) {
      const auto got = pool_.try_take(staging::large_slab_bytes, link_->session(), user);
      ASSERT_TRUE(got.ok());
      if (*got) taken.push_back(*got);
      any = any || *got;
    }
  }
  EXPECT_EQ(pool_.slabs_out(), taken.size()) << "all that was held ahead has come back";
  for (std::uint64_t at = 2 * ahead_mib; at < 10 * ahead_mib; at += ahead_mib) EXPECT_FALSE(read(at, ahead_mib));
  EXPECT_EQ(ahead_->filled_bytes(), 0U);
  for (const auto& each : taken) pool_.give_back(each);
}

TEST_F(read_ahead_of_a_source, two_slabs_are_enough_and_one_is_not) {
  make(1);
  for (std::uint64_t at = 0; at < 10 * ahead_mib; at += ahead_mib) EXPECT_FALSE(read(at, ahead_mib));
  EXPECT_FALSE(ahead_->problem().ok());
  make(2);
  for (std::uint64_t at = begin_in_order(); at < ahead_size; at += ahead_mib) EXPECT_TRUE(read(at, ahead_mib));
}

}  // namespace
}  // namespace penstock::source
