// Memory of another process that is mapped: with its message, and ahead of it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
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
  void map_ahead(const allocation& of) { imports_->map_ahead(by_, of.shared.handle, of.shared.generation, getpid()); }
  result<pipe_imports::held> open(const allocation& of) { return imports_->open(by_, of.shared.handle, of.shared.generation, getpid()); }
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
  faulty_driver driver_{device::make_host_driver()};
  device::session& by_ = **driver_.open(0, nullptr);
  std::atomic<bool> held_up_{false};
  std::promise<void> entered_;
  std::promise<void> go_on_;
  const std::shared_ptr<pipe_imports> imports_ = std::make_shared<pipe_imports>();
};

TEST_F(pipe_imports_of_a_neighbour, what_was_mapped_ahead_is_what_the_message_opens) {
  const auto memory = allocate();
  map_ahead(memory);
  map_ahead(memory);
  EXPECT_EQ(driver_.live().imports, 1);
  EXPECT_FALSE(imports_->would_map_ahead(by_, memory.shared.handle)) << "no thread is to be woken for it";
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
  auto opened = std::async(std::launch::async, [&] { return open(memory).ok(); });
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

TEST_F(pipe_imports_of_a_neighbour, the_thread_that_maps_leaves_out_what_was_withdrawn_and_outlives_its_pipe) {
  const auto memory = allocate();
  const auto targets_of = [](const allocation& of) {
    channel::tensor_facts told;
    told.parts.push_back({of.shared.handle, of.shared.generation, 0, 100, false});
    return std::make_shared<const imports_ahead::targets>(1, told);
  };
  auto first = targets_of(memory);
  const auto other = allocate();
  auto second = targets_of(other);
  hold_up();
  {
    staging::lanes thread(1, std::chrono::microseconds(0), nullptr);
    auto ahead = std::make_shared<imports_ahead>(thread, imports_);
    ahead->add(by_, first, getpid());
    entered_.get_future().wait();
    ahead->add(by_, second, getpid());
    second.reset();
    imports_->clear();
    ahead.reset();
    go_on_.set_value();
  }
  EXPECT_EQ(driver_.calls("open_shared"), 1U);
  EXPECT_EQ(driver_.live().imports, 0);
  release(memory);
  release(other);
}

}  // namespace
}  // namespace penstock::testing
