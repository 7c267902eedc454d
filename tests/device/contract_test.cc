// The contract of every driver, tested on each by name. A driver that finds no device is skipped with a reason.
#include <algorithm>
#include <atomic>
#include <thread>

#include "device/device_fixture.hpp"

namespace penstock::testing {
namespace {

using device::digest_part;
using device::memory_type;
using device::segment;
using device::word_step;

class device_contract : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    driver_ = GetParam() == "cuda" ? device::make_cuda_driver() : device::make_host_driver();
    const auto devices = driver_->count();
    if (!devices) GTEST_SKIP() << "no " << GetParam() << " device: " << devices.error().message();
    ASSERT_GE(*devices, 1);
    session_ = value_of(driver_->open(0, nullptr));
    ASSERT_NE(session_, nullptr);
  }
  device::session& session() { return *session_; }
  device::driver& driver() { return *driver_; }

  std::shared_ptr<device::driver> driver_;
  device::session* session_ = nullptr;
};

// A flag that a stream waits for, in pinned memory, and the store that lets it go on.
class gate {
 public:
  explicit gate(device::session& session) : memory_(session, 4096) { memory_.fill(std::byte{0}); }
  std::uint32_t* flag() { return reinterpret_cast<std::uint32_t*>(memory_.data()); }
  void set(std::uint32_t value) { std::atomic_ref(*flag()).store(value, std::memory_order_release); }

 private:
  pinned_memory memory_;
};

// Holds a stream at the gate until set(1), or skips the test where the device cannot.
#define PENSTOCK_HOLD_OR_SKIP(gate_object, stream_handle)                                                                 \
  do {                                                                                                                    \
    const status hold_outcome = session().wait_value(stream_handle, (gate_object).flag(), 1);                             \
    if (hold_outcome.code() == errc::unsupported) GTEST_SKIP() << "streams cannot wait here: " << hold_outcome.message(); \
    ASSERT_TRUE(hold_outcome.ok()) << hold_outcome.message();                                                             \
  } while (false)

TEST_P(device_contract, describes_itself) {
  const auto facts = driver().describe(0);
  ASSERT_TRUE(facts.ok()) << facts.error().message();
  EXPECT_FALSE(facts->description.empty());
  EXPECT_GT(facts->memory_bytes, 0U);
  EXPECT_EQ(driver().kind(), GetParam());
  EXPECT_EQ(session().ordinal(), 0);
}

TEST_P(device_contract, a_device_that_is_not_there_is_not_found) {
  for (const int ordinal : {-1, 100, 100000}) {
    EXPECT_EQ(driver().describe(ordinal).error().code(), errc::not_found) << ordinal;
    EXPECT_EQ(driver().open(ordinal, nullptr).error().code(), errc::not_found) << ordinal;
  }
}

TEST_P(device_contract, one_session_per_context) { EXPECT_EQ(value_of(driver().open(0, nullptr)), session_); }

TEST_P(device_contract, classify_finds_the_allocation_around_a_pointer) {
  const device_memory memory(session(), 100000);
  for (const std::size_t at : {0, 1, 4097, 99999}) {
    const auto info = value_of(driver().classify(memory.data() + at));
    EXPECT_EQ(info.type, memory_type::device);
    EXPECT_EQ(info.ordinal, 0);
    EXPECT_EQ(info.context, nullptr) << "the primary context";
    EXPECT_EQ(info.base, memory.data());
    EXPECT_GE(info.size, 100000U);
  }
}

TEST_P(device_contract, classify_knows_plain_and_pinned_host_memory) {
  const auto plain = random_bytes(100, 1);
  EXPECT_EQ(value_of(driver().classify(plain.data())).type, memory_type::host);
  EXPECT_EQ(value_of(driver().classify(plain.data())).base, nullptr);
  const std::byte* after_unpin = nullptr;
  {
    const pinned_memory pinned(session(), 1 << 20);
    after_unpin = pinned.data();
    for (const std::size_t at : {0, 5000, (1 << 20) - 1}) {
      const auto info = value_of(driver().classify(pinned.data() + at));
      EXPECT_EQ(info.type, memory_type::pinned);
      EXPECT_EQ(info.base, pinned.data());
      EXPECT_EQ(info.size, pinned.size());
    }
  }
  EXPECT_EQ(value_of(driver().classify(after_unpin)).type, memory_type::host);
}

TEST_P(device_contract, classify_works_on_a_thread_that_never_used_the_driver) {
  const device_memory memory(session(), 4096);
  std::thread([&] {
    EXPECT_EQ(value_of(driver().classify(memory.data())).type, memory_type::device);
    EXPECT_EQ(value_of(driver().classify(&memory)).type, memory_type::host);
  }).join();
}

