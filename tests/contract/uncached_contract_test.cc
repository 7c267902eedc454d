// Requests that must leave nothing in the page cache but go through it: host memory that is not aligned as O_DIRECT demands.
#include <cerrno>

#include "contract/contract_fixture.hpp"
#include "support/faulty_kernel.hpp"

namespace penstock::testing {
namespace {

class uncached_contract : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr std::uint64_t length = 8 * mib + 5;

  uncached_contract() {
    if (!GetParam()) {
      kernel_->fail({.call = "pread_uncached", .error = EOPNOTSUPP, .lasting = true});
      kernel_->fail({.call = "pwrite_uncached", .error = EOPNOTSUPP, .lasting = true});
    }
    auto doors = core::real_seams({});
    doors.kernel = kernel_;
    house_.emplace(engine_options{}, std::move(doors));
  }
  file open(const open_options& options) {
    auto opened = house_->engine().open(name_, options);
    EXPECT_TRUE(opened.ok()) << told(opened.error());
    return opened.ok() ? *std::move(opened) : file();
  }
  // What is counted and told is so of what really happened: the kernel may lack it.
  void expect_told(const file& of, bool is_write, const io_options& options) {
    const auto plan = house_->engine().explain(of, "host", length, 0, is_write, options);
    ASSERT_TRUE(plan.ok()) << told(plan.error());
    const bool stays = std::any_of(plan->remarks.begin(), plan->remarks.end(), [](const std::string& each) {
      return each.starts_with("bytes that pass through the page cache stay there: ");
    });
    const auto counted = house_->engine().stats().usage.uncached_bytes;
    EXPECT_EQ(stays, counted == 0);
    EXPECT_TRUE(stays || GetParam());
  }

  temp_dir directory_ = temp_dir::on_build_disk();
  std::string name_ = directory_.file("data");
  bytes content_ = pattern::make(length, 3);
  std::shared_ptr<faulty_kernel> kernel_ = std::make_shared<faulty_kernel>();
  std::optional<open_house> house_;
};

TEST_P(uncached_contract, reads_into_host_memory_that_bypass_the_cache_are_right) {
  store_file(name_, content_);
  drop_cache(name_);
  const auto source = open({});
  const io_options bypass{.cache = cache_use::bypass};
  guarded_memory memory(*house_, memory_place::pageable, length, 3);
  const auto outcome = source.read(memory.data(), length, 0, bypass);
  EXPECT_TRUE(outcome.ok()) << told(outcome.error);
  memory.expect(content_);
  expect_told(source, false, bypass);
}

TEST_P(uncached_contract, writes_from_host_memory_past_the_cache_are_right) {
  const auto target = open({.read = true, .write = true, .create = true, .direct_writes = true});
  guarded_memory memory(*house_, memory_place::pageable, length, 3);
  memory.fill(content_);
  const auto outcome = target.write(memory.data(), length, 0);
  EXPECT_TRUE(outcome.ok()) << told(outcome.error);
  expect_file(name_, content_);
  expect_told(target, true, {});
}

TEST_P(uncached_contract, small_ones_are_left_to_the_page_cache) {
  const auto both = open({.read = true, .write = true, .create = true, .direct_writes = true});
  guarded_memory memory(*house_, memory_place::pageable, length, 3);
  const io_options bypass{.cache = cache_use::bypass};
  EXPECT_TRUE(both.write(memory.data(), 128 * kib, 0, bypass).ok());
  EXPECT_TRUE(both.read(memory.data(), 128 * kib, 0, bypass).ok());
  EXPECT_TRUE(both.read_async(memory.data(), 4 * kib, 0, bypass).wait().ok());
  EXPECT_EQ(kernel_->count("pread_uncached") + kernel_->count("pwrite_uncached"), 0U);
}

TEST_P(uncached_contract, others_are_left_alone) {
  const auto both = open({.read = true, .write = true, .create = true});
  guarded_memory memory(*house_, memory_place::pageable, length, 3);
  memory.fill(content_);
  EXPECT_TRUE(both.write(memory.data(), length, 0).ok());
  EXPECT_TRUE(both.read(memory.data(), length, 0).ok());
  EXPECT_EQ(kernel_->count("pread_uncached") + kernel_->count("pwrite_uncached"), 0U);
  EXPECT_EQ(house_->engine().stats().usage.uncached_bytes, 0U);
}

INSTANTIATE_TEST_SUITE_P(kernels, uncached_contract, ::testing::Bool(),
                         [](const auto& info) { return std::string(info.param ? "that_may_have_it" : "without"); });

}  // namespace
}  // namespace penstock::testing
