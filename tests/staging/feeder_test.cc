#include "staging/feeder.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <memory>
#include <semaphore>
#include <thread>
#include <vector>

#include "device/device_fixture.hpp"
#include "support/faulty_device.hpp"

namespace penstock::staging {
namespace {

using testing::device_memory;
using testing::pinned_memory;
using testing::random_bytes;

constexpr std::size_t slot_bytes = 4096;

// One copy with a note of how and when it ended.
struct noted_copy {
  copy_task task;
  int ended = 0;
  std::size_t place = 0;  // in the order of ends
  status outcome;
  std::atomic<std::size_t>* clock = nullptr;
};

class feeder_test : public ::testing::Test {
 protected:
  void SetUp() override {
    session_ = testing::value_of(driver_->open(0, nullptr));
    ASSERT_NE(session_, nullptr);
  }

  noted_copy& add(void* target, const void* source, std::size_t bytes, bool to_device) {
    auto& made = copies_.emplace_back();
    made.clock = &clock_;
    made.task = {.target = target, .source = source, .bytes = bytes, .to_device = to_device};
    made.task.context = &made;
    made.task.done = [](copy_task& task, status outcome) {
      auto& self = *static_cast<noted_copy*>(task.context);
      ++self.ended;
      self.place = self.clock->fetch_add(1);
      self.outcome = std::move(outcome);
    };
    return made;
  }

  static void pump_until_quiet(feeder& pumped) {
    while (pumped.outstanding()) {
      if (!pumped.pump()) std::this_thread::yield();
    }
  }