TEST_P(device_contract, freed_memory_is_not_device_memory) {
  void* memory = value_of(session().allocate(1 << 20));
  PENSTOCK_EXPECT_OK(session().release(memory));
  const auto info = driver().classify(memory);
  if (info.ok()) {
    EXPECT_EQ(info->type, memory_type::host);
    EXPECT_EQ(info->base, nullptr);
  } else {
    EXPECT_EQ(info.error().code(), errc::bad_memory);
  }
}

TEST_P(device_contract, freeing_twice_is_an_error) {
  void* memory = value_of(session().allocate(4096));
  PENSTOCK_EXPECT_OK(session().release(memory));
  EXPECT_FALSE(session().release(memory).ok());
}

TEST_P(device_contract, absurd_sizes_are_out_of_memory) {
  const auto memory = session().allocate(std::size_t{1} << 50);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.error().code(), errc::out_of_memory) << memory.error().message();
}

TEST_P(device_contract, pinning_twice_is_an_error) {
  const pinned_memory memory(session(), 65536);
  EXPECT_EQ(session().pin(memory.data(), 65536, false).code(), errc::invalid_argument);
}

TEST_P(device_contract, unpinning_twice_is_an_error) {
  auto memory = std::make_unique<pinned_memory>(session(), 65536);
  std::byte* base = memory->data();
  memory.reset();
  EXPECT_FALSE(session().unpin(base).ok());
}

TEST_P(device_contract, pinning_nothing_is_an_error) { EXPECT_FALSE(session().pin(nullptr, 4096, false).ok()); }

TEST_P(device_contract, copies_of_any_size_and_alignment_arrive_and_touch_nothing_else) {
  constexpr std::size_t room = 70000 + 128;
  const device_memory memory(session(), room);
  pinned_memory out(session(), room);
  pinned_memory in(session(), room);
  const scoped_stream stream(session());
  std::minstd_rand random(7);
  for (std::size_t bytes : {1, 2, 3, 15, 16, 17, 511, 512, 513, 4095, 4096, 4097, 65535, 65536, 65537, 70000}) {
    const std::size_t out_at = random() % 64;
    const std::size_t device_at = random() % 64;
    const std::size_t in_at = random() % 63 + 1;
    const auto content = random_bytes(bytes, static_cast<unsigned>(bytes));
    out.fill(content, out_at);
    in.fill(std::byte{0xA5});
    PENSTOCK_EXPECT_OK(session().copy(memory.data() + device_at, out.data() + out_at, bytes, stream));
    PENSTOCK_EXPECT_OK(session().copy(in.data() + in_at, memory.data() + device_at, bytes, stream));
    PENSTOCK_EXPECT_OK(session().synchronize(stream));
    EXPECT_TRUE(in.holds(content, in_at)) << bytes;
    EXPECT_EQ(in.data()[in_at - 1], std::byte{0xA5}) << bytes;
    EXPECT_EQ(in.data()[in_at + bytes], std::byte{0xA5}) << bytes;
  }
}

TEST_P(device_contract, large_copies_arrive) {
  constexpr std::size_t bytes = 32 << 20;
  const device_memory first(session(), bytes);
  const device_memory second(session(), bytes);
  pinned_memory out(session(), bytes);
  pinned_memory in(session(), bytes);
  const auto content = random_bytes(bytes, 3);
  out.fill(content);
  const scoped_stream stream(session());
  PENSTOCK_EXPECT_OK(session().copy(first.data(), out.data(), bytes, stream));
  PENSTOCK_EXPECT_OK(session().copy(second.data(), first.data(), bytes, stream));
  PENSTOCK_EXPECT_OK(session().copy(in.data(), second.data(), bytes, stream));
  PENSTOCK_EXPECT_OK(session().synchronize(stream));
  EXPECT_TRUE(in.holds(content));
}

TEST_P(device_contract, empty_copies_and_scatters_do_nothing) {
  const device_memory memory(session(), 4096);
  const scoped_stream stream(session());
  PENSTOCK_EXPECT_OK(session().copy(memory.data(), memory.data(), 0, stream));
  PENSTOCK_EXPECT_OK(session().copy_small(memory.data(), memory.data(), 0, stream));
  PENSTOCK_EXPECT_OK(session().scatter(nullptr, 0, stream));
  PENSTOCK_EXPECT_OK(session().synchronize(stream));
}

TEST_P(device_contract, the_default_stream_copies_too) {
  const device_memory memory(session(), 4096);
  pinned_memory host(session(), 8192);
  const auto content = random_bytes(4096, 4);
  host.fill(content);
  PENSTOCK_EXPECT_OK(session().copy(memory.data(), host.data(), 4096, nullptr));
  PENSTOCK_EXPECT_OK(session().copy(host.data() + 4096, memory.data(), 4096, nullptr));
  PENSTOCK_EXPECT_OK(session().synchronize(nullptr));
  EXPECT_TRUE(host.holds(content, 4096));
}

