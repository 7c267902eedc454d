#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <bit>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "support/child.hpp"
#include "support/pattern.hpp"
#include "support/temp_dir.hpp"
#include "sys/cache_fill.hpp"
#include "sys/kernel.hpp"
#include "sys/page_size.hpp"

namespace penstock::sys {
namespace {

namespace pattern = penstock::testing::pattern;
using penstock::testing::deny_system_call;
using penstock::testing::run_in_child;
using penstock::testing::temp_dir;

constexpr std::uint64_t seed = 11;

bool contains(std::string_view text, std::string_view part) { return text.find(part) != std::string_view::npos; }

class linux_kernel_test : public ::testing::Test {
 protected:
  ~linux_kernel_test() override {
    for (const int fd : descriptors_) ::close(fd);
  }

  int open(const std::string& path, int flags) {
    auto fd = kernel_->open(path, flags, 0644);
    EXPECT_TRUE(fd.ok()) << fd.error().message();
    if (!fd) return -1;
    descriptors_.push_back(*fd);
    return *fd;
  }

  // A file of pattern bytes, written through.
  int make_file(const std::string& path, std::size_t length) {
    const int fd = open(path, O_RDWR | O_CREAT);
    const auto bytes = pattern::make(length, seed);
    const auto written = kernel_->pwrite(fd, bytes.data(), bytes.size(), 0);
    EXPECT_TRUE(written.ok() && *written == length);
    EXPECT_TRUE(kernel_->sync_data(fd).ok());
    return fd;
  }

  std::uint64_t magic_of(int fd) {
    const auto info = kernel_->describe(fd);
    return info ? info->filesystem_magic : 0;
  }

