// The contract for sources that answer late, short, out of order or never: they get as many concurrent fills as they ask for, from few
// threads. A cancelled request ends even if its source does not answer, and late bytes from the source are dropped.
//   PENSTOCK_FAR_SEED   seed of the random test (1)
#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <list>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "contract/contract_fixture.hpp"

namespace penstock::testing {
namespace {

using answers = far_network::answers;
using std::chrono::milliseconds;

constexpr unsigned lanes = 2;
constexpr std::uint64_t piece = 256 * kib;

class far_source : public ::testing::TestWithParam<memory_place> {
 protected:
  // A file behind a network of its own.
  struct far_file {
    explicit far_file(const engine& with, answers how, std::size_t length, std::uint64_t seed, unsigned at_once = 200)
        : network(std::make_shared<far_network>(how, at_once)), content(pattern::make(length, seed)) {
      files.put("data", content);
      auto made = files.open(with, "data", {.read = true, .write = true});
      EXPECT_TRUE(made.ok()) << told(made.error());
      target = *std::move(made);
    }
    std::atomic<std::uint64_t> fails_from{~std::uint64_t{0}};
    std::shared_ptr<far_network> network;
    memory_files files{
        false, [this](bool, std::uint64_t offset) { return offset >= fails_from.load() ? status(errc::io, "the test refuses") : status(); },
        network};
    bytes content;
    file target;
  };

  engine& engine_of() { return house_.engine(); }
  guarded_memory memory_of(std::size_t length) { return guarded_memory(house_, GetParam(), length, 3); }
  [[nodiscard]] std::string place() const { return GetParam() == memory_place::device ? house_.device() : "host"; }

  static engine_options options() {
    engine_options made;
    made.lanes = lanes;
    made.pinned_budget_bytes = std::size_t{256} << 20;  // fills of 256 KiB where 200 are wanted at once
    return made;
  }

