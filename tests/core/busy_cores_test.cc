// Whether others keep the cores busy: what the kernel tells of them, and when it is asked.
#include "core/busy_cores.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include "support/forwarding_kernel.hpp"
#include "sys/core_use.hpp"

namespace penstock::core {
namespace {

class counting_kernel final : public testing::forwarding_kernel {
 public:
  double wanted_cores_share() noexcept override {
    ++asked;
    return share;
  }
  double share = 0;
  int asked = 0;
};

constexpr std::int64_t second = 1'000'000'000;

TEST(wanted_share, is_what_runs_but_for_the_one_that_asks) { EXPECT_EQ(sys::wanted_share("16.20 8.18 4.12 9/812 11206\n", 16), 0.5); }

TEST(wanted_share, of_a_moment_counts_no_more_than_twice_the_last_minute) {
  EXPECT_EQ(sys::wanted_share("2.00 0.18 0.12 33/812 11206\n", 16), 0.25);
  EXPECT_EQ(sys::wanted_share("64.00 0.18 0.12 1/812 11206\n", 16), 0.0) << "they have ended";
}

TEST(wanted_share, is_unknown_of_another_text) {
  for (const char* told : {"", "none", "1.0 2.0", "1.0 2.0 3.0 x/9"}) EXPECT_EQ(sys::wanted_share(told, 16), std::nullopt) << told;
  EXPECT_EQ(sys::wanted_share("1.00 1.00 1.00 2/80 1\n", 0), std::nullopt);
}

TEST(wanted_share, is_told_by_this_kernel) {
  if (::access("/proc/loadavg", R_OK) != 0) GTEST_SKIP() << "no /proc/loadavg";
  EXPECT_GE(sys::make_kernel()->wanted_cores_share(), 0);
}

TEST(busy_cores, are_those_that_others_want_half_of) {
  counting_kernel kernel;
  busy_cores cores;
  kernel.share = 0.4;
  EXPECT_FALSE(cores.now(kernel, true, 0));
  kernel.share = 0.5;
  EXPECT_TRUE(cores.now(kernel, true, second));
  EXPECT_EQ(kernel.asked, 2);
}

TEST(busy_cores, are_not_looked_at_while_the_engines_own_threads_run) {
  counting_kernel kernel;
  busy_cores cores;
  kernel.share = 1;
  EXPECT_FALSE(cores.now(kernel, false, 0)) << "nobody has looked";
  EXPECT_TRUE(cores.now(kernel, true, 1));
  kernel.share = 0;
  EXPECT_TRUE(cores.now(kernel, false, second)) << "as seen before";
  EXPECT_FALSE(cores.now(kernel, false, 20 * second)) << "that was long ago";
  EXPECT_EQ(kernel.asked, 1);
}

TEST(busy_cores, are_asked_about_once_in_a_while) {
  counting_kernel kernel;
  busy_cores cores;
  for (std::int64_t now = 0; now < second; now += second / 1000) (void)cores.now(kernel, true, now);
  EXPECT_EQ(kernel.asked, 50);
}

}  // namespace
}  // namespace penstock::core