TEST_P(device_contract, work_of_one_stream_is_done_in_order) {
  constexpr std::size_t bytes = 4096;
  constexpr int rounds = 200;
  const device_memory memory(session(), bytes);
  pinned_memory sources(session(), bytes * 2);
  pinned_memory results(session(), bytes * rounds);
  std::memset(sources.data(), 1, bytes);
  std::memset(sources.data() + bytes, 2, bytes);
  const scoped_stream stream(session());
  for (int i = 0; i < rounds; ++i) {
    PENSTOCK_EXPECT_OK(session().copy(memory.data(), sources.data() + bytes * (i % 2), bytes, stream));
    PENSTOCK_EXPECT_OK(session().copy(results.data() + bytes * i, memory.data(), bytes, stream));
  }
  PENSTOCK_EXPECT_OK(session().synchronize(stream));
  for (int i = 0; i < rounds; ++i) {
    EXPECT_EQ(results.data()[bytes * i], static_cast<std::byte>(1 + i % 2)) << i;
    EXPECT_EQ(results.data()[bytes * (i + 1) - 1], static_cast<std::byte>(1 + i % 2)) << i;
  }
}

TEST_P(device_contract, an_event_that_was_never_recorded_is_reached) {
  const scoped_event event(session());
  EXPECT_TRUE(value_of(session().reached(event)));
  PENSTOCK_EXPECT_OK(session().wait(event));
}

TEST_P(device_contract, an_event_is_reached_when_the_work_before_it_is_done) {
  gate held(session());
  const device_memory memory(session(), 4096);
  pinned_memory host(session(), 8192);
  host.fill(random_bytes(4096, 5));
  const scoped_event event(session());
  const scoped_event unrelated(session());
  const scoped_stream stream(session());
  const scoped_stream other(session());
  PENSTOCK_HOLD_OR_SKIP(held, stream);
  EXPECT_TRUE(session().copy(memory.data(), host.data(), 4096, stream).ok());
  EXPECT_TRUE(session().record(event, stream).ok());
  EXPECT_FALSE(value_of(session().reached(event)));
  PENSTOCK_EXPECT_OK(session().record(unrelated, other));
  PENSTOCK_EXPECT_OK(session().wait(unrelated));
  EXPECT_TRUE(value_of(session().reached(unrelated)));
  EXPECT_FALSE(value_of(session().reached(event)));
  held.set(1);
  PENSTOCK_EXPECT_OK(session().wait(event));
  EXPECT_TRUE(value_of(session().reached(event)));
}

TEST_P(device_contract, a_call_gets_its_argument_after_the_work_before_it) {
  struct trace {
    std::atomic<int> calls{0};
    std::vector<int> order;
  } seen;
  struct step {
    trace* into;
    int number;
  };
  std::vector<step> steps;
  for (int i = 0; i < 50; ++i) steps.push_back({&seen, i});
  const scoped_stream stream(session());
  for (auto& each : steps) {
    PENSTOCK_EXPECT_OK(session().call(
        stream,
        [](void* argument) {
          const auto* self = static_cast<step*>(argument);
          self->into->order.push_back(self->number);
          ++self->into->calls;
        },
        &each));
  }
  PENSTOCK_EXPECT_OK(session().synchronize(stream));
  EXPECT_EQ(seen.calls.load(), 50);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(seen.order[static_cast<std::size_t>(i)], i);
}

TEST_P(device_contract, a_call_sees_the_bytes_copied_before_it) {
  struct check {
    const std::byte* where;
    std::byte seen{};
  };
  const device_memory memory(session(), 1 << 20);
  pinned_memory out(session(), 1 << 20);
  pinned_memory in(session(), 1 << 20);
  out.fill(std::byte{0x5C});
  check look{in.data() + (1 << 20) - 1};
  const scoped_stream stream(session());
  PENSTOCK_EXPECT_OK(session().copy(memory.data(), out.data(), 1 << 20, stream));
  PENSTOCK_EXPECT_OK(session().copy(in.data(), memory.data(), 1 << 20, stream));
  PENSTOCK_EXPECT_OK(session().call(
      stream,
      [](void* argument) {
        auto* self = static_cast<check*>(argument);
        self->seen = *self->where;
      },
      &look));
  PENSTOCK_EXPECT_OK(session().synchronize(stream));
  EXPECT_EQ(look.seen, std::byte{0x5C});
}

