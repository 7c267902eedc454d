// Memory exported to a drive, one window at a time, over an imitated ring and GPU.
#include "path/lent_memory.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/descriptor_limit.hpp"
#include "support/lending_machine.hpp"
#include "support/pattern.hpp"
#include "support/temp_dir.hpp"
#include "sys/page_size.hpp"

namespace penstock::path {
namespace {

using penstock::testing::lending_machine;
using penstock::testing::temp_dir;
namespace pattern = penstock::testing::pattern;

constexpr std::uint64_t lent_megabyte = std::uint64_t{1} << 20;
constexpr std::uint64_t lent_window = 64 << 10;
constexpr std::uint64_t lent_bytes = 4 * lent_megabyte;

// A descriptor, which is all that this asks of a source.
class lent_file final : public source::source {
 public:
  explicit lent_file(const std::string& name) : source(name) {
    const auto content = pattern::make(lent_bytes, 1);
    descriptors_.direct = ::open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    EXPECT_EQ(::pwrite(descriptors_.direct, content.data(), lent_bytes, 0), static_cast<ssize_t>(lent_bytes));
  }
  ~lent_file() override { ::close(descriptors_.direct); }
  result<std::uint64_t> size() override { return lent_bytes; }
  status sync() override { return {}; }
  result<bool> ends_at(std::uint64_t offset) override { return offset >= lent_bytes; }
  io_result fill(std::byte* /*target*/, std::uint64_t /*length*/, std::uint64_t /*offset*/, ::penstock::source::caching /*by*/) override {
    return {};
  }
  io_result drain(const std::byte* /*memory*/, std::uint64_t /*length*/, std::uint64_t /*offset*/,
                  const ::penstock::source::drain_manner& /*how*/) override {
    return {};
  }
};

class lent_memory_test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto problem = machine_.problem(); !problem.ok()) GTEST_SKIP() << problem.message();
  }
  ~lent_memory_test() override {
    lent_.reset();
    if (memory_ != nullptr) (void)session_.release(memory_);
    EXPECT_EQ(machine_.world->registered, 0U);
    EXPECT_TRUE(machine_.world->broken_rules().empty()) << machine_.world->broken_rules().front();
  }

  void allocate(std::uint64_t bytes) { memory_ = static_cast<std::byte*>(*session_.allocate(bytes)); }
  lent_memory::outcome read(std::uint64_t at, std::uint64_t length, lent_file* from = nullptr) {
    return lent_->move({from == nullptr ? &file_ : from, &session_, memory_ + at, at, length, false});
  }
  [[nodiscard]] bool holds_file(std::uint64_t at, std::uint64_t length) {
    std::vector<std::byte> seen(length);
    const auto stream = *session_.make_stream();
    EXPECT_TRUE(session_.copy_small(seen.data(), memory_ + at, length, stream).ok());
    EXPECT_TRUE(session_.destroy_stream(stream).ok());
    return pattern::first_difference(seen, 1, at) == std::nullopt;
  }

  temp_dir folder_ = temp_dir::on_build_disk();
  lending_machine machine_;
  device::session& session_ = **machine_.gpu->open(0, nullptr);
  lent_file file_{folder_.file("data")};
  std::optional<lent_memory> lent_{std::in_place, *machine_.kernel, lent_window};
  std::byte* memory_ = nullptr;
};

TEST_F(lent_memory_test, a_turn_ends_with_the_window_that_is_lent) {
  allocate(3 * lent_window);
  const auto first = read(4096, 2 * lent_window);
  EXPECT_TRUE(first.error.ok()) << first.error.message();
  EXPECT_EQ(first.bytes, lent_window - 4096);
  EXPECT_EQ(first.asked, first.bytes);
  const auto second = read(lent_window, lent_window);
  EXPECT_EQ(second.bytes, lent_window);
  EXPECT_TRUE(holds_file(4096, 2 * lent_window - 4096));
  EXPECT_EQ(machine_.world->registered, 2U);
}

TEST_F(lent_memory_test, what_is_lent_stays_so_for_the_next_request) {
  allocate(lent_window);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(read(0, 4096).bytes, 4096U);
  EXPECT_EQ(machine_.world->registrations, 1U);
}

