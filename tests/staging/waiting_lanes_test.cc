#include "staging/waiting_lanes.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <vector>

namespace penstock::staging::waiting_lanes_tests {
namespace {

struct counted : work {
  explicit counted(std::atomic<int>& by) : count(by) {}
  bool run() override {
    count.fetch_add(1);
    count.notify_all();
    return true;
  }
  std::atomic<int>& count;
};

// Ends once so many are under way.
struct meeting : work {
  explicit meeting(std::latch& with) : all(with) {}
  bool run() override {
    all.arrive_and_wait();
    return true;
  }
  std::latch& all;
};

template <class Work>
work_chain chain_of(std::vector<Work>& works) {
  work_chain chain;
  for (auto& each : works) chain.add(each);
  return chain;
}

void await(std::atomic<int>& count, int wanted) {
  for (int seen = count.load(); seen < wanted; seen = count.load()) count.wait(seen);
}

TEST(waiting_lanes, as_many_are_at_work_as_the_server_is_best_asked_at_once) {
  answer_times times;
  feeders copies;
  waiting_lanes lanes(answer_times::most_at_once, times, copies);
  std::latch all(answer_times::first_at_once);
  std::vector<meeting> works(answer_times::first_at_once, meeting(all));
  work_list list;
  lanes.push_or_run(list, chain_of(works));
  all.wait();
}

TEST(waiting_lanes, no_more_are_at_work_than_the_limit) {
  answer_times times;
  feeders copies;
  std::atomic<int> at_work{0};
  std::atomic<int> most{0};
  std::atomic<int> ended{0};
  struct watched : work {
    watched(std::atomic<int>& a, std::atomic<int>& b, std::atomic<int>& c) : at_work(a), most(b), ended(c) {}
    bool run() override {
      const int now = at_work.fetch_add(1) + 1;
      for (int seen = most.load(); seen < now && !most.compare_exchange_weak(seen, now);) {
      }
      at_work.fetch_sub(1);
      ended.fetch_add(1);
      ended.notify_all();
      return true;
    }
    std::atomic<int>&at_work, &most, &ended;
  };
  waiting_lanes lanes(3, times, copies);
  std::vector<watched> works(500, watched(at_work, most, ended));
  work_list list;
  lanes.push_or_run(list, chain_of(works));
  await(ended, 500);
  EXPECT_LE(most.load(), 3);
}

TEST(waiting_lanes, what_is_queued_is_run_before_they_end) {
  answer_times times;
  feeders copies;
  std::atomic<int> count{0};
  std::vector<counted> works(1000, counted(count));
  work_list list;
  {
    waiting_lanes lanes(2, times, copies);
    lanes.push_or_run(list, chain_of(works));
  }
  EXPECT_EQ(count.load(), 1000);
}

TEST(waiting_lanes, a_work_that_waits_can_be_run_by_whoever_has_queued_it) {
  struct held : work {
    held(std::latch& a, std::latch& b) : begun(a), release(b) {}
    bool run() override {
      begun.count_down();
      release.wait();
      return true;
    }
    std::latch &begun, &release;
  };
  std::latch begun(1);
  std::latch release(1);
  answer_times times;
  feeders copies;
  waiting_lanes lanes(1, times, copies);
  std::vector<held> first(1, held(begun, release));
  work_list of_first;
  lanes.push_or_run(of_first, chain_of(first));
  begun.wait();
  std::atomic<int> count{0};
  std::vector<counted> works(2, counted(count));
  work_list list;
  lanes.push_or_run(list, chain_of(works));
  EXPECT_TRUE(lanes.help(list));
  EXPECT_TRUE(lanes.help(list));
  EXPECT_FALSE(lanes.help(list));
  EXPECT_EQ(count.load(), 2);
  release.count_down();
}

}  // namespace
}  // namespace penstock::staging::waiting_lanes_tests
