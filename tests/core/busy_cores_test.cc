// Whether other processes keep the cores busy: what the kernel reports, and the decision that follows.
#include "core/busy_cores.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include "support/forwarding_kernel.hpp"
#include "sys/core_use.hpp"

namespace penstock::core {
namespace {

// Each look adds a second, of which others have used a share of 16 cores.
class known_kernel final : public testing::forwarding_kernel {
 public:
  sys::core_use core_use_now() noexcept override {
    ++asked;
    use.ticks += 1600;
    use.busy_ticks += static_cast<std::uint64_t>(1600 * others) + 1600 / 4;
    use.own_ns += 4 * second;
    return is_told ? use : sys::core_use{};
  }
  static constexpr std::int64_t second = 1'000'000'000;
  double others = 0;
  bool is_told = true;
  int asked = 0;
  sys::core_use use{.cores = 16, .ticks = 0, .busy_ticks = 0, .tick_ns = 10'000'000, .own_ns = 0};
};

constexpr std::int64_t second = known_kernel::second;

TEST(core_use, is_read_from_the_kernels_text) {
  const auto found = sys::core_use_in("cpu  100 1 20 5000 300 3 4 5 60 7\ncpu0 50 0 10 2500 150 1 2 2 30 3\n");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->ticks, 5433U);
  EXPECT_EQ(found->busy_ticks, 133U) << "neither idle nor waiting for a disk";
}

TEST(core_use, is_unknown_of_another_text) {
  for (const char* told :
       {"", "cpu", "cpu 1 2 3", "cpu0 1 2 3 4 5 6 7 8", "cpu 1 2 3 x 5 6 7 8", "cpu 99999999999999999999 2 3 4 5 6 7 8"}) {
    EXPECT_FALSE(sys::core_use_in(told)) << told;
  }
}

TEST(core_use, of_others_is_what_this_process_has_not_used) {
  const sys::core_use before{.cores = 2, .ticks = 1000, .busy_ticks = 500, .tick_ns = 10'000'000, .own_ns = second};
  sys::core_use after{.cores = 2, .ticks = 1200, .busy_ticks = 650, .tick_ns = 10'000'000, .own_ns = second + second / 2};
  EXPECT_EQ(sys::used_by_others(before, after), 0.5);
  after.own_ns += 10 * second;
  EXPECT_EQ(sys::used_by_others(before, after), 0.0);
  EXPECT_EQ(sys::used_by_others(before, before), std::nullopt) << "no time has passed";
  EXPECT_EQ(sys::used_by_others({}, after), std::nullopt);
}

TEST(core_use, is_told_by_this_kernel) {
  if (::access("/proc/stat", R_OK) != 0) GTEST_SKIP() << "no /proc/stat";
  const auto use = sys::make_kernel()->core_use_now();
  EXPECT_GT(use.cores, 0U);
  EXPECT_GT(use.ticks, use.busy_ticks);
  EXPECT_GT(use.own_ns, 0U);
}

TEST(busy_cores, are_those_of_which_others_use_two_fifths) {
  known_kernel kernel;
  busy_cores cores;
  kernel.others = 0.4;
  EXPECT_FALSE(cores.now(kernel, 16, 0)) << "one look says nothing of a time";
  EXPECT_TRUE(cores.now(kernel, 16, second));
  kernel.others = 0.35;
  EXPECT_TRUE(cores.now(kernel, 16, 2 * second)) << "no to and fro";
  kernel.others = 0.25;
  EXPECT_FALSE(cores.now(kernel, 16, 3 * second));
  kernel.others = 0.35;
  EXPECT_FALSE(cores.now(kernel, 16, 4 * second));
}

TEST(busy_cores, are_asked_about_once_a_second) {
  known_kernel kernel;
  busy_cores cores;
  for (std::int64_t now = 0; now < 10 * second; now += second / 100) (void)cores.now(kernel, 16, now);
  EXPECT_EQ(kernel.asked, 10);
}

TEST(busy_cores, are_unknown_to_a_process_that_may_use_some_of_them_only) {
  known_kernel kernel;
  busy_cores cores;
  kernel.others = 0.7;
  for (std::int64_t now = 0; now < 5 * second; now += second) EXPECT_FALSE(cores.now(kernel, 8, now));
}

TEST(busy_cores, are_unknown_where_the_kernel_does_not_tell) {
  known_kernel kernel;
  busy_cores cores;
  kernel.others = 0.7;
  kernel.is_told = false;
  EXPECT_FALSE(cores.now(kernel, 16, 0));
  EXPECT_FALSE(cores.now(kernel, 16, second));
  kernel.is_told = true;
  EXPECT_FALSE(cores.now(kernel, 16, 2 * second));
  EXPECT_TRUE(cores.now(kernel, 16, 3 * second));
}

}  // namespace
}  // namespace penstock::core