  std::shared_ptr<kernel> kernel_ = make_kernel();
  temp_dir dir_ = temp_dir::on_build_disk();
  std::vector<int> descriptors_;
};

TEST_F(linux_kernel_test, opening_a_missing_file_names_it) {
  const auto fd = kernel_->open(dir_.file("missing"), O_RDONLY, 0);
  ASSERT_FALSE(fd.ok());
  EXPECT_EQ(fd.error().code(), errc::not_found);
  EXPECT_EQ(fd.error().native(), ENOENT);
  EXPECT_EQ(fd.error().message(), "open " + dir_.file("missing") + ": No such file or directory (os 2)");
  EXPECT_EQ(kernel_->open(dir_.file("missing"), O_WRONLY, 0).error().message(),
            "open " + dir_.file("missing") + " for writing: No such file or directory (os 2)");
}

TEST_F(linux_kernel_test, opening_a_directory_for_writing_is_not_a_file) {
  EXPECT_EQ(kernel_->open(dir_.path(), O_WRONLY, 0).error().code(), errc::not_a_file);
}

TEST_F(linux_kernel_test, opened_descriptors_are_not_inherited) {
  const int fd = make_file(dir_.file("x"), 10);
  EXPECT_NE(fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
  const auto anew = kernel_->reopen(fd, O_RDONLY);
  ASSERT_TRUE(anew.ok());
  EXPECT_NE(fcntl(*anew, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_TRUE(kernel_->close(*anew).ok());
}

TEST_F(linux_kernel_test, reopen_reaches_a_file_that_has_no_name_any_more) {
  const int fd = make_file(dir_.file("x"), 100);
  ASSERT_EQ(unlink(dir_.file("x").c_str()), 0);
  const auto anew = kernel_->reopen(fd, O_RDONLY);
  ASSERT_TRUE(anew.ok()) << anew.error().message();
  std::vector<std::byte> bytes(100);
  EXPECT_EQ(kernel_->pread(*anew, bytes.data(), 100, 0).value_or(0), 100U);
  EXPECT_EQ(pattern::first_difference(bytes, seed, 0), std::nullopt);
  EXPECT_EQ(*kernel_->descriptor_flags(*anew) & O_ACCMODE, O_RDONLY);
  EXPECT_TRUE(kernel_->close(*anew).ok());
}

TEST_F(linux_kernel_test, reopen_of_a_closed_descriptor_fails) { EXPECT_FALSE(kernel_->reopen(1 << 20, O_RDONLY).ok()); }

TEST_F(linux_kernel_test, closing_twice_is_an_error_with_its_errno) {
  const auto fd = kernel_->open(dir_.path(), O_RDONLY, 0);
  ASSERT_TRUE(fd.ok());
  EXPECT_TRUE(kernel_->close(*fd).ok());
  EXPECT_EQ(kernel_->close(*fd).native(), EBADF);
}

TEST_F(linux_kernel_test, describe_tells_type_size_and_identity) {
  const int fd = make_file(dir_.file("x"), 12345);
  const auto info = kernel_->describe(fd);
  ASSERT_TRUE(info.ok()) << info.error().message();
  struct stat facts {};
  ASSERT_EQ(fstat(fd, &facts), 0);
  EXPECT_EQ(info->type, file_type::regular);
  EXPECT_EQ(info->size_bytes, 12345U);
  EXPECT_EQ(info->device, facts.st_dev);
  EXPECT_EQ(info->inode, facts.st_ino);
  EXPECT_NE(info->filesystem_magic, 0U);
  EXPECT_EQ(kernel_->file_size(fd).value_or(0), 12345U);
}

TEST_F(linux_kernel_test, directories_and_pipes_are_of_other_type) {
  const auto directory = kernel_->describe(open(dir_.path(), O_RDONLY));
  ASSERT_TRUE(directory.ok());
  EXPECT_EQ(directory->type, file_type::other);
  EXPECT_EQ(directory->direct_offset_alignment, 0U);
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  descriptors_.insert(descriptors_.end(), {ends[0], ends[1]});
  const auto pipe_end = kernel_->describe(ends[0]);
  ASSERT_TRUE(pipe_end.ok());
  EXPECT_EQ(pipe_end->type, file_type::other);
}

TEST_F(linux_kernel_test, describe_of_a_closed_descriptor_fails) {
  EXPECT_EQ(kernel_->describe(1 << 20).error().native(), EBADF);
  EXPECT_EQ(kernel_->descriptor_flags(1 << 20).error().native(), EBADF);
  EXPECT_EQ(kernel_->file_size(1 << 20).error().native(), EBADF);
}

TEST_F(linux_kernel_test, a_block_device_has_the_size_of_its_medium) {
  struct stat facts {};
  ASSERT_EQ(stat(dir_.path().c_str(), &facts), 0);
  const std::string node = "/dev/block/" + std::to_string(major(facts.st_dev)) + ":" + std::to_string(minor(facts.st_dev));
  auto fd = kernel_->open(node, O_RDONLY, 0);
  if (!fd) fd = kernel_->open("/dev/vda", O_RDONLY, 0);
  if (!fd) GTEST_SKIP() << "no readable block device: " << fd.error().message();
  descriptors_.push_back(*fd);
  const auto info = kernel_->describe(*fd);
  ASSERT_TRUE(info.ok()) << info.error().message();
  EXPECT_EQ(info->type, file_type::block_device);
  EXPECT_GT(info->size_bytes, 0U);
  EXPECT_EQ(info->size_bytes % 512, 0U);
  EXPECT_EQ(kernel_->file_size(*fd).value_or(0), info->size_bytes);
}

TEST_F(linux_kernel_test, reported_direct_alignment_is_enough_for_a_direct_read) {
  const int fd = make_file(dir_.file("x"), 1 << 20);
  const auto info = kernel_->describe(fd);
  ASSERT_TRUE(info.ok());
  const std::uint32_t alignment = info->direct_offset_alignment;
  if (alignment == 0) GTEST_SKIP() << "the build's file system has no O_DIRECT";
  EXPECT_TRUE(std::has_single_bit(alignment));
  EXPECT_TRUE(std::has_single_bit(info->direct_memory_alignment));
  const auto direct = kernel_->reopen(fd, O_RDONLY | O_DIRECT);
  if (!direct) GTEST_SKIP() << direct.error().message();
  descriptors_.push_back(*direct);
  EXPECT_NE(*kernel_->descriptor_flags(*direct) & O_DIRECT, 0);
  const auto memory = kernel_->map_memory(1 << 20, -1);
  ASSERT_TRUE(memory.ok());
  auto* target = static_cast<std::byte*>(*memory) + info->direct_memory_alignment;
  EXPECT_EQ(kernel_->pread(*direct, target, alignment, alignment).value_or(0), alignment);
  EXPECT_EQ(pattern::first_difference({target, alignment}, seed, alignment), std::nullopt);
  EXPECT_TRUE(kernel_->unmap(*memory, 1 << 20).ok());
}

TEST_F(linux_kernel_test, memory_file_systems_claim_no_direct_io) {
  const auto fd = kernel_->open("/dev/shm", O_RDWR | O_TMPFILE, 0600);
  if (!fd) GTEST_SKIP() << fd.error().message();
  descriptors_.push_back(*fd);
  if (magic_of(*fd) != TMPFS_MAGIC) GTEST_SKIP() << "/dev/shm is not tmpfs";
  const auto info = kernel_->describe(*fd);
  EXPECT_EQ(info->direct_memory_alignment, 0U);
  EXPECT_EQ(info->direct_offset_alignment, 0U);
}

TEST_F(linux_kernel_test, pread_is_short_at_the_end_and_empty_after_it) {
  const int fd = make_file(dir_.file("x"), 1000);
  std::vector<std::byte> bytes(4096);
  EXPECT_EQ(kernel_->pread(fd, bytes.data(), 4096, 900).value_or(0), 100U);
  EXPECT_EQ(pattern::first_difference({bytes.data(), 100}, seed, 900), std::nullopt);
  EXPECT_EQ(kernel_->pread(fd, bytes.data(), 4096, 1000).value_or(1), 0U);
  EXPECT_EQ(kernel_->pread(fd, bytes.data(), 4096, 1 << 30).value_or(1), 0U);
}

TEST_F(linux_kernel_test, pread_into_a_bad_address_is_bad_memory) {
  const int fd = make_file(dir_.file("x"), 4096);
  void* page = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(page, MAP_FAILED);
  const auto count = kernel_->pread(fd, page, 4096, 0);
  EXPECT_EQ(count.error().code(), errc::bad_memory);
  EXPECT_EQ(count.error().native(), EFAULT);
  EXPECT_TRUE(contains(count.error().message(), "pread 4096 at 0")) << count.error().message();
  munmap(page, 4096);
}

TEST_F(linux_kernel_test, transfers_through_the_wrong_kind_of_descriptor_are_denied) {
  make_file(dir_.file("x"), 4096);
  const int reader = open(dir_.file("x"), O_RDONLY);
  const int writer = open(dir_.file("x"), O_WRONLY);
  char byte = 0;
  const auto written = kernel_->pwrite(reader, &byte, 1, 0);
  EXPECT_EQ(written.error().code(), errc::permission_denied);
  EXPECT_EQ(written.error().native(), EBADF);
  EXPECT_EQ(kernel_->pread(writer, &byte, 1, 0).error().code(), errc::permission_denied);
  EXPECT_EQ(kernel_->pwrite(1 << 20, &byte, 1, 0).error().code(), errc::io);
}

TEST_F(linux_kernel_test, a_full_device_is_no_space) {
  const int fd = open("/dev/full", O_WRONLY);
  const char byte = 0;
  const auto written = kernel_->pwrite(fd, &byte, 1, 0);
  EXPECT_EQ(written.error().code(), errc::no_space);
  EXPECT_EQ(written.error().native(), ENOSPC);
}

TEST_F(linux_kernel_test, a_transfer_on_a_pipe_is_not_a_file) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  descriptors_.insert(descriptors_.end(), {ends[0], ends[1]});
  char byte = 0;
  EXPECT_EQ(kernel_->pread(ends[0], &byte, 1, 0).error().code(), errc::not_a_file);
}

TEST_F(linux_kernel_test, an_offset_past_the_largest_is_an_invalid_argument) {
  const int fd = make_file(dir_.file("x"), 10);
  char byte = 0;
  EXPECT_EQ(kernel_->pread(fd, &byte, 1, ~std::uint64_t{0}).error().code(), errc::invalid_argument);
  EXPECT_EQ(kernel_->resident_bytes(fd, ~std::uint64_t{0}, 1).error().code(), errc::invalid_argument);
}

TEST_F(linux_kernel_test, truncate_cuts_and_extends_with_zeros) {
  const int fd = make_file(dir_.file("x"), 1000);
  ASSERT_TRUE(kernel_->truncate(fd, 100).ok());
  ASSERT_TRUE(kernel_->truncate(fd, 200).ok());
  EXPECT_EQ(kernel_->file_size(fd).value_or(0), 200U);
  std::vector<std::byte> bytes(100, std::byte{1});
  EXPECT_EQ(kernel_->pread(fd, bytes.data(), 100, 100).value_or(0), 100U);
  EXPECT_EQ(bytes, std::vector<std::byte>(100));
  EXPECT_EQ(kernel_->truncate(open(dir_.file("x"), O_RDONLY), 0).native(), EINVAL);
}

TEST_F(linux_kernel_test, residency_follows_reads_and_dropped_pages) {
  constexpr std::uint64_t size = 4 << 20;
  const int fd = make_file(dir_.file("x"), size);
  if (magic_of(fd) == TMPFS_MAGIC) GTEST_SKIP() << "tmpfs drops no pages";
  auto resident = kernel_->resident_bytes(fd, 0, size);
  ASSERT_TRUE(resident.ok()) << resident.error().message();
  EXPECT_EQ(*resident, size);
  ASSERT_TRUE(kernel_->drop_cache(fd, 0, size).ok());
  EXPECT_EQ(kernel_->resident_bytes(fd, 0, size).value_or(size), 0U);
  std::vector<std::byte> page(page_size());
  EXPECT_EQ(kernel_->pread(fd, page.data(), page.size(), 0).value_or(0), page.size());
  EXPECT_GE(kernel_->resident_bytes(fd, 0, size).value_or(0), page.size());
  EXPECT_EQ(pattern::first_difference(page, seed, 0), std::nullopt);
}

bool reads_behind_the_end(int fd, std::uint64_t offset) {
  constexpr int populate_read = 22;  // MADV_POPULATE_READ
  void* const mapped = mmap(nullptr, page_size(), PROT_READ, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (mapped == MAP_FAILED) return false;
  const bool reads = madvise(mapped, page_size(), populate_read) == 0;
  munmap(mapped, page_size());
  return reads;
}

TEST_F(linux_kernel_test, whole_blocks_are_read_into_the_page_cache) {
  constexpr std::uint64_t block = cache_block_bytes;
  constexpr std::uint64_t size = 4 * block - 100;
  const int fd = make_file(dir_.file("x"), size);
  if (magic_of(fd) == TMPFS_MAGIC) GTEST_SKIP() << "tmpfs drops no pages";
  EXPECT_TRUE(kernel_->read_into_cache(fd, 1, block).ok()) << "which holds no block, so there is nothing to read";
  ASSERT_TRUE(kernel_->drop_cache(fd, 0, size).ok());
  const auto brought = kernel_->read_into_cache(fd, 17, 3 * block);
  if (brought.code() == errc::unsupported) GTEST_SKIP() << brought.message();
  ASSERT_TRUE(brought.ok()) << brought.message();
  EXPECT_EQ(kernel_->resident_bytes(fd, block, 2 * block).value_or(0), 2 * block);
  std::vector<std::byte> bytes(size);
  EXPECT_EQ(kernel_->pread(fd, bytes.data(), size, 0).value_or(0), size);
  EXPECT_EQ(pattern::first_difference(bytes, seed, 0), std::nullopt);
  ASSERT_TRUE(kernel_->read_into_cache(fd, 0, 3 * block).ok()) << "it is there";

  EXPECT_EQ(kernel_->read_into_cache(1 << 20, 0, block).native(), EBADF);
  EXPECT_EQ(kernel_->read_into_cache(open(dir_.file("x"), O_WRONLY), 0, block).native(), EACCES);
  const auto beyond = kernel_->read_into_cache(fd, 4 * block, block);
  if (reads_behind_the_end(fd, 4 * block)) GTEST_SKIP() << "what lies behind the end of a file can be read here, as in emulation";
  EXPECT_FALSE(beyond.ok());
  EXPECT_NE(beyond.message().find("into the page cache"), std::string::npos) << beyond.message();
}

TEST_F(linux_kernel_test, a_range_that_lacks_a_page_is_not_all_resident) {
  const int fd = make_file(dir_.file("x"), 8 * page_size());
  if (magic_of(fd) == TMPFS_MAGIC) GTEST_SKIP() << "tmpfs drops no pages";
  ASSERT_TRUE(kernel_->drop_cache(fd, 0, 0).ok());
  ASSERT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM), 0);
  std::vector<std::byte> first(page_size());
  ASSERT_TRUE(kernel_->pread(fd, first.data(), first.size(), 0).ok());
  EXPECT_EQ(kernel_->resident_bytes(fd, 777, 100).value_or(0), 100U);
  const auto of_two_pages = kernel_->resident_bytes(fd, 777, page_size());
  EXPECT_LT(of_two_pages.value_or(page_size()), page_size()) << "it begins in the one page and ends in the next";
  EXPECT_GT(of_two_pages.value_or(0), 0U);
}

TEST_F(linux_kernel_test, residency_is_never_more_than_the_range) {
  const int fd = make_file(dir_.file("x"), 10000);
  EXPECT_EQ(kernel_->resident_bytes(fd, 0, 0).value_or(1), 0U);
  EXPECT_EQ(kernel_->resident_bytes(fd, 5000, 17).value_or(0), 17U);
  EXPECT_LE(kernel_->resident_bytes(fd, 0, 1 << 20).value_or(1 << 20), page_up(10000));
  EXPECT_EQ(kernel_->resident_bytes(fd, 1 << 20, 4096).value_or(1), 0U);
  EXPECT_EQ(kernel_->resident_bytes(1 << 20, 0, 4096).error().native(), EBADF);
}

TEST_F(linux_kernel_test, without_cachestat_mincore_gives_the_same_answers) {
  constexpr std::uint64_t size = 1 << 20;
  const int fd = make_file(dir_.file("x"), size + 100);
  const bool drops = magic_of(fd) != TMPFS_MAGIC;
  for (const int refusal : {ENOSYS, EPERM}) {
    const int outcome = run_in_child([&] {
      if (!deny_system_call(451, refusal)) return 2;
      const auto probe = make_kernel();
      std::byte byte{};
      if (!probe->pread(fd, &byte, 1, 0).ok() || !probe->pread(fd, &byte, 1, size).ok()) return 3;
      if (probe->resident_bytes(fd, size, 8192).value_or(0) < 100) return 4;  // the last page reaches past the end
      if (probe->resident_bytes(fd, 2 * size, 8192).value_or(1) != 0) return 5;
      if (probe->resident_bytes(fd, 100, 50).value_or(0) != 50) return 6;
      if (drops && !probe->drop_cache(fd, 0, 0).ok()) return 7;
      if (drops && probe->resident_bytes(fd, 0, size).value_or(size) != 0) return 8;
      return 0;
    });
    if (outcome == 2) GTEST_SKIP() << "seccomp filters cannot be set here";
    EXPECT_EQ(outcome, 0) << "cachestat refused with " << refusal;
  }
}

TEST_F(linux_kernel_test, residency_of_a_short_range_one_may_not_write_is_unsupported_rather_than_wrong) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  constexpr std::uint64_t size = 512 << 10;
  make_file(dir_.file("x"), size);
  const int fd = open(dir_.file("x"), O_RDONLY);
  ASSERT_TRUE(kernel_->drop_cache(fd, 0, 0).ok());
  const int outcome = run_in_child([&] {
    if (!deny_system_call(451, ENOSYS)) return 2;
    if (setresuid(65534, 65534, 65534) != 0) return 2;
    return make_kernel()->resident_bytes(fd, 0, size).error().code() == errc::unsupported ? 0 : 1;
  });
  if (outcome == 2) GTEST_SKIP() << "seccomp filters or user ids cannot be set here";
  EXPECT_EQ(outcome, 0);
  // The kernel's own cachestat: true (before Linux 6.13), or refused for this file; never invented.
  const int own = run_in_child([&] {
    if (setresuid(65534, 65534, 65534) != 0) return 2;
    const auto resident = make_kernel()->resident_bytes(fd, 0, size);
    return resident.ok() ? (*resident < size ? 0 : 1) : (resident.error().code() == errc::unsupported ? 0 : 1);
  });
  EXPECT_TRUE(own == 0 || own == 2 || magic_of(fd) == TMPFS_MAGIC) << own;
}

// A data set of somebody else. cachestat is refused as since Linux 6.13, and mincore says nothing but yes.
TEST_F(linux_kernel_test, residency_of_a_file_one_may_not_write_is_estimated_and_its_samples_are_dropped) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to become somebody else";
  constexpr std::uint64_t size = 24 << 20;
  const int own = make_file(dir_.file("x"), size);
  if (magic_of(own) == TMPFS_MAGIC) GTEST_SKIP() << "tmpfs drops no pages";
  const int fd = open(dir_.file("x"), O_RDONLY);
  const auto as_nobody = [&](int rounds, std::uint64_t least, std::uint64_t most) {
    return run_in_child([&] {
      if (!deny_system_call(451, EPERM) || setresuid(65534, 65534, 65534) != 0) return 2;
      const auto kernel = make_kernel();
      for (int i = 0; i < rounds; ++i) {
        const auto resident = kernel->resident_bytes(fd, 0, size);
        if (!resident) return resident.error().native() == EOPNOTSUPP ? 3 : 4;
        if (*resident < least || *resident > most) return 1;
      }
      if (kernel->resident_bytes(fd, size, size).value_or(1) != 0) return 5;
      return kernel->resident_bytes(fd, size - 5, size).ok() ? 0 : 6;
    });
  };
  const int full = as_nobody(20, size, size);
  if (full == 2) GTEST_SKIP() << "seccomp filters or user ids cannot be set here";
  if (full == 3) GTEST_SKIP() << "the build's file system cannot be read without waiting";
  EXPECT_EQ(full, 0);
  ASSERT_TRUE(kernel_->drop_cache(fd, 0, 0).ok());
  // A disk that answers at once, as the kernel starts the I/O of a sample, makes it look like a page that was there: a few are forgiven.
  EXPECT_EQ(as_nobody(20, 0, size / 2), 0);
  const auto left = kernel_->resident_bytes(own, 0, size);
  const std::uint64_t sampled_bytes = 20 * 24 * page_size();
  EXPECT_LE(left.value_or(size), sampled_bytes / 10) << "samples stay in the page cache";
  ASSERT_TRUE(kernel_->drop_cache(own, 0, 0).ok());
  ASSERT_EQ(::posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM), 0);  // no read-ahead into the other half
  std::vector<std::byte> half(size / 2);
  ASSERT_TRUE(kernel_->pread(fd, half.data(), half.size(), 0).ok());
  EXPECT_EQ(as_nobody(1, size / 4, size / 4 * 3), 0);
}

