// Rate limits: requests take as long as the limit demands, and can be cancelled meanwhile.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <vector>

#include "contract/contract_fixture.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;

enum class limited { file, engine, both };

struct rate_case {
  limited by;
  memory_place place;
};

class rate_limit_contract : public ::testing::TestWithParam<rate_case> {
 protected:
  static constexpr std::uint64_t rate = 64 * mib;
  static constexpr std::uint64_t length = 16 * mib;
  // So little that what is held back would take minutes.
  static constexpr std::uint64_t trickle = 4 * kib;

  static bool by_engine() { return GetParam().by != limited::file; }
  static bool by_file() { return GetParam().by != limited::engine; }
  static engine_options options_of(std::uint64_t bytes_per_second) {
    engine_options options;
    options.lanes = 2;
    if (by_engine()) options.bytes_per_second = bytes_per_second;
    return options;
  }
  file open_with(open_house& house, std::uint64_t bytes_per_second, bool immutable = false) {
    auto opened = house.engine().open(
        name_, {.read = true, .write = !immutable, .immutable = immutable, .bytes_per_second = by_file() ? bytes_per_second : 0});
    EXPECT_TRUE(opened.ok()) << told(opened.error());
    return opened.ok() ? *std::move(opened) : file();
  }
  // Holds back whatever comes afterwards.
  void fill_up(const file& target, guarded_memory& memory) {
    const auto first = target.write(memory.data(), 256 * kib, 0);
    ASSERT_TRUE(first.ok()) << told(first.error);
  }

  temp_dir directory_ = temp_dir::on_build_disk();
  std::string name_ = directory_.file("data");
  bytes content_ = pattern::make(length, 1);
  void SetUp() override { store_file(name_, content_); }
};

// Only the least time that it takes is certain.
TEST_P(rate_limit_contract, bytes_of_all_kinds_of_requests_take_their_time) {
  open_house house(options_of(rate));
  const auto target = open_with(house, rate);
  guarded_memory memory(house, GetParam().place, length);
  const auto began = std::chrono::steady_clock::now();
  std::uint64_t moved = 0;
  const auto add = [&](const io_result& outcome) {
    EXPECT_TRUE(outcome.ok()) << told(outcome.error);
    moved += outcome.bytes_done;
  };
  add(target.read(memory.data(), length, 0));
  memory.expect(content_);
  add(target.write_async(memory.data(), length, 0).wait());
  for (std::uint64_t at = 0; at < mib; at += 64 * kib) add(target.read(memory.data() + at, 64 * kib, static_cast<std::int64_t>(at)));
  std::vector<operation> small;
  for (std::uint64_t at = 0; at < mib; at += 4 * kib)
    small.push_back(target.read_async(memory.data() + at, 4 * kib, static_cast<std::int64_t>(at)));
  for (auto& each : small) add(each.wait());
  std::vector<io_request> batch;
  for (std::uint64_t at = 0; at < 2 * mib; at += 64 * kib)
    batch.push_back({&target, memory.data() + at, 64 * kib, static_cast<std::int64_t>(at)});
  for (const auto& each : house.engine().submit(batch).wait()) add(each);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  memory.expect(content_);
  expect_file(name_, content_);
  EXPECT_EQ(moved, 2 * length + 4 * mib);
  // The last piece, and what has flowed at once, were not waited for.
  const auto free = rate * std::chrono::duration<double>(50ms).count() + 16 * mib;
  EXPECT_GE(took.count(), (static_cast<double>(moved) - free) / static_cast<double>(rate));
  const auto seen = house.engine().stats().usage;
  EXPECT_GT(seen.held_pieces, 0U);
  EXPECT_GT(seen.held_bytes, 0U);
  EXPECT_GT(seen.held_ns, 0U);
}

TEST_P(rate_limit_contract, what_is_held_back_ends_at_its_deadline) {
  open_house house(options_of(trickle));
  const auto target = open_with(house, trickle);
  guarded_memory memory(house, GetParam().place, length);
  fill_up(target, memory);
  const io_options soon{.deadline = deadline_clock::now() + 5ms};
  const auto called = target.read(memory.data(), length, 0, soon);
  EXPECT_EQ(called.error.code(), errc::timed_out);
  EXPECT_EQ(called.bytes_done, 0U);
  const io_options later{.deadline = deadline_clock::now() + 5ms};
  EXPECT_EQ(target.read_async(memory.data(), 4 * kib, 0, later).wait().error.code(), errc::timed_out);
}