TEST_P(device_contract, wait_value_holds_a_stream_until_the_host_stores) {
  gate held(session());
  std::atomic<int> passed{0};
  const scoped_event event(session());
  const scoped_stream stream(session());
  PENSTOCK_HOLD_OR_SKIP(held, stream);
  EXPECT_TRUE(session()
                  .call(
                      stream, [](void* argument) { ++*static_cast<std::atomic<int>*>(argument); }, &passed)
                  .ok());
  EXPECT_TRUE(session().record(event, stream).ok());
  EXPECT_FALSE(value_of(session().reached(event)));
  EXPECT_EQ(passed.load(), 0);
  held.set(1);
  PENSTOCK_EXPECT_OK(session().wait(event));
  EXPECT_EQ(passed.load(), 1);
}

TEST_P(device_contract, wait_value_compares_cyclically) {
  gate held(session());
  held.set(5);  // 5 comes after 0xfffffff0
  const scoped_stream stream(session());
  const status queued = session().wait_value(stream, held.flag(), 0xfffffff0U);
  if (queued.code() == errc::unsupported) GTEST_SKIP() << queued.message();
  PENSTOCK_EXPECT_OK(queued);
  PENSTOCK_EXPECT_OK(session().synchronize(stream));
}

TEST_P(device_contract, write_value_comes_behind_what_was_copied_before) {
  constexpr std::size_t length = 1 << 20;
  gate word(session());
  const device_memory memory(session(), length);
  pinned_memory source(session(), length);
  pinned_memory back(session(), length);
  const scoped_stream stream(session());
  for (std::uint32_t turn = 1; turn <= 16; ++turn) {
    const auto content = random_bytes(length, turn);
    source.fill(content);
    PENSTOCK_EXPECT_OK(session().copy(memory.data(), source.data(), length, stream));
    PENSTOCK_EXPECT_OK(session().copy(back.data(), memory.data(), length, stream));
    const status queued = session().write_value(stream, word.flag(), turn);
    if (queued.code() == errc::unsupported) GTEST_SKIP() << queued.message();
    PENSTOCK_EXPECT_OK(queued);
    while (std::atomic_ref(*word.flag()).load() != turn) std::this_thread::yield();
    EXPECT_EQ(std::memcmp(back.data(), content.data(), length), 0) << turn;
  }
}

TEST_P(device_contract, several_steps_are_taken_in_their_order) {
  gate first(session());
  gate second(session());
  gate third(session());
  const scoped_stream stream(session());
  const std::array<word_step, 3> steps{{{false, first.flag(), 1}, {true, second.flag(), 1}, {false, third.flag(), 1}}};
  const status queued = session().step_through(steps, stream);
  if (queued.code() == errc::unsupported) GTEST_SKIP() << queued.message();
  PENSTOCK_EXPECT_OK(queued);
  while (std::atomic_ref(*first.flag()).load() != 1) std::this_thread::yield();
  EXPECT_EQ(std::atomic_ref(*third.flag()).load(), 0U);
  second.set(1);
  PENSTOCK_EXPECT_OK(session().synchronize(stream));
  EXPECT_EQ(std::atomic_ref(*third.flag()).load(), 1U);
}

TEST_P(device_contract, write_value_needs_pinned_memory) {
  std::uint32_t word = 0;
  const scoped_stream stream(session());
  const status queued = session().write_value(stream, &word, 1);
  if (queued.code() == errc::unsupported) GTEST_SKIP() << queued.message();
  EXPECT_FALSE(queued.ok());
  EXPECT_EQ(word, 0U);
}

TEST_P(device_contract, a_blocked_default_stream_blocks_no_other) {
  gate held(session());
  const device_memory memory(session(), 4096);
  pinned_memory host(session(), 8192);
  const auto content = random_bytes(4096, 6);
  host.fill(content);
  const scoped_stream stream(session());
  PENSTOCK_HOLD_OR_SKIP(held, nullptr);
  EXPECT_TRUE(session().copy(memory.data(), host.data(), 4096, stream).ok());
  EXPECT_TRUE(session().copy(host.data() + 4096, memory.data(), 4096, stream).ok());
  EXPECT_TRUE(session().synchronize(stream).ok());
  EXPECT_TRUE(host.holds(content, 4096));
  held.set(1);
  PENSTOCK_EXPECT_OK(session().synchronize(nullptr));
}