TEST_F(linux_kernel_test, a_mapped_file_shows_its_bytes_until_unmapped) {
  const int fd = make_file(dir_.file("x"), 3 << 20);
  const auto base = kernel_->map_file(fd, 1 << 20, 2 << 20);
  ASSERT_TRUE(base.ok()) << base.error().message();
  EXPECT_EQ(pattern::first_difference({static_cast<std::byte*>(*base), 2 << 20}, seed, 1 << 20), std::nullopt);
  EXPECT_TRUE(kernel_->unmap(*base, 2 << 20).ok());
  unsigned char flag = 0;
  EXPECT_EQ(mincore(*base, 4096, &flag), -1);
  EXPECT_EQ(errno, ENOMEM);
}

TEST_F(linux_kernel_test, mapping_refuses_odd_offsets_and_closed_descriptors) {
  const int fd = make_file(dir_.file("x"), 8192);
  EXPECT_EQ(kernel_->map_file(fd, 100, 4096).error().code(), errc::invalid_argument);
  EXPECT_EQ(kernel_->map_file(fd, 0, 0).error().code(), errc::invalid_argument);
  EXPECT_EQ(kernel_->map_file(1 << 20, 0, 4096).error().native(), EBADF);
  EXPECT_EQ(kernel_->map_file(open(dir_.file("x"), O_WRONLY), 0, 4096).error().code(), errc::permission_denied);
}