  std::shared_ptr<testing::faulty_driver> driver_ = testing::make_faulty_driver(device::make_host_driver());
  device::session* session_ = nullptr;
  std::deque<noted_copy> copies_;
  std::atomic<std::size_t> clock_{0};
};

TEST_F(feeder_test, nothing_is_made_and_nothing_to_do_before_the_first_copy) {
  feeder fed(*session_);
  EXPECT_FALSE(fed.outstanding());
  EXPECT_FALSE(fed.pump());
  EXPECT_TRUE(driver_->live().none());
}

TEST_F(feeder_test, bytes_arrive_in_both_directions) {
  const auto content = random_bytes(100000, 1);
  pinned_memory there(*session_, content.size());
  pinned_memory back(*session_, content.size());
  const device_memory memory(*session_, content.size());
  there.fill(content);
  feeder fed(*session_);
  auto& up = add(memory.data(), there.data(), content.size(), true);
  fed.submit(up.task);
  pump_until_quiet(fed);
  ASSERT_EQ(up.ended, 1);
  PENSTOCK_EXPECT_OK(up.outcome);
  auto& down = add(back.data() + 1, memory.data() + 1, content.size() - 1, false);
  fed.submit(down.task);
  pump_until_quiet(fed);
  ASSERT_EQ(down.ended, 1);
  PENSTOCK_EXPECT_OK(down.outcome);
  EXPECT_EQ(std::memcmp(back.data() + 1, content.data() + 1, content.size() - 1), 0);
}

TEST_F(feeder_test, many_more_copies_than_fit_in_flight_end_once_each_and_in_order) {
  constexpr std::size_t count = 300;  // 64 are in flight at once
  const auto content = random_bytes(count * slot_bytes, 2);
  pinned_memory there(*session_, content.size());
  pinned_memory back(*session_, content.size());
  there.fill(content);
  back.fill(std::byte{0});
  const device_memory up_target(*session_, content.size());
  const device_memory down_source(*session_, content.size());
  PENSTOCK_EXPECT_OK(session_->copy(down_source.data(), there.data(), content.size(), nullptr));
  PENSTOCK_EXPECT_OK(session_->synchronize(nullptr));
  feeder fed(*session_);
  for (std::size_t at = 0; at < content.size(); at += slot_bytes) {
    fed.submit(add(up_target.data() + at, there.data() + at, slot_bytes, true).task);
    fed.submit(add(back.data() + at, down_source.data() + at, slot_bytes, false).task);
  }
  pump_until_quiet(fed);
  for (std::size_t i = 0; i < copies_.size(); ++i) {
    ASSERT_EQ(copies_[i].ended, 1) << i;
    PENSTOCK_EXPECT_OK(copies_[i].outcome);
    if (i >= 2) {
      EXPECT_GT(copies_[i].place, copies_[i - 2].place) << "copies of one direction end in order";
    }
  }
  EXPECT_TRUE(back.holds(content));
  PENSTOCK_EXPECT_OK(session_->copy(back.data(), up_target.data(), content.size(), nullptr));
  PENSTOCK_EXPECT_OK(session_->synchronize(nullptr));
  EXPECT_TRUE(back.holds(content));
}

TEST_F(feeder_test, large_copies_take_turns_on_four_streams_and_few_bytes_are_under_way) {
  constexpr std::size_t large = 4 << 20;
  pinned_memory there(*session_, large);
  const device_memory memory(*session_, large);
  feeder fed(*session_);
  for (int i = 0; i < 12; ++i) fed.submit(add(memory.data(), there.data(), large, true).task);
  fed.pump();
  EXPECT_EQ(driver_->calls("copy"), 6U) << "24 MiB";
  EXPECT_EQ(driver_->streams_of_copies(), 4U);
  EXPECT_LE(fed.bytes_on_link(), 6 * large);
  pump_until_quiet(fed);
  EXPECT_EQ(fed.bytes_on_link(), 0U);
  EXPECT_EQ(driver_->calls("copy"), 12U);
  for (const auto& each : copies_) EXPECT_EQ(each.ended, 1);
}

TEST_F(feeder_test, small_copies_that_follow_each_other_stay_on_one_stream) {
  pinned_memory there(*session_, 64 * slot_bytes);
  const device_memory memory(*session_, 64 * slot_bytes);
  feeder fed(*session_);
  for (std::size_t i = 0; i < 64; ++i)
    fed.submit(add(memory.data() + i * slot_bytes, there.data() + i * slot_bytes, slot_bytes, true).task);
  fed.pump();
  EXPECT_EQ(driver_->calls("copy"), 64U);
  EXPECT_EQ(driver_->streams_of_copies(), 1U);
  pump_until_quiet(fed);
}

TEST_F(feeder_test, copies_between_devices_are_not_held_back) {
  constexpr std::size_t large = 16 << 20;
  const device_memory from(*session_, large);
  const device_memory to(*session_, large);
  feeder fed(*session_);
  for (int i = 0; i < 5; ++i) {
    auto& each = add(to.data(), from.data(), large, true);
    each.task.between_devices = true;
    fed.submit(each.task);
  }
  fed.pump();
  EXPECT_EQ(driver_->calls("copy"), 5U);
  EXPECT_EQ(driver_->streams_of_copies(), 1U);
  pump_until_quiet(fed);
}

TEST_F(feeder_test, an_awaited_event_holds_up_no_copy_and_ends_once_it_is_reached) {
  pinned_memory flag(*session_, 4096);
  flag.fill(std::byte{0});
  auto* const word = reinterpret_cast<std::uint32_t*>(flag.data());
  const testing::scoped_stream held(*session_);
  const testing::scoped_event event(*session_);
  PENSTOCK_EXPECT_OK(session_->wait_value(held, word, 1));
  PENSTOCK_EXPECT_OK(session_->record(event, held));
  const auto content = random_bytes(slot_bytes, 1);
  pinned_memory there(*session_, content.size());
  const device_memory memory(*session_, content.size());
  feeder fed(*session_);
  auto& awaited = add(nullptr, nullptr, 0, true);
  awaited.task.awaited = event;
  auto& copy = add(memory.data(), there.data(), content.size(), true);
  fed.submit(awaited.task);
  fed.submit(copy.task);
  while (copy.ended == 0) fed.pump();
  EXPECT_EQ(awaited.ended, 0);
  EXPECT_TRUE(fed.outstanding());
  std::atomic_ref(*word).store(1, std::memory_order_release);
  pump_until_quiet(fed);
  EXPECT_EQ(awaited.ended, 1);
  EXPECT_TRUE(awaited.outcome.ok());
  driver_->fail("reached", 1, status(errc::device, "lost"));
  auto& failing = add(nullptr, nullptr, 0, true);
  failing.task.awaited = event;
  fed.submit(failing.task);
  pump_until_quiet(fed);
  EXPECT_EQ(failing.outcome.code(), errc::device);
}

TEST_F(feeder_test, a_copy_that_fails_on_the_device_disturbs_no_other) {
  constexpr std::size_t count = 100;
  const auto content = random_bytes(count * slot_bytes, 3);
  pinned_memory there(*session_, content.size());
  there.fill(content);
  const device_memory memory(*session_, content.size());
  feeder fed(*session_);
  for (std::size_t i = 0; i < count; ++i) {
    // Every tenth reaches past the end of the allocation.
    const std::size_t at = i % 10 == 7 ? content.size() - 1 : i * slot_bytes;
    fed.submit(add(memory.data() + at, there.data() + i * slot_bytes, slot_bytes, true).task);
  }
  pump_until_quiet(fed);
  pinned_memory back(*session_, content.size());
  PENSTOCK_EXPECT_OK(session_->copy(back.data(), memory.data(), content.size(), nullptr));
  PENSTOCK_EXPECT_OK(session_->synchronize(nullptr));
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(copies_[i].ended, 1) << i;
    if (i % 10 == 7) {
      EXPECT_EQ(copies_[i].outcome.code(), errc::bad_memory) << i;
    } else {
      EXPECT_TRUE(copies_[i].outcome.ok()) << i << ": " << copies_[i].outcome.message();
      EXPECT_EQ(std::memcmp(back.data() + i * slot_bytes, content.data() + i * slot_bytes, slot_bytes), 0) << i;
    }
  }
}

// Each call that the feeder makes fails once, in turn; the copy that met the failure says so, and the others arrive.
TEST_F(feeder_test, a_call_that_fails_is_one_copys_failure) {
  constexpr std::size_t count = 8;
  const auto content = random_bytes(count * slot_bytes, 4);
  for (const char* call : {"make_stream", "make_event", "copy", "record", "reached"}) {
    SCOPED_TRACE(call);
    pinned_memory there(*session_, content.size());
    pinned_memory back(*session_, content.size());
    there.fill(content);
    const device_memory memory(*session_, content.size());
    copies_.clear();
    {
      feeder fed(*session_);
      driver_->fail(call, std::string_view(call) == "make_event" ? 5 : 1, status(errc::device, "injected"));
      for (std::size_t at = 0; at < content.size(); at += slot_bytes)
        fed.submit(add(memory.data() + at, there.data() + at, slot_bytes, true).task);
      pump_until_quiet(fed);
    }
    driver_->clear_faults();
    PENSTOCK_EXPECT_OK(session_->copy(back.data(), memory.data(), content.size(), nullptr));
    PENSTOCK_EXPECT_OK(session_->synchronize(nullptr));
    std::size_t failed = 0;
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(copies_[i].ended, 1) << i;
      failed += copies_[i].outcome.ok() ? 0 : 1;
      if (copies_[i].outcome.ok()) {
        EXPECT_EQ(std::memcmp(back.data() + i * slot_bytes, content.data() + i * slot_bytes, slot_bytes), 0) << i;
      } else {
        EXPECT_EQ(copies_[i].outcome.code(), errc::device) << i;
      }
    }
    EXPECT_EQ(failed, 1U);
    EXPECT_EQ(driver_->live().streams, 0);
    EXPECT_EQ(driver_->live().events, 0);
  }
}

