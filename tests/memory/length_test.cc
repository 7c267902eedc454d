// Requests far longer than their memory, or than any memory: their length costs nothing before bytes are moved.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <span>
#include <string>
#include <vector>

#include "penstock/penstock.hpp"
#include "support/engines.hpp"
#include "support/pattern.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"
#include "support/thread_watchdog.hpp"

namespace penstock::testing::length {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t seed = 71;
constexpr std::size_t there = 2 * mib;

// Some memory, and behind it addresses where nothing may be touched.
class ended_memory {
 public:
  static constexpr std::size_t reserved = std::size_t{1} << 32;
  ended_memory() {
    base_ = static_cast<std::byte*>(mmap(nullptr, reserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    EXPECT_NE(static_cast<void*>(base_), MAP_FAILED);
    EXPECT_EQ(mprotect(base_, there, PROT_READ | PROT_WRITE), 0);
  }
  ended_memory(const ended_memory&) = delete;
  ended_memory& operator=(const ended_memory&) = delete;
  ~ended_memory() { munmap(base_, reserved); }
  [[nodiscard]] std::byte* data() const { return base_; }

 private:
  std::byte* base_ = nullptr;
};

// While it lives a list as long as the request is refused, rather than taking the machine's memory. Not under sanitizers, which take much.
class limited_memory {
 public:
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  limited_memory() {
    EXPECT_EQ(getrlimit(RLIMIT_DATA, &before_), 0);
    const rlimit less{std::min<rlim_t>(rlim_t{4} << 30, before_.rlim_max), before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_DATA, &less), 0);
  }
  ~limited_memory() { EXPECT_EQ(setrlimit(RLIMIT_DATA, &before_), 0); }
#else
  limited_memory() {}
  ~limited_memory() {}
#endif
  limited_memory(const limited_memory&) = delete;
  limited_memory& operator=(const limited_memory&) = delete;

 private:
  rlimit before_{};
};

class huge_lengths : public ::testing::TestWithParam<std::uint64_t> {
 protected:
  huge_lengths() : engine_(std::make_unique<engine>(made_engine(without_cuda()))) {}
  file open(const std::string& name, bool fresh) {
    return opened_file(*engine_, directory_.file(name), {.read = true, .write = true, .create = true, .truncate = fresh});
  }
  // What comes of a request in each way of asking; what escapes fails the test.
  template <class Body>
  io_result guarded(Body body) {
    try {
      return body();
    } catch (const std::exception& wrong) {
      ADD_FAILURE() << "escaped: " << wrong.what();
    }
    return {0, {errc::internal, "it threw"}};
  }
  io_result transfer(const file& on, void* memory, bool is_write, int way) {
    const auto length = GetParam();
    return guarded([&]() -> io_result {
      if (way == 0) return is_write ? on.write(memory, length, 0) : on.read(memory, length, 0);
      if (way == 1) return (is_write ? on.write_async(memory, length, 0) : on.read_async(memory, length, 0)).wait();
      const io_request asked[] = {{&on, memory, length, 0, is_write}};
      const auto outcomes = engine_->submit(asked).wait();
      EXPECT_EQ(outcomes.size(), 1U);
      return outcomes.size() == 1 ? outcomes.front() : io_result{0, {errc::internal, "no outcome"}};
    });
  }

  const limited_memory limited_;
  thread_watchdog watch_{"a very long request", 60s};
  temp_dir directory_ = temp_dir::on_build_disk();
  std::unique_ptr<engine> engine_;
};

TEST_P(huge_lengths, of_writes_end_where_the_memory_does) {
  const ended_memory memory;
  const auto content = pattern::make(there, seed);
  std::memcpy(memory.data(), content.data(), there);
  for (int way = 0; way < 3; ++way) {
    SCOPED_TRACE(way);
    watch_.feed(fmt::format("a write of {} bytes, way {}", GetParam(), way));
    auto to = open("written", true);
    const auto outcome = transfer(to, memory.data(), true, way);
    EXPECT_FALSE(outcome.ok());
    EXPECT_NE(outcome.error.code(), errc::internal) << outcome.error.message();
    EXPECT_LE(outcome.bytes_done, there);
    EXPECT_TRUE(to.close().ok());
    const auto size = std::filesystem::file_size(directory_.file("written"));
    EXPECT_LE(outcome.bytes_done, size);
    std::vector<std::byte> seen(outcome.bytes_done);
    std::ifstream(directory_.file("written"), std::ios::binary)
        .read(reinterpret_cast<char*>(seen.data()), static_cast<std::streamsize>(seen.size()));
    EXPECT_EQ(pattern::first_difference(seen, seed, 0), std::nullopt);
  }
}

TEST_P(huge_lengths, of_reads_end_where_the_file_does) {
  const ended_memory memory;
  const std::size_t file_bytes = there - 4000;
  const auto content = pattern::make(file_bytes, seed);
  store_file(directory_.file("data"), content);
  for (int way = 0; way < 3; ++way) {
    SCOPED_TRACE(way);
    watch_.feed(fmt::format("a read of {} bytes, way {}", GetParam(), way));
    std::memset(memory.data(), 0, there);
    auto from = open("data", false);
    const auto outcome = transfer(from, memory.data(), false, way);
    EXPECT_TRUE(outcome.ok()) << outcome.error.message();
    EXPECT_EQ(outcome.bytes_done, file_bytes);
    EXPECT_EQ(pattern::first_difference({memory.data(), std::min<std::size_t>(outcome.bytes_done, there)}, seed, 0), std::nullopt);
    EXPECT_TRUE(from.close().ok());
  }
}

TEST_P(huge_lengths, are_more_than_a_device_has) {
  auto memory = engine_->allocate("host:0", mib);
  ASSERT_TRUE(memory.ok()) << memory.error().message();
  auto both = open("data", true);
  for (const bool is_write : {false, true}) {
    for (int way = 0; way < 3; ++way) {
      const auto outcome = transfer(both, memory->data(), is_write, way);
      EXPECT_EQ(outcome.error.code(), errc::bad_memory) << outcome.error.message();
      EXPECT_EQ(outcome.bytes_done, 0U);
    }
  }
  EXPECT_TRUE(both.close().ok());
}

INSTANTIATE_TEST_SUITE_P(bytes, huge_lengths,
                         ::testing::Values(std::uint64_t{1} << 31, std::uint64_t{1} << 40, std::uint64_t{1} << 46, std::uint64_t{1} << 50),
                         [](const auto& info) { return fmt::format("two_to_the_{}", std::bit_width(info.param) - 1); });

}  // namespace
}  // namespace penstock::testing::length