bool all_zero_and_resident(void* base, std::size_t length) {
  std::vector<unsigned char> flags(page_up(length) / page_size());
  if (mincore(base, length, flags.data()) != 0) return false;
  for (const auto flag : flags) {
    if ((flag & 1U) == 0) return false;
  }
  const auto* bytes = static_cast<const char*>(base);
  return bytes[0] == 0 && std::memcmp(bytes, bytes + 1, length - 1) == 0;
}

TEST_F(linux_kernel_test, mapped_memory_is_aligned_zeroed_touched_and_writable) {
  for (const int node : {-1, 0, 500, 5000}) {
    for (const std::size_t length : {std::size_t{1}, std::size_t{4097}, std::size_t{2} << 20, (std::size_t{6} << 20) + 4096}) {
      const auto base = kernel_->map_memory(length, node);
      ASSERT_TRUE(base.ok()) << base.error().message();
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(*base) % (2 << 20), 0U);
      EXPECT_TRUE(all_zero_and_resident(*base, length)) << length;
      std::memset(*base, 7, length);
      EXPECT_TRUE(kernel_->unmap(*base, length).ok());
    }
  }
}

TEST_F(linux_kernel_test, memory_is_touched_by_hand_where_the_kernel_cannot_populate) {
  const int outcome = run_in_child([&] {
    if (!deny_system_call(SYS_madvise, 2, 23, EINVAL)) return 2;
    const auto base = kernel_->map_memory(1 << 20, -1);
    return base.ok() && all_zero_and_resident(*base, 1 << 20) ? 0 : 1;
  });
  if (outcome == 2) GTEST_SKIP() << "seccomp filters cannot be set here";
  EXPECT_EQ(outcome, 0);
}