  open_house house_{options()};
};

TEST_P(far_source, hundreds_of_pieces_are_under_way_at_once_on_few_threads) {
  far_file far(engine_of(), answers::held, 200 * piece + 5, 1);
  auto memory = memory_of(far.content.size());
  auto reading = far.target.read_async(memory.data(), far.content.size(), 0);
  EXPECT_EQ(far.network->wait_for_under_way(200), 200U);
  EXPECT_LE(far.network->threads(), lanes + 1U);
  EXPECT_FALSE(reading.done());
  far.network->set(answers::late);
  const auto outcome = reading.wait();
  EXPECT_TRUE(outcome.ok()) << told(outcome.error);
  EXPECT_EQ(outcome.bytes_done, far.content.size());
  EXPECT_EQ(far.network->most_under_way(), 200U);
  memory.expect(far.content);
}

TEST_P(far_source, hundreds_of_small_requests_are_under_way_at_once) {
  constexpr std::uint64_t small = 4000;
  constexpr std::size_t count = 150;
  far_file far(engine_of(), answers::held, count * 2 * small, 2);
  auto memory = memory_of(count * 2 * small);
  memory.fill(far.content);
  std::vector<io_request> asked;
  for (std::size_t i = 0; i < count; ++i)
    asked.push_back({&far.target, memory.data() + 2 * i * small, small, static_cast<std::int64_t>((2 * count - 2 * i - 2) * small), false});
  auto expected = far.content;
  for (const auto& each : asked)
    std::copy_n(far.content.begin() + each.offset, small, expected.begin() + (static_cast<std::byte*>(each.memory) - memory.data()));
  auto batch = engine_of().submit(asked);
  std::vector<operation> singles;
  bytes into(50);
  for (std::size_t i = 0; i < into.size(); ++i) singles.push_back(far.target.read_async(&into[i], 1, static_cast<std::int64_t>(i)));
  EXPECT_EQ(far.network->wait_for_under_way(200), 200U);
  EXPECT_LE(far.network->threads(), lanes + 2U);
  far.network->set(answers::out_of_order);
  for (const auto& each : batch.wait()) EXPECT_EQ(each.bytes_done, small) << told(each.error);
  for (auto& each : singles) EXPECT_EQ(each.wait().bytes_done, 1U);
  memory.expect(expected);
  EXPECT_TRUE(std::equal(into.begin(), into.end(), far.content.begin()));
}

TEST_P(far_source, a_blocking_request_begins_all_of_its_pieces) {
  far_file far(engine_of(), answers::held, 40 * piece, 3);
  auto memory = memory_of(far.content.size());
  std::thread network([&] {
    EXPECT_EQ(far.network->wait_for_under_way(40), 40U);
    far.network->answer(40);
    EXPECT_EQ(far.network->wait_for_under_way(1), 1U);
    far.network->answer(1);
  });
  EXPECT_EQ(far.target.read(memory.data(), far.content.size(), 0).bytes_done, far.content.size());
  memory.expect(far.content);
  EXPECT_EQ(far.target.read(memory.data(), 100, 7).bytes_done, 100U);
  memory.expect(std::span(far.content).subspan(7, 100));
  network.join();
}

TEST_P(far_source, answers_before_begin_returns_are_answers) {
  far_file far(engine_of(), answers::at_once, 70 * piece + 9, 4);
  auto memory = memory_of(far.content.size());
  EXPECT_EQ(far.target.read(memory.data(), far.content.size(), 0).bytes_done, far.content.size());
  memory.expect(far.content);
}

TEST_P(far_source, a_short_answer_is_the_end_of_the_file) {
  far_file far(engine_of(), answers::held, 30 * piece, 5);
  auto memory = memory_of(far.content.size());
  auto reading = far.target.read_async(memory.data(), far.content.size(), 0);
  far.network->wait_for_under_way(30);
  far.files.resize("data", 12 * piece + 100);
  far.network->answer(30);
  const auto outcome = reading.wait();
  EXPECT_TRUE(outcome.ok()) << told(outcome.error);
  EXPECT_EQ(outcome.bytes_done, 12 * piece + 100);
  memory.expect_old_or_new(far.content, outcome.bytes_done);
}

TEST_P(far_source, a_failure_says_what_failed_and_how_far_it_came) {
  far_file far(engine_of(), answers::held, 30 * piece, 6);
  auto memory = memory_of(far.content.size());
  far.fails_from = 12 * piece;
  auto reading = far.target.read_async(memory.data(), far.content.size(), 0);
  far.network->wait_for_under_way(30);
  far.network->answer(30);
  const auto outcome = reading.wait();
  EXPECT_EQ(outcome.error.code(), errc::io);
  EXPECT_EQ(outcome.bytes_done, 12 * piece);
  EXPECT_NE(outcome.error.message().find(" of data: "), std::string_view::npos) << told(outcome.error);
  memory.expect_old_or_new(far.content, outcome.bytes_done);
}

TEST_P(far_source, a_cancelled_request_counts_what_came_from_its_start_on) {
  far_file far(engine_of(), answers::late, 30 * piece, 7);
  auto memory = memory_of(far.content.size());
  EXPECT_EQ(far.target.read(memory.data(), 3 * piece, 0).bytes_done, 3 * piece);
  memory.expect(std::span(far.content).first(3 * piece));
  far.network->set(answers::held);
  auto reading = far.target.read_async(memory.data(), far.content.size(), 0);
  far.network->wait_for_under_way(30);
  far.network->answer(20);  // the last ones
  reading.cancel();
  const auto outcome = reading.wait();
  EXPECT_EQ(outcome.error.code(), errc::cancelled);
  EXPECT_EQ(outcome.bytes_done, 0U);
  EXPECT_EQ(far.network->under_way(), 0U);
  memory.expect_old_or_new(far.content, 3 * piece);
}

TEST_P(far_source, a_request_that_is_stopped_ends_though_its_source_never_answers) {
  far_file far(engine_of(), answers::never, 300 * piece, 8);
  for (const std::uint64_t length : {std::uint64_t{100}, 60 * piece}) {
    auto memory = memory_of(length);
    const auto before = far.network->under_way();
    auto cancelled = far.target.read_async(memory.data(), length, 0);
    far.network->wait_for_under_way(before + 1);
    cancelled.cancel();
    const auto outcome = cancelled.wait();
    EXPECT_EQ(outcome.error.code(), errc::cancelled) << told(outcome.error);
    EXPECT_EQ(outcome.bytes_done, 0U);
    io_options soon;
    soon.deadline = deadline_clock::now() + milliseconds(20);
    EXPECT_EQ(far.target.read(memory.data(), length, 1, soon).error.code(), errc::timed_out);
    const std::array<io_request, 2> asked{
        {{&far.target, memory.data(), length / 2, 0, false}, {&far.target, memory.data() + length / 2, length / 2, 90 * piece, false}}};
    for (const auto& each : engine_of().submit(asked, soon).wait()) EXPECT_EQ(each.error.code(), errc::timed_out);
    memory.expect_untouched();
    // It answers after all, when nobody wants to know.
    far.network->answer(far.network->under_way());
    memory.expect_untouched();
  }
  far.network->set(answers::late);
  auto memory = memory_of(far.content.size());
  EXPECT_EQ(far.target.read(memory.data(), far.content.size(), 0).bytes_done, far.content.size());
  memory.expect(far.content);
}

TEST_P(far_source, a_source_that_never_answers_holds_up_no_other) {
  std::list<far_file> silent;
  std::list<guarded_memory> memories;
  std::vector<operation> stuck;
  for (unsigned i = 0; i < 4; ++i) {
    auto& each = silent.emplace_back(engine_of(), answers::never, 40 * mib, 20 + i, 1000);
    auto& memory = memories.emplace_back(house_, GetParam(), each.content.size());
    stuck.push_back(each.target.read_async(memory.data(), each.content.size(), 0));
    each.network->wait_for_under_way(1);
  }
  far_file lively(engine_of(), answers::out_of_order, 60 * piece, 9);
  auto memory = memory_of(lively.content.size());
  EXPECT_EQ(lively.target.read(memory.data(), lively.content.size(), 0).bytes_done, lively.content.size());
  memory.expect(lively.content);
  for (auto& each : stuck) each.cancel();
  for (auto& each : stuck) EXPECT_EQ(each.wait().error.code(), errc::cancelled);
  for (auto& each : silent) {
    EXPECT_GT(each.network->under_way(), 0U);
    EXPECT_TRUE(each.target.close().ok());
    EXPECT_EQ(each.network->under_way(), 0U);
  }
}

TEST_P(far_source, an_engine_ends_with_answers_still_to_come) {
  auto far = std::make_unique<far_file>(engine_of(), answers::never, 60 * piece, 10);
  auto memory = memory_of(far->content.size());
  auto reading = far->target.read_async(memory.data(), far->content.size(), 0);
  far->network->wait_for_under_way(60);
  reading.cancel();
  EXPECT_EQ(reading.wait().error.code(), errc::cancelled);
  reading = {};
  memory.expect_untouched();
  if (GetParam() != memory_place::device) house_.end();
  far.reset();
}

TEST_P(far_source, a_dropped_file_ends_with_its_last_request) {
  auto network = std::make_shared<far_network>(answers::held);
  memory_files files(false, {}, network);
  const auto content = pattern::make(20 * piece, 11);
  files.put("data", content);
  auto memory = memory_of(content.size());
  for (const bool cancels : {false, true}) {
    auto opened = files.open(engine_of(), "data", {});
    ASSERT_TRUE(opened.ok());
    auto reading = opened->read_async(memory.data(), content.size(), 0);
    network->wait_for_under_way(20);
    cancels ? reading.cancel() : network->answer(20);
    const auto outcome = reading.wait();
    EXPECT_EQ(outcome.bytes_done, cancels ? 0U : content.size());
  }
  memory.expect(content);
}

TEST_P(far_source, explain_says_that_many_are_asked_for_at_once) {
  far_file far(engine_of(), answers::late, 3 * mib, 12);
  for (const std::uint64_t length : {100UL, 3UL * mib}) {
    const auto plan = engine_of().explain(far.target, place(), length, 0);
    ASSERT_TRUE(plan.ok()) << told(plan.error());
    ASSERT_EQ(plan->parts.size(), 1U);
    EXPECT_NE(plan->parts.front().reason.find("answers slowly"), std::string::npos) << plan->parts.front().reason;
  }
  EXPECT_FALSE(far.target.starts_without_blocking(100));
  EXPECT_EQ(far.network->begun(), 0U);
}

TEST_P(far_source, random_requests_bring_the_right_bytes_however_it_answers) {
  const char* const asked_seed = std::getenv("PENSTOCK_FAR_SEED");
  const auto seed = asked_seed != nullptr ? std::strtoull(asked_seed, nullptr, 10) : 1;
  SCOPED_TRACE("PENSTOCK_FAR_SEED=" + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto below = [&](std::uint64_t limit) { return random() % limit; };
  constexpr std::uint64_t size = 9 * mib + 77;
  far_file far(engine_of(), answers::late, size, 13, 40);
  constexpr std::array ways{answers::at_once, answers::late, answers::out_of_order};
  for (int round = 0; round < 60; ++round) {
    far.network->set(ways.at(below(ways.size())));
    struct asked {
      guarded_memory memory;
      std::uint64_t offset = 0;
      std::uint64_t length = 0;
      operation running{};
      bool is_cancelled = false;
    };
    std::list<asked> all;
    for (std::uint64_t left = 1 + below(6); left > 0; --left) {
      const std::uint64_t length = 1 + (below(2) == 0 ? below(5000) : below(4 * mib));
      auto& each = all.emplace_back(memory_of(length));
      each.offset = below(size + 1000);
      each.length = length;
      each.running = far.target.read_async(each.memory.data(), length, static_cast<std::int64_t>(each.offset));
      each.is_cancelled = below(5) == 0;
      if (each.is_cancelled) each.running.cancel();
    }
    for (auto& each : all) {
      const auto outcome = each.running.wait();
      const auto begin = std::min(each.offset, size);
      const auto there = std::span(far.content).subspan(begin, std::min(each.length, size - begin));
      if (outcome.ok()) {
        EXPECT_EQ(outcome.bytes_done, there.size());
        each.memory.expect(there);
      } else {
        EXPECT_TRUE(each.is_cancelled) << told(outcome.error);
        each.memory.expect_old_or_new(there, outcome.bytes_done);
      }
    }
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(into, far_source, ::testing::Values(memory_place::pageable, memory_place::device),
                         [](const auto& info) { return to_string(info.param); });

}  // namespace
}  // namespace penstock::testing
