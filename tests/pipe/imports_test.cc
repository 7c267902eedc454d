// Memory of another process that is mapped: with its message, and ahead of it.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "channel/imports.hpp"
#include "channel/imports_ahead.hpp"
#include "support/faulty_device.hpp"

namespace penstock::testing {
namespace {

using channel::imports_ahead;
using channel::pipe_imports;

// 0: it has not begun.
bool sleeps(pid_t thread) {
  std::ifstream from("/proc/self/task/" + std::to_string(thread) + "/stat");
  std::string facts;
  std::getline(from, facts);
  return facts.find(") S ") != std::string::npos;
}

class pipe_imports_of_a_neighbour : public ::testing::Test {
 protected:
  struct allocation {
    void* memory;
    device::shared_memory shared;
  };
  allocation allocate() {
    auto& session = **owner_->open(0, nullptr);
    auto* const made = *session.allocate(10'000);
    return {made, *session.share(made)};
  }
  void release(const allocation& of) { EXPECT_TRUE((*owner_->open(0, nullptr))->release(of.memory).ok()); }
  void map_ahead(const allocation& of) { map_ahead(of, posting_); }
  void map_ahead(const allocation& of, const std::shared_ptr<const void>& posting) {
    imports_->map_ahead(by_, of.shared.handle, of.shared.generation, getpid(), posting);
  }
  result<pipe_imports::held> open(const allocation& of) { return imports_->open(by_, of.shared.handle, of.shared.generation, getpid()); }
  static std::shared_ptr<const imports_ahead::targets> targets_of(const std::vector<allocation>& parts) {
    channel::tensor_facts told;
    for (const auto& of : parts) told.parts.push_back({of.shared.handle, of.shared.generation, 0, 100, false});
    return std::make_shared<const imports_ahead::targets>(1, told);
  }
  // Holds up the next mapping until it may go on.
  void hold_up() {
    driver_.set_hook([this](std::string_view call, std::uint64_t /*n*/) -> std::optional<status> {
      if (call != "open_shared") return std::nullopt;
      if (held_up_.exchange(true)) return std::nullopt;
      entered_.set_value();
      go_on_.get_future().wait();
      return std::nullopt;
    });
  }

  const std::shared_ptr<device::driver> owner_ = device::make_host_driver();
  faulty_driver driver_{device::make_host_driver(2)};
  device::session& by_ = **driver_.open(0, nullptr);
  std::atomic<bool> held_up_{false};
  std::promise<void> entered_;
  std::promise<void> go_on_;
  const std::shared_ptr<const void> posting_ = std::make_shared<int>();
  const std::shared_ptr<pipe_imports> imports_ = std::make_shared<pipe_imports>();
};

TEST_F(pipe_imports_of_a_neighbour, what_was_mapped_ahead_is_what_the_message_opens) {
  const auto memory = allocate();
  map_ahead(memory);
  map_ahead(memory);
  EXPECT_EQ(driver_.live().imports, 1);
  EXPECT_TRUE(imports_->knows(by_, memory.shared.handle)) << "no thread is to be woken for it";
  ASSERT_TRUE(open(memory).ok());
  EXPECT_EQ(driver_.calls("open_shared"), 1U);
  release(memory);
}

TEST_F(pipe_imports_of_a_neighbour, no_more_is_mapped_ahead_than_the_limit_and_messages_open_what_they_need) {
  std::vector<allocation> memory;
  for (std::size_t i = 0; i < pipe_imports::most_ahead + 3; ++i) {
    memory.push_back(allocate());
    map_ahead(memory.back());
  }
  EXPECT_EQ(driver_.live().imports, static_cast<std::int64_t>(pipe_imports::most_ahead));
  ASSERT_TRUE(open(memory.back()).ok());
  ASSERT_TRUE(open(memory.front()).ok());
  map_ahead(memory[memory.size() - 2]);  // there is room for one again
  EXPECT_EQ(driver_.live().imports, static_cast<std::int64_t>(pipe_imports::most_ahead) + 2);
  for (const auto& each : memory) release(each);
}

TEST_F(pipe_imports_of_a_neighbour, memory_whose_posting_has_gone_unopened_makes_room_for_others_and_failures_do_too) {
  constexpr auto most = pipe_imports::most_ahead;
  auto gone = std::make_shared<int>();
  std::vector<allocation> memory;
  while (memory.size() < most + 1) memory.push_back(allocate());
  driver_.fail("open_shared", 1, status(errc::device, "injected"), 10);
  for (std::size_t i = 0; i < most; ++i) map_ahead(memory[i], i + 1 < most ? gone : posting_);
  map_ahead(memory[most]);
  EXPECT_EQ(driver_.calls("open_shared"), most) << "all are wanted, and there is no room";
  gone.reset();
  map_ahead(memory[most]);
  EXPECT_EQ(driver_.live().imports, 2) << "the one that is still posted, and the new one";
  ASSERT_TRUE(open(memory[most - 1]).ok());
  ASSERT_TRUE(open(memory[most]).ok());
  EXPECT_EQ(driver_.calls("open_shared"), most + 1);
  for (const auto& each : memory) release(each);
}

// The descriptor is passed once. No process has this number, so only the descriptor leads to the memory.
TEST_F(pipe_imports_of_a_neighbour, a_wrong_guess_of_the_device_leaves_the_descriptor_for_the_one_that_writes) {
  const auto memory = allocate();
  const auto& handle = memory.shared.handle;
  const auto generation = memory.shared.generation;
  auto descriptor = (*owner_->open(0, nullptr))->export_shared(memory.memory);
  ASSERT_TRUE(descriptor.ok());
  imports_->offer(handle, generation, *std::move(descriptor));
  imports_->map_ahead(by_, handle, generation, -1, posting_);
  EXPECT_EQ(driver_.live().imports, 1);
  auto& writes = **driver_.open(1, nullptr);
  ASSERT_TRUE(imports_->open(writes, handle, generation, -1).ok());
  EXPECT_EQ(driver_.live().imports, 2);
  release(memory);
}

TEST_F(pipe_imports_of_a_neighbour, a_descriptor_goes_with_the_first_message_that_opens_its_memory) {
  std::vector<allocation> all;  // of different places, which is what handles tell
  for (const bool ahead : {true, false}) {
    SCOPED_TRACE(ahead);
    const auto memory = all.emplace_back(allocate());
    auto descriptor = (*owner_->open(0, nullptr))->export_shared(memory.memory);
    ASSERT_TRUE(descriptor.ok());
    const int number = descriptor->get();
    imports_->offer(memory.shared.handle, memory.shared.generation, *std::move(descriptor));
    if (ahead) map_ahead(memory);
    EXPECT_GE(::fcntl(number, F_GETFD), 0);
    ASSERT_TRUE(open(memory).ok());
    EXPECT_LT(::fcntl(number, F_GETFD), 0) << "it is closed";
  }
  for (const auto& each : all) release(each);
}

TEST_F(pipe_imports_of_a_neighbour, a_mapping_that_fails_ahead_is_tried_again_by_the_message_which_tells_why) {
  const auto memory = allocate();
  driver_.fail("open_shared", 1, status(errc::device, "injected"), 2);
  map_ahead(memory);
  map_ahead(memory);  // is not tried again
  const auto failed = open(memory);
  ASSERT_FALSE(failed.ok());
  EXPECT_NE(failed.error().message().find("injected"), std::string::npos);
  EXPECT_TRUE(open(memory).ok());
  release(memory);
}

TEST_F(pipe_imports_of_a_neighbour, a_message_waits_for_a_mapping_under_way_and_others_do_not) {
  const auto memory = allocate();
  const auto other = allocate();
  ASSERT_TRUE(open(other).ok());
  hold_up();
  std::thread ahead([&] { map_ahead(memory); });
  entered_.get_future().wait();
  EXPECT_TRUE(open(other).ok()) << "it is mapped, whatever else is being mapped";
  imports_->offer("another", 0, {});
  std::atomic<pid_t> thread{0};
  auto opened = std::async(std::launch::async, [&] {
    thread.store(gettid());
    return open(memory).ok();
  });
  const auto has_ended = [&] { return opened.wait_for(std::chrono::seconds(0)) == std::future_status::ready; };
  while (!has_ended() && !sleeps(thread.load())) std::this_thread::yield();
  EXPECT_FALSE(has_ended()) << "it waits";
  go_on_.set_value();
  EXPECT_TRUE(opened.get());
  ahead.join();
  EXPECT_EQ(driver_.calls("open_shared"), 2U);
  release(memory);
  release(other);
}

TEST_F(pipe_imports_of_a_neighbour, what_is_being_mapped_when_all_is_let_go_of_is_not_kept) {
  const auto memory = allocate();
  hold_up();
  std::thread ahead([&] { map_ahead(memory); });
  entered_.get_future().wait();
  imports_->clear();
  go_on_.set_value();
  ahead.join();
  EXPECT_EQ(driver_.live().imports, 0);
  map_ahead(memory);
  EXPECT_EQ(driver_.calls("open_shared"), 1U) << "nothing is mapped ahead any more";
  release(memory);
}

TEST_F(pipe_imports_of_a_neighbour, the_thread_that_maps_leaves_out_what_was_withdrawn) {
  const std::vector<allocation> memory = {allocate(), allocate(), allocate()};
  const auto first = targets_of({memory[0]});
  auto withdrawn = targets_of({memory[1]});
  const auto last = targets_of({memory[2]});
  hold_up();
  {
    staging::lanes thread(1, std::chrono::microseconds(0), nullptr);
    const auto ahead = std::make_shared<imports_ahead>(thread, imports_);
    ahead->add(by_, first, getpid());
    entered_.get_future().wait();
    ahead->add(by_, withdrawn, getpid());
    ahead->add(by_, last, getpid());
    withdrawn.reset();
    go_on_.set_value();
  }
  EXPECT_EQ(driver_.live().imports, 2);
  EXPECT_FALSE(imports_->knows(by_, memory[1].shared.handle));
  for (const auto& each : memory) release(each);
}

TEST_F(pipe_imports_of_a_neighbour, the_thread_that_maps_outlives_its_pipe_and_leaves_nothing_mapped) {
  const std::vector<allocation> memory = {allocate(), allocate()};
  const auto targets = targets_of(memory);
  hold_up();
  {
    staging::lanes thread(1, std::chrono::microseconds(0), nullptr);
    auto ahead = std::make_shared<imports_ahead>(thread, imports_);
    ahead->add(by_, targets, getpid());
    entered_.get_future().wait();
    imports_->clear();
    ahead.reset();
    go_on_.set_value();
  }
  EXPECT_EQ(driver_.calls("open_shared"), 1U);
  EXPECT_EQ(driver_.live().imports, 0);
  for (const auto& each : memory) release(each);
}

TEST_F(pipe_imports_of_a_neighbour, of_a_posting_no_more_parts_are_looked_at_than_may_be_mapped_ahead) {
  const auto known = allocate();
  const auto beyond = allocate();
  ASSERT_TRUE(open(known).ok());
  std::vector<allocation> parts(imports_ahead::most_queued, known);
  parts.push_back(beyond);
  const auto targets = targets_of(parts);
  {
    staging::lanes thread(1, std::chrono::microseconds(0), nullptr);
    const auto ahead = std::make_shared<imports_ahead>(thread, imports_);
    ahead->add(by_, targets, getpid());
  }
  EXPECT_FALSE(imports_->knows(by_, beyond.shared.handle));
  release(known);
  release(beyond);
}

}  // namespace
}  // namespace penstock::testing