TEST_F(linux_kernel_test, memory_is_populated_in_steps_so_that_others_get_the_lock_of_the_address_space_in_between) {
  constexpr std::size_t length = std::size_t{32} << 20;
  const int outcome = run_in_child([&] {
    // Huge pages of the whole are asked for too, and can be done without.
    if (!deny_system_call(SYS_madvise, 1, length, ENOMEM)) return 2;
    const auto base = kernel_->map_memory(length, -1);
    return base.ok() && all_zero_and_resident(*base, length) ? 0 : 1;
  });
  if (outcome == 2) GTEST_SKIP() << "seccomp filters cannot be set here";
  EXPECT_EQ(outcome, 0);
}

TEST_F(linux_kernel_test, a_later_step_of_populating_may_fail_or_be_done_by_hand) {
  const std::size_t last_step = page_size();
  const std::size_t length = (std::size_t{4} << 20) + last_step;
  for (const int refusal : {ENOMEM, EINVAL}) {
    const int outcome = run_in_child([&] {
      if (!deny_system_call(SYS_madvise, 1, last_step, refusal)) return 2;
      const auto base = kernel_->map_memory(length, -1);
      if (refusal == ENOMEM) return base.error().code() == errc::out_of_memory ? 0 : 1;
      return base.ok() && all_zero_and_resident(*base, length) ? 0 : 1;
    });
    if (outcome == 2) GTEST_SKIP() << "seccomp filters cannot be set here";
    EXPECT_EQ(outcome, 0) << refusal;
  }
}

