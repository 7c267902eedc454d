// Memory runs out at the end of a request whose bytes were to stay out of the page cache, on a kernel without support for that: the request
// then asks for the reason, to count its bytes, on a thread that must not throw.
#include <gtest/gtest.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "core/engine_core.hpp"
#include "memory/failing_allocations.hpp"
#include "support/engines.hpp"
#include "support/faulty_kernel.hpp"
#include "support/pattern.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"

namespace penstock::testing::uncached_memory {
namespace {

constexpr std::size_t length = (std::size_t{1} << 20) + 4000;
constexpr std::uint64_t most_allocations = 200;

class uncached_memory : public ::testing::TestWithParam<bool> {
 protected:
  uncached_memory() {
    store_pattern(name_, 2 * length, 71);
    kernel_->fail({.call = "pread_uncached", .error = EOPNOTSUPP, .lasting = true});
    kernel_->fail({.call = "pwrite_uncached", .error = EOPNOTSUPP, .lasting = true});
    auto doors = core::real_seams(without_cuda(2));
    doors.kernel = kernel_;
    auto made = core::make_engine(without_cuda(2), std::move(doors));
    EXPECT_TRUE(made.ok()) << made.error().message();
    engine_.emplace(*std::move(made));
    auto opened = engine_->open(name_, {.read = true, .write = true, .direct_writes = true});
    EXPECT_TRUE(opened.ok()) << opened.error().message();
    file_ = *std::move(opened);
    auto memory = engine_->allocate("host:0", length);
    EXPECT_TRUE(memory.ok()) << memory.error().message();
    memory_ = *std::move(memory);
  }

  io_result move() {
    const io_options options{.cache = cache_use::bypass};
    return (GetParam() ? file_.write_async(memory_.data(), length, 1, options) : file_.read_async(memory_.data(), length, 1, options))
        .wait();
  }

  temp_dir directory_ = temp_dir::on_build_disk();
  const std::string name_ = directory_.file("data");
  std::shared_ptr<faulty_kernel> kernel_ = std::make_shared<faulty_kernel>();
  std::optional<engine> engine_;
  file file_;
  device_buffer memory_;
};

TEST_P(uncached_memory, may_be_exhausted_where_a_request_ends) {
  EXPECT_TRUE(move().ok());
  EXPECT_GT(kernel_->count(GetParam() ? "pwrite_uncached" : "pread_uncached"), 0U) << "the kernel has been asked, and refused";
  for (std::uint64_t nth = 1; nth <= most_allocations; ++nth) {
    const auto before = failed_allocations();
    {
      const failing_allocations armed(allocations_of::the_workers, nth);
      const auto outcome = move();
      EXPECT_TRUE(outcome.ok() || outcome.error.code() == errc::out_of_memory) << outcome.error.message();
    }
    if (failed_allocations() == before) break;
  }
  EXPECT_TRUE(move().ok());
}

INSTANTIATE_TEST_SUITE_P(ways, uncached_memory, ::testing::Bool(), [](const auto& info) { return info.param ? "write" : "read"; });

}  // namespace
}  // namespace penstock::testing::uncached_memory
