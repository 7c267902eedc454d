// Memory that two processes share, and the bytes that go through it.
#include "channel/ring.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "sys/peer.hpp"

namespace penstock::testing {
namespace {

using channel::ring_pair;
using channel::ring_state;

class ring : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = door_->make_region(ring_pair::bytes);
    ASSERT_TRUE(made.ok()) << made.error().message();
    auto mapped = door_->map_region(made->by.get(), ring_pair::bytes);
    ASSERT_TRUE(mapped.ok()) << mapped.error().message();
    state_ = reinterpret_cast<ring_state*>(made->memory.data());
    first_.emplace(std::move(made->memory), true);
    second_.emplace(*std::move(mapped), false);
  }
  const std::shared_ptr<sys::peer> door_ = sys::linux_peer();
  ring_state* state_ = nullptr;
  std::optional<ring_pair> first_;
  std::optional<ring_pair> second_;
};

iovec part_of(std::vector<std::byte>& memory, std::size_t at, std::size_t bytes) {
  return {memory.data() + at, std::min(bytes, memory.size() - at)};
}

TEST_F(ring, carries_bytes_of_any_lengths_in_order) {
  std::vector<std::byte> sent(8 << 20);
  std::mt19937 random(1);
  for (auto& each : sent) each = static_cast<std::byte>(random());
  std::vector<std::byte> got(sent.size());
  std::thread reader([&] {
    std::mt19937 lengths(2);
    for (std::size_t at = 0; at < got.size();) {
      const auto read = second_->in.read(part_of(got, at, 1 + lengths() % 300'000));
      ASSERT_TRUE(read.ok() || read.error().code() == errc::would_block);
      at += read.value_or(0);
      if (!read) std::this_thread::yield();
    }
  });
  std::mt19937 lengths(3);
  for (std::size_t at = 0; at < sent.size();) {
    const auto one = part_of(sent, at, 1 + lengths() % 1000);
    const auto two = part_of(sent, at + one.iov_len, lengths() % 300'000);
    const std::array parts{one, two};
    const auto wrote = first_->out.write(parts);
    ASSERT_TRUE(wrote.ok() || wrote.error().code() == errc::would_block);
    at += wrote.value_or(0);
    if (!wrote) std::this_thread::yield();
  }
  reader.join();
  EXPECT_EQ(got, sent);
}

TEST_F(ring, a_reader_that_sleeps_is_called_once_and_one_that_watches_never) {
  std::vector<std::byte> memory(100);
  const auto one = part_of(memory, 0, 10);
  ASSERT_TRUE(first_->out.write({&one, 1}).ok());
  EXPECT_TRUE(first_->out.must_call());
  EXPECT_FALSE(first_->out.must_call());
  EXPECT_FALSE(second_->in.sleep()) << "something has come";
  second_->in.watch();
  EXPECT_FALSE(first_->out.must_call());
  ASSERT_TRUE(second_->in.read(part_of(memory, 0, 100)).ok());
  EXPECT_TRUE(second_->in.sleep());
}

TEST_F(ring, a_writer_that_waits_for_room_is_called_when_there_is_some) {
  std::vector<std::byte> memory(ring_pair::ring_bytes);
  const auto all = part_of(memory, 0, memory.size());
  ASSERT_EQ(first_->out.write({&all, 1}).value_or(0), memory.size());
  EXPECT_FALSE(second_->in.must_call()) << "nobody waits";
  EXPECT_EQ(first_->out.write({&all, 1}).error().code(), errc::would_block);
  EXPECT_FALSE(second_->in.must_call()) << "there is no room";
  ASSERT_TRUE(second_->in.read(part_of(memory, 0, memory.size() * 3 / 4)).ok());
  EXPECT_TRUE(second_->in.must_call());
  EXPECT_FALSE(second_->in.must_call());
}

TEST_F(ring, an_end_that_claims_the_impossible_is_an_error) {
  std::vector<std::byte> memory(100);
  const auto part = part_of(memory, 0, 100);
  state_[0].written.store(std::uint64_t{1} << 40);
  EXPECT_EQ(second_->in.read(part).error().code(), errc::io);
  state_[1].read.store(77);  // of what was never written
  EXPECT_EQ(second_->out.write({&part, 1}).error().code(), errc::io);
}

TEST_F(ring, memory_that_could_shrink_and_descriptors_of_other_things_are_not_mapped) {
  const sys::owned_descriptor may_shrink(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(may_shrink.get(), ring_pair::bytes), 0);
  EXPECT_EQ(door_->map_region(may_shrink.get(), ring_pair::bytes).error().code(), errc::invalid_argument);
  EXPECT_EQ(door_->map_region(0, ring_pair::bytes).error().code(), errc::invalid_argument);
  auto smaller = door_->make_region(4096);
  ASSERT_TRUE(smaller.ok());
  EXPECT_EQ(door_->map_region(smaller->by.get(), ring_pair::bytes).error().code(), errc::invalid_argument);
}

TEST_F(ring, descriptors_go_with_bytes_to_who_asks_for_them) {
  std::array<int, 2> ends{};
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
  const sys::owned_descriptor here(ends[0]);
  const sys::owned_descriptor there(ends[1]);
  const auto offered = door_->make_region(4096);
  ASSERT_TRUE(offered.ok());
  offered->memory.data()[5] = std::byte{42};
  std::vector<std::byte> memory(10);
  const auto part = part_of(memory, 0, 10);
  const std::array passed{offered->by.get(), offered->by.get()};
  for (const bool asks : {true, false}) {
    ASSERT_EQ(door_->send(here.get(), {&part, 1}, passed).value_or(0), 10U);
    std::vector<sys::owned_descriptor> come;
    ASSERT_EQ(door_->receive(there.get(), {&part, 1}, asks ? &come : nullptr).value_or(0), 10U);
    ASSERT_EQ(come.size(), asks ? 2U : 0U);
    if (!asks) continue;
    const auto mapped = door_->map_region(come[1].get(), 4096);
    ASSERT_TRUE(mapped.ok());
    EXPECT_EQ(mapped->data()[5], std::byte{42});
  }
}

TEST_F(ring, a_permit_is_taken_or_taken_back_and_never_both) {
  for (std::uint32_t turn = 1; turn <= 2000; ++turn) {
    auto here = first_->own_permit(5, turn);
    auto there = second_->permit_of_other(5, turn);
    here.give();
    EXPECT_FALSE(here.used());
    bool taken = false;
    std::thread taker([&] { taken = there.take(); });
    const bool taken_back = here.take_back();
    taker.join();
    ASSERT_NE(taken, taken_back);
    EXPECT_EQ(here.used(), taken_back);
    if (!taken) continue;
    EXPECT_FALSE(here.take_back());
    if (turn % 2 == 0) std::atomic_ref(*there.word()).store(there.value_of_written());
    EXPECT_EQ(here.written(), turn % 2 == 0);
    there.use_up();
    EXPECT_TRUE(here.used());
    EXPECT_FALSE(second_->permit_of_other(5, turn + 1).take()) << "another turn";
    EXPECT_FALSE(second_->permit_of_other(6, turn).take()) << "another permit";
    EXPECT_FALSE(first_->permit_of_other(5, turn).take()) << "of the other end";
  }
}

}  // namespace
}  // namespace penstock::testing