TEST_F(linux_kernel_test, memory_that_cannot_be_had_is_out_of_memory_and_leaves_nothing_mapped) {
  EXPECT_EQ(kernel_->map_memory(0, -1).error().code(), errc::invalid_argument);
  EXPECT_EQ(kernel_->map_memory(~std::size_t{0}, -1).error().code(), errc::out_of_memory);
  EXPECT_EQ(kernel_->map_memory(std::size_t{1} << 60, -1).error().code(), errc::out_of_memory);
}

TEST_F(linux_kernel_test, unmap_of_an_odd_address_is_an_error) {
  EXPECT_EQ(kernel_->unmap(reinterpret_cast<void*>(1), 4096).code(), errc::invalid_argument);
}

TEST_F(linux_kernel_test, a_hundred_threads_read_one_descriptor) {
  constexpr std::size_t part = 100003;  // a prime: ranges straddle pages
  constexpr std::size_t threads = 100;
  const int fd = make_file(dir_.file("x"), part * threads);
  std::atomic<std::size_t> right{0};
  std::vector<std::jthread> readers;
  for (std::size_t i = 0; i < threads; ++i) {
    readers.emplace_back([&, i] {
      std::vector<std::byte> bytes(part);
      const auto count = kernel_->pread(fd, bytes.data(), part, i * part);
      if (count && *count == part && !pattern::first_difference(bytes, seed, i * part)) ++right;
    });
  }
  readers.clear();
  EXPECT_EQ(right.load(), threads);
}

