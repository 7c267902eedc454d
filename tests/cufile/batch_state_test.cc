// The batch behind the cuFile calls, over a kernel whose reads wait for the test, and when memory runs out.
#include <condition_variable>
#include <mutex>
#include <new>
#include <span>

#include "batch_fixture.hpp"
#include "core/engine_core.hpp"
#include "cufile/batch.hpp"
#include "cufile/counters.hpp"
#include "device/device.hpp"
#include "failing_new.hpp"
#include "fault/watchdog.hpp"
#include "support/forwarding_kernel.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;
using cufile::batch_state;

// Reads wait while it is shut.
class gated_kernel final : public forwarding_kernel {
 public:
  result<std::size_t> pread(int fd, void* target, std::size_t length, std::uint64_t offset) override {
    {
      std::unique_lock guard(lock_);
      moved_.wait(guard, [&] { return !shut_; });
    }
    return forwarding_kernel::pread(fd, target, length, offset);
  }
  void set_shut(bool shut) {
    const std::lock_guard guard(lock_);
    shut_ = shut;
    moved_.notify_all();
  }

 private:
  std::mutex lock_;  // guards shut_
  std::condition_variable moved_;
  bool shut_ = false;
};

class cufile_batch_state_test : public cufile_batch_test {
 protected:
  static constexpr std::size_t most = 256;  // small ones are several jobs for each lane
  static constexpr std::size_t large = 64 * kib;

  void SetUp() override {
    cufile_batch_test::SetUp();
    auto made = core::make_engine({}, core::seams{kernel_, nullptr, device::make_host_driver()});
    ASSERT_TRUE(made.ok()) << made.error().message();
    engine_.emplace(std::move(*made));
    auto opened = engine_->open(make_file("x", most * large));
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    file_ = std::move(*opened);
  }
  bool submit(batch_state& to, std::size_t count, std::size_t length) {
    entries_.clear();
    requests_.clear();
    for (std::size_t i = 0; i < count; ++i) {
      entries_.push_back(entry(nullptr, memory_.data(), length, 0, 0, cookie(i)));
      requests_.push_back({&file_, memory_.data() + i * length, length, static_cast<std::int64_t>(i * length), false});
    }
    return to.submit(*engine_, entries_, requests_, std::vector<int>(count), {});
  }

  std::shared_ptr<gated_kernel> kernel_ = std::make_shared<gated_kernel>();
  std::optional<engine> engine_;
  file file_;
  cufile::counters counters_;
  cufile::log log_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(most * large);
  std::vector<CUfileIOParams_t> entries_;
  std::vector<io_request> requests_;
  std::vector<CUfileIOEvents_t> events_ = std::vector<CUfileIOEvents_t>(most);
};

TEST_F(cufile_batch_state_test, a_time_limit_ends_while_reads_do_not) {
  const watchdog limit("a_time_limit_ends_while_reads_do_not");
  for (const std::size_t length : {4 * kib, large}) {
    batch_state batch(most, counters_, log_);
    kernel_->set_shut(true);
    ASSERT_TRUE(submit(batch, most, length));
    for (const auto wait : {0ns, 1ns, 1'000'000ns}) {
      EXPECT_EQ(batch.collect(1, events_, wait), 0U);
      EXPECT_EQ(batch.collect(most, events_, wait), 0U);
    }
    kernel_->set_shut(false);
    EXPECT_EQ(batch.collect(most, events_, {}), most);
    EXPECT_EQ(pattern::first_difference(std::span(memory_).first(most * length), file_seed, 0), std::nullopt);
  }
}

TEST_F(cufile_batch_state_test, memory_that_runs_out_costs_no_places) {
  if (!failing_new::available) GTEST_SKIP() << "allocations are the sanitizer's here";
  batch_state batch(most, counters_, log_);
  const std::vector<int> refused(most);
  // A batch that is full refuses an entry after all that it allocates by itself.
  ASSERT_TRUE(submit(batch, most, 4 * kib));
  const auto before = failing_new::count;
  ASSERT_FALSE(batch.submit(*engine_, entries_, requests_, refused, {}));
  const auto own = failing_new::count - before;
  ASSERT_GT(own, 0);
  ASSERT_EQ(batch.collect(most, events_, {}), most);
  for (long allowed = 0; allowed < own; ++allowed) {
    failing_new::allowed = allowed;
    EXPECT_THROW((void)batch.submit(*engine_, entries_, requests_, refused, {}), std::bad_alloc);
    failing_new::allowed = failing_new::no_limit;
    EXPECT_EQ(batch.collect(most, events_, {}), 0U) << "waits for nothing";
  }
  ASSERT_TRUE(submit(batch, most, 4 * kib));
  EXPECT_EQ(batch.collect(most, events_, {}), most);
}

}  // namespace
}  // namespace penstock::testing