TEST_F(feeder_test, a_scatter_is_one_task) {
  constexpr std::size_t count = 20;
  const auto content = random_bytes(count * 1000, 5);
  pinned_memory slab(*session_, 64 * 1024);
  slab.fill(content);
  const device_memory memory(*session_, count * 3000);
  auto* table = reinterpret_cast<device::segment*>(slab.data() + 32 * 1024);
  for (std::size_t i = 0; i < count; ++i) table[i] = {slab.data() + i * 1000, memory.data() + i * 3000 + i, 1000};
  feeder fed(*session_);
  auto& scattered = add(nullptr, nullptr, 0, true);
  scattered.task.table = table;
  scattered.task.count = count;
  fed.submit(scattered.task);
  pump_until_quiet(fed);
  ASSERT_EQ(scattered.ended, 1);
  PENSTOCK_EXPECT_OK(scattered.outcome);
  pinned_memory back(*session_, count * 3000);
  PENSTOCK_EXPECT_OK(session_->copy(back.data(), memory.data(), back.size(), nullptr));
  PENSTOCK_EXPECT_OK(session_->synchronize(nullptr));
  for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(std::memcmp(back.data() + i * 3000 + i, content.data() + i * 1000, 1000), 0) << i;
}

TEST_F(feeder_test, a_packed_slab_is_sent_and_told_apart) {
  constexpr std::size_t slabs = 11;   // more than there are rooms
  constexpr std::size_t count = 300;  // more than travel with a launch
  const auto content = random_bytes(slabs * count * 1000, 5);
  pinned_memory pinned(*session_, content.size());
  pinned.fill(content);
  const device_memory memory(*session_, content.size() * 2);
  feeder fed(*session_);
  std::vector<std::vector<device::segment>> tables(slabs);
  for (std::size_t i = 0; i < slabs; ++i) {
    const std::byte* const slab = pinned.data() + i * count * 1000;
    for (std::size_t j = 0; j < count; ++j) {
      tables[i].push_back({slab + j * 1000, memory.data() + (i * count + j) * 2000 + j % 7, 1000 - j % 3});
    }
    auto& task = add(nullptr, nullptr, count * 1000, true).task;
    task.table = tables[i].data();
    task.count = count;
    task.packed = slab;
    task.prompt = i % 3 == 0;
    fed.submit(task);
  }
  pump_until_quiet(fed);
  for (const auto& each : copies_) PENSTOCK_EXPECT_OK(each.outcome);
  std::vector<std::byte> back(content.size() * 2);
  pinned_memory read(*session_, back.size());
  PENSTOCK_EXPECT_OK(session_->copy(read.data(), memory.data(), read.size(), nullptr));
  PENSTOCK_EXPECT_OK(session_->synchronize(nullptr));
  for (std::size_t i = 0; i < slabs * count; ++i) {
    const std::size_t j = i % count;
    ASSERT_EQ(std::memcmp(read.data() + i * 2000 + j % 7, content.data() + i * 1000, 1000 - j % 3), 0) << i;
  }
  EXPECT_GT(driver_->live().allocations, 1);
  fed.trim();
  EXPECT_EQ(driver_->live().allocations, 1);
}