TEST_P(device_contract, copy_small_is_done_on_return_with_pageable_memory_too) {
  constexpr std::size_t largest = 128 << 10;
  const device_memory memory(session(), largest);
  pinned_memory pinned(session(), largest);
  const scoped_stream stream(session());
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{4096}, std::size_t{65536}, std::size_t{65537}, largest}) {
    const auto content = random_bytes(bytes, static_cast<unsigned>(bytes) + 1);
    std::vector<std::byte> back(bytes);
    PENSTOCK_EXPECT_OK(session().copy_small(memory.data(), content.data(), bytes, stream));
    PENSTOCK_EXPECT_OK(session().copy_small(back.data(), memory.data(), bytes, stream));
    EXPECT_EQ(back, content);
    pinned.fill(std::byte{0});
    PENSTOCK_EXPECT_OK(session().copy_small(pinned.data(), memory.data(), bytes, stream));
    EXPECT_TRUE(pinned.holds(content));
  }
}

TEST_P(device_contract, copy_beside_is_done_on_return_whatever_the_other_streams_do) {
  constexpr std::size_t large = 32 << 20;
  constexpr std::size_t small = 5001;
  const device_memory memory(session(), large + small);
  pinned_memory many(session(), large);
  pinned_memory few(session(), 2 * small);
  const auto content = random_bytes(small, 7);
  const scoped_stream busy(session());
  const scoped_stream stream(session());
  PENSTOCK_EXPECT_OK(session().prepare_scatter());
  for (int i = 0; i < 16; ++i) PENSTOCK_EXPECT_OK(session().copy(memory.data(), many.data(), large, busy));
  few.fill(content);
  PENSTOCK_EXPECT_OK(session().copy_beside(memory.data() + large, few.data(), small, stream));
  PENSTOCK_EXPECT_OK(session().copy_beside(few.data() + small, memory.data() + large, small, stream));
  const auto others = session().idle(busy);
  EXPECT_TRUE(few.holds(content, small));
  if (GetParam() == "cuda") {
    EXPECT_FALSE(others.ok() && *others) << "it came after half a gigabyte";
  }
  PENSTOCK_EXPECT_OK(session().copy_beside(memory.data(), few.data(), 0, stream));
  PENSTOCK_EXPECT_OK(session().synchronize(busy));
}

// Pieces of one buffer go to shuffled places of another, with gaps, and every byte of the target is compared, gaps too.
class scatter_contract : public device_contract {
 protected:
  struct piece {
    std::size_t source;
    std::size_t target;
    std::size_t bytes;
  };

  static std::vector<piece> random_pieces(std::minstd_rand& random, std::size_t count, std::size_t largest, std::size_t room) {
    std::vector<piece> pieces;
    std::size_t target = random() % 16;
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t bytes = random() % (largest + 1);
      if (target + bytes + 32 > room) break;
      pieces.push_back({random() % (room - bytes), target, bytes});
      target += bytes + random() % 32;
    }
    std::shuffle(pieces.begin(), pieces.end(), random);
    return pieces;
  }

  // False where the kernel cannot run.
  bool run(const std::vector<piece>& pieces, std::byte* target, const std::byte* source, device::stream on) {
    const pinned_memory table(session(), std::max<std::size_t>(pieces.size(), 1) * sizeof(segment));
    auto* segments = reinterpret_cast<segment*>(table.data());
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      segments[i] = {source + pieces[i].source, target + pieces[i].target, pieces[i].bytes};
    }
    const status queued = session().scatter(segments, pieces.size(), on);
    if (queued.code() == errc::unsupported) {
      refusal_ = queued.message();
      return false;
    }
    PENSTOCK_EXPECT_OK(queued);
    PENSTOCK_EXPECT_OK(session().synchronize(on));
    return true;
  }

  static std::vector<std::byte> expected(const std::vector<piece>& pieces, const std::vector<std::byte>& source, std::size_t room) {
    std::vector<std::byte> content(room, std::byte{0xEE});
    for (const auto& each : pieces) std::memcpy(content.data() + each.target, source.data() + each.source, each.bytes);
    return content;
  }

  std::string refusal_;
};

TEST_P(scatter_contract, to_the_device_and_back_any_alignment) {
  constexpr std::size_t room = 1 << 20;
  const device_memory memory(session(), room);
  pinned_memory host(session(), room);
  pinned_memory other(session(), room);
  const scoped_stream stream(session());
  std::minstd_rand random(11);
  for (const std::size_t largest : {8U, 40U, 700U, 5000U, 300000U}) {
    const auto content = random_bytes(room, static_cast<unsigned>(largest));
    const auto pieces = random_pieces(random, 600, largest, room);
    SCOPED_TRACE(largest);
    // pinned to device
    host.fill(content);
    other.fill(std::byte{0xEE});
    PENSTOCK_EXPECT_OK(session().copy(memory.data(), other.data(), room, stream));
    PENSTOCK_EXPECT_OK(session().synchronize(stream));
    if (!run(pieces, memory.data(), host.data(), stream)) GTEST_SKIP() << refusal_;
    PENSTOCK_EXPECT_OK(session().copy(other.data(), memory.data(), room, stream));
    PENSTOCK_EXPECT_OK(session().synchronize(stream));
    EXPECT_TRUE(other.holds(expected(pieces, content, room)));
    // device to pinned
    PENSTOCK_EXPECT_OK(session().copy(memory.data(), host.data(), room, stream));
    other.fill(std::byte{0xEE});
    ASSERT_TRUE(run(pieces, other.data(), memory.data(), stream)) << refusal_;
    EXPECT_TRUE(other.holds(expected(pieces, content, room)));
  }
}

