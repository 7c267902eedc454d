// What a forked child may do with inherited operations and files, whatever locks threads of the parent held when it forked.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <future>
#include <mutex>
#include <thread>

#include "core/engine_core.hpp"
#include "core/operation.hpp"
#include "support/engines.hpp"
#include "support/gated_kernel.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"

namespace penstock::testing {
namespace {

// The exit status of a child that runs body, or -1 where a signal ended it: that of the clock, should it hang.
template <class Body>
int outcome_in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    body();
    _exit(0);
  }
  int outcome = 0;
  if (child < 0 || waitpid(child, &outcome, 0) != child || !WIFEXITED(outcome)) return -1;
  return WEXITSTATUS(outcome);
}

// Ends what is queued with a lock, as all of them do.
class queued_operation final : public core::operation {
 public:
  using operation::operation;
  void end_queued() override {
    const std::lock_guard guard(lock);
    complete({0, stop_reason()});
  }
  std::mutex lock;

 private:
  ~queued_operation() override = default;
};

// Nobody tells of its end: who polls sees it.
class polled_operation final : public core::operation {
 public:
  using operation::operation;
  bool poll() noexcept override {
    if (looks.fetch_add(1) == 0) first_look.set_value();
    if (!is_there.exchange(false)) return false;
    complete({7, {}});
    return true;
  }
  std::atomic<int> looks{0};
  std::promise<void> first_look;
  std::atomic<bool> is_there{false};

 private:
  ~polled_operation() override = default;
};

TEST(operations, that_come_soon_are_looked_for_by_who_sleeps) {
  auto made = core::engine_core::make(without_cuda(), core::real_seams(without_cuda()));
  ASSERT_TRUE(made.ok()) << made.error().message();
  for (const bool has_deadline : {false, true}) {
    auto* const coming = new polled_operation(*made);
    coming->retain();
    std::thread waiter([&] {
      if (has_deadline) {
        EXPECT_TRUE(coming->wait_until(std::chrono::steady_clock::now() + std::chrono::minutes(1), std::chrono::microseconds(0)));
      } else {
        coming->wait(std::chrono::microseconds(0));
      }
    });
    coming->comes_soon();
    coming->first_look.get_future().wait();
    coming->is_there = true;
    waiter.join();
    EXPECT_EQ(coming->outcome().bytes_done, 7U);
    coming->release();
  }
}

TEST(operations, that_do_not_come_soon_are_left_alone_by_who_sleeps) {
  auto made = core::engine_core::make(without_cuda(), core::real_seams(without_cuda()));
  ASSERT_TRUE(made.ok()) << made.error().message();
  auto* const late = new polled_operation(*made);
  late->retain();
  EXPECT_FALSE(late->wait_until(std::chrono::steady_clock::now() + std::chrono::milliseconds(5), std::chrono::microseconds(0)));
  EXPECT_EQ(late->looks, 0);
  late->is_there = true;
  EXPECT_TRUE(late->poll());
  late->release();
}

TEST(operations, of_the_parent_are_cancelled_by_a_child_without_any_lock) {
  auto made = core::engine_core::make(without_cuda(), core::real_seams(without_cuda()));
  ASSERT_TRUE(made.ok()) << made.error().message();
  auto* const queued = new queued_operation(*made);
  queued->retain();
  queued->lock.lock();
  const int outcome = outcome_in_child([&] {
    queued->cancel();
    if (queued->done() || queued->stop_reason().code() != errc::cancelled) _exit(1);
    queued->wait(std::chrono::microseconds(0));
    if (queued->done()) _exit(2);
    queued->release();
  });
  EXPECT_EQ(outcome, 0);
  queued->lock.unlock();
  EXPECT_TRUE(queued->stop_reason().ok()) << "the parent's goes on";
  queued->cancel();
  EXPECT_TRUE(queued->done());
  queued->release();
}

TEST(operations, files_that_the_parent_is_closing_go_in_a_child) {
  const temp_dir directory;
  const auto name = directory.file("data");
  store_pattern(name, 8192, 1);
  gate before;
  core::seams doors{std::make_shared<gated_kernel>(before), nullptr, device::make_host_driver()};
  auto with = core::make_engine(without_cuda(), std::move(doors));
  ASSERT_TRUE(with.ok()) << with.error().message();
  auto file = opened_file(*with, name);
  std::array<std::byte, 4096> memory;
  before.shut({4096});
  std::thread reader([&] { EXPECT_TRUE(file.read(memory.data(), memory.size(), 4096).ok()); });
  before.await(1);
  std::thread closer([&] { EXPECT_TRUE(file.close().ok()); });
  while (file.size().error().code() != errc::closed) std::this_thread::yield();
  // It may sleep by now, or not yet: a child lets go of the file in both cases.
  for (int i = 0; i < 5; ++i) EXPECT_EQ(outcome_in_child([&] { file = {}; }), 0);
  before.open();
  reader.join();
  closer.join();
}

}  // namespace
}  // namespace penstock::testing
