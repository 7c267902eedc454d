// A process that puts and drops all the time is killed at a random moment, again and again. Afterwards no value has a wrong byte, and every
// value that was present at a completed sync() still exists. PENSTOCK_KV_CRASHES: the number of rounds.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <iostream>
#include <random>

#include "kv/kv_fixture.hpp"

namespace penstock::kv {
namespace {

// Of the keys, the first ones are dropped now and then; the others are only put.
constexpr std::uint64_t crash_keys = 24;
constexpr std::uint64_t dropped_keys = 8;
constexpr std::uint64_t roomy_bytes = 4 << 20;     // for two values of all keys
constexpr std::uint64_t narrow_bytes = 256 << 10;  // for some: values are dropped to make room

// What was there when a sync had ended: versions by key; 0: none.
using snapshot = std::array<std::uint64_t, crash_keys>;

// In the child. Never returns.
[[noreturn]] void write_until_killed(const std::string& folder, std::uint64_t capacity, std::uint64_t seed, snapshot now, int report) {
  std::mt19937_64 random(seed);
  const auto with = testing::made_engine(quiet_engine());
  const auto of = made_store(with, folder, {.capacity_bytes = capacity, .durable = random() % 4 == 0});
  std::uint64_t version = *std::max_element(now.begin(), now.end()) + 1000;
  while (true) {
    std::vector<call> calls;
    std::vector<bytes> values(1 + random() % 6);
    for (auto& value : values) {
      const auto key = random() % crash_keys;
      value = value_of(key, ++version);
      const memory_piece pieces[] = {{value.data(), value.size() / 2}, {value.data() + value.size() / 2, value.size() - value.size() / 2}};
      const auto name = key_of(key);
      const item one{name, pieces};
      calls.push_back(of.put_async(std::span(&one, 1)));
      now[key] = version;
    }
    for (auto& each : calls) {
      if (each.wait()[0].ended != outcome::done) _exit(2);
    }
    if (random() % 3 == 0) {
      const auto key = random() % dropped_keys;
      if (drop_one(of, key_of(key)).ended == outcome::failed) _exit(3);
      now[key] = 0;
    }
    if (random() % 4 != 0) continue;
    if (!of.sync().ok()) _exit(4);
    if (::write(report, now.data(), sizeof now) != sizeof now) _exit(5);
  }
}

// Kills the child after some of its reports, or soon after it has begun, and hands on the last report.
void run_and_kill(const std::string& folder, std::uint64_t capacity, std::mt19937_64& random, snapshot& last) {
  std::array<int, 2> pipe_ends{};
  ASSERT_EQ(::pipe(pipe_ends.data()), 0);
  const auto seed = random();
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    ::close(pipe_ends[0]);
    write_until_killed(folder, capacity, seed, last, pipe_ends[1]);
  }
  ::close(pipe_ends[1]);
  const auto reports = random() % 12;
  for (std::uint64_t i = 0; i < reports; ++i) ASSERT_EQ(::read(pipe_ends[0], last.data(), sizeof last), static_cast<ssize_t>(sizeof last));
  for (volatile std::uint64_t spin = random() % 3'000'000; spin > 0;) spin = spin - 1;
  ::kill(child, SIGKILL);
  int ended = 0;
  ASSERT_EQ(::waitpid(child, &ended, 0), child);
  ASSERT_TRUE(WIFSIGNALED(ended)) << "the child ended by itself: " << WEXITSTATUS(ended);
  while (::read(pipe_ends[0], last.data(), sizeof last) == static_cast<ssize_t>(sizeof last)) {
  }
  ::close(pipe_ends[0]);
}

// last becomes what is there.
void check_store(const std::string& folder, bool has_room, snapshot& last) {
  const auto with = testing::made_engine(quiet_engine());
  auto of = store::open(with, folder, {.read_only = true});
  if (!of) {  // killed before there was one
    ASSERT_EQ(of.error().code(), errc::not_found) << told(of.error());
    ASSERT_EQ(last, snapshot());
    return;
  }
  for (std::uint64_t key = 0; key < crash_keys; ++key) {
    const auto value = fetched(*of, key_of(key));
    const auto version = value ? version_of(key, *value) : 0;
    ASSERT_TRUE(version) << "key " << key << " has bytes of no version";
    if (has_room && key >= dropped_keys) {
      ASSERT_GE(*version, last[key]) << "key " << key;
    }
    last[key] = *version;
  }
  // And the next writer sees the same, and can go on.
  const auto next = made_store(with, folder, {});
  for (std::uint64_t key = 0; key < crash_keys; ++key) ASSERT_EQ(there(next, key_of(key)), last[key] != 0) << key;
}

TEST(kv_crash, a_process_that_is_killed_leaves_whole_values_and_all_that_were_synced) {
  const char* const asked = std::getenv("PENSTOCK_KV_CRASHES");
  const int rounds = asked != nullptr ? std::atoi(asked) : 12;
  const auto seed = std::random_device()();
  std::cout << "seed " << seed << '\n';
  std::mt19937_64 random(seed);
  const testing::temp_dir directory;
  std::array<snapshot, 2> last{};
  for (int round = 0; round < rounds && !::testing::Test::HasFatalFailure(); ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    const bool has_room = round % 2 == 0;
    const auto folder = directory.file(has_room ? "roomy" : "narrow");
    auto& known = last[has_room ? 0 : 1];
    run_and_kill(folder, has_room ? roomy_bytes : narrow_bytes, random, known);
    if (::testing::Test::HasFatalFailure()) return;
    check_store(folder, has_room, known);
  }
}

}  // namespace
}  // namespace penstock::kv