TEST_P(scatter_contract, a_short_table_is_read_by_the_call) {
  constexpr std::size_t bytes = device::session::short_table * 64;
  const device_memory memory(session(), bytes);
  pinned_memory host(session(), bytes);
  pinned_memory back(session(), bytes);
  const scoped_stream stream(session());
  const auto content = random_bytes(bytes, 9);
  host.fill(content);
  std::vector<segment> table;
  for (std::size_t i = 0; i < device::session::short_table; ++i) table.push_back({host.data() + i * 64, memory.data() + i * 64, 64});
  const auto queued = session().scatter_short(table, stream);
  std::fill(table.begin(), table.end(), segment{});
  if (queued.code() == errc::unsupported) GTEST_SKIP() << queued.message();
  PENSTOCK_EXPECT_OK(queued);
  PENSTOCK_EXPECT_OK(session().copy(back.data(), memory.data(), bytes, stream));
  PENSTOCK_EXPECT_OK(session().synchronize(stream));
  EXPECT_TRUE(back.holds(content));
}

TEST_P(device_contract, a_stream_held_for_an_event_goes_on_behind_it) {
  constexpr std::size_t bytes = 4096;
  constexpr int rounds = 200;
  const device_memory memory(session(), bytes);
  pinned_memory sources(session(), bytes * 2);
  pinned_memory results(session(), bytes * rounds);
  std::memset(sources.data(), 1, bytes);
  std::memset(sources.data() + bytes, 2, bytes);
  const scoped_stream writing(session());
  const scoped_stream reading(session());
  const auto written = testing::value_of(session().make_event());
  const auto read = testing::value_of(session().make_event());
  PENSTOCK_EXPECT_OK(session().wait_event(writing, read));  // never recorded: reached
  for (int i = 0; i < rounds; ++i) {
    PENSTOCK_EXPECT_OK(session().copy(memory.data(), sources.data() + bytes * (i % 2), bytes, writing));
    PENSTOCK_EXPECT_OK(session().record(written, writing));
    PENSTOCK_EXPECT_OK(session().wait_event(reading, written));
    PENSTOCK_EXPECT_OK(session().copy(results.data() + bytes * i, memory.data(), bytes, reading));
    PENSTOCK_EXPECT_OK(session().record(read, reading));
    PENSTOCK_EXPECT_OK(session().wait_event(writing, read));
  }
  PENSTOCK_EXPECT_OK(session().synchronize(reading));
  PENSTOCK_EXPECT_OK(session().synchronize(writing));
  for (int i = 0; i < rounds; ++i) {
    EXPECT_EQ(results.data()[bytes * i], static_cast<std::byte>(1 + i % 2)) << i;
    EXPECT_EQ(results.data()[bytes * (i + 1) - 1], static_cast<std::byte>(1 + i % 2)) << i;
  }
  PENSTOCK_EXPECT_OK(session().destroy_event(written));
  PENSTOCK_EXPECT_OK(session().destroy_event(read));
}

TEST_P(scatter_contract, every_pair_of_alignments) {
  constexpr std::size_t bytes = 100;
  constexpr std::size_t step = 160;
  constexpr std::size_t room = step * 256;
  const device_memory memory(session(), room);
  pinned_memory host(session(), room);
  pinned_memory back(session(), room);
  const auto content = random_bytes(room, 12);
  host.fill(content);
  back.fill(std::byte{0xEE});
  const scoped_stream stream(session());
  std::vector<piece> pieces;
  for (std::size_t i = 0; i < 256; ++i) pieces.push_back({i * step + i / 16, i * step + i % 16, bytes});
  PENSTOCK_EXPECT_OK(session().copy(memory.data(), back.data(), room, stream));
  PENSTOCK_EXPECT_OK(session().synchronize(stream));
  if (!run(pieces, memory.data(), host.data(), stream)) GTEST_SKIP() << refusal_;
  PENSTOCK_EXPECT_OK(session().copy(back.data(), memory.data(), room, stream));
  PENSTOCK_EXPECT_OK(session().synchronize(stream));
  EXPECT_TRUE(back.holds(expected(pieces, content, room)));
}

