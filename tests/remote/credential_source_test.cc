// When credentials are renewed, by which thread, and which threads wait.
#include "remote/credentials/credential_source.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <new>
#include <optional>
#include <semaphore>
#include <string>
#include <thread>
#include <vector>

namespace penstock::source::remote {
namespace {

using std::chrono::minutes;

// A clock that stands, and keys that are numbered.
class credential_source_test : public ::testing::Test {
 protected:
  credential_source made_source() {
    return {[this] { return find(); }, [this] { return now.load(); }};
  }

  result<credentials> find() {
    const int number = ++found;
    if (gate) gate(number);
    if (problem) return status(errc::io, *problem);
    return credentials{
        "AKIA" + std::to_string(number), secret_text("x"), {}, lasts ? std::optional(now.load() + *lasts) : std::nullopt, "a test"};
  }

  static std::string id_of(const result<std::shared_ptr<const credentials>>& one) {
    return one.ok() ? (*one)->access_key_id : std::string(one.error().message());
  }

  std::atomic<wall_time> now{wall_time(std::chrono::hours(500000))};
  std::optional<minutes> lasts = minutes(60);
  std::optional<std::string> problem;
  std::function<void(int)> gate;
  std::atomic<int> found{0};
};

TEST_F(credential_source_test, those_that_last_are_found_once) {
  lasts.reset();
  auto source = made_source();
  EXPECT_TRUE(source.is_due());
  EXPECT_EQ(source.kept(), nullptr);
  EXPECT_EQ(id_of(source.current()), "AKIA1");
  now = now.load() + std::chrono::hours(100000);
  EXPECT_EQ(id_of(source.current()), "AKIA1");
  EXPECT_FALSE(source.is_due());
}

TEST_F(credential_source_test, they_are_renewed_five_minutes_before_they_expire) {
  auto source = made_source();
  EXPECT_EQ(id_of(source.current()), "AKIA1");
  now = now.load() + minutes(55) - std::chrono::seconds(1);
  EXPECT_EQ(id_of(source.current()), "AKIA1");
  now = now.load() + std::chrono::seconds(1);
  EXPECT_TRUE(source.is_due());
  EXPECT_EQ(source.kept()->access_key_id, "AKIA1");
  EXPECT_EQ(id_of(source.current()), "AKIA2");
}

TEST_F(credential_source_test, a_renewal_that_fails_is_tried_again_a_minute_later_while_they_are_valid) {
  auto source = made_source();
  EXPECT_EQ(id_of(source.current()), "AKIA1");
  problem = "no";
  now = now.load() + minutes(56);
  EXPECT_EQ(id_of(source.current()), "AKIA1");
  EXPECT_EQ(id_of(source.current()), "AKIA1");
  EXPECT_EQ(found, 2);
  now = now.load() + minutes(1);
  EXPECT_EQ(id_of(source.current()), "AKIA1");
  EXPECT_EQ(found, 3);
  now = now.load() + minutes(3);
  EXPECT_EQ(source.kept(), nullptr);
  EXPECT_EQ(id_of(source.current()), "no");
  problem.reset();
  EXPECT_EQ(id_of(source.current()), "AKIA5");
}

TEST_F(credential_source_test, those_that_last_shorter_are_not_renewed_with_each_call) {
  lasts = minutes(3);
  auto source = made_source();
  for (int i = 0; i < 5; ++i) EXPECT_EQ(id_of(source.current()), "AKIA1");
  now = now.load() + minutes(1);
  EXPECT_EQ(id_of(source.current()), "AKIA2");
}

TEST_F(credential_source_test, one_thread_renews_and_the_others_go_on) {
  auto source = made_source();
  EXPECT_EQ(id_of(source.current()), "AKIA1");
  std::binary_semaphore renewing{0}, go_on{0};
  gate = [&](int) {
    renewing.release();
    go_on.acquire();
  };
  now = now.load() + minutes(57);
  std::thread renewer([&] { EXPECT_EQ(id_of(source.current()), "AKIA2"); });
  renewing.acquire();
  EXPECT_EQ(id_of(source.current()), "AKIA1");
  EXPECT_FALSE(source.is_due());
  go_on.release();
  renewer.join();
  EXPECT_EQ(id_of(source.current()), "AKIA2");
}

TEST_F(credential_source_test, those_who_have_nothing_wait_for_the_one_who_looks) {
  for (const bool fails : {false, true}) {
    if (fails) problem = "no";
    found = 0;
    auto source = made_source();
    std::binary_semaphore looking{0}, go_on{0};
    gate = [&](int number) {
      if (number > 1) return;
      looking.release();
      go_on.acquire();
    };
    std::vector<std::thread> waiting;
    waiting.emplace_back([&] { EXPECT_EQ(id_of(source.current()), fails ? "no" : "AKIA1"); });
    looking.acquire();
    // Who comes late, after the first has ended, finds what is kept, or looks for itself.
    for (int i = 0; i < 4; ++i) waiting.emplace_back([&] { EXPECT_EQ(id_of(source.current()), fails ? "no" : "AKIA1"); });
    go_on.release();
    for (auto& each : waiting) each.join();
    EXPECT_EQ(found == 1, !fails || found == 1);
  }
}

TEST_F(credential_source_test, a_search_without_memory_leaves_nobody_waiting) {
  auto source = made_source();
  gate = [](int) { throw std::bad_alloc(); };
  EXPECT_EQ(source.current().error().code(), errc::out_of_memory);
  gate = nullptr;
  EXPECT_EQ(id_of(source.current()), "AKIA2");
}

TEST_F(credential_source_test, those_that_a_server_refuses_are_found_again) {
  lasts.reset();
  auto source = made_source();
  const auto first = *source.current();
  source.refuse(first);
  EXPECT_EQ(id_of(source.current()), "AKIA2");
  source.refuse(first);  // by somebody who comes late
  EXPECT_EQ(id_of(source.current()), "AKIA2");
}

}  // namespace
}  // namespace penstock::source::remote
