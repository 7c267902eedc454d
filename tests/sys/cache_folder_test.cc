// Cache folders shared by processes: who may use one, which files are opened in it, and who holds which range.
#include "sys/cache_folder.hpp"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <string>

#include "support/child.hpp"
#include "support/temp_dir.hpp"

namespace penstock::testing {
namespace {

using sys::cache_folder;
using opening = sys::cache_folder::opening;

class cache_folders : public ::testing::Test {
 protected:
  cache_folder open_one() {
    auto opened = cache_folder::open(place_);
    EXPECT_TRUE(opened.ok()) << opened.error().message();
    return *std::move(opened);
  }
  temp_dir dir_;
  const std::string place_ = dir_.file("cache");
};

TEST_F(cache_folders, are_made_for_their_user_alone) {
  const auto folder = open_one();
  struct stat facts {};
  ASSERT_EQ(::stat(place_.c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0700U);
  EXPECT_EQ(cache_folder::open(place_ + "///")->name(), folder.name());
}

TEST_F(cache_folders, that_others_may_write_in_or_that_are_links_are_refused) {
  std::filesystem::create_directory(place_);
  for (const mode_t mode : {0720, 0702, 0777}) {
    ASSERT_EQ(::chmod(place_.c_str(), mode), 0);
    EXPECT_EQ(cache_folder::open(place_).error().code(), errc::permission_denied) << mode;
  }
  ASSERT_EQ(::chmod(place_.c_str(), 0755), 0);
  EXPECT_TRUE(cache_folder::open(place_).ok());
  std::filesystem::create_directory_symlink(place_, dir_.file("link"));
  EXPECT_EQ(cache_folder::open(dir_.file("link")).error().code(), errc::permission_denied);
  EXPECT_EQ(cache_folder::open("cache").error().code(), errc::invalid_argument);
  EXPECT_EQ(cache_folder::open(dir_.file("a/b")).error().code(), errc::not_found);
}

TEST_F(cache_folders, open_files_of_this_user_alone_and_follow_no_links) {
  const auto folder = open_one();
  EXPECT_EQ(folder.open_file("a", opening::to_read).error().code(), errc::not_found);
  EXPECT_TRUE(folder.open_file("a", opening::or_make).ok());
  EXPECT_TRUE(folder.open_file("a", opening::to_read).ok());
  std::filesystem::create_symlink("a", place_ + "/link");
  std::filesystem::create_directory(place_ + "/folder");
  ASSERT_EQ(::mkfifo((place_ + "/pipe").c_str(), 0600), 0);
  for (const auto* each : {"link", "folder", "pipe"}) EXPECT_FALSE(folder.open_file(each, opening::or_make).ok()) << each;
  ASSERT_EQ(::chmod((place_ + "/a").c_str(), 0640), 0);
  EXPECT_EQ(folder.open_file("a", opening::to_read).error().code(), errc::permission_denied);
  folder.remove("a");
  EXPECT_EQ(folder.list()->size(), 3U);
}

TEST_F(cache_folders, ranges_are_one_descriptions_until_it_lets_go_or_is_closed) {
  const auto folder = open_one();
  auto one = folder.open_file("a", opening::or_make);
  auto other = folder.open_file("a", opening::to_write);
  EXPECT_FALSE(sys::try_claim(one->get(), {10, 5})->has_value());
  EXPECT_FALSE(sys::try_claim(other->get(), {0, 10})->has_value());
  const auto taken = sys::try_claim(other->get(), {8, 100});
  ASSERT_TRUE(taken->has_value());
  EXPECT_EQ((*taken)->offset, 10U);
  EXPECT_EQ((*taken)->length, 5U);
  sys::let_go(one->get(), {10, 5});
  EXPECT_FALSE(sys::try_claim(other->get(), {8, 100})->has_value());
  other = sys::owned_descriptor();
  EXPECT_FALSE(sys::try_claim(one->get(), {0, 1000})->has_value());
}

TEST_F(cache_folders, whole_files_are_shared_or_had_alone) {
  const auto folder = open_one();
  auto one = folder.open_file("a", opening::or_make);
  auto other = folder.open_file("a", opening::to_read);
  EXPECT_TRUE(sys::try_share(one->get()));
  EXPECT_TRUE(sys::try_share(other->get()));
  EXPECT_FALSE(sys::try_own(other->get()));
  one = sys::owned_descriptor();
  EXPECT_TRUE(sys::try_own(other->get()));
}

TEST_F(cache_folders, the_lock_of_all_is_one_descriptions) {
  using namespace std::chrono_literals;
  const auto folder = open_one();
  {
    const auto held = folder.whole_lock(0ms);
    ASSERT_TRUE(held.ok());
    EXPECT_EQ(folder.whole_lock(0ms).error().code(), errc::would_block);
  }
  EXPECT_TRUE(folder.whole_lock(0ms).ok());
}

TEST_F(cache_folders, locks_end_with_their_holder_though_a_forked_child_has_its_descriptors) {
  const auto folder = open_one();
  const auto file = folder.open_file("file", opening::or_make);
  const auto again = folder.open_file("file", opening::or_make);
  ASSERT_TRUE(file.ok() && again.ok());
  std::array<int, 2> kept{};
  pid_t child = -1;
  {
    const auto all = folder.whole_lock(std::chrono::milliseconds(0));
    ASSERT_TRUE(all.ok());
    ASSERT_FALSE((*sys::try_claim(file->get(), {0, 10})).has_value());
    const sys::claimed_range claimed(file->get(), {0, 10});
    ASSERT_EQ(::pipe(kept.data()), 0);
    child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      (void)::close(kept[1]);
      char until_closed = 0;
      (void)!::read(kept[0], &until_closed, 1);
      ::_exit(0);
    }
  }
  EXPECT_TRUE(folder.whole_lock(std::chrono::milliseconds(0)).ok());
  EXPECT_FALSE((*sys::try_claim(again->get(), {0, 10})).has_value());
  for (const int end : kept) (void)::close(end);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST_F(cache_folders, bytes_are_all_there_or_there_is_an_error) {
  const auto folder = open_one();
  const auto file = folder.open_file("a", opening::or_make);
  std::array<std::byte, 100> some{};
  some.fill(std::byte{7});
  EXPECT_TRUE(sys::write_exactly(file->get(), some, 50).ok());
  std::array<std::byte, 100> back{};
  EXPECT_TRUE(sys::read_exactly(file->get(), back, 50).ok());
  EXPECT_EQ(back, some);
  EXPECT_EQ(sys::read_exactly(file->get(), back, 51).code(), errc::io);
  EXPECT_TRUE(sys::set_length(file->get(), 1 << 20).ok());
  const auto facts = sys::cache_file_facts_of(file->get());
  EXPECT_EQ(facts->size, std::uint64_t{1} << 20);
  EXPECT_TRUE(facts->has_name);
  folder.remove("a");
  EXPECT_FALSE(sys::cache_file_facts_of(file->get())->has_name);
}

TEST_F(cache_folders, a_limit_of_the_process_is_an_error_and_ends_it_not) {
  const auto folder = open_one();
  const auto file = folder.open_file("a", opening::or_make);
  EXPECT_EQ(run_in_child([&] {
              const rlimit most{1000, 1000};
              (void)::setrlimit(RLIMIT_FSIZE, &most);
              return sys::set_length(file->get(), 5000).ok() ? 1 : 7;
            }),
            7);
}

}  // namespace
}  // namespace penstock::testing