// Adds the digest of the content as its definition says, word by word.
void add_by_definition(detail::digest_sums& sums, std::span<const std::byte> content, std::uint64_t row) {
  const auto factor = [](std::uint64_t i) {
    std::uint64_t mixed = (i + 1) * 0x9E3779B97F4A7C15U;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9U;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBU;
    return (mixed ^ (mixed >> 31)) | 1;
  };
  for (std::size_t at = 0; at < content.size(); at += 8) {
    std::int64_t word = 0;
    std::memcpy(&word, content.data() + at, std::min<std::size_t>(8, content.size() - at));
    const auto whole = static_cast<std::uint64_t>(word);
    const auto half = static_cast<std::uint64_t>(word >> 32);
    sums[0] += factor(row + at / 4096) * whole;
    sums[1] += factor(row + at / 4096) * half;
    sums[2] += factor(at / 8 % 512) * whole;
    sums[3] += factor(at / 8 % 512) * half;
  }
}

// Device memory with random content, parts of it, and the sums of their digest.
class digest_contract : public device_contract {
 protected:
  static constexpr std::size_t room = 3 << 20;

  void SetUp() override {
    device_contract::SetUp();
    if (IsSkipped() || session_ == nullptr) return;
    memory_.emplace(session(), room);
    sums_.emplace(session(), sizeof(detail::digest_sums));
    stream_.emplace(session());
    PENSTOCK_EXPECT_OK(session().copy_small(memory_->data(), content_.data(), room, *stream_));
    PENSTOCK_EXPECT_OK(session().copy_small(sums_->data(), expected_.data(), sizeof(expected_), *stream_));
    const auto loaded = session().add_to_digest({}, sums(), *stream_);
    if (loaded.code() == errc::unsupported) GTEST_SKIP() << loaded.message();
    PENSTOCK_EXPECT_OK(loaded);
  }
  void TearDown() override {
    stream_.reset();
    sums_.reset();
    memory_.reset();
  }

  std::uint64_t* sums() { return reinterpret_cast<std::uint64_t*>(sums_->data()); }
  void add(std::size_t offset, std::size_t bytes, std::uint64_t row) {
    parts_.push_back({memory_->data() + offset, bytes, row});
    add_by_definition(expected_, std::span(content_).subspan(offset, bytes), row);
  }
  // Adds the parts with one call, which reads their table before it returns.
  void submit() {
    PENSTOCK_EXPECT_OK(session().add_to_digest(parts_, sums(), *stream_));
    std::fill(parts_.begin(), parts_.end(), digest_part{});
    parts_.clear();
  }
  detail::digest_sums result() {
    detail::digest_sums found{};
    PENSTOCK_EXPECT_OK(session().copy_small(found.data(), sums(), sizeof(found), *stream_));
    return found;
  }

  const std::vector<std::byte> content_ = random_bytes(room, 31);
  std::vector<digest_part> parts_;
  detail::digest_sums expected_{};
  std::optional<device_memory> memory_;
  std::optional<device_memory> sums_;
  std::optional<scoped_stream> stream_;
};

TEST_P(digest_contract, parts_may_have_any_length_and_alignment) {
  for (const std::size_t bytes : {0, 1, 7, 8, 9, 15, 16, 17, 4095, 4096, 4097, 3 * 4096 + 4081}) {
    for (std::size_t offset = 0; offset < 18; ++offset) {
      add(offset, bytes, bytes + offset);
      submit();
      ASSERT_EQ(result(), expected_) << bytes << " bytes at " << offset;
    }
  }
}

TEST_P(digest_contract, a_large_part_may_follow_small_ones) {
  add(5, 10, 0);
  add(16, 5000, std::uint64_t{1} << 40);
  add(0, room - 3, 17);
  submit();
  EXPECT_EQ(result(), expected_);
}

TEST_P(digest_contract, a_call_may_have_more_parts_than_one_launch_takes) {
  std::minstd_rand random(5);
  for (const std::size_t count : {127, 128, 129, 300}) {
    for (std::size_t i = 0; i < count; ++i) {
      const std::size_t offset = random() % (room / 2);
      add(offset - offset % (i % 3 == 0 ? 1 : 16), random() % 20000, random());
    }
    submit();
    EXPECT_EQ(result(), expected_) << count;
  }
}

TEST_P(digest_contract, an_empty_list_adds_nothing) {
  submit();
  EXPECT_EQ(result(), expected_);
}

TEST_P(digest_contract, streams_add_to_the_same_sums) {
  const scoped_stream other(session());
  for (std::size_t i = 0; i < 40; ++i) {
    add(i * 4096, room / 2, i);
    PENSTOCK_EXPECT_OK(session().add_to_digest(parts_, sums(), i % 2 == 0 ? device::stream(other) : device::stream(*stream_)));
    parts_.clear();
  }
  PENSTOCK_EXPECT_OK(session().synchronize(other));
  EXPECT_EQ(result(), expected_);
}

