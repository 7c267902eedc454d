// Memory that is not what it seems, registered memory, and copies between ranges.
#include <sys/mman.h>

#include <array>
#include <cstring>

#include "contract/contract_fixture.hpp"

namespace penstock::testing {
namespace {

class memory_contract : public contract_fixture {
 protected:
  device_buffer allocate(std::size_t size) {
    auto memory = engine_of().allocate(house_.device(), size);
    EXPECT_TRUE(memory.ok()) << told(memory.error());
    return memory.ok() ? *std::move(memory) : device_buffer();
  }
  static void expect_bad_memory(const io_result& outcome) {
    EXPECT_EQ(outcome.error.code(), errc::bad_memory) << told(outcome.error);
    EXPECT_EQ(outcome.bytes_done, 0U);
  }
};

TEST_F(memory_contract, a_range_past_the_end_of_its_allocation_is_bad_memory) {
  constexpr std::size_t size = 2 * mib;
  const auto content = make_file("data", 8 * mib);
  const auto both = open_for_writing();
  // Guarded on both sides by other allocations.
  guarded_memory before(house_, memory_place::device, 4096);
  const auto memory = allocate(size);
  guarded_memory after(house_, memory_place::device, 4096);
  auto* base = static_cast<std::byte*>(memory.data());
  // An allocation may be rounded up, to no more than a few pages here.
  constexpr std::size_t beyond = 4 * mib;
  struct range {
    std::size_t at;
    std::uint64_t length;
  };
  for (const auto& [at, length] : {range{0, size + beyond}, range{size - 1, beyond}, range{4096, std::uint64_t{1} << 60}}) {
    expect_bad_memory(both.read(base + at, length, 0));
    expect_bad_memory(both.write(base + at, length, 0));
    expect_bad_memory(both.read_async(base + at, length, 0).wait());
    const std::array<io_request, 1> asked{{{&both, base + at, length, 0, false}}};
    expect_bad_memory(engine_of().submit(asked).wait().at(0));
  }
  EXPECT_TRUE(both.read(base, size, 0).ok());
  before.expect_untouched();
  after.expect_untouched();
  expect_file(name(), content);
}

TEST_F(memory_contract, freed_device_memory_is_bad_memory) {
  const auto content = make_file("data", 4 * mib);
  const auto both = open_for_writing();
  void* freed = nullptr;
  {
    const auto memory = allocate(4 * mib);
    freed = memory.data();
    EXPECT_TRUE(both.read(freed, 4 * mib, 0).ok());
  }
  if (house_.on_gpu()) GTEST_SKIP() << "a GPU driver takes freed memory for the host's; the host device tells";
  for (const std::uint64_t length : {std::uint64_t{10}, 4 * mib}) {
    expect_bad_memory(both.read(freed, length, 0));
    expect_bad_memory(both.write(freed, length, 0));
    expect_bad_memory(both.read_async(freed, length, 0).wait());
  }
  expect_file(name(), content);
}

TEST_F(memory_contract, host_memory_that_cannot_be_touched_is_bad_memory_and_no_crash) {
  const auto content = make_file("data", 4 * mib);
  const auto both = open_for_writing();
  void* forbidden = ::mmap(nullptr, 4 * mib, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(forbidden, MAP_FAILED);
  for (const std::uint64_t length : {std::uint64_t{10}, 4 * mib}) {
    expect_bad_memory(both.read(forbidden, length, 0));
    expect_bad_memory(both.write(forbidden, length, 0));
    expect_bad_memory(both.read_async(forbidden, length, 0).wait());
  }
  ::munmap(forbidden, 4 * mib);
  expect_file(name(), content);
}

TEST_F(memory_contract, device_memory_of_another_engines_host_device_is_bad_memory) {
  make_file("data", 4 * mib);
  const auto from = open("data");
  open_house other;
  auto foreign = other.engine().allocate("host:0", 4 * mib);
  ASSERT_TRUE(foreign.ok()) << told(foreign.error());
  for (const std::uint64_t length : {std::uint64_t{10}, 4 * mib}) expect_bad_memory(from.read(foreign->data(), length, 0));
}

TEST_F(memory_contract, parts_of_one_allocation_are_read_and_written_apart) {
  const auto content = make_file("data", 4 * mib);
  const auto from = open("data");
  guarded_memory memory(house_, memory_place::device, 4 * mib);
  bytes known(4 * mib);
  memory.fill(known);
  for (const std::size_t at : {std::size_t{1}, std::size_t{5000}, std::size_t{2 * mib + 77}}) {
    const auto outcome = from.read(memory.data() + at, 300 * kib, static_cast<std::int64_t>(at));
    EXPECT_TRUE(outcome.ok()) << told(outcome.error);
    overlay(known, at, std::span(content).subspan(at, 300 * kib));
    memory.expect(known);
  }
}

TEST_F(memory_contract, registered_memory_behaves_as_before) {
  const auto content = make_file("data", 4 * mib);
  const auto from = open("data");
  for (const auto place : {memory_place::aligned, memory_place::device}) {
    SCOPED_TRACE(to_string(place));
    guarded_memory memory(house_, place, 4 * mib);
    auto* base = memory.data();
    {
      const auto registered = engine_of().register_memory(base + 4096, 2 * mib);
      ASSERT_TRUE(registered.ok()) << told(registered.error());
      EXPECT_EQ(from.read(base + 4096, 2 * mib, 4096).bytes_done, 2 * mib);
      EXPECT_EQ(from.read(base + 5000, 100, 5000).bytes_done, 100U);
      EXPECT_EQ(from.read(base, 4 * mib, 0).bytes_done, 4 * mib) << "a range that the registered one is part of";
    }
    memory.expect(content);
    EXPECT_EQ(from.read(base + 4096, 2 * mib, 0).bytes_done, 2 * mib) << "after the registration has gone";
  }
}

TEST_F(memory_contract, only_memory_can_be_registered) {
  EXPECT_EQ(engine_of().register_memory(nullptr, 4096).error().code(), errc::invalid_argument);
  const auto memory = allocate(mib);
  EXPECT_EQ(engine_of().register_memory(memory.data(), 0).error().code(), errc::invalid_argument);
  EXPECT_EQ(engine_of().register_memory(memory.data(), 64 * mib).error().code(), errc::bad_memory);
}

TEST_F(memory_contract, registrations_may_move_and_end_in_any_order) {
  const auto content = make_file("data", 2 * mib);
  guarded_memory memory(house_, memory_place::device, 2 * mib);
  auto first = engine_of().register_memory(memory.data(), mib);
  auto second = engine_of().register_memory(memory.data() + mib, mib);
  ASSERT_TRUE(first.ok() && second.ok());
  {
    registration moved = *std::move(first);
    *second = std::move(moved);
  }
  EXPECT_TRUE(open("data").read(memory.data(), 2 * mib, 0).ok());
  memory.expect(content);
}

TEST_F(memory_contract, buffers_know_their_size_and_keep_their_engine_alive) {
  auto memory = allocate(5 * mib + 1);
  EXPECT_EQ(memory.size(), 5 * mib + 1);
  EXPECT_NE(memory.data(), nullptr);
  house_.end();
  device_buffer moved = std::move(memory);
  EXPECT_EQ(moved.size(), 5 * mib + 1);
  EXPECT_EQ(memory.data(), nullptr);  // NOLINT(bugprone-use-after-move): what a moved-from buffer is
  moved = device_buffer();
  EXPECT_EQ(moved.size(), 0U);
}

TEST_F(memory_contract, the_cpu_finds_memory_of_the_host_device_and_of_no_gpu) {
  const auto memory = engine_of().allocate("host:0", 10'000);
  ASSERT_TRUE(memory.ok());
  auto* const base = static_cast<std::byte*>(memory->data());
  const auto seen = engine_of().cpu_address(base + 100, 9'900);
  ASSERT_TRUE(seen.ok()) << told(seen.error());
  std::memcpy(*seen, "bytes", 5);
  std::array<char, 5> copied{};
  EXPECT_TRUE(engine_of().copy(copied.data(), base + 100, 5).ok());
  EXPECT_EQ(std::string(copied.data(), 5), "bytes");
  EXPECT_EQ(engine_of().cpu_address(base + 100, 1 << 20).error().code(), errc::bad_memory);
  EXPECT_EQ(engine_of().cpu_address(base + 1'000'000'000, 1).error().code(), errc::bad_memory);
  EXPECT_EQ(engine_of().cpu_address(copied.data(), 5).value_or(nullptr), copied.data());
  if (!house_.on_gpu()) return;
  const auto on_gpu = allocate(4096);
  EXPECT_EQ(engine_of().cpu_address(on_gpu.data(), 4096).error().code(), errc::unsupported);
}

TEST_F(memory_contract, devices_that_are_not_there_are_not_allocated_on) {
  EXPECT_EQ(engine_of().allocate("host:1", 4096).error().code(), errc::not_found);
  EXPECT_EQ(engine_of().allocate("cuda:999", 4096).error().code(), errc::not_found);
  for (const char* word : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "host:0:0", "host:99999999999999999999"})
    EXPECT_EQ(engine_of().allocate(word, 4096).error().code(), errc::invalid_argument) << word;
  EXPECT_EQ(engine_of().allocate("host:0", 0).error().code(), errc::invalid_argument);
  EXPECT_EQ(engine_of().allocate("host:0", std::size_t{1} << 60).error().code(), errc::out_of_memory);
}

TEST_F(memory_contract, copies_go_between_all_kinds_of_memory) {
  const auto content = pattern::make(3 * mib + 1, 3);
  for (const auto from : {memory_place::pageable, memory_place::device}) {
    for (const auto to : {memory_place::pageable, memory_place::device}) {
      guarded_memory source(house_, from, content.size(), 1);
      guarded_memory target(house_, to, content.size(), 3);
      source.fill(content);
      const auto copied = engine_of().copy(target.data(), source.data(), content.size());
      EXPECT_TRUE(copied.ok()) << told(copied);
      target.expect(content);
      source.expect(content);
    }
  }
  guarded_memory memory(house_, memory_place::device, 100);
  EXPECT_EQ(engine_of().copy(nullptr, memory.data(), 1).code(), errc::bad_memory);
  EXPECT_EQ(engine_of().copy(memory.data(), nullptr, 1).code(), errc::bad_memory);
  EXPECT_TRUE(engine_of().copy(nullptr, nullptr, 0).ok());
}

TEST_F(memory_contract, devices_are_listed_and_the_host_device_is_the_last) {
  const auto found = engine_of().devices();
  ASSERT_FALSE(found.empty());
  EXPECT_EQ(found.back().name, "host:0");
  for (const auto& each : found) {
    EXPECT_FALSE(each.description.empty());
    EXPECT_GT(each.memory_bytes, 0U);
  }
  EXPECT_EQ(engine_of().cuda_status().ok(), house_.on_gpu());
}

}  // namespace
}  // namespace penstock::testing
