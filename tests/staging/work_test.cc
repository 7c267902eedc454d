#include "staging/work.hpp"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace penstock::staging {
namespace {

struct named_work final : work {
  explicit named_work(std::string called) : name(std::move(called)) {}
  bool run() override { return true; }
  std::string name;
};

// A list and the works on it, named a0, a1, ...
struct named_list {
  named_list(work_queue& queue, char letter, int count) {
    for (int i = 0; i < count; ++i) works.emplace_back(letter + std::to_string(i));
    for (int i = 0; i + 1 < count; ++i) works[i].next_work = &works[i + 1];
    queue.push(list, works.front(), works.back(), works.size());
  }
  work_list list;
  std::deque<named_work> works;
};

std::string name_of(work* taken) { return taken == nullptr ? "none" : static_cast<named_work*>(taken)->name; }

std::string take_all(work_queue& queue) {
  std::string order;
  while (work* taken = queue.take()) order += name_of(taken) + " ";
  return order;
}

TEST(work_queue, an_empty_queue_has_nothing_to_take) {
  work_queue queue;
  work_list list;
  EXPECT_EQ(queue.take(), nullptr);
  EXPECT_EQ(queue.take_from(list), nullptr);
  EXPECT_EQ(queue.size(), 0U);
}

TEST(work_queue, what_is_taken_out_of_a_list_is_not_served) {
  work_queue queue;
  named_list a(queue, 'a', 4);
  named_list b(queue, 'b', 1);
  EXPECT_TRUE(queue.remove(a.list, a.works[1]));
  EXPECT_FALSE(queue.remove(a.list, a.works[1]));
  EXPECT_TRUE(queue.remove(a.list, a.works[3])) << "the last";
  EXPECT_TRUE(queue.remove(b.list, b.works[0])) << "the only one";
  EXPECT_FALSE(queue.remove(b.list, a.works[0])) << "of another list";
  queue.push(a.list, a.works[3], a.works[3], 1);
  EXPECT_EQ(queue.size(), 3U);
  EXPECT_EQ(take_all(queue), "a0 a2 a3 ");
}

TEST(work_queue, lists_are_served_in_turn_and_each_in_its_order) {
  work_queue queue;
  named_list a(queue, 'a', 5);
  named_list b(queue, 'b', 2);
  named_list c(queue, 'c', 1);
  EXPECT_EQ(queue.size(), 8U);
  EXPECT_EQ(take_all(queue), "a0 b0 c0 a1 b1 a2 a3 a4 ");
  EXPECT_EQ(queue.size(), 0U);
}

TEST(work_queue, works_that_share_are_handed_out_before_another_list_is_served) {
  work_queue queue;
  named_list a(queue, 'a', 5);
  named_list b(queue, 'b', 2);
  a.works[0].with_next = a.works[1].with_next = a.works[3].with_next = true;
  EXPECT_EQ(take_all(queue), "a0 a1 a2 b0 a3 a4 b1 ");
}

TEST(work_queue, a_small_request_does_not_wait_for_a_large_one) {
  work_queue queue;
  named_list large(queue, 'a', 1000);
  for (int i = 0; i < 10; ++i) (void)queue.take();
  named_list small(queue, 'b', 1);
  bool seen = false;
  for (int i = 0; i < 2; ++i) seen |= name_of(queue.take()) == "b0";
  EXPECT_TRUE(seen) << "behind at most one item of each other list";
}

TEST(work_queue, later_works_go_behind_the_earlier_of_their_list) {
  work_queue queue;
  named_list a(queue, 'a', 2);
  named_list b(queue, 'b', 1);
  named_work late("late");
  queue.push(a.list, late, late, 1);
  EXPECT_EQ(take_all(queue), "a0 b0 a1 late ");
}

TEST(work_queue, take_from_takes_of_one_list_only_and_keeps_the_turns_of_the_others) {
  work_queue queue;
  named_list a(queue, 'a', 3);
  named_list b(queue, 'b', 2);
  EXPECT_EQ(name_of(queue.take_from(b.list)), "b0");
  EXPECT_EQ(name_of(queue.take()), "a0");
  EXPECT_EQ(name_of(queue.take_from(b.list)), "b1");
  EXPECT_EQ(queue.take_from(b.list), nullptr);
  EXPECT_EQ(queue.size(), 2U);
  EXPECT_EQ(take_all(queue), "a1 a2 ");
}

TEST(work_queue, a_list_may_die_with_its_last_item_and_its_neighbours_go_on) {
  work_queue queue;
  named_list a(queue, 'a', 2);
  auto b = std::make_unique<named_list>(queue, 'b', 1);
  named_list c(queue, 'c', 2);
  EXPECT_EQ(name_of(queue.take()), "a0");
  EXPECT_EQ(name_of(queue.take()), "b0");
  b.reset();
  EXPECT_EQ(take_all(queue), "c0 a1 c1 ");
}

TEST(work_queue, the_list_whose_turn_it_is_may_be_emptied_by_take_from) {
  work_queue queue;
  named_list a(queue, 'a', 1);
  named_list b(queue, 'b', 1);
  EXPECT_EQ(name_of(queue.take_from(a.list)), "a0");
  EXPECT_EQ(take_all(queue), "b0 ");
  queue.push(a.list, a.works[0], a.works[0], 1);
  EXPECT_EQ(take_all(queue), "a0 ");
}

TEST(work_queue, every_item_is_taken_once_by_threads_that_push_and_take) {
  constexpr int threads = 4;
  constexpr int rounds = 2000;
  struct counted final : work {
    bool run() override { return true; }
    std::atomic<int> taken{0};
  };
  work_queue queue;
  std::vector<counted> works(threads * rounds);
  std::array<work_list, threads> lists;
  std::atomic<int> taken{0};
  std::vector<std::thread> crew;
  for (int t = 0; t < threads; ++t) {
    crew.emplace_back([&, t] {
      const auto took = [&](work* item) {
        if (item == nullptr) return false;
        static_cast<counted*>(item)->taken.fetch_add(1);
        taken.fetch_add(1);
        return true;
      };
      for (int i = 0; i < rounds; ++i) {
        auto& mine = works[t * rounds + i];
        queue.push(lists[t], mine, mine, 1);
        took(i % 3 == 0 ? queue.take_from(lists[t]) : queue.take());
      }
      while (taken.load() < threads * rounds) {
        if (!took(queue.take())) std::this_thread::yield();
      }
    });
  }
  for (auto& each : crew) each.join();
  for (const auto& each : works) ASSERT_EQ(each.taken.load(), 1);
  EXPECT_EQ(queue.size(), 0U);
}

// --- works that take turns

struct telling_work final : turn_work {
  telling_work(std::string called, std::string& told) : name(std::move(called)), to(told) {}
  void carry() override {
    to += name + "+ ";
    if (meanwhile) meanwhile();
  }
  void end() override { to += name + "- "; }
  std::string name;
  std::string& to;
  std::function<void()> meanwhile;
};

TEST(turn_list, whoever_carries_one_carries_those_that_have_come_since) {
  turn_list list;
  std::string told;
  telling_work a("a", told);
  telling_work b("b", told);
  telling_work c("c", told);
  a.meanwhile = [&] {
    EXPECT_FALSE(list.add(b));
    EXPECT_FALSE(list.add(c));
  };
  ASSERT_TRUE(list.add(a));
  EXPECT_TRUE(a.run());
  EXPECT_EQ(told, "a+ a- b+ b- c+ c- ");
  EXPECT_TRUE(list.add(b)) << "nobody carries any more";
}

TEST(turn_list, one_that_waits_can_be_taken_out_of_turn) {
  turn_list list;
  std::string told;
  telling_work a("a", told);
  telling_work b("b", told);
  EXPECT_EQ(list.take(), nullptr);
  a.meanwhile = [&] {
    EXPECT_FALSE(list.add(b));
    auto* const taken = list.take();
    ASSERT_EQ(taken, &b);
    EXPECT_TRUE(taken->run());
    EXPECT_EQ(list.take(), nullptr);
  };
  ASSERT_TRUE(list.add(a));
  EXPECT_TRUE(a.run());
  EXPECT_EQ(told, "a+ b+ b- a- ");
  EXPECT_TRUE(list.add(a));
}

}  // namespace
}  // namespace penstock::staging