TEST_F(feeder_test, a_packed_slab_that_cannot_be_sent_ends_once_with_the_reason) {
  for (const std::string_view call :
       {"prepare_scatter", "make_stream", "make_event", "allocate", "copy", "record", "wait_event", "scatter_short", "reached"}) {
    SCOPED_TRACE(call);
    pinned_memory pinned(*session_, slot_bytes);
    const device_memory memory(*session_, slot_bytes);
    const std::vector<device::segment> table{{pinned.data(), memory.data() + 100, 100}, {pinned.data() + 100, memory.data(), 100}};
    feeder fed(*session_);
    for (int nth : {1, 2}) {
      driver_->clear_faults();
      driver_->fail(call, nth, status(errc::device, "broken"));
      auto& failed = add(nullptr, nullptr, slot_bytes, true);
      failed.task.table = table.data();
      failed.task.count = table.size();
      failed.task.packed = pinned.data();
      fed.submit(failed.task);
      pump_until_quiet(fed);
      EXPECT_EQ(failed.ended, 1);
      if (nth == 1) {
        EXPECT_EQ(failed.outcome.code(), errc::device) << failed.outcome.message();
      }
    }
    driver_->clear_faults();
  }
  EXPECT_EQ(driver_->live().streams, 0);
  EXPECT_EQ(driver_->live().events, 0);
}

