// A mapped read ends at the end of the file, whatever size the kernel reports.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "device/host_pins.hpp"
#include "path/pinned_pages.hpp"
#include "path/registry.hpp"
#include "source/local_file.hpp"
#include "support/lone_link.hpp"
#include "support/lying_kernel.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"

namespace penstock::path::mapped_tests {
namespace {

using penstock::testing::lone_link;
using penstock::testing::lying_kernel;
using penstock::testing::temp_dir;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t size = 3 * mib + 100;

struct ending_owner final : job_owner {
  void finished(job& /*ended*/, std::uint64_t bytes, status error) override {
    finished_bytes = bytes;
    outcome = std::move(error);
  }
  void hand_over(job& refused, status why) override {
    handed_over_after = refused.moved;
    outcome = std::move(why);
  }
  [[nodiscard]] status stopped() const override { return {}; }
  std::optional<std::uint64_t> finished_bytes;
  std::optional<std::uint64_t> handed_over_after;
  status outcome;
};

class mapped_end : public ::testing::Test {
 protected:
  mapped_end() { penstock::testing::store_pattern(name_, size, 5); }

  void SetUp() override {
    char here = 0;
    char there = 0;
    if (!device::host_pins::read_safely(&here, &there, 1).ok())
      GTEST_SKIP() << "process_vm_readv is missing, by which the host device reads";
  }

  std::unique_ptr<ending_owner> read_mapped(std::optional<std::uint64_t> stated) {
    const auto kernel = std::make_shared<lying_kernel>(stated);
    const auto file = *source::local_file::open(*kernel, name_, {});
    const sys::fork_guard fork;
    pinned_pages pinned(*kernel, fork);
    const auto path = built_in_paths().of(path_kind::mapped).make({.kernel = kernel, .pinned = &pinned});
    auto& session = **driver_->open(0, nullptr);
    lone_link link(*kernel, session);
    auto* memory = static_cast<std::byte*>(*session.allocate(4 * mib));
    auto owner = std::make_unique<ending_owner>();
    job item;
    item.owner = owner.get();
    item.path = path.get();
    item.file = file.get();
    item.place = link.place();
    item.memory = memory;
    item.length = 4 * mib;
    EXPECT_TRUE(item.run());
    EXPECT_TRUE(session.release(memory).ok());
    return owner;
  }

  temp_dir dir_ = temp_dir::on_build_disk();
  std::string name_ = dir_.file("data");
  std::shared_ptr<device::driver> driver_ = device::make_host_driver();
};

TEST_F(mapped_end, is_a_short_count_where_the_file_does_end) {
  const auto owner = read_mapped(std::nullopt);
  EXPECT_TRUE(owner->outcome.ok()) << owner->outcome.message();
  EXPECT_EQ(owner->finished_bytes, size);
}

TEST_F(mapped_end, is_not_where_only_the_stated_size_ends) {
  for (const std::uint64_t stated : {std::uint64_t{0}, mib, 2 * mib + 5}) {
    const auto owner = read_mapped(stated);
    EXPECT_EQ(owner->handed_over_after, stated);
    EXPECT_FALSE(owner->outcome.ok());
  }
}

}  // namespace
}  // namespace penstock::path::mapped_tests