TEST_F(linux_kernel_test, usable_cores_follow_the_affinity_mask) {
  EXPECT_GE(kernel_->usable_cores(), 1U);
  EXPECT_LE(kernel_->usable_cores(), static_cast<unsigned>(sysconf(_SC_NPROCESSORS_CONF)));
  const int outcome = run_in_child([&] {
    cpu_set_t mask;
    CPU_ZERO(&mask);
    CPU_SET(static_cast<std::size_t>(sched_getcpu()), &mask);
    if (sched_setaffinity(0, sizeof mask, &mask) != 0) return 2;
    return kernel_->usable_cores() == 1 ? 0 : 1;
  });
  EXPECT_EQ(outcome, 0);
}

TEST_F(linux_kernel_test, memory_of_this_process_is_known) {
  const auto state = kernel_->memory_now();
  ASSERT_TRUE(state.ok()) << state.error().message();
  EXPECT_GT(state->available_bytes, 0U);
  EXPECT_LE(state->available_bytes, state->total_bytes);
}

TEST_F(linux_kernel_test, numa_nodes_of_pci_devices_come_from_sysfs) {
  EXPECT_EQ(kernel_->describe_pci("").numa_node, -1);
  EXPECT_EQ(kernel_->describe_pci("../../../etc").numa_node, -1);
  EXPECT_EQ(kernel_->describe_pci("ffff:ff:1f.7").numa_node, -1);
  std::error_code ignored;
  for (const auto& device : std::filesystem::directory_iterator("/sys/bus/pci/devices", ignored)) {
    int node = -1;
    std::ifstream(device.path() / "numa_node") >> node;
    const std::string name = device.path().filename();
    EXPECT_EQ(kernel_->describe_pci(name).numa_node, node);
    EXPECT_EQ(kernel_->describe_pci("0000" + name).numa_node, node);  // a domain of eight digits, as NVML writes it
  }
}