TEST_F(feeder_test, an_end_may_submit_the_next_copy) {
  struct chain {
    feeder* fed;
    int left = 100;
  };
  pinned_memory there(*session_, slot_bytes);
  there.fill(std::byte{7});
  const device_memory memory(*session_, slot_bytes);
  feeder fed(*session_);
  chain links{&fed};
  copy_task task{.target = memory.data(), .source = there.data(), .bytes = slot_bytes};
  task.context = &links;
  task.done = [](copy_task& again, status ended) {
    PENSTOCK_EXPECT_OK(ended);
    auto& rest = *static_cast<chain*>(again.context);
    if (--rest.left > 0) rest.fed->submit(again);
  };
  fed.submit(task);
  pump_until_quiet(fed);
  EXPECT_EQ(links.left, 0);
}

TEST_F(feeder_test, any_number_of_threads_may_submit_and_pump) {
  constexpr std::size_t threads = 4;
  constexpr std::size_t rounds = 200;
  const auto content = random_bytes(threads * rounds * 64, 6);
  pinned_memory there(*session_, content.size());
  pinned_memory back(*session_, content.size());
  there.fill(content);
  const device_memory memory(*session_, content.size());
  for (std::size_t i = 0; i < threads * rounds; ++i) add(memory.data() + i * 64, there.data() + i * 64, 64, true);
  feeder fed(*session_);
  std::vector<std::thread> crew;
  for (std::size_t t = 0; t < threads; ++t) {
    crew.emplace_back([&, t] {
      for (std::size_t i = 0; i < rounds; ++i) {
        fed.submit(copies_[t * rounds + i].task);
        fed.pump();
      }
      pump_until_quiet(fed);
    });
  }
  for (auto& each : crew) each.join();
  for (const auto& each : copies_) {
    ASSERT_EQ(each.ended, 1);
    PENSTOCK_EXPECT_OK(each.outcome);
  }
  PENSTOCK_EXPECT_OK(session_->copy(back.data(), memory.data(), content.size(), nullptr));
  PENSTOCK_EXPECT_OK(session_->synchronize(nullptr));
  EXPECT_TRUE(back.holds(content));
}

TEST_F(feeder_test, a_session_has_one_feeder_and_one_thread_has_the_watch) {
  feeders all;
  feeder* first = testing::value_of(all.of(*session_));
  EXPECT_EQ(testing::value_of(all.of(*session_)), first);
  EXPECT_FALSE(all.outstanding());
  auto watch = all.try_watch();
  EXPECT_TRUE(watch);
  EXPECT_FALSE(all.try_watch());
  watch.end();
  EXPECT_FALSE(watch);
  EXPECT_TRUE(all.try_watch());
}

// Copies that nobody pumps but the watcher.
class watcher_test : public feeder_test {
 protected:
  void submit_and_leave() {
    feeders all;
    feeder* fed = testing::value_of(all.of(*session_));
    PENSTOCK_EXPECT_OK(all.ready());
    pinned_memory there(*session_, slot_bytes);
    const device_memory memory(*session_, slot_bytes);
    there.fill(std::byte{1});
    for (int i = 0; i < 50; ++i) {
      std::binary_semaphore ended(0);
      copy_task task{.target = memory.data(), .source = there.data(), .bytes = slot_bytes};
      task.context = &ended;
      task.done = [](copy_task& done, status copied) {
        PENSTOCK_EXPECT_OK(copied);
        static_cast<std::binary_semaphore*>(done.context)->release();
      };
      auto watch = watched_ ? all.try_watch() : feeders::watch();
      fed->submit(task);
      all.attend();
      watch.end();
      ended.acquire();
    }
    while (all.outstanding()) std::this_thread::yield();
  }
  bool watched_ = false;
};

TEST_F(watcher_test, a_copy_ends_though_its_submitter_leaves) { submit_and_leave(); }

TEST_F(watcher_test, who_lets_go_of_the_watch_hands_it_over) {
  watched_ = true;
  submit_and_leave();
}

TEST_F(watcher_test, its_last_deed_may_be_its_own_end) {
  static std::binary_semaphore gone(0);
  auto* all = new feeders();
  EXPECT_FALSE(all->end_with([](void*) {}, nullptr)) << "there is no watcher yet";
  PENSTOCK_EXPECT_OK(all->ready());
  EXPECT_TRUE(all->end_with(
      [](void* self) {
        delete static_cast<feeders*>(self);
        gone.release();
      },
      all));
  gone.acquire();
}

}  // namespace
}  // namespace penstock::staging