TEST_F(lent_memory_test, it_is_lent_to_each_file_and_goes_with_it) {
  allocate(lent_window);
  lent_file other(folder_.file("other"));
  EXPECT_EQ(read(0, 4096).bytes, 4096U);
  EXPECT_EQ(read(4096, 4096, &other).bytes, 4096U);
  EXPECT_EQ(machine_.world->registered, 2U);
  lent_->forget(other);
  EXPECT_EQ(machine_.world->registered, 1U);
}

TEST_F(lent_memory_test, the_one_unused_for_longest_makes_room) {
  constexpr std::uint64_t windows = lent_memory::most_loans + 1;
  allocate(windows * lent_window);
  for (std::uint64_t i = 0; i + 1 < windows; ++i) EXPECT_EQ(read(i * lent_window, 4096).bytes, 4096U);
  EXPECT_EQ(read(0, 4096).bytes, 4096U);
  EXPECT_EQ(read((windows - 1) * lent_window, 4096).bytes, 4096U);
  EXPECT_EQ(machine_.world->registered, lent_memory::most_loans);
  const unsigned before = machine_.world->registrations;
  EXPECT_EQ(read(0, 4096).bytes, 4096U);
  EXPECT_EQ(machine_.world->registrations, before) << "it was used just now";
  EXPECT_EQ(read(lent_window, 4096).bytes, 4096U);
  EXPECT_EQ(machine_.world->registrations, before + 1);
}

TEST_F(lent_memory_test, memory_that_others_have_released_is_taken_back_when_more_is_lent) {
  allocate(lent_window);
  EXPECT_EQ(read(0, 4096).bytes, 4096U);
  EXPECT_TRUE(session_.release(memory_).ok());
  allocate(lent_window);
  EXPECT_EQ(read(0, lent_window).bytes, lent_window);
  EXPECT_TRUE(holds_file(0, lent_window));
  EXPECT_EQ(machine_.world->registered, 1U);
}

TEST_F(lent_memory_test, memory_of_which_nobody_knows_whether_it_was_released_stays_lent) {
  allocate(2 * lent_window);
  EXPECT_EQ(read(0, 4096).bytes, 4096U);
  machine_.world->no_memory_at = 2;  // the first question is about what is to be lent
  EXPECT_EQ(read(lent_window, 4096).bytes, 4096U);
  EXPECT_EQ(machine_.world->registered, 2U);
}

TEST_F(lent_memory_test, an_allocation_is_forgotten_with_all_its_windows) {
  allocate(3 * lent_window);
  EXPECT_EQ(read(lent_window, 4096).bytes, 4096U);
  EXPECT_EQ(read(2 * lent_window, 4096).bytes, 4096U);
  lent_->forget_memory(memory_);
  EXPECT_EQ(machine_.world->registered, 0U);
}

TEST_F(lent_memory_test, a_page_that_is_not_wholly_in_its_allocation_is_refused) {
  allocate(sys::page_size() + 512);
  EXPECT_EQ(read(0, sys::page_size()).bytes, sys::page_size());
  const auto rest = read(sys::page_size(), 4096);
  EXPECT_EQ(rest.error.code(), errc::unsupported) << rest.error.message();
  EXPECT_EQ(rest.bytes, 0U);
}

TEST_F(lent_memory_test, more_than_the_kernel_takes_at_once_is_refused_by_it) {
  lent_.emplace(*machine_.kernel, 2 << 30);
  memory_ = static_cast<std::byte*>(session_.allocate((std::size_t{1} << 30) + lent_megabyte).value_or(nullptr));
  if (memory_ == nullptr) GTEST_SKIP() << "there is less memory";
  const auto outcome = read(0, 4096);
  EXPECT_NE(outcome.error.message().find("does not accept dma-bufs"), std::string_view::npos) << outcome.error.message();
}

TEST_F(lent_memory_test, without_descriptors_it_says_so_and_goes_on_once_there_are_some) {
  allocate(lent_window);
  {
    penstock::testing::descriptor_limit none_left(256);
    none_left.take_all();
    const auto outcome = read(0, 4096);
    EXPECT_FALSE(outcome.error.ok());
    EXPECT_EQ(outcome.bytes, 0U);
  }
  EXPECT_EQ(read(0, 4096).bytes, 4096U);
}

}  // namespace
}  // namespace penstock::path