TEST_F(linux_kernel_test, threads_and_memory_have_a_numa_node_where_there_is_more_than_one) {
  std::string online;
  std::ifstream("/sys/devices/system/node/online") >> online;
  const bool many = online.find_first_of("-,") != std::string::npos;
  const std::vector<std::byte> touched(1);
  const int node = kernel_->current_node();
  const int of_memory = kernel_->node_of_memory(touched.data());
  if (many) {
    EXPECT_TRUE(std::filesystem::exists("/sys/devices/system/node/node" + std::to_string(node))) << node;
  } else {
    EXPECT_EQ(node, -1);
    EXPECT_EQ(of_memory, -1);
  }
  EXPECT_EQ(kernel_->node_of_memory(nullptr), -1);  // nothing lies there
}

TEST_F(linux_kernel_test, a_file_tells_when_it_was_modified) {
  const auto name = dir_.file("x");
  make_file(name, 1);
  const std::array<timespec, 2> times{timespec{1, 0}, timespec{5, 7}};
  ASSERT_EQ(::utimensat(AT_FDCWD, name.c_str(), times.data(), 0), 0);
  const auto fd = kernel_->open(name, O_RDONLY, 0);
  ASSERT_TRUE(fd.ok());
  EXPECT_EQ(kernel_->describe(*fd)->modified_ns, 5'000'000'007);
  EXPECT_TRUE(kernel_->close(*fd).ok());
}

TEST_F(linux_kernel_test, path_exists_tells_files_and_directories_from_nothing) {
  make_file(dir_.file("x"), 1);
  EXPECT_TRUE(kernel_->path_exists(dir_.file("x")));
  EXPECT_TRUE(kernel_->path_exists(dir_.path()));
  EXPECT_FALSE(kernel_->path_exists(dir_.file("y")));
  EXPECT_FALSE(kernel_->path_exists(""));
}

}  // namespace
}  // namespace penstock::sys
