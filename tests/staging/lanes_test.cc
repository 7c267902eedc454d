#include "staging/lanes.hpp"

#include <gtest/gtest.h>

#include <deque>
#include <latch>
#include <mutex>
#include <semaphore>
#include <string>
#include <vector>

#include "device/device_fixture.hpp"
#include "staging/worker.hpp"

namespace penstock::staging {
namespace {

using namespace std::chrono_literals;

struct function_work final : work {
  explicit function_work(std::function<void()> what) : body(std::move(what)) {}
  bool run() override {
    body();
    return true;
  }
  std::function<void()> body;
};

class lanes_test : public ::testing::TestWithParam<int> {
 protected:
  std::chrono::microseconds spin() const { return std::chrono::microseconds(GetParam()); }
  feeders copies_;
};

TEST_P(lanes_test, every_work_runs_once_on_a_worker_thread) {
  constexpr int count = 500;
  std::atomic<int> ran{0};
  std::atomic<int> on_workers{0};
  std::latch all(count);
  std::deque<function_work> works;
  work_list list;
  lanes crew(3, spin(), &copies_);
  for (int i = 0; i < count; ++i) {
    works.emplace_back([&] {
      ran.fetch_add(1);
      on_workers.fetch_add(on_worker_thread() ? 1 : 0);
      all.count_down();
    });
    ASSERT_TRUE(crew.push(list, works.back()).ok());
  }
  all.wait();
  EXPECT_EQ(ran.load(), count);
  EXPECT_EQ(on_workers.load(), count);
  EXPECT_FALSE(on_worker_thread());
}

TEST_P(lanes_test, ending_runs_what_is_queued) {
  std::atomic<int> ran{0};
  std::deque<function_work> works;
  work_list list;
  {
    lanes crew(2, spin(), &copies_);
    for (int i = 0; i < 100; ++i) {
      works.emplace_back([&] { ran.fetch_add(1); });
      ASSERT_TRUE(crew.push(list, works.back()).ok());
    }
  }
  EXPECT_EQ(ran.load(), 100);
}

TEST_P(lanes_test, urgent_works_go_before_queued_ones) {
  std::latch started(1);
  std::binary_semaphore go(0);
  std::mutex lock;
  std::string order;
  const auto note = [&](char letter) {
    const std::lock_guard guard(lock);
    order += letter;
  };
  function_work blocker([&] {
    started.count_down();
    go.acquire();
  });
  function_work plain([&] { note('p'); });
  function_work urgent([&] { note('u'); });
  work_list first;
  work_list second;
  work_list third;
  {
    lanes crew(1, spin(), &copies_);
    ASSERT_TRUE(crew.push(first, blocker).ok());
    started.wait();
    ASSERT_TRUE(crew.push(second, plain).ok());
    crew.push_urgent(third, urgent);
    go.release();
  }
  EXPECT_EQ(order, "up");
}

TEST_P(lanes_test, a_caller_may_help_with_its_own_list_and_with_urgent_works) {
  std::latch started(1);
  std::binary_semaphore go(0);
  std::vector<std::thread::id> who;
  function_work blocker([&] {
    started.count_down();
    go.acquire();
  });
  const auto note = [&] { who.push_back(std::this_thread::get_id()); };
  function_work mine(note);
  function_work others(note);
  function_work urgent(note);
  work_list first;
  work_list my_list;
  work_list other_list;
  work_list urgent_list;
  {
    lanes crew(1, spin(), &copies_);
    ASSERT_TRUE(crew.push(first, blocker).ok());
    started.wait();
    EXPECT_FALSE(crew.help(my_list));
    EXPECT_FALSE(crew.help_urgent());
    ASSERT_TRUE(crew.push(other_list, others).ok());
    ASSERT_TRUE(crew.push(my_list, mine).ok());
    crew.push_urgent(urgent_list, urgent);
    EXPECT_TRUE(crew.help(my_list));
    EXPECT_FALSE(crew.help(my_list));
    EXPECT_TRUE(crew.help_urgent());
    EXPECT_EQ(who, (std::vector<std::thread::id>(2, std::this_thread::get_id())));
    go.release();
  }
  ASSERT_EQ(who.size(), 3U);
  EXPECT_NE(who[2], std::this_thread::get_id());
}

// Runs works on a crew one after the other or side by side, as its lanes take them; the works wait until all are queued.
class crew_test : public ::testing::Test {
 protected:
  void run(lanes& crew, int count, const std::function<void()>& body) {
    std::latch queued(1);
    std::latch all(count);
    std::deque<function_work> works;
    work_list list;
    for (int i = 0; i < count; ++i) {
      works.emplace_back([&] {
        queued.wait();
        body();
        all.count_down();
      });
      ASSERT_TRUE(crew.push(list, works.back()).ok());
    }
    queued.count_down();
    all.wait();
  }
};

TEST_F(crew_test, a_link_that_is_often_idle_gets_more_lanes_up_to_the_most) {
  lanes crew({6, 2, true}, 0us, nullptr);
  EXPECT_EQ(crew.count(), 2U);
  for (int round = 0; round < 100 && crew.count() < 6; ++round) run(crew, 400, [&] { crew.feed(nullptr, true); });
  EXPECT_EQ(crew.count(), 6U);
  run(crew, 400, [&] { crew.feed(nullptr, true); });
  EXPECT_EQ(crew.count(), 6U);
}

TEST_F(crew_test, several_links_that_are_often_idle_get_more_lanes_than_one) {
  const int one = 1;
  const int other = 2;
  lanes crew({20, lanes::most_of_one_link, true}, 0us, nullptr);
  for (int round = 0; round < 20; ++round) run(crew, 400, [&] { crew.feed(&one, true); });
  EXPECT_EQ(crew.count(), lanes::most_of_one_link);
  std::atomic<unsigned> turn{0};
  const auto feed_both = [&] { crew.feed(turn.fetch_add(1) % 2 == 0 ? &one : &other, true); };
  for (int round = 0; round < 300 && crew.count() < 20; ++round) run(crew, 400, feed_both);
  EXPECT_EQ(crew.count(), 20U);
  for (int round = 0; round < 300 && crew.count() > lanes::most_of_one_link; ++round) run(crew, 400, [&] { crew.feed(&other, true); });
  EXPECT_EQ(crew.count(), lanes::most_of_one_link);
}

TEST_F(crew_test, lanes_that_wait_for_the_link_are_sent_to_sleep) {
  lanes crew({10, 8, true}, 0us, nullptr);
  run(crew, 400, [&] {
    crew.waited();
    crew.feed(nullptr, false);
  });
  EXPECT_LT(crew.count(), 8U);
  EXPECT_GE(crew.count(), 2U);
}

TEST_F(crew_test, a_crew_of_a_given_size_stays_as_it_is) {
  lanes crew(5, 0us, nullptr);
  run(crew, 200, [&] { crew.feed(nullptr, true); });
  EXPECT_EQ(crew.count(), 5U);
  run(crew, 200, [&] {
    crew.waited();
    crew.feed(nullptr, false);
  });
  EXPECT_EQ(crew.count(), 5U);
}

// A lane that was called for a work, and is sent to sleep before it takes it, must call another.
TEST_F(crew_test, no_work_is_left_behind_while_lanes_come_and_go) {
  for (const auto spin : {0us, 100us}) {
    lanes crew({12, 6, true}, spin, nullptr);
    std::atomic<int> ran{0};
    for (int round = 0; round < 60; ++round) {
      run(crew, 130, [&, idle = round % 2 == 0] {
        if (!idle) crew.waited();
        crew.feed(nullptr, idle);
        ran.fetch_add(1);
      });
    }
    EXPECT_EQ(ran.load(), 60 * 130);
    for (int round = 0; round < 300; ++round) run(crew, 1 + round % 3, [&] { ran.fetch_add(1); });
    EXPECT_EQ(ran.load(), 60 * 130 + 600);
  }
}

INSTANTIATE_TEST_SUITE_P(spinning, lanes_test, ::testing::Values(0, 150), [](const auto& tested) {
  return tested.param == 0 ? std::string("never") : std::to_string(tested.param) + "_us";
});

}  // namespace
}  // namespace penstock::staging
