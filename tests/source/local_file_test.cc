// A local file as a source: its descriptors, and its end, which is where the kernel returns 0 bytes, whatever size it reports.
#include "source/local_file.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "support/faulty_kernel.hpp"
#include "support/lying_kernel.hpp"
#include "support/pattern.hpp"
#include "support/temp_dir.hpp"
#include "sys/page_size.hpp"

namespace penstock::source {
namespace {

using penstock::testing::faulty_kernel;
using penstock::testing::lying_kernel;
using penstock::testing::temp_dir;
namespace pattern = penstock::testing::pattern;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t seed = 5;
constexpr std::uint64_t size = 3 * mib + 100;

struct aligned_bytes {
  explicit aligned_bytes(std::size_t length) : length(length), data(static_cast<std::byte*>(std::aligned_alloc(4096, length))) {}
  aligned_bytes(const aligned_bytes&) = delete;
  aligned_bytes& operator=(const aligned_bytes&) = delete;
  ~aligned_bytes() { std::free(data); }
  std::size_t length;
  std::byte* data;
};

class local_file_source : public ::testing::Test {
 protected:
  enum class kinds { both, cached, direct };

  local_file_source() {
    cached_fd_ = ::open(name_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    const auto content = pattern::make(size, seed);
    EXPECT_EQ(::pwrite(cached_fd_, content.data(), size, 0), static_cast<ssize_t>(size));
    direct_fd_ = ::open(name_.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
  }
  void SetUp() override {
    if (direct_fd_ < 0) GTEST_SKIP() << "the build's file system has no O_DIRECT";
  }
  ~local_file_source() override {
    ::close(cached_fd_);
    if (direct_fd_ >= 0) ::close(direct_fd_);
  }

  // With one kind of descriptor only, where that is asked for: the kernel refuses the other.
  std::unique_ptr<local_file> lend(kinds which) {
    if (which != kinds::both) faulty_->fail({.call = "reopen", .error = EACCES});
    auto lent = local_file::adopt(*faulty_, which == kinds::direct ? direct_fd_ : cached_fd_);
    EXPECT_TRUE(lent.ok()) << lent.error().message();
    EXPECT_EQ((*lent)->descriptors().cached >= 0, which != kinds::direct);
    EXPECT_EQ((*lent)->descriptors().direct >= 0, which != kinds::cached);
    faulty_->disarm();
    return *std::move(lent);
  }

  static constexpr std::initializer_list<kinds> all_kinds{kinds::both, kinds::cached, kinds::direct};
  temp_dir dir_ = temp_dir::on_build_disk();
  std::string name_ = dir_.file("data");
  int cached_fd_ = -1;
  int direct_fd_ = -1;
  std::shared_ptr<lying_kernel> lying_ = std::make_shared<lying_kernel>(0);
  std::shared_ptr<faulty_kernel> faulty_ = std::make_shared<faulty_kernel>(lying_);
};

// --- descriptors

TEST_F(local_file_source, opens_the_second_descriptor_when_first_asked_and_closes_what_it_opened) {
  for (const bool by_itself : {false, true}) {
    auto opened = local_file::open(*faulty_, name_, {.write = true});
    ASSERT_TRUE(opened.ok()) << opened.error().message();
    auto& file = **opened;
    EXPECT_EQ(faulty_->open_descriptors(), 1);
    EXPECT_GE(file.descriptors().cached, 0);
    EXPECT_GE(file.descriptors().direct, 0);
    EXPECT_TRUE(file.cached_problem().ok());
    EXPECT_TRUE(file.direct_problem().ok());
    EXPECT_EQ(faulty_->open_descriptors(), 2);
    if (!by_itself) {
      EXPECT_TRUE(file.close().ok());
      EXPECT_EQ(faulty_->open_descriptors(), 0);
    }
    *opened = nullptr;
    EXPECT_EQ(faulty_->open_descriptors(), 0);
  }
  for (const int fd : {cached_fd_, direct_fd_}) {
    auto lent = local_file::adopt(*faulty_, fd);
    ASSERT_TRUE(lent.ok()) << lent.error().message();
    EXPECT_GE((*lent)->descriptors().cached, 0);
    EXPECT_GE((*lent)->descriptors().direct, 0);
    EXPECT_EQ((*lent)->facts().direct_writes, fd == direct_fd_);
    EXPECT_TRUE((*lent)->close().ok());
    EXPECT_EQ(faulty_->open_descriptors(), 0);
  }
  EXPECT_EQ(faulty_->stray_closes(), 0) << "lent descriptors stay open";
}

TEST_F(local_file_source, a_lent_descriptor_goes_by_the_name_and_writes_past_the_cache_as_asked) {
  auto lent = local_file::adopt(*faulty_, cached_fd_, {.name = "model", .direct_writes = true});
  ASSERT_TRUE(lent.ok()) << lent.error().message();
  EXPECT_EQ((*lent)->name(), "model");
  EXPECT_TRUE((*lent)->facts().direct_writes);
  EXPECT_FALSE((*lent)->facts().lent_past_cache) << "reads decide by residency";
}

TEST_F(local_file_source, tells_that_it_was_changed_since_it_was_opened) {
  const auto opened = local_file::open(*faulty_, name_, {});
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  EXPECT_FALSE((*opened)->changed());
  faulty_->fail({.call = "describe"});
  EXPECT_FALSE((*opened)->changed()) << "that cannot be told now";
  const timespec long_ago[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(::futimens(cached_fd_, long_ago), 0);
  EXPECT_TRUE((*opened)->changed());
  const auto anew = local_file::open(*faulty_, name_, {});
  ASSERT_TRUE(anew.ok()) << anew.error().message();
  EXPECT_FALSE((*anew)->changed());
  ASSERT_EQ(::ftruncate(cached_fd_, size - 1), 0);
  ASSERT_EQ(::futimens(cached_fd_, long_ago), 0);
  EXPECT_TRUE((*anew)->changed());
}

TEST_F(local_file_source, says_why_it_has_only_one_descriptor) {
  const auto cached = lend(kinds::cached);
  EXPECT_TRUE(cached->cached_problem().ok());
  EXPECT_EQ(cached->direct_problem().native(), EACCES);
  const auto direct = lend(kinds::direct);
  EXPECT_EQ(direct->cached_problem().native(), EACCES);
  EXPECT_TRUE(direct->direct_problem().ok());
  const auto unaligned = direct->drain(std::vector<std::byte>(10).data(), 10, 1);
  EXPECT_EQ(unaligned.error.code(), errc::invalid_argument);
  EXPECT_NE(unaligned.error.message().find("4096"), std::string_view::npos) << unaligned.error.message();
}

TEST_F(local_file_source, a_close_that_fails_closes_the_rest_and_says_so) {
  auto opened = local_file::open(*faulty_, name_, {.write = true});
  ASSERT_TRUE(opened.ok()) << opened.error().message();
  (void)(*opened)->descriptors();
  faulty_->fail({.call = "close", .error = EIO});
  const auto closed = (*opened)->close();
  EXPECT_EQ(closed.native(), EIO);
  EXPECT_NE(closed.message().find(name_), std::string_view::npos) << closed.message();
  EXPECT_EQ(faulty_->open_descriptors(), 0);
}

// --- its end

TEST_F(local_file_source, ends_where_nothing_comes_by_any_descriptor) {
  for (const auto which : all_kinds) {
    const auto file = lend(which);
    for (const std::uint64_t at : {std::uint64_t{0}, std::uint64_t{5}, mib, 3 * mib, size - 1}) {
      EXPECT_EQ(file->ends_at(at).value_or(true), false) << at;
    }
    for (const std::uint64_t at : {size, size + 1, 4 * mib}) EXPECT_EQ(file->ends_at(at).value_or(false), true) << at;
  }
}

TEST_F(local_file_source, of_the_kernel_states_no_size_and_ends_all_the_same) {
  const auto kernel = sys::make_kernel();
  auto version = local_file::open(*kernel, "/proc/version", {});
  ASSERT_TRUE(version.ok()) << version.error().message();
  std::vector<std::byte> text(4096);
  EXPECT_EQ((*version)->size().value_or(1), 0U);
  const auto read = (*version)->fill(text.data(), text.size(), 0);
  EXPECT_GT(read.bytes_done, 10U);
  EXPECT_EQ((*version)->ends_at(read.bytes_done - 1).value_or(true), false);
  EXPECT_EQ((*version)->ends_at(read.bytes_done).value_or(false), true);
}

TEST_F(local_file_source, a_direct_read_that_stops_early_goes_on_whatever_size_is_stated) {
  for (const auto which : {kinds::both, kinds::direct}) {
    const auto file = lend(which);
    faulty_->shorten({.call = "pread", .nth = 1, .bytes = mib + 17});
    faulty_->shorten({.call = "pread", .nth = 4, .bytes = 4096});
    aligned_bytes memory(4 * mib);
    const auto read = file->fill(memory.data, 4 * mib, 0, caching::direct);
    EXPECT_TRUE(read.ok()) << read.error.message();
    EXPECT_EQ(read.bytes_done, size);
    EXPECT_EQ(pattern::first_difference(std::span(memory.data, size), seed, 0), std::nullopt);
    faulty_->disarm();
  }
  const auto direct = lend(kinds::direct);
  faulty_->shorten({.call = "pread", .nth = 1, .bytes = 5000});
  std::vector<std::byte> odd(2 * mib + 3);
  const auto read = direct->fill(odd.data(), odd.size(), mib + 9);
  EXPECT_EQ(read.bytes_done, odd.size());
  EXPECT_EQ(pattern::first_difference(odd, seed, mib + 9), std::nullopt);
}

TEST_F(local_file_source, a_read_of_the_last_bytes_that_fails_is_no_end) {
  const auto file = lend(kinds::both);
  faulty_->fail({.call = "pread", .nth = 2, .error = EIO});
  aligned_bytes memory(4 * mib);
  const auto read = file->fill(memory.data, 4 * mib, 0, caching::direct);
  EXPECT_EQ(read.error.native(), EIO);
}

TEST_F(local_file_source, streaming_reads_the_same_bytes) {
  for (const auto which : all_kinds) {
    const auto file = lend(which);
    std::vector<std::byte> odd(2 * mib + 3);
    EXPECT_EQ(file->fill(odd.data(), odd.size(), 7, caching::streaming).bytes_done, odd.size());
    EXPECT_EQ(pattern::first_difference(odd, seed, 7), std::nullopt);
    EXPECT_EQ(file->fill(odd.data(), odd.size(), size - 10, caching::streaming).bytes_done, 10U);
  }
}

// Two pages, of which the second cannot be written.
struct half_writable {
  const std::size_t page = sys::page_size();
  half_writable() : data(static_cast<std::byte*>(::mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))) {
    EXPECT_EQ(::mprotect(data + page, page, PROT_READ), 0);
  }
  half_writable(const half_writable&) = delete;
  half_writable& operator=(const half_writable&) = delete;
  ~half_writable() { ::munmap(data, 2 * page); }
  std::byte* const data;
};

TEST_F(local_file_source, memory_that_cannot_be_written_is_an_error_by_every_descriptor) {
  const half_writable memory;
  for (const auto which : all_kinds) {
    const auto file = lend(which);
    const auto refused = file->fill(memory.data + memory.page, 100, 7);
    EXPECT_EQ(refused.error.code(), errc::bad_memory);
    EXPECT_EQ(refused.error.native(), EFAULT);
    EXPECT_EQ(refused.bytes_done, 0U);
    EXPECT_NE(refused.error.message().find("read 100 at 7 of " + file->name()), std::string_view::npos) << refused.error.message();
    const auto begun = file->fill(memory.data + 1000, memory.page, 7);
    EXPECT_EQ(begun.error.code(), errc::bad_memory) << begun.error.message();
    EXPECT_LE(begun.bytes_done, memory.page - 1000);
    EXPECT_EQ(pattern::first_difference(std::span(memory.data + 1000, begun.bytes_done), seed, 7), std::nullopt);
  }
}

}  // namespace
}  // namespace penstock::source