TEST_P(digest_contract, host_memory_has_the_same_digest) {
  for (const std::size_t offset : {0, 1, 8}) {
    add(offset, 70001, 3);
    add(offset + 4096, 5 * 4096, 100);
    add(offset, 0, 7);
  }
  auto in_host_memory = parts_;
  for (auto& each : in_host_memory) {
    each.memory = content_.data() + (static_cast<const std::byte*>(each.memory) - memory_->data());
  }
  EXPECT_EQ(detail::digest_of(in_host_memory), expected_);
  EXPECT_EQ(detail::digest_of({}), detail::digest_sums{});
}

TEST_P(digest_contract, memory_past_an_allocation_is_an_error) {
  if (GetParam() == "cuda") GTEST_SKIP() << "an access to invalid memory makes the CUDA context unusable";
  const digest_part past{memory_->data() + 4096, room, 0};
  PENSTOCK_EXPECT_OK(session().add_to_digest({&past, 1}, sums(), *stream_));
  const auto outcome = session().synchronize(*stream_);
  EXPECT_EQ(outcome.code(), errc::bad_memory);
  EXPECT_NE(outcome.message().find("digest"), std::string_view::npos) << outcome.message();
}

TEST_P(digest_contract, a_stream_that_does_not_exist_is_an_error) {
  if (GetParam() == "cuda") GTEST_SKIP() << "the CUDA driver does not check streams";
  EXPECT_EQ(session().add_to_digest({}, sums(), this).code(), errc::invalid_argument);
}

TEST_P(device_contract, two_threads_with_streams_of_their_own_do_not_disturb_each_other) {
  constexpr std::size_t bytes = 100001;
  const auto work = [this](unsigned seed) {
    const device_memory memory(session(), bytes);
    pinned_memory host(session(), bytes * 2);
    const scoped_stream stream(session());
    const scoped_event event(session());
    for (unsigned round = 0; round < 30; ++round) {
      const auto content = random_bytes(bytes, seed + round);
      host.fill(content);
      PENSTOCK_EXPECT_OK(session().copy(memory.data(), host.data(), bytes, stream));
      PENSTOCK_EXPECT_OK(session().copy(host.data() + bytes, memory.data(), bytes, stream));
      PENSTOCK_EXPECT_OK(session().record(event, stream));
      PENSTOCK_EXPECT_OK(session().wait(event));
      EXPECT_TRUE(host.holds(content, bytes)) << seed + round;
    }
  };
  std::thread first(work, 1000);
  std::thread second(work, 2000);
  first.join();
  second.join();
}

TEST_P(device_contract, a_stream_destroyed_with_work_queued_finishes_it) {
  constexpr std::size_t bytes = 4 << 20;
  const device_memory memory(session(), bytes);
  pinned_memory out(session(), bytes);
  pinned_memory in(session(), bytes);
  const auto content = random_bytes(bytes, 8);
  out.fill(content);
  const scoped_event event(session());
  {
    const scoped_stream stream(session());
    for (int i = 0; i < 8; ++i) PENSTOCK_EXPECT_OK(session().copy(memory.data(), out.data(), bytes, stream));
    PENSTOCK_EXPECT_OK(session().copy(in.data(), memory.data(), bytes, stream));
    PENSTOCK_EXPECT_OK(session().record(event, stream));
  }
  PENSTOCK_EXPECT_OK(session().wait(event));
  EXPECT_TRUE(in.holds(content));
}

TEST_P(device_contract, errors_name_the_call) {
  const status twice = session().unpin(this);
  ASSERT_FALSE(twice.ok());
  EXPECT_NE(twice.message().find("unregister"), std::string_view::npos) << twice.message();
  if (GetParam() == "cuda") {
    EXPECT_EQ(twice.domain(), error_domain::cuda);
    EXPECT_NE(twice.message().find("CUDA_ERROR_"), std::string_view::npos) << twice.message();
    EXPECT_NE(twice.message().find("(cuda " + std::to_string(twice.native()) + ")"), std::string_view::npos) << twice.message();
  }
}

std::string name_of(const ::testing::TestParamInfo<std::string>& info) { return info.param; }
INSTANTIATE_TEST_SUITE_P(drivers, device_contract, ::testing::Values("host", "cuda"), name_of);
INSTANTIATE_TEST_SUITE_P(drivers, scatter_contract, ::testing::Values("host", "cuda"), name_of);
INSTANTIATE_TEST_SUITE_P(drivers, digest_contract, ::testing::Values("host", "cuda"), name_of);

}  // namespace
}  // namespace penstock::testing
