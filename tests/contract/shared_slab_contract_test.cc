// Small ranges that several threads read into one slab: the job continues once, after the last of them, even if nobody waits for it. A
// kernel with a gate before its reads keeps the threads apart.
#include <array>
#include <atomic>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "contract/contract_fixture.hpp"
#include "support/gated_kernel.hpp"

namespace penstock::testing {
namespace {

constexpr std::uint64_t small = 4 * kib;
constexpr std::uint64_t count = 128;
constexpr std::uint64_t share = 16;  // ranges of this size that a thread takes at a time
constexpr unsigned three_lanes = 3;

class shared_slab_contract : public ::testing::Test {
 protected:
  shared_slab_contract() {
    content_ = pattern::make(count * small, 1);
    store_file(name_, content_);
    engine_options options;
    options.lanes = three_lanes;
    options.use_io_uring = false;  // else pages that the kernel has taken back would pass the gate by
    auto doors = core::real_seams(options);
    doors.kernel = std::make_shared<gated_kernel>(gate_);
    house_.emplace(options, std::move(doors));
    auto opened = house_->engine().open(name_);
    EXPECT_TRUE(opened.ok()) << told(opened.error());
    if (opened.ok()) file_.emplace(*std::move(opened));
  }
  ~shared_slab_contract() override { gate_.open(); }

  [[nodiscard]] std::vector<io_request> reads(const guarded_memory& memory, std::uint64_t ranges = count) const {
    std::vector<io_request> asked;
    for (std::uint64_t i = 0; i < ranges; ++i)
      asked.push_back({&*file_, memory.data() + i * small, small, static_cast<std::int64_t>(i * small), false});
    return asked;
  }
  // Shuts the gate before the first range of the first shares, and begins a batch whose shares every lane has one of.
  batch begin_held(const guarded_memory& memory) {
    std::set<std::uint64_t> held;
    for (std::uint64_t i = 0; i < three_lanes; ++i) held.insert(i * share * small);
    gate_.shut(held);
    auto submitted = house_->engine().submit(reads(memory));
    gate_.await(three_lanes);
    return submitted;
  }
  [[nodiscard]] std::uint64_t jobs() { return house_->engine().stats().by_path[static_cast<std::size_t>(path_kind::staged)].operations; }
  static void poll(const batch& submitted) {
    while (!submitted.done()) std::this_thread::yield();
  }

  temp_dir directory_ = temp_dir::on_build_disk();
  std::string name_ = directory_.file("data");
  bytes content_;
  gate gate_;
  std::optional<open_house> house_;
  std::optional<file> file_;
};

TEST_F(shared_slab_contract, all_lanes_read_for_one_copy) {
  guarded_memory memory(*house_, memory_place::device, count * small);
  auto submitted = begin_held(memory);
  EXPECT_FALSE(submitted.done());
  gate_.open();
  poll(submitted);
  for (const auto& outcome : submitted.wait()) EXPECT_EQ(outcome.bytes_done, small) << told(outcome.error);
  memory.expect(content_);
  EXPECT_EQ(jobs(), 1U);
}

TEST_F(shared_slab_contract, it_calls_back_though_nobody_looks) {
  for (std::uint64_t ranges = 1; ranges <= count; ranges += 9) {
    guarded_memory memory(*house_, memory_place::device, ranges * small);
    std::atomic<std::uint64_t> items{0};
    std::atomic<int> batches{0};
    (void)house_->engine().submit(
        reads(memory, ranges), {}, [&](const io_result&) { ++batches; }, [&](std::size_t, const io_result& each) { items += each.ok(); });
    while (batches.load() == 0) std::this_thread::yield();
    EXPECT_EQ(items.load(), ranges);
    memory.expect(std::span(content_).first(ranges * small));
  }
}

TEST_F(shared_slab_contract, what_is_cancelled_ends_with_what_was_being_read) {
  guarded_memory memory(*house_, memory_place::device, count * small);
  bytes expected(memory.size());
  memory.fill(expected);
  auto submitted = begin_held(memory);
  submitted.cancel();
  EXPECT_FALSE(submitted.done()) << "threads are reading";
  gate_.open();
  poll(submitted);
  const auto outcomes = submitted.wait();
  for (std::uint64_t i = 0; i < count; ++i) {
    const bool was_read = i % share == 0 && i / share < three_lanes;
    EXPECT_EQ(outcomes[i].error.code(), was_read ? errc::ok : errc::cancelled) << i << ": " << told(outcomes[i].error);
    EXPECT_EQ(outcomes[i].bytes_done, was_read ? small : 0U) << i;
    if (was_read) overlay(expected, i * small, std::span(content_).subspan(i * small, small));
  }
  memory.expect(expected);
}

TEST_F(shared_slab_contract, a_range_that_fails_fails_alone) {
  constexpr std::uint64_t broken = 40;
  guarded_memory memory(*house_, memory_place::device, count * small);
  bytes expected = content_;
  const bytes blank(small);
  memory.fill(bytes(memory.size()));
  overlay(expected, broken * small, blank);
  gate_.fail(broken * small);
  auto submitted = house_->engine().submit(reads(memory));
  poll(submitted);
  const auto outcomes = submitted.wait();
  for (std::uint64_t i = 0; i < count; ++i) EXPECT_EQ(outcomes[i].error.code(), i == broken ? errc::io : errc::ok) << i;
  memory.expect(expected);
}

// Threads that were called to help and come when the job has ended, with all that it belonged to.
TEST_F(shared_slab_contract, help_may_come_too_late) {
  constexpr unsigned threads = 4;
  std::vector<std::thread> crew;
  for (unsigned t = 0; t < threads; ++t) {
    crew.emplace_back([this, t] {
      std::minstd_rand random(t + 1);
      guarded_memory memory(*house_, memory_place::device, count * small);
      for (int round = 0; round < 150; ++round) {
        auto submitted = house_->engine().submit(reads(memory, 1 + random() % count));
        if (random() % 4 == 0) submitted.cancel();
        if (random() % 2 == 0) {
          poll(submitted);
        } else {
          (void)submitted.wait();
        }
      }
    });
  }
  for (auto& each : crew) each.join();
}

}  // namespace
}  // namespace penstock::testing
