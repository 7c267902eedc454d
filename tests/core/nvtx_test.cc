// NVTX ranges, as seen by a tool that the environment names: nvtx_injection.c, which records them.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "penstock/penstock.hpp"
#include "support/temp_dir.hpp"
#include "sys/nvtx.hpp"

namespace penstock::testing {
namespace {

#ifdef PENSTOCK_NVTX_INJECTION_PATH

std::vector<std::string> lines_of_file(const std::string& name) {
  std::ifstream in(name);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

// NVTX looks for a tool once in a process, so all that is to be seen is seen here.
TEST(nvtx_ranges, each_request_is_seen_to_begin_and_to_end) {
  const temp_dir folder;
  const auto written = folder.file("ranges");
  const auto name = folder.file("x");
  ASSERT_EQ(::setenv("NVTX_INJECTION64_PATH", PENSTOCK_NVTX_INJECTION_PATH, 1), 0);
  ASSERT_EQ(::setenv("PENSTOCK_TEST_RANGES", written.c_str(), 1), 0);
  engine_options options;
  options.use_nvtx = true;
  options.use_cuda = false;
  auto owner = engine::create(options);
  ASSERT_TRUE(owner.ok());
  auto made = owner->open(name, {.read = true, .write = true, .create = true});
  ASSERT_TRUE(made.ok());
  std::vector<std::byte> memory(4096);
  ASSERT_TRUE(made->write(memory.data(), 4096, 0).ok());
  ASSERT_TRUE(made->read(memory.data(), 1000, 0).ok());
  ASSERT_TRUE(made->read_async(memory.data(), 2000, 0).wait().ok());
  const io_request one{&*made, memory.data(), 100, 0};
  ASSERT_TRUE(owner->submit({&one, 1}).wait().front().ok());
  auto buffer = owner->allocate("host:0", 4096);
  ASSERT_TRUE(buffer.ok());
  const std::size_t length = 3000;
  const std::int64_t offset = 0;
  std::int64_t done = -2;
  ASSERT_TRUE(made->read_on_stream({.memory = buffer->data(), .length = &length, .offset = &offset, .bytes_done = &done}).ok());
  ASSERT_TRUE(made->close().ok()) << "which waits for the stream";

  const auto lines = lines_of_file(written);
  const std::vector<std::string> begun{"write 4096 of " + name, "read 1000 of " + name, "read 2000 of " + name, "batch of 1",
                                       "stream read 3000 of " + name};
  ASSERT_FALSE(lines.empty());
  EXPECT_EQ(lines.front(), "domain 0 penstock");
  for (std::size_t i = 0; i < begun.size(); ++i) {
    const auto number = std::to_string(i + 1);
    EXPECT_EQ(std::count(lines.begin(), lines.end(), "begin " + number + " " + begun[i]), 1) << begun[i];
    EXPECT_EQ(std::count(lines.begin(), lines.end(), "end " + number + " "), 1) << begun[i];
  }
  EXPECT_EQ(lines.size(), 1 + 2 * begun.size());

  options.use_nvtx = false;
  auto quiet = engine::create(options);
  ASSERT_TRUE(quiet.ok());
  ASSERT_TRUE(quiet->open(name)->read(memory.data(), 10, 0).ok());
  EXPECT_EQ(lines_of_file(written).size(), lines.size()) << "an engine that is not to show anything";
}

#else

TEST(nvtx_ranges, each_request_is_seen_to_begin_and_to_end) { GTEST_SKIP() << "built without the NVTX headers"; }

TEST(nvtx_ranges, a_build_without_them_says_so_once) {
  engine_options options;
  options.use_cuda = false;
  options.use_nvtx = true;
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(engine::create(options).ok());
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("built without the NVTX headers"), std::string::npos);
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(engine::create(options).ok());
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
}

#endif

}  // namespace
}  // namespace penstock::testing
