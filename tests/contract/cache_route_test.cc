// The effect of a read on the page cache, for every kind of request, several lengths, with and without io_uring, and for ranges that are
// not or only partly cached. Under bypass no bytes enter the page cache; under keep all of them do.
#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <string>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "contract/contract_fixture.hpp"
#include "device/device_fixture.hpp"
#include "sys/kernel.hpp"

namespace penstock::testing::cache_route_tests {
namespace {

constexpr std::size_t size = 12 * mib + 5;
constexpr std::size_t offset = 2 * mib + 777;
constexpr std::size_t page = 4096;

enum class kind : std::uint8_t { waits, goes_on, batch, batch_of_neighbours, stream };

struct way {
  kind how;
  cache_use asked;
  bool of_file;  // the file was opened so; else the request says so
};

std::string name_of(const way& one) {
  constexpr std::array names{"read", "read_async", "batch", "batch_of_neighbours", "read_on_stream"};
  return fmt::format("{}_{}_of_{}", names[static_cast<std::size_t>(one.how)], to_string(one.asked), one.of_file ? "file" : "request");
}

std::vector<way> ways() {
  std::vector<way> all;
  for (const auto how : {kind::waits, kind::goes_on, kind::batch, kind::batch_of_neighbours, kind::stream}) {
    for (const auto asked : {cache_use::fill, cache_use::bypass}) {
      for (const bool of_file : {false, true}) {
        if (of_file || how != kind::stream) all.push_back({how, asked, of_file});
      }
    }
  }
  return all;
}

class cache_route : public ::testing::TestWithParam<std::tuple<way, bool>> {
 protected:
  void SetUp() override {
    content_ = pattern::make(size, 3);
    store_file(name_, content_);
    auto opened = house_.engine().open(name_, {.cache = way_.of_file ? way_.asked : cache_use::automatic});
    ASSERT_TRUE(opened.ok()) << told(opened.error());
    from_ = *std::move(opened);
    if (!from_.core()->source().direct_problem().ok()) GTEST_SKIP() << directory_.path() << " has no direct I/O";
    cool();
    if (resident(0, size) != 0) GTEST_SKIP() << directory_.path() << " keeps its pages";
  }

  void cool() { drop_cache(name_); }
  // Of these bytes, and no others.
  void warm(std::size_t at, std::size_t length) {
    const int fd = ::open(name_.c_str(), O_RDONLY | O_CLOEXEC);
    ::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
    bytes into(length);
    EXPECT_EQ(::pread(fd, into.data(), length, static_cast<off_t>(at)), static_cast<ssize_t>(length));
    ::close(fd);
  }
  std::uint64_t resident(std::size_t at, std::size_t length) {
    const int fd = ::open(name_.c_str(), O_RDWR | O_CLOEXEC);
    const auto found = sys::make_kernel()->resident_bytes(fd, at, length);
    ::close(fd);
    EXPECT_TRUE(found.ok()) << told(found.error());
    return found.value_or(0);
  }

  // Reads the range as the test wants it.
  void read(std::byte* memory, std::size_t length) {
    const io_options how{.cache = way_.of_file ? cache_use::automatic : way_.asked};
    const auto at = static_cast<std::int64_t>(offset);
    const auto expect = [&](const io_result& outcome) {
      EXPECT_TRUE(outcome.ok()) << told(outcome.error);
      EXPECT_EQ(outcome.bytes_done, length);
    };
    switch (way_.how) {
      case kind::waits:
        return expect(from_.read(memory, length, at, how));
      case kind::goes_on:
        return expect(from_.read_async(memory, length, at, how).wait());
      case kind::batch:
      case kind::batch_of_neighbours: {
        const std::size_t parts = way_.how == kind::batch ? 1 : 3;
        std::vector<io_request> requests;
        for (std::size_t i = 0; i < parts; ++i) {
          const auto begins = length * i / parts;
          requests.push_back({&from_, memory + begins, length * (i + 1) / parts - begins, at + static_cast<std::int64_t>(begins), false});
        }
        for (const auto& each : house_.engine().submit(requests, how).wait()) EXPECT_TRUE(each.ok()) << told(each.error);
        return;
      }
      case kind::stream: {
        std::int64_t done = -1;
        PENSTOCK_EXPECT_OK(from_.read_on_stream({.memory = memory, .length = &length, .offset = &at, .bytes_done = &done}));
        PENSTOCK_EXPECT_OK(house_.session().synchronize(nullptr));
        EXPECT_EQ(done, static_cast<std::int64_t>(length));
      }
    }
  }

  static engine_options options(bool use_io_uring) {
    engine_options made;
    made.use_cuda = false;
    made.use_io_uring = use_io_uring;
    return made;
  }

  const way way_ = std::get<0>(GetParam());
  open_house house_{options(std::get<1>(GetParam()))};
  temp_dir directory_ = temp_dir::on_build_disk();
  std::string name_ = directory_.file("data");
  bytes content_;
  file from_;
};

TEST_P(cache_route, leaves_in_the_page_cache_what_was_asked_for) {
  for (const std::size_t length : {4 * kib, 100 * kib, mib, 6 * mib}) {
    for (const bool partly : {false, true}) {
      SCOPED_TRACE(fmt::format("{} bytes, {}", length, partly ? "a page of which is in the page cache" : "cold"));
      cool();
      if (partly) warm(offset / page * page, page);
      const auto before = resident(0, size);
      guarded_memory memory(house_, memory_place::device, length);
      read(memory.data(), length);
      memory.expect(std::span(content_).subspan(offset, length));
      const auto now = resident(0, size);
      if (way_.asked == cache_use::bypass) {
        EXPECT_LE(now, before);
      } else {
        EXPECT_GE(resident(offset, length), length * 9 / 10) << "other programs want memory too";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, cache_route, ::testing::Combine(::testing::ValuesIn(ways()), ::testing::Bool()), [](const auto& info) {
  return name_of(std::get<0>(info.param)) + (std::get<1>(info.param) ? "_with_io_uring" : "_without_io_uring");
});

}  // namespace
}  // namespace penstock::testing::cache_route_tests