TEST_P(rate_limit_contract, what_is_held_back_can_be_cancelled) {
  open_house house(options_of(trickle));
  const auto target = open_with(house, trickle);
  guarded_memory memory(house, GetParam().place, length);
  fill_up(target, memory);
  auto large = target.read_async(memory.data(), length, 0);
  auto small = target.read_async(memory.data(), 4 * kib, 0);
  std::vector<io_request> requests;
  for (std::uint64_t at = 0; at < mib; at += 64 * kib)
    requests.push_back({&target, memory.data() + at, 64 * kib, static_cast<std::int64_t>(at)});
  auto batch = house.engine().submit(requests);
  large.cancel();
  EXPECT_EQ(large.wait().error.code(), errc::cancelled);
  small.cancel();
  EXPECT_EQ(small.wait().error.code(), errc::cancelled);
  batch.cancel();
  for (const auto& each : batch.wait()) EXPECT_EQ(each.error.code(), errc::cancelled);
}

TEST_P(rate_limit_contract, closing_waits_for_what_is_held_back) {
  open_house house(options_of(rate));
  auto target = open_with(house, rate);
  guarded_memory memory(house, GetParam().place, length);
  memory.fill(content_);
  store_file(name_, bytes(length));
  auto under_way = target.write_async(memory.data(), length, 0);
  EXPECT_TRUE(target.close().ok());
  expect_file(name_, content_);
  EXPECT_TRUE(under_way.wait().ok());
}

TEST_P(rate_limit_contract, normal_requests_flow_before_those_in_the_background) {
  open_house house(options_of(rate));
  const auto target = open_with(house, rate);
  guarded_memory memory(house, GetParam().place, length);
  guarded_memory others(house, GetParam().place, length);
  std::vector<operation> behind;
  for (int i = 0; i < 4; ++i) behind.push_back(target.read_async(others.data(), length, 0, {.priority = request_priority::background}));
  const auto outcome = target.read(memory.data(), length, 0);
  EXPECT_TRUE(outcome.ok()) << told(outcome.error);
  EXPECT_FALSE(behind.back().done());
  for (auto& each : behind) EXPECT_TRUE(each.wait().ok());
  memory.expect(content_);
  others.expect(content_);
}

TEST_P(rate_limit_contract, a_forked_child_does_not_wait_for_what_its_parent_holds_back) {
  open_house house(options_of(trickle));
  const auto target = open_with(house, trickle);
  guarded_memory memory(house, GetParam().place, length);
  fill_up(target, memory);
  auto held = target.read_async(memory.data(), length, 0);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(target.read(memory.data(), 4 * kib, 0).error.code() == errc::forked ? 0 : 1);
  int ended = -1;
  ASSERT_EQ(::waitpid(child, &ended, 0), child);
  EXPECT_TRUE(WIFEXITED(ended) && WEXITSTATUS(ended) == 0);
  held.cancel();
  EXPECT_EQ(held.wait().error.code(), errc::cancelled);
}

TEST_P(rate_limit_contract, a_plan_tells_of_the_limit) {
  open_house house(options_of(rate));
  const auto target = open_with(house, rate);
  const auto where = GetParam().place == memory_place::device ? house.device() : std::string("host");
  const auto seen = house.engine().explain(target, where, length, 0);
  ASSERT_TRUE(seen.ok()) << told(seen.error());
  const auto told_of = std::count_if(seen->remarks.begin(), seen->remarks.end(),
                                     [](const std::string& each) { return each.starts_with("limited to 67108864 bytes per second"); });
  EXPECT_EQ(told_of, GetParam().by == limited::both ? 2 : 1);
}

TEST_P(rate_limit_contract, nothing_is_read_ahead_of_an_immutable_file) {
  open_house house(options_of(rate));
  const auto target = open_with(house, rate, true);
  EXPECT_EQ(target.core()->ahead(), nullptr);
}

std::string name_of_rate_case(const ::testing::TestParamInfo<rate_case>& info) {
  constexpr std::array names{"file", "engine", "both"};
  return std::string(names.at(static_cast<std::size_t>(info.param.by))) + "_" + to_string(info.param.place);
}

INSTANTIATE_TEST_SUITE_P(limits, rate_limit_contract,
                         ::testing::Values(rate_case{limited::file, memory_place::pageable}, rate_case{limited::file, memory_place::device},
                                           rate_case{limited::engine, memory_place::pageable},
                                           rate_case{limited::engine, memory_place::device},
                                           rate_case{limited::both, memory_place::device}),
                         name_of_rate_case);

}  // namespace
}  // namespace penstock::testing
