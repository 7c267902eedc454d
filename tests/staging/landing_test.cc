#include "staging/landing.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "device/device_fixture.hpp"
#include "support/faulty_device.hpp"

namespace penstock::staging {
namespace {

using namespace std::chrono_literals;

struct counted_waiter final : landing::waiter {
  bool run() override {
    ++runs;
    return true;
  }
  std::atomic<int> runs{0};
};

class landing_test : public ::testing::Test {
 protected:
  // As many pieces as there are; the waiter waits for another then.
  std::vector<landing::lease> take_all(counted_waiter& waiter) {
    std::vector<landing::lease> held;
    for (;;) {
      auto room = landing_.take(link_, waiter);
      EXPECT_TRUE(room.ok()) << room.error().message();
      if (!room.ok() || *room == nullptr) return held;
      held.push_back(*std::move(room));
    }
  }

  // Returns once the only lane has run all that was pushed to it before.
  void let_lane_run() {
    counted_waiter last;
    EXPECT_TRUE(lanes_.push(last.list, last).ok());
    while (last.runs.load() == 0) std::this_thread::yield();
  }

  std::shared_ptr<sys::kernel> kernel_ = sys::make_kernel();
  std::shared_ptr<testing::faulty_driver> driver_ = testing::make_faulty_driver(device::make_host_driver());
  device::session& session_ = *testing::value_of(driver_->open(0, nullptr));
  feeder feeder_{session_};
  pinned_budget budget_{1 << 30};
  slab_pool unused_{*kernel_, budget_, 0, 0};
  link link_{session_, feeder_, unused_, true};
  lanes lanes_{1, 0us, nullptr};
  landing landing_{*kernel_, lanes_};
};

TEST_F(landing_test, who_finds_no_room_is_run_once_when_some_comes_back) {
  counted_waiter waiter;
  auto held = take_all(waiter);
  EXPECT_GE(held.size(), 8U);
  EXPECT_LE(landing_.pinned_bytes(), landing::most_bytes);
  let_lane_run();
  EXPECT_EQ(waiter.runs.load(), 0);
  held.pop_back();
  while (waiter.runs.load() == 0) std::this_thread::yield();
  held.pop_back();
  let_lane_run();
  EXPECT_EQ(waiter.runs.load(), 1);
  EXPECT_FALSE(landing_.forget(waiter));
  EXPECT_NE(*landing_.take(link_, waiter), nullptr);
}

TEST_F(landing_test, who_is_forgotten_is_not_run) {
  counted_waiter waiter;
  auto held = take_all(waiter);
  EXPECT_TRUE(landing_.forget(waiter));
  held.clear();
  let_lane_run();
  EXPECT_EQ(waiter.runs.load(), 0);
}

TEST_F(landing_test, memory_that_cannot_be_pinned_is_an_error_and_nobody_waits) {
  driver_->fail("pin", 1, status(errc::device, "no pinning"));
  counted_waiter waiter;
  EXPECT_EQ(landing_.take(link_, waiter).error().code(), errc::device);
  EXPECT_FALSE(landing_.forget(waiter));
  EXPECT_NE(*landing_.take(link_, waiter), nullptr);
}

TEST_F(landing_test, every_piece_is_held_by_one_and_all_waiters_are_served) {
  constexpr int threads = 4;
  std::vector<std::thread> users;
  std::atomic<int> wrong{0};
  for (int id = 0; id < threads; ++id) {
    users.emplace_back([&, id] {
      for (int round = 0; round < 300; ++round) {
        std::vector<landing::lease> mine;
        while (mine.size() < 7) {
          counted_waiter waiter;
          auto room = landing_.take(link_, waiter);
          if (room && *room != nullptr) {
            **room = static_cast<std::byte>(id);
            mine.push_back(*std::move(room));
            continue;
          }
          mine.clear();  // or all would wait for each other
          while (waiter.runs.load() == 0) std::this_thread::yield();
        }
        for (const auto& each : mine) wrong += *each != static_cast<std::byte>(id) ? 1 : 0;
      }
    });
  }
  for (auto& each : users) each.join();
  EXPECT_EQ(wrong.load(), 0);
}

}  // namespace
}  // namespace penstock::staging
