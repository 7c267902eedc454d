#include "penstock/pending_file.hpp"

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "support/child.hpp"
#include "support/engines.hpp"
#include "support/open_descriptors.hpp"
#include "support/temp_dir.hpp"

namespace penstock {
namespace {

namespace fs = std::filesystem;

std::size_t entries(const fs::path& folder) {
  return static_cast<std::size_t>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

std::string text_of(const std::string& path) {
  std::ostringstream out;
  out << std::ifstream(path).rdbuf();
  return out.str();
}

bool write_all(const pending_file& to, std::string_view text) {
  return ::write(to.descriptor(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// Saves all of text. Whatever fails is a number that is not 0.
int save(const std::string& path, std::string_view text, bool unnamed) {
  auto made = pending_file::create(path, {.unnamed = unnamed});
  if (!made) return 2;
  for (std::size_t at = 0; at < text.size(); at += 5) {
    if (!write_all(*made, text.substr(at, 5))) return 3;
  }
  return made->publish().ok() ? 0 : 4;
}

class pending_file_test : public ::testing::TestWithParam<bool> {
 protected:
  [[nodiscard]] result<pending_file> make() const { return pending_file::create(path_, {.unnamed = GetParam()}); }
  [[nodiscard]] std::string text() const { return text_of(path_); }
  [[nodiscard]] std::size_t count() const { return entries(directory_.path()); }
  static void fill(const pending_file& file, std::string_view text) { ASSERT_TRUE(write_all(file, text)); }
  testing::temp_dir directory_ = testing::temp_dir::on_build_disk();
  std::string path_ = directory_.file("file");
};

TEST_P(pending_file_test, has_its_name_once_it_is_published) {
  auto made = make();
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_EQ(made->path(), path_);
  fill(*made, "whole");
  EXPECT_FALSE(fs::exists(path_));
  const status error = made->publish();
  EXPECT_TRUE(error.ok()) << error.message();
  EXPECT_EQ(text(), "whole");
  EXPECT_EQ(count(), 1U);
}

TEST_P(pending_file_test, replaces_what_was_there) {
  for (const bool durable : {false, true}) {
    std::ofstream(path_) << "old";
    auto made = make();
    ASSERT_TRUE(made);
    fill(*made, "new");
    EXPECT_EQ(text(), "old");
    EXPECT_TRUE(made->publish({.durable = durable}).ok());
    EXPECT_EQ(text(), "new");
    EXPECT_EQ(count(), 1U);
  }
}

TEST_P(pending_file_test, keeps_what_has_come_meanwhile_where_that_is_asked_for) {
  {
    auto made = make();
    ASSERT_TRUE(made);
    fill(*made, "new");
    std::ofstream(path_) << "old";
    EXPECT_EQ(made->publish({.replace = false}).message(), "create " + path_ + ": File exists (os 17)");
  }
  EXPECT_EQ(text(), "old");
  EXPECT_EQ(count(), 1U);
  fs::remove(path_);
  auto made = make();
  ASSERT_TRUE(made);
  EXPECT_TRUE(made->publish({.replace = false}).ok());
  EXPECT_EQ(count(), 1U);
}

TEST_P(pending_file_test, is_gone_where_it_was_not_published) {
  {
    auto made = make();
    ASSERT_TRUE(made);
    fill(*made, "half");
    const pending_file moved = *std::move(made);
    EXPECT_EQ(count(), GetParam() ? 0U : 1U);
  }
  EXPECT_EQ(count(), 0U);
}

TEST_P(pending_file_test, is_published_or_discarded_once) {
  const auto before = testing::open_descriptors();
  {
    auto published = make();
    ASSERT_TRUE(published);
    fill(*published, "whole");
    ASSERT_TRUE(published->publish().ok());
    EXPECT_EQ(published->publish().code(), errc::closed);
    published->discard();
    EXPECT_EQ(published->descriptor(), -1);
    published->discard();
    EXPECT_EQ(text(), "whole");

    auto discarded = make();
    ASSERT_TRUE(discarded);
    discarded->discard();
    EXPECT_EQ(discarded->publish().code(), errc::closed);
    EXPECT_EQ(text(), "whole");
    EXPECT_EQ(count(), 1U);

    auto first = make();
    auto second = make();
    ASSERT_TRUE(first && second);
    *first = *std::move(second);
    EXPECT_EQ(count(), GetParam() ? 1U : 2U);
    EXPECT_TRUE(first->publish().ok());
  }
  EXPECT_EQ(count(), 1U);
  EXPECT_EQ(testing::open_descriptors(), before);
}

TEST_P(pending_file_test, an_error_of_giving_it_its_name_leaves_nothing) {
  {
    auto made = make();
    ASSERT_TRUE(made);
    fs::create_directory(path_);
    EXPECT_EQ(made->publish().message(), "rename to " + path_ + ": Is a directory (os 21)");
    // And once the reason is gone, it can be published after all.
    fs::remove(path_);
    fill(*made, "new");
    EXPECT_TRUE(made->publish().ok());
  }
  EXPECT_EQ(text(), "new");
  EXPECT_EQ(count(), 1U);
}

TEST_P(pending_file_test, a_folder_that_is_not_there_is_named) {
  const auto made = pending_file::create("/nowhere/file", {.unnamed = GetParam()});
  EXPECT_EQ(made.error().message(), "create /nowhere/file in /nowhere: No such file or directory (os 2)");
  EXPECT_EQ(pending_file::create("", {.unnamed = GetParam()}).error().code(), errc::not_found);
  EXPECT_EQ(pending_file::create(std::string("a\0b", 3)).error().code(), errc::invalid_argument);
}

TEST_P(pending_file_test, takes_the_place_of_regular_files_only) {
  fs::create_directory(path_);
  EXPECT_EQ(make().error().code(), errc::not_a_file);
  EXPECT_EQ(make().error().message(), path_ + " is not a regular file: Is a directory (os 21)");
  fs::remove(path_);
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  EXPECT_EQ(make().error().message(), path_ + " is not a regular file");
  EXPECT_TRUE(fs::is_fifo(path_));
  EXPECT_EQ(pending_file::create("/dev/null", {.unnamed = GetParam()}).error().message(), "/dev/null is not a regular file");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST_P(pending_file_test, follows_a_link) {
  const std::string target = directory_.file("target");
  std::ofstream(target) << "old";
  fs::create_symlink("target", path_);
  auto made = make();
  ASSERT_TRUE(made) << made.error().message();
  fill(*made, "new");
  EXPECT_TRUE(made->publish().ok());
  EXPECT_TRUE(fs::is_symlink(path_));
  EXPECT_EQ(text_of(target), "new");
  EXPECT_EQ(count(), 2U);
}

TEST_P(pending_file_test, makes_what_a_link_leads_to) {
  fs::create_symlink("nothing", path_);
  fs::create_symlink("file", directory_.file("other"));
  auto made = pending_file::create(directory_.file("other"), {.unnamed = GetParam()});
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_EQ(made->path(), directory_.file("nothing"));
  fill(*made, "new");
  EXPECT_TRUE(made->publish().ok());
  EXPECT_TRUE(fs::is_symlink(path_));
  EXPECT_EQ(text_of(directory_.file("nothing")), "new");
  EXPECT_EQ(count(), 3U);
  fs::create_symlink("round", directory_.file("round"));
  EXPECT_FALSE(pending_file::create(directory_.file("round"), {.unnamed = GetParam()}));
}

TEST_P(pending_file_test, a_file_without_a_name_is_not_replaced) {
  std::ofstream(path_) << "old";
  const int fd = ::open(path_.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  fs::remove(path_);
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  EXPECT_EQ(pending_file::create(link, {.unnamed = GetParam()}).error().message(), link + " points to a file without a name");
  EXPECT_EQ(count(), 0U);
  ::close(fd);
}

TEST_P(pending_file_test, goes_to_its_folder_wherever_the_process_goes) {
  const int outcome = testing::run_in_child([&] {
    if (::chdir(directory_.path().c_str()) != 0) return 77;
    auto made = pending_file::create("file", {.unnamed = GetParam()});
    if (!made || !write_all(*made, "whole") || ::chdir("/") != 0) return 1;
    return made->publish().ok() ? 0 : 2;
  });
  EXPECT_EQ(outcome, 0);
  EXPECT_EQ(text(), "whole");
  EXPECT_EQ(count(), 1U);
}

TEST_P(pending_file_test, has_the_mode_of_what_it_replaces_or_that_of_a_new_file) {
  const auto mode_of = [&] { return static_cast<unsigned>(fs::status(path_).permissions()); };
  const auto publish = [&](const pending_file_options& options) {
    auto made = pending_file::create(path_, options);
    ASSERT_TRUE(made) << made.error().message();
    EXPECT_TRUE(made->publish().ok());
  };
  const mode_t before = ::umask(027);
  publish({.unnamed = GetParam()});
  EXPECT_EQ(mode_of(), 0640U);
  ASSERT_EQ(::chmod(path_.c_str(), 0606), 0);
  publish({.unnamed = GetParam()});
  EXPECT_EQ(mode_of(), 0606U);
  publish({.mode = 0622, .unnamed = GetParam()});
  EXPECT_EQ(mode_of(), 0622U);
  ::umask(before);
}

struct stat facts_of(int descriptor) {
  struct stat info {};
  EXPECT_EQ(::fstat(descriptor, &info), 0);
  return info;
}
struct stat facts_of(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(::stat(path.c_str(), &info), 0);
  return info;
}

TEST_P(pending_file_test, is_as_closed_as_the_file_that_it_replaces_from_its_first_byte_on) {
  std::ofstream(path_) << "old";
  ASSERT_EQ(::chmod(path_.c_str(), 0600), 0);
  auto made = make();
  ASSERT_TRUE(made);
  EXPECT_EQ(facts_of(made->descriptor()).st_mode & 07777, 0600U);
  auto own = pending_file::create(path_, {.mode = 0400, .unnamed = GetParam()});
  ASSERT_TRUE(own);
  EXPECT_EQ(facts_of(own->descriptor()).st_mode & 07777, 0400U);
  // And what is changed while it is written holds.
  ASSERT_EQ(::chmod(path_.c_str(), 0640), 0);
  EXPECT_TRUE(made->publish().ok());
  EXPECT_EQ(facts_of(path_).st_mode & 07777, 0640U);
}

TEST_P(pending_file_test, a_new_file_has_the_mode_asked_for_less_the_umask) {
  const mode_t before = ::umask(022);
  auto made = pending_file::create(path_, {.new_mode = 0662, .unnamed = GetParam()});
  ::umask(before);
  ASSERT_TRUE(made);
  EXPECT_TRUE(made->publish().ok());
  EXPECT_EQ(facts_of(path_).st_mode & 07777, 0640U);
}

TEST_P(pending_file_test, has_the_owner_and_the_attributes_of_what_it_replaces) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root gives files to others";
  std::ofstream(path_) << "old";
  if (::chown(path_.c_str(), 65534, 1234) != 0) GTEST_SKIP() << "there are no other users here";  // a user namespace of one
  ASSERT_EQ(::chmod(path_.c_str(), 06750), 0);
  // user 1: read and write; the group: nothing; mask: read and write.
  const std::array<std::uint32_t, 11> list{2,          0x00070001, 0xFFFFFFFF, 0x00060002, 1,         0x00000004,
                                           0xFFFFFFFF, 0x00060010, 0xFFFFFFFF, 0x00000020, 0xFFFFFFFF};
  const bool lists = ::setxattr(path_.c_str(), "system.posix_acl_access", list.data(), sizeof list, 0) == 0;
  const bool attributes = ::setxattr(path_.c_str(), "user.origin", "here", 4, 0) == 0;
  // version 2, cap_net_raw: of the old bytes.
  const std::array<std::uint32_t, 5> capability{0x02000001, 1U << 13, 0, 0, 0};
  (void)::setxattr(path_.c_str(), "security.capability", capability.data(), sizeof capability, 0);
  const unsigned mode = facts_of(path_).st_mode & 07777;
  auto made = make();
  ASSERT_TRUE(made) << made.error().message();
  EXPECT_EQ(facts_of(made->descriptor()).st_uid, 65534U);
  EXPECT_EQ(facts_of(made->descriptor()).st_mode & 07777, mode & 0777);
  fill(*made, "new");
  EXPECT_TRUE(made->publish().ok());
  const struct stat found = facts_of(path_);
  EXPECT_EQ(found.st_uid, 65534U);
  EXPECT_EQ(found.st_gid, 1234U);
  EXPECT_EQ(found.st_mode & 07777, mode);
  std::array<char, 64> value{};
  EXPECT_LT(::getxattr(path_.c_str(), "security.capability", value.data(), value.size()), 0);
  if (attributes) {
    EXPECT_EQ(::getxattr(path_.c_str(), "user.origin", value.data(), value.size()), 4);
  }
  if (lists) {
    EXPECT_EQ(::getxattr(path_.c_str(), "system.posix_acl_access", value.data(), value.size()), static_cast<ssize_t>(sizeof list));
    EXPECT_EQ(std::memcmp(value.data(), list.data(), sizeof list), 0);
  }
  if (!lists || !attributes) GTEST_SKIP() << "the build's file system has no attributes";
}

TEST_P(pending_file_test, an_access_list_that_the_folder_gives_to_new_files_opens_no_old_one) {
  std::ofstream(path_) << "old";
  ASSERT_EQ(::chmod(path_.c_str(), 0660), 0);
  const std::array<std::uint32_t, 11> list{2,          0x00070001, 0xFFFFFFFF, 0x00060002, 1,         0x00000004,
                                           0xFFFFFFFF, 0x00060010, 0xFFFFFFFF, 0x00000020, 0xFFFFFFFF};
  if (::setxattr(directory_.path().c_str(), "system.posix_acl_default", list.data(), sizeof list, 0) != 0)
    GTEST_SKIP() << "the build's file system has no access lists";
  auto made = make();
  ASSERT_TRUE(made);
  EXPECT_TRUE(made->publish().ok());
  EXPECT_EQ(facts_of(path_).st_mode & 07777, 0660U);
  EXPECT_LT(::getxattr(path_.c_str(), "system.posix_acl_access", nullptr, 0), 0);
  ASSERT_EQ(::unlink(path_.c_str()), 0);
  auto new_one = pending_file::create(path_, {.mode = 0640, .unnamed = GetParam()});
  ASSERT_TRUE(new_one);
  EXPECT_TRUE(new_one->publish().ok());
  EXPECT_EQ(facts_of(path_).st_mode & 07777, 0640U);
  EXPECT_LT(::getxattr(path_.c_str(), "system.posix_acl_access", nullptr, 0), 0) << "a mode is asked for, and no list";
}

TEST_P(pending_file_test, without_the_group_of_the_old_file_its_group_has_what_everybody_has) {
  std::ofstream(path_) << "old";
  ASSERT_EQ(::chmod(path_.c_str(), 06664), 0);
  const int outcome = testing::run_in_child([&] {
    if (::geteuid() != 0 || ::chmod(directory_.path().c_str(), 0777) != 0 || ::chown(path_.c_str(), 65534, 0) != 0) return 77;
    if (::chmod(path_.c_str(), 06664) != 0 || ::setgid(65534) != 0 || ::setgroups(0, nullptr) != 0 || ::setuid(65534) != 0) return 77;
    if (::access(path_.c_str(), W_OK) != 0) return 77;
    return save(path_, "new", GetParam());
  });
  if (outcome == 77) GTEST_SKIP() << "another user cannot get to this folder";
  EXPECT_EQ(outcome, 0);
  EXPECT_EQ(text(), "new");
  EXPECT_EQ(facts_of(path_).st_mode & 07777, 0644U);
}

TEST_P(pending_file_test, a_file_that_one_may_not_write_is_not_replaced) {
  std::ofstream(path_) << "old";
  ASSERT_EQ(::chmod(path_.c_str(), 0444), 0);
  const int outcome = testing::run_in_child([&] {
    if (::geteuid() == 0 && (::chmod(directory_.path().c_str(), 0777) != 0 || ::setuid(65534) != 0)) return 77;
    if (::access(directory_.path().c_str(), W_OK) != 0) return 77;
    return make().error().code() == errc::permission_denied ? 0 : 1;
  });
  if (outcome == 77) GTEST_SKIP() << "another user cannot get to this folder";
  EXPECT_EQ(outcome, 0);
  EXPECT_EQ(text(), "old");
}

TEST_P(pending_file_test, takes_the_longest_names) {
  std::string letters_of_three_bytes;
  for (int i = 0; i < 85; ++i) letters_of_three_bytes += "\u4e2d";
  for (const std::string& name : {std::string(255, 'n'), letters_of_three_bytes, std::string(255, '\xff')}) {
    for (int pass = 0; pass < 2; ++pass) {
      auto made = pending_file::create(directory_.file(name), {.unnamed = GetParam()});
      ASSERT_TRUE(made) << made.error().message();
      const status error = made->publish();
      EXPECT_TRUE(error.ok()) << error.message();
    }
  }
  EXPECT_EQ(count(), 3U);
}

TEST_P(pending_file_test, passes_by_hidden_names_that_an_earlier_process_has_left) {
  std::ofstream(path_) << "old";
  const std::string next = pending_file::hidden_name(path_);
  const std::size_t dash = next.rfind('-') + 1;
  const unsigned number = static_cast<unsigned>(std::stoul(next.substr(dash)));
  for (unsigned i = 1; i <= 4; ++i) std::ofstream(next.substr(0, dash) + std::to_string(number + i)) << "left";
  auto made = make();
  ASSERT_TRUE(made) << made.error().message();
  fill(*made, "new");
  const status error = made->publish();
  EXPECT_TRUE(error.ok()) << error.message();
  EXPECT_EQ(text(), "new");
  EXPECT_EQ(count(), 5U);
}

TEST_P(pending_file_test, a_forked_child_that_ends_does_not_take_it_along) {
  auto made = make();
  ASSERT_TRUE(made);
  fill(*made, "whole");
  const int outcome = testing::run_in_child([&] {
    made->discard();
    return 0;
  });
  EXPECT_EQ(outcome, 0);
  EXPECT_TRUE(made->publish().ok());
  EXPECT_EQ(text(), "whole");
}

TEST_P(pending_file_test, is_written_through_an_engine) {
  const engine with = testing::made_engine(testing::without_cuda());
  const std::string content(3'000'001, 'x');
  auto made = make();
  ASSERT_TRUE(made);
  auto adopted = with.adopt(made->descriptor());
  ASSERT_TRUE(adopted) << adopted.error().message();
  EXPECT_EQ(adopted->write(content.data(), content.size(), 0).bytes_done, content.size());
  EXPECT_TRUE(adopted->close().ok());
  EXPECT_TRUE(made->publish().ok());
  EXPECT_TRUE(text() == content);
}

// --- what a kill leaves

// Runs the child up to its nth system call, before it or behind it, and kills it there. True when it ended by itself before.
bool ended_before_its_kill(const std::function<int()>& body, int stops) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(77);
    ::raise(SIGSTOP);
    ::_exit(body());
  }
  int outcome = 0;
  ::waitpid(child, &outcome, 0);
  for (int i = 0; i < stops && WIFSTOPPED(outcome); ++i) {
    ::ptrace(PTRACE_SYSCALL, child, nullptr, nullptr);
    ::waitpid(child, &outcome, 0);
  }
  if (!WIFSTOPPED(outcome)) {
    EXPECT_TRUE(WIFEXITED(outcome)) << outcome;
    EXPECT_EQ(WEXITSTATUS(outcome), 0);
    return true;
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, &outcome, 0);
  EXPECT_TRUE(WIFSIGNALED(outcome) || WIFEXITED(outcome));
  return false;
}

bool can_trace() {
  return testing::run_in_child([] { return ::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) == 0 ? 0 : 1; }) == 0;
}

TEST_P(pending_file_test, a_kill_at_any_step_leaves_the_old_file_or_the_new_one) {
  if (!can_trace()) GTEST_SKIP() << "processes cannot be traced here";
  const std::string old_text = "old text", new_text = "new text, which is longer";
  int kills = 0;
  bool was_new = false;
  for (bool ended = false; !ended; ++kills) {
    ASSERT_LT(kills, 1000);
    std::ofstream(path_, std::ios::trunc) << old_text;
    ended = ended_before_its_kill([&] { return save(path_, new_text, GetParam()); }, kills);
    const std::string found = text();
    ASSERT_TRUE(found == old_text || found == new_text) << "after " << kills << " stops: " << found;
    was_new = found == new_text;
    for (const auto& each : fs::directory_iterator(directory_.path())) {
      if (each.path() == path_) continue;
      ASSERT_TRUE(each.path().filename().string().starts_with(".file.penstock-")) << each.path();
      if (GetParam()) {
        EXPECT_EQ(text_of(each.path()), new_text);  // whole, only its name is another
      }
      fs::remove(each.path());
    }
  }
  EXPECT_GT(kills, 10);
  EXPECT_TRUE(was_new);
}

// --- what fails

TEST_P(pending_file_test, tells_each_system_call_that_fails_and_leaves_what_was_there) {
  struct failure {
    std::vector<long> calls;
    int error;
    errc code;
    bool keeps_old;
  };
#ifdef SYS_rename
  const std::vector<long> renaming = {SYS_rename, SYS_renameat, SYS_renameat2};
#else
  const std::vector<long> renaming = {SYS_renameat, SYS_renameat2};
#endif
  const std::vector<failure> failures = {
      {{SYS_openat}, EMFILE, errc::out_of_memory, true},
      {{SYS_fchmod}, EIO, errc::io, true},
      {{SYS_fcntl}, EMFILE, errc::out_of_memory, true},
      {{SYS_close}, EDQUOT, errc::no_space, true},
      {{SYS_fdatasync}, EIO, errc::io, true},
      {renaming, EACCES, errc::permission_denied, true},
      {{SYS_fsync}, EIO, errc::io, false},
  };
  for (const auto& each : failures) {
    std::ofstream(path_, std::ios::trunc) << "old";
    const int outcome = testing::run_in_child([&] {
      for (const long call : each.calls) {
        if (!testing::deny_system_call(call, each.error)) return 77;
      }
      auto made = make();
      if (!made) return made.error().code() == each.code ? 0 : 1;
      if (!write_all(*made, "new")) return 2;
      const status error = made->publish();
      if (error.code() != each.code) return 3;
      return error.message().find(path_) != std::string::npos || !each.keeps_old ? 0 : 4;
    });
    if (outcome == 77) GTEST_SKIP() << "system calls cannot be denied here";
    EXPECT_EQ(outcome, 0) << each.calls.front();
    EXPECT_EQ(text(), each.keeps_old ? "old" : "new") << each.calls.front();
    // A child that cannot close or rename may leave a hidden file, never one without that prefix.
    for (const auto& left : fs::directory_iterator(directory_.path())) {
      if (left.path() != path_) {
        EXPECT_TRUE(left.path().filename().string().starts_with(".file.penstock-")) << left.path();
        EXPECT_TRUE(false) << "left behind when call " << each.calls.front() << " fails";
        fs::remove(left.path());
      }
    }
  }
}

TEST_P(pending_file_test, works_where_a_folder_cannot_be_synced) {
  const int outcome = testing::run_in_child([&] {
    if (!testing::deny_system_call(SYS_fsync, EINVAL)) return 77;
    return save(path_, "text", GetParam());
  });
  if (outcome == 77) GTEST_SKIP() << "system calls cannot be denied here";
  EXPECT_EQ(outcome, 0);
  EXPECT_EQ(text(), "text");
}

TEST_P(pending_file_test, a_full_disk_keeps_the_old_file) {
  const std::string folder = directory_.file("small");
  fs::create_directory(folder);
  if (::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=64k") != 0) GTEST_SKIP() << "only root can mount a small file system";
  {
    const std::string path = folder + "/file";
    std::ofstream(path) << "old";
    const engine with = testing::made_engine(testing::without_cuda());
    const std::string content(1 << 20, 'x');
    {
      auto made = pending_file::create(path, {.unnamed = GetParam()});
      EXPECT_TRUE(made);
      auto adopted = with.adopt(made->descriptor());
      EXPECT_TRUE(adopted);
      const io_result done = adopted->write(content.data(), content.size(), 0);
      EXPECT_EQ(done.error.code(), errc::no_space);
      EXPECT_TRUE(adopted->close().ok());
    }
    EXPECT_EQ(text_of(path), "old");
    EXPECT_EQ(entries(folder), 1U);
    // Room is there again.
    EXPECT_EQ(save(path, "new", GetParam()), 0);
    EXPECT_EQ(text_of(path), "new");
  }
  EXPECT_EQ(::umount2(folder.c_str(), MNT_DETACH), 0);
}

// --- several at once

TEST_P(pending_file_test, of_several_savers_of_one_path_each_is_whole_and_the_last_wins) {
  constexpr std::size_t length = 20'000;
  std::atomic<bool> ended = false;
  std::atomic<int> failures = 0, torn = 0;
  std::ofstream(path_) << std::string(length, 'o');
  std::thread reader([&] {
    while (!ended) {
      const std::string seen = text();
      if (seen.size() != length || seen.find_first_not_of(seen[0]) != std::string::npos) ++torn;
    }
  });
  std::vector<std::thread> savers;
  for (const char letter : {'a', 'b', 'c'}) {
    savers.emplace_back([&, letter] {
      for (int i = 0; i < 60; ++i) failures += save(path_, std::string(length, letter), GetParam()) == 0 ? 0 : 1;
    });
  }
  for (auto& each : savers) each.join();
  ended = true;
  reader.join();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(torn, 0);
  EXPECT_EQ(count(), 1U);
  // Who publishes later wins, whoever began first.
  auto early = make();
  auto late = make();
  ASSERT_TRUE(early && late);
  fill(*early, "early");
  fill(*late, "late");
  ASSERT_TRUE(late->publish().ok());
  EXPECT_EQ(text(), "late");
  ASSERT_TRUE(early->publish().ok());
  EXPECT_EQ(text(), "early");
}

INSTANTIATE_TEST_SUITE_P(of, pending_file_test, ::testing::Bool(), [](const auto& test) { return test.param ? "no_name" : "hidden_name"; });

}  // namespace
}  // namespace penstock
