// Plans for any size: an object as large as its server claims, and a sparse file. They take no longer than a plan for 256 GiB.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>

#include "penstock/engine.hpp"
#include "support/temp_dir.hpp"

namespace penstock {
namespace {

engine host_engine() {
  engine_options options;
  options.use_cuda = false;
  return *engine::create(options);
}

void expect_plan_of(const engine& owner, const file& from, std::uint64_t size) {
  for (const char* device : {"host", "host:0"}) {
    const auto plan = owner.explain(from, device, size, 0);
    ASSERT_TRUE(plan) << plan.error().message();
    std::uint64_t planned = 0;
    for (const plan_part& part : plan->parts) {
      EXPECT_EQ(part.offset, planned);
      planned += part.length;
    }
    EXPECT_EQ(planned, size) << device;
    const auto says = [](const std::string& remark) { return remark.find("only the first 256 GiB were inspected") != std::string::npos; };
    EXPECT_TRUE(std::ranges::any_of(plan->remarks, says)) << device;
  }
}

TEST(explain_size, of_an_object_is_what_its_server_claims) {
  const auto owner = host_engine();
  for (const unsigned bits : {40U, 50U, 62U}) {
    remote_options known;
    known.size = std::uint64_t{1} << bits;
    const auto from = owner.open_remote("http://127.0.0.1:9/object", known);  // which is not asked
    ASSERT_TRUE(from) << from.error().message();
    expect_plan_of(owner, *from, *known.size);
  }
}

TEST(explain_size, of_a_file_may_be_all_hole) {
  const testing::temp_dir directory;
  const auto path = directory.file("huge");
  std::ofstream(path).close();
  const std::uint64_t size = std::uint64_t{15} << 40;
  std::error_code refused;
  std::filesystem::resize_file(path, size, refused);
  if (refused) GTEST_SKIP() << "this file system has no files of 15 TiB: " << refused.message();
  const auto owner = host_engine();
  const auto from = owner.open(path);
  ASSERT_TRUE(from) << from.error().message();
  expect_plan_of(owner, *from, size);
}

}  // namespace
}  // namespace penstock
