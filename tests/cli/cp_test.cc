// penstock cp.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <tuple>

#include "cli/program.hpp"
#include "cli/terminal.hpp"
#include "support/child.hpp"
#include "support/lacking.hpp"
#include "support/object_store.hpp"

namespace penstock::cli_test {
namespace {

namespace fs = std::filesystem;
using words = std::vector<std::string>;

ended_program cp(words arguments) {
  arguments.insert(arguments.begin(), "cp");
  return run(arguments);
}

std::string text_in(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string text_to(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

struct stat facts_of(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(::lstat(path.c_str(), &info), 0) << path;
  return info;
}

std::size_t entries_below(const std::string& folder) {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& each : fs::recursive_directory_iterator(folder)) ++count;
  return count;
}

// Each byte is read and written: with a limit of 8 MiB a second 24 MiB of transfers, of which 50 ms and a piece are not waited for.
TEST(cp, a_limit_of_bytes_a_second_is_kept) {
  const scratch_directory directory;
  const std::string from = directory.make_file("from", 12 * mib);
  const std::string to = directory.path() + "/to";
  const auto began = std::chrono::steady_clock::now();
  const auto ended = cp({from, to, "--no-clone", "--bytes-per-second", "8MiB"});
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - began;
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(text_in(to), text_in(from));
  EXPECT_GE(took.count(), 0.9);
}

TEST(cp, copies_files_of_all_sizes_byte_for_byte) {
  const scratch_directory directory;
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, 4 * mib - 1, 4 * mib, 45 * mib + 3}) {
    const std::string from = directory.make_file("from", bytes);
    for (const words& more : {words{}, words{"--verify"}, words{"--no-clone", "--sync", "--verify"}}) {
      words arguments{from, directory.path() + "/to"};
      arguments.insert(arguments.end(), more.begin(), more.end());
      const ended_program ended = cp(arguments);
      EXPECT_EQ(ended.exit_code, 0) << ended.err;
      EXPECT_TRUE(contains(ended.out, "1 file, ")) << ended.out;
      EXPECT_EQ(contains(ended.out, ", verified"), !more.empty()) << ended.out;
      EXPECT_TRUE(text_in(from) == text_in(directory.path() + "/to")) << bytes;
    }
  }
  EXPECT_EQ(directory.entries(), 2U);
}

TEST(cp, holes_stay_holes) {
  const scratch_directory directory;
  const std::string from = directory.make_sparse_file("from", 256 * mib);
  std::fstream file(from, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(100 * mib).write("island", 6);
  file.close();
  const std::string to = directory.path() + "/to";
  const ended_program ended = cp({from, to, "--no-clone", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  const auto told = nlohmann::json::parse(ended.out);
  EXPECT_EQ(told.at("bytes"), 256 * mib);
  EXPECT_LT(told.at("copied_bytes"), mib);
  EXPECT_EQ(facts_of(to).st_size, static_cast<off_t>(256 * mib));
  EXPECT_LE(facts_of(to).st_blocks, facts_of(from).st_blocks + 16);
  EXPECT_EQ(run({"verify", "--compare", from, to}).exit_code, 0);
  EXPECT_EQ(cp({directory.make_sparse_file("all", mib), to}).exit_code, 0);
  EXPECT_EQ(facts_of(to).st_blocks, 0);
}

TEST(cp, several_files_go_into_a_folder_and_keep_their_names) {
  const scratch_directory directory;
  fs::create_directory(directory.path() + "/to");
  const std::string one = directory.make_file("one", 10), two = directory.make_file("two", 20);
  EXPECT_EQ(cp({one, two, directory.path() + "/to/"}).exit_code, 0);
  EXPECT_EQ(text_in(directory.path() + "/to/two"), text_in(two));
  const ended_program no_folder = cp({one, two, directory.path() + "/none"});
  EXPECT_EQ(no_folder.exit_code, 1);
  EXPECT_EQ(no_folder.err, "penstock: " + directory.path() + "/none is not a folder\n");
  EXPECT_EQ(cp({one, directory.path() + "/none/"}).exit_code, 1);
}

TEST(cp, a_missing_source_does_not_stop_the_others) {
  const scratch_directory directory;
  fs::create_directory(directory.path() + "/to");
  const std::string one = directory.make_file("one", 10);
  const ended_program ended = cp({directory.path() + "/none", one, directory.path() + "/to"});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_EQ(ended.err, "penstock: " + directory.path() + "/none: No such file or directory (os 2)\n");
  EXPECT_TRUE(fs::exists(directory.path() + "/to/one"));
}

// A tree with a link to a file, a link to nothing, a folder that is empty, and one that may only be read.
std::string make_tree(const scratch_directory& directory) {
  const std::string root = directory.path() + "/tree";
  fs::create_directories(root + "/a/b");
  fs::create_directories(root + "/empty");
  (void)directory.make_file("tree/a/b/deep", 5 * mib);
  (void)directory.make_file("tree/top", 3);
  fs::create_symlink("a/b/deep", root + "/link");
  fs::create_symlink("nowhere", root + "/dangling");
  fs::permissions(root + "/a", fs::perms(0555));
  return root;
}

TEST(cp, folders_are_copied_with_what_is_in_them_and_links_stay_links) {
  const scratch_directory directory;
  const std::string root = make_tree(directory);
  const ended_program refused = cp({root, directory.path() + "/to"});
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.err, "penstock: " + root + " is a folder; use -r to copy it\n");
  for (int pass = 0; pass < 2; ++pass) {  // the second time into the folder, as a folder in it
    const ended_program ended = cp({"-r", root + (pass == 0 ? "" : "/"), directory.path() + "/to", "--json"});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    const auto told = nlohmann::json::parse(ended.out);
    EXPECT_EQ(told.at("files"), 2);
    EXPECT_EQ(told.at("links"), 2);
    EXPECT_EQ(told.at("folders"), 4);
    const std::string to = directory.path() + (pass == 0 ? "/to" : "/to/tree");
    EXPECT_EQ(text_in(to + "/a/b/deep"), text_in(root + "/a/b/deep"));
    EXPECT_EQ(fs::read_symlink(to + "/dangling"), "nowhere");
    EXPECT_EQ(fs::read_symlink(to + "/link"), "a/b/deep");
    EXPECT_TRUE(fs::is_empty(to + "/empty"));
    EXPECT_EQ(facts_of(to + "/a").st_mode & 0777, 0555U);
  }
  for (const char* each : {"/tree/a", "/to/a", "/to/tree/a"}) fs::permissions(directory.path() + each, fs::perms(0755));
}

TEST(cp, many_small_files_are_copied_at_once_and_each_is_whole) {
  const scratch_directory directory;
  const std::string from = directory.path() + "/from", to = directory.path() + "/to";
  constexpr int count = 200;
  const auto name = [](int i) { return "/" + std::to_string(i % 7) + "/" + std::to_string(i); };
  const auto text = [](int i) { return std::string(static_cast<std::size_t>(i * i), static_cast<char>('a' + i % 26)); };
  for (int i = 0; i < count; ++i) {
    fs::create_directories(from + "/" + std::to_string(i % 7));
    text_to(from + name(i), text(i));
  }
  fs::create_directories(to + "/3");
  text_to(to + name(3), "old");  // replaced
  text_to(directory.path() + "/elsewhere", "old");
  fs::create_symlink(directory.path() + "/elsewhere", to + name(10));  // written through, as cp does
  fs::create_directories(to + name(17));                               // a folder: an error, which stops nothing
  const ended_program ended = cp({"-rv", from + "/.", to});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_NE(ended.err.find(to + name(17)), std::string::npos) << ended.err;
  for (int i = 0; i < count; ++i) {
    if (i == 17) continue;
    EXPECT_EQ(text_in(to + name(i)), text(i)) << i;
    EXPECT_NE(ended.out.find(name(i) + " -> "), std::string::npos) << ended.out;
  }
  EXPECT_EQ(text_in(directory.path() + "/elsewhere"), text(10));
  EXPECT_NE(ended.out.find("199 files"), std::string::npos) << ended.out;
}

TEST(cp, a_new_folder_gets_its_large_files_too) {
  const scratch_directory directory;
  const std::string from = directory.path() + "/from", to = directory.path() + "/to";
  fs::create_directories(from + "/inner");
  const std::string large(std::size_t{9} << 20, 'l'), just_large(std::size_t{4} << 20, 'j');
  text_to(from + "/inner/large", large);
  text_to(from + "/just_large", just_large);
  for (int i = 0; i < 50; ++i) text_to(from + "/inner/" + std::to_string(i), std::string(static_cast<std::size_t>(i), 's'));
  const ended_program ended = cp({"-r", from, to});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_NE(ended.out.find("52 files"), std::string::npos) << ended.out;
  EXPECT_EQ(text_in(to + "/inner/large"), large);
  EXPECT_EQ(text_in(to + "/just_large"), just_large);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(text_in(to + "/inner/" + std::to_string(i)).size(), static_cast<std::size_t>(i));
}

TEST(cp, a_folder_is_not_copied_into_itself) {
  const scratch_directory directory;
  const std::string root = make_tree(directory);
  fs::permissions(root + "/a", fs::perms(0755));
  const std::size_t before = entries_below(root);
  for (const char* to : {"", "/a", "/a/new", "/../tree/empty"}) {
    const ended_program ended = cp({"-r", root, root + to});
    EXPECT_EQ(ended.exit_code, 1) << to;
    EXPECT_TRUE(contains(ended.err, "a folder cannot be copied into itself")) << ended.err;
  }
  EXPECT_EQ(entries_below(root), before);
  EXPECT_EQ(cp({"-r", root, root + "-2"}).exit_code, 0) << "a name that begins likewise is another";
}

TEST(cp, modes_and_times_are_kept_where_that_is_asked_for) {
  const scratch_directory directory;
  const std::string from = directory.make_file("from", 100);
  ASSERT_EQ(::chmod(from.c_str(), 0640), 0);
  const timespec times[2] = {{1'000'000'000, 123'456'789}, {1'100'000'000, 987'654'321}};
  ASSERT_EQ(::utimensat(AT_FDCWD, from.c_str(), times, 0), 0);
  const std::string kept = directory.path() + "/kept", plain = directory.path() + "/plain";
  EXPECT_EQ(cp({"-p", from, kept}).exit_code, 0);
  EXPECT_EQ(facts_of(kept).st_mode & 07777, 0640U);
  EXPECT_EQ(facts_of(kept).st_mtim.tv_sec, 1'100'000'000);
  EXPECT_EQ(facts_of(kept).st_mtim.tv_nsec, 987'654'321);
  EXPECT_EQ(cp({from, plain}).exit_code, 0);
  EXPECT_GT(facts_of(plain).st_mtim.tv_sec, 1'100'000'000);
  ASSERT_EQ(::chmod(plain.c_str(), 0604), 0);
  EXPECT_EQ(cp({from, plain}).exit_code, 0);
  EXPECT_EQ(facts_of(plain).st_mode & 07777, 0604U) << "what was there keeps its mode";
  // Of a folder, whose time changes while it is filled.
  fs::create_directory(directory.path() + "/folder");
  (void)directory.make_file("folder/x", 1);
  ASSERT_EQ(::utimensat(AT_FDCWD, (directory.path() + "/folder").c_str(), times, 0), 0);
  EXPECT_EQ(cp({"-rp", directory.path() + "/folder", directory.path() + "/folder2"}).exit_code, 0);
  EXPECT_EQ(facts_of(directory.path() + "/folder2").st_mtim.tv_sec, 1'100'000'000);
}

TEST(cp, what_is_there_is_replaced_at_once_or_kept) {
  const scratch_directory directory;
  const std::string from = text_to(directory.path() + "/from", "new"), to = text_to(directory.path() + "/to", "old");
  const int reader = ::open(to.c_str(), O_RDONLY);
  EXPECT_TRUE(contains(cp({"-n", from, to}).out, "1 kept"));
  EXPECT_EQ(text_in(to), "old");
  EXPECT_EQ(cp({from, to}).exit_code, 0);
  EXPECT_EQ(text_in(to), "new");
  char held[4] = {};
  EXPECT_EQ(::read(reader, held, 3), 3);
  EXPECT_STREQ(held, "old") << "who had it open still has it";
  ::close(reader);
  EXPECT_EQ(directory.entries(), 2U);
}

TEST(cp, a_link_as_target_stays_and_what_it_leads_to_is_replaced) {
  const scratch_directory directory;
  const std::string from = text_to(directory.path() + "/from", "new"), real = text_to(directory.path() + "/real", "old");
  fs::create_symlink("real", directory.path() + "/link");
  EXPECT_EQ(cp({from, directory.path() + "/link"}).exit_code, 0);
  EXPECT_EQ(text_in(real), "new");
  EXPECT_TRUE(fs::is_symlink(directory.path() + "/link"));
  fs::create_symlink("nowhere", directory.path() + "/dangling");
  EXPECT_TRUE(contains(cp({from, directory.path() + "/dangling"}).err, "/dangling is a dangling symbolic link"));
  EXPECT_FALSE(fs::exists(directory.path() + "/nowhere"));
}

TEST(cp, what_would_destroy_something_is_refused) {
  const scratch_directory directory;
  const std::string one = text_to(directory.path() + "/one", "1");
  fs::create_hard_link(one, directory.path() + "/same");
  EXPECT_TRUE(contains(cp({one, one}).err, "are the same file"));
  EXPECT_TRUE(contains(cp({one, directory.path() + "/same"}).err, "are the same file"));
  EXPECT_EQ(text_in(one), "1");
  EXPECT_TRUE(contains(cp({one, "/dev/null"}).err, "/dev/null is not a regular file"));
  fs::create_directories(directory.path() + "/a");
  fs::create_directories(directory.path() + "/b");
  fs::create_directories(directory.path() + "/to");
  const std::string a = text_to(directory.path() + "/a/x", "a"), b = text_to(directory.path() + "/b/x", "b");
  const ended_program twice = cp({a, b, directory.path() + "/to"});
  EXPECT_EQ(twice.exit_code, 1);
  EXPECT_TRUE(contains(twice.err, "which this command just wrote")) << twice.err;
  EXPECT_EQ(text_in(directory.path() + "/to/x"), "a");
  // A file where a folder is to be, and the other way round.
  text_to(directory.path() + "/to/a", "file");
  EXPECT_TRUE(contains(cp({"-r", directory.path() + "/a", directory.path() + "/to"}).err, "/to/a: File exists (os 17)"));
}

TEST(cp, what_is_neither_file_nor_folder_nor_link_is_named_and_left_out) {
  const scratch_directory directory;
  fs::create_directory(directory.path() + "/from");
  ASSERT_EQ(::mkfifo((directory.path() + "/from/pipe").c_str(), 0600), 0);
  (void)directory.make_file("from/x", 1);
  const ended_program ended = cp({"-r", directory.path() + "/from", directory.path() + "/to"});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_EQ(ended.err, "penstock: " + directory.path() + "/from/pipe was not copied: it is not a file, a folder or a link\n");
  EXPECT_TRUE(fs::exists(directory.path() + "/to/x"));
  EXPECT_TRUE(contains(cp({directory.path() + "/from/pipe", directory.path() + "/y"}).err, "/pipe is not a regular file"))
      << "and not waited for";
}

TEST(cp, what_may_not_be_read_or_made_is_named) {
  if (::geteuid() == 0) GTEST_SKIP() << "root may read and make everything";
  const scratch_directory directory;
  const std::string one = directory.make_file("one", 1);
  fs::permissions(one, fs::perms::none);
  EXPECT_EQ(cp({one, directory.path() + "/to"}).err, "penstock: open " + one + ": Permission denied (os 13)\n");
  fs::permissions(one, fs::perms(0600));
  fs::create_directory(directory.path() + "/shut");
  fs::permissions(directory.path() + "/shut", fs::perms(0500));
  EXPECT_TRUE(contains(cp({one, directory.path() + "/shut/x"}).err, "make a file in " + directory.path() + "/shut: Permission denied"));
}

TEST(cp, a_full_disk_leaves_what_was_there_and_nothing_else) {
  const scratch_directory directory;
  // The limit on the size of a file stands for a disk that is full.
  for (const std::size_t bytes : {std::size_t{600'000}, 30 * mib}) {
    (void)directory.make_file("from", bytes);
    text_to(directory.path() + "/to", "old");
    const std::string command =
        "bash -c \"trap '' XFSZ; ulimit -f 512; cd " + directory.path() + " && " + PENSTOCK_CLI_PATH + " cp --no-clone from to 2> said\"";
    EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);  // NOLINT(cert-env33-c)
    EXPECT_TRUE(contains(text_in(directory.path() + "/said"), "copy from to to: ")) << text_in(directory.path() + "/said");
    EXPECT_TRUE(contains(text_in(directory.path() + "/said"), "File too large (os 27)")) << text_in(directory.path() + "/said");
    EXPECT_EQ(text_in(directory.path() + "/to"), "old");
    EXPECT_EQ(directory.entries(), 3U);
  }
}

TEST(cp, an_interrupt_leaves_whole_files_only) {
  const scratch_directory directory;
  fs::create_directory(directory.path() + "/from");
  const std::string content(30'000, 'x');
  for (int i = 0; i < 3000; ++i) text_to(directory.path() + "/from/" + std::to_string(i), content);
  for (const int signal_number : {SIGINT, SIGTERM}) {
    program copying({"cp", "-rv", "--sync", directory.path() + "/from", directory.path() + "/to"});
    ASSERT_TRUE(copying.wait_for_output(" -> "));
    copying.send(signal_number);
    const ended_program ended = copying.finish();
    EXPECT_EQ(ended.exit_code, 128 + signal_number) << ended.err;
    std::size_t copied = 0;
    for (const auto& each : fs::directory_iterator(directory.path() + "/to")) {
      ++copied;
      EXPECT_EQ(each.file_size(), content.size()) << each.path();
      EXPECT_NE(each.path().filename().string().front(), '.') << each.path();
    }
    EXPECT_GT(copied, 0U);
    EXPECT_LT(copied, 3000U);
    fs::remove_all(directory.path() + "/to");
  }
}

TEST(cp, shares_blocks_where_the_file_system_can_unless_told_not_to) {
  const scratch_directory directory;
  const std::string from = directory.make_file("from", mib), to = directory.path() + "/to";
  const auto told = nlohmann::json::parse(cp({from, to, "--json"}).out);
  struct statfs info {};
  ASSERT_EQ(::statfs(directory.path().c_str(), &info), 0);
  constexpr decltype(info.f_type) btrfs = 0x9123683E;
  if (info.f_type == btrfs) {
    EXPECT_EQ(told.at("cloned"), 1);
  }
  EXPECT_EQ(told.at("copied_bytes"), told.at("cloned") == 1 ? 0U : mib) << told;
  EXPECT_EQ(nlohmann::json::parse(cp({from, to, "--no-clone", "--json"}).out).at("copied_bytes"), mib);
  EXPECT_EQ(text_in(from), text_in(to));
}

TEST(cp, goes_from_one_file_system_to_another) {
  if (::access("/dev/shm", W_OK) != 0) GTEST_SKIP() << "no /dev/shm to write to";
  const scratch_directory directory;
  const std::string from = directory.make_file("from", 9 * mib), to = "/dev/shm/penstock-cp-test-" + std::to_string(::getpid());
  const ended_program ended = cp({from, to, "--verify", "-p"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(text_in(from), text_in(to));
  ::unlink(to.c_str());
}

TEST(cp, draws_a_bar_on_a_terminal_only) {
  const scratch_directory directory;
  const std::string from = directory.make_file("from", 40 * mib), to = directory.path() + "/to";
  const ended_program piped = cp({from, to});
  EXPECT_EQ(piped.err, "");
  EXPECT_FALSE(contains(piped.out, "\r"));
  EXPECT_TRUE(contains(run_in_terminal({"cp", "--no-clone", from, to}), "\rcopying "));
  EXPECT_FALSE(contains(run_in_terminal({"cp", "--no-clone", "-q", from, to}), "\r"));
}

TEST(cp, files_of_proc_which_say_that_they_are_empty_are_copied_to_their_end) {
  const scratch_directory directory;
  const std::string to = directory.path() + "/to";
  const ended_program ended = cp({"/proc/version", to, "--json", "--verify"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(text_in(to), text_in("/proc/version"));
  EXPECT_NE(text_in(to), "");
  EXPECT_EQ(nlohmann::json::parse(ended.out).at("bytes"), text_in(to).size());
}

TEST(cp, files_of_proc_are_objects_with_all_of_their_bytes) {
  penstock::testing::object_store store;
  const scoped_variable endpoint("AWS_ENDPOINT_URL", store.server().origin()), region("AWS_REGION", "eu-central-1");
  const scoped_variable key("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"), secret("AWS_SECRET_ACCESS_KEY", "hidden-secret");
  const ended_program ended = cp({"/proc/version", "s3://bucket/version", "--json"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(store.get("/bucket/version"), text_in("/proc/version"));
  EXPECT_EQ(nlohmann::json::parse(ended.out).at("bytes"), text_in("/proc/version").size());
}

TEST(cp, a_source_that_becomes_shorter_meanwhile_is_no_whole_copy) {
  const scratch_directory directory;
  constexpr std::size_t size = 512 * mib;
  const std::string from = directory.make_sparse_file("from", size), to = directory.path() + "/to";
  const int writer = ::open(from.c_str(), O_WRONLY);
  for (std::size_t at = 0; at < size; at += mib / 32) ASSERT_EQ(::pwrite(writer, "data", 4, static_cast<off_t>(at)), 4);
  const int events = ::inotify_init1(IN_CLOEXEC);
  ASSERT_GE(::inotify_add_watch(events, from.c_str(), IN_ACCESS), 0);
  program copying({"cp", "--no-clone", from, to});
  char event[4096];
  ASSERT_GT(::read(events, event, sizeof event), 0) << "it reads";
  ASSERT_EQ(::ftruncate(writer, static_cast<off_t>(size / 4 * 3)), 0);
  ::close(events);
  ::close(writer);
  const ended_program ended = copying.finish();
  if (ended.exit_code == 0) {
    std::ifstream copy(to, std::ios::binary);
    copy.seekg(static_cast<std::streamoff>(size - mib / 32));
    EXPECT_EQ(copy.get(), 'd') << "only a copy that was done by then has succeeded";
  } else {
    EXPECT_TRUE(contains(ended.err, from + " was truncated while being read")) << ended.err;
    EXPECT_FALSE(fs::exists(to));
  }
}

TEST(cp, does_not_go_through_a_link_to_a_folder_that_stands_where_a_folder_is_to_be) {
  const scratch_directory directory;
  const std::string root = directory.path();
  fs::create_directories(root + "/one/x");
  fs::create_directories(root + "/two/x/link");
  fs::create_directories(root + "/outside");
  fs::create_directories(root + "/to");
  text_to(root + "/two/x/link/file", "new");
  text_to(root + "/outside/file", "old");
  fs::create_directory_symlink("../../outside", root + "/one/x/link");
  const ended_program ended = cp({"-r", root + "/one/x", root + "/two/x", root + "/to"});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_EQ(ended.err, "penstock: " + root + "/to/x/link is a link, but " + root + "/two/x/link is a folder\n");
  EXPECT_EQ(cp({"-r", root + "/two/x", root + "/to"}).exit_code, 1) << "a link that was there before";
  EXPECT_EQ(text_in(root + "/outside/file"), "old");
}

// A bucket with these keys below p/. Each object has the content "new", except for those that mark folders.
class bucket_of {
 public:
  explicit bucket_of(const words& keys) {
    for (const auto& each : keys)
      list_ += fmt::format("<Contents><Key>p/{}</Key><Size>{}</Size></Contents>", each, each.ends_with('/') ? 0 : content_.size());
    server_.set_answer([this](const testing::web_request& asked, const testing::web_server::client& to) {
      const bool lists = asked.target.find("list-type=2") != std::string::npos;
      const auto body = "<ListBucketResult>" + list_ + "</ListBucketResult>";
      if (!lists) return std::optional<testing::web_server::then>();
      to.send(fmt::format("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{}", body.size(), body));
      return std::optional(testing::web_server::then::keep);
    });
  }

 private:
  std::vector<std::byte> content_{std::byte{'n'}, std::byte{'e'}, std::byte{'w'}};
  std::string list_;
  testing::web_server server_{content_};
  const scoped_variable endpoint_{"AWS_ENDPOINT_URL", server_.origin()}, region_{"AWS_REGION", "eu-central-1"};
  const scoped_variable key_{"AWS_ACCESS_KEY_ID", "AKIDEXAMPLE"}, secret_{"AWS_SECRET_ACCESS_KEY", "hidden-secret"};
};

TEST(cp, objects_are_copied_into_folders_below_the_one_that_is_named) {
  const scratch_directory directory;
  const bucket_of objects({"a", "b/c", "b/d/e", "f//g", "h/"});
  const ended_program ended = cp({"-r", "s3://bucket/p", directory.path() + "/new/to"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  for (const auto* name : {"a", "b/c", "b/d/e", "f/g"}) EXPECT_EQ(text_in(directory.path() + "/new/to/" + name), "new") << name;
  EXPECT_TRUE(fs::is_directory(directory.path() + "/new/to/h"));
  EXPECT_EQ(cp({"-r", "s3://bucket/p/", directory.path() + "/new/to"}).exit_code, 0) << "into a folder that is there";
  EXPECT_EQ(text_in(directory.path() + "/new/to/p/b/c"), "new");
}

// What a server lists decides about names only below the folder.
TEST(cp, objects_are_not_written_outside_of_the_folder_that_is_named) {
  const words keys{"link/file", "link/deep/file", "link/",  "file-link", "dangling", "sub/link/file",
                   "../up",     "a/../../up",     "/../up", "..",        "file/x"};
  for (const std::string& key : keys) {
    const scratch_directory directory;
    const std::string root = directory.path();
    fs::create_directories(root + "/outside");
    fs::create_directories(root + "/to/p/sub");
    text_to(root + "/outside/file", "old");
    text_to(root + "/to/p/file", "old");
    fs::create_directory_symlink("../../outside", root + "/to/p/link");
    fs::create_directory_symlink("../../../outside", root + "/to/p/sub/link");
    fs::create_symlink("../../outside/file", root + "/to/p/file-link");
    fs::create_symlink("../../outside/new", root + "/to/p/dangling");
    const bucket_of objects({key, "good/one"});
    const ended_program ended = cp({"-r", "s3://bucket/p/", root + "/to"});
    EXPECT_EQ(ended.exit_code, 1) << key;
    EXPECT_FALSE(ended.err.empty()) << key;
    EXPECT_EQ(text_in(root + "/outside/file"), "old") << key;
    EXPECT_EQ(entries_below(root + "/outside"), 1U) << key;
    EXPECT_EQ(entries_below(root), 12U) << key << ": only good/one is new";
    EXPECT_EQ(text_in(root + "/to/p/good/one"), "new") << key;
  }
}

TEST(cp, a_folder_of_objects_does_not_go_through_a_link_with_its_name) {
  const scratch_directory directory;
  fs::create_directories(directory.path() + "/outside");
  fs::create_directories(directory.path() + "/to");
  fs::create_directory_symlink("../outside", directory.path() + "/to/p");
  const bucket_of objects({"one"});
  const ended_program ended = cp({"-r", "s3://bucket/p/", directory.path() + "/to"});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_TRUE(contains(ended.err, "/to/p is a link")) << ended.err;
  EXPECT_TRUE(fs::is_empty(directory.path() + "/outside"));
}

TEST(cp, a_copy_that_was_just_made_is_not_replaced_through_a_link_to_it) {
  const scratch_directory directory;
  const std::string one = text_to(directory.path() + "/one", "1"), two = text_to(directory.path() + "/two", "2");
  fs::create_directory(directory.path() + "/to");
  fs::create_symlink("one", directory.path() + "/to/two");
  const ended_program ended = cp({one, two, directory.path() + "/to"});
  EXPECT_EQ(ended.exit_code, 1);
  EXPECT_TRUE(contains(ended.err, "which this command just wrote")) << ended.err;
  EXPECT_EQ(text_in(directory.path() + "/to/one"), "1");
}

TEST(cp, a_new_folder_keeps_the_set_group_id_bit_of_the_folder_that_it_is_made_in) {
  const scratch_directory directory;
  fs::create_directories(directory.path() + "/from/a");
  fs::create_directory(directory.path() + "/to");
  ASSERT_EQ(::chmod((directory.path() + "/to").c_str(), 02755), 0);
  EXPECT_EQ(cp({"-r", directory.path() + "/from", directory.path() + "/to"}).exit_code, 0);
  EXPECT_NE(facts_of(directory.path() + "/to/from").st_mode & S_ISGID, 0U);
  EXPECT_NE(facts_of(directory.path() + "/to/from/a").st_mode & S_ISGID, 0U);
}

// Runs `penstock cp` in the folder as a user who is not root. What it says is in the file "said". -1 where this process cannot be one.
int cp_as_nobody(const scratch_directory& directory, const std::string& arguments) {
  const std::string user = ::geteuid() == 0 ? "setpriv --reuid 65534 --regid 65534 --clear-groups " : "";
  EXPECT_EQ(::chmod(directory.path().c_str(), 0777), 0);
  if (::geteuid() == 0 && std::system((user + PENSTOCK_CLI_PATH + " --version > /dev/null 2>&1").c_str()) != 0)  // NOLINT(cert-env33-c)
    return -1;
  const std::string command = "cd " + directory.path() + " && " + user + PENSTOCK_CLI_PATH + " cp " + arguments + " > said 2>&1";
  return WEXITSTATUS(std::system(command.c_str()));  // NOLINT(cert-env33-c)
}

TEST(cp, a_file_that_the_user_may_not_write_to_is_not_replaced) {
  const scratch_directory directory;
  text_to(directory.path() + "/from", "new");
  const std::string to = text_to(directory.path() + "/to", "old");
  ASSERT_EQ(::chmod(to.c_str(), 0444), 0);
  const int code = cp_as_nobody(directory, "from to");
  if (code < 0) GTEST_SKIP() << "needs setpriv, or a user who is not root";
  EXPECT_EQ(code, 1);
  EXPECT_EQ(text_in(directory.path() + "/said"), "penstock: write to to: Permission denied (os 13)\n");
  EXPECT_EQ(text_in(to), "old");
}

TEST(cp, set_user_id_bits_are_not_kept_without_the_owner) {
  if (::geteuid() != 0) GTEST_SKIP() << "needs root, for a file of another owner";
  const scratch_directory directory;
  const std::string from = text_to(directory.path() + "/from", "new"), to = text_to(directory.path() + "/to", "old");
  ASSERT_EQ(::chmod(from.c_str(), 06755), 0);
  ASSERT_EQ(::chmod(to.c_str(), 06777), 0);
  const int code = cp_as_nobody(directory, "-p from kept");
  if (code < 0) GTEST_SKIP() << "needs setpriv";
  EXPECT_EQ(code, 0) << text_in(directory.path() + "/said");
  EXPECT_EQ(facts_of(directory.path() + "/kept").st_mode & 07777, 0755U);
  EXPECT_EQ(cp_as_nobody(directory, "from to"), 0) << text_in(directory.path() + "/said");
  EXPECT_EQ(facts_of(to).st_mode & 07777, 0777U);
  EXPECT_EQ(cp({"-p", from, directory.path() + "/root"}).exit_code, 0);
  EXPECT_EQ(facts_of(directory.path() + "/root").st_mode & 07777, 06755U) << "with its owner it keeps them";
}

TEST(cp, output_that_cannot_be_written_is_an_error) {
  const scratch_directory directory;
  const std::string from = directory.make_file("from", 1);
  const std::string command = std::string(PENSTOCK_CLI_PATH) + " cp " + from + " " + from + "2 2> /dev/null > /dev/full";
  EXPECT_EQ(WEXITSTATUS(std::system(command.c_str())), 1);  // NOLINT(cert-env33-c)
}

// As mounts that keep no modes, owners or times answer (CIFS, gcsfuse, FAT), and sandboxes. A new call is one line.
struct refused_facts {
  const char* fact;
  std::vector<long> calls;
};
class cp_of_facts : public ::testing::TestWithParam<refused_facts> {};

TEST_P(cp_of_facts, keeps_the_copy_if_a_fact_cannot_be_set_and_says_so) {
  if (const auto why = testing::lacks_filters(); !why.empty()) GTEST_SKIP() << why;
  const scratch_directory directory;
  const std::string from = directory.make_file("from", 5 * mib + 3), to = directory.path() + "/to";
  ASSERT_EQ(::chmod(from.c_str(), 0741), 0);
  const std::array<timespec, 2> long_ago{timespec{1'000'000, 1}, timespec{2'000'000, 2}};
  ASSERT_EQ(::utimensat(AT_FDCWD, from.c_str(), long_ago.data(), 0), 0);
  ASSERT_TRUE(::geteuid() != 0 || ::chown(from.c_str(), 12, 34) == 0);
  const bool is_kept_anyway = ::geteuid() != 0 && std::string(GetParam().fact) == "owner";
  for (const int error : {EPERM, ENOSYS, EINVAL, EOPNOTSUPP}) {
    EXPECT_EQ(testing::run_in_child([&] {
                for (const long call : GetParam().calls) {
                  if (!testing::deny_system_call(call, error)) return 2;
                }
                const auto ended = cp({"-p", from, to});
                const bool says_so = contains(ended.err, "was copied, but its ") && contains(ended.err, GetParam().fact);
                if (ended.exit_code == (is_kept_anyway ? 0 : 1) && (is_kept_anyway || says_so) && text_in(from) == text_in(to)) return 0;
                std::fprintf(stderr, "exit code %d: %s\n", ended.exit_code, ended.err.c_str());
                return 1;
              }),
              0)
        << error;
    ::unlink(to.c_str());
  }
}

INSTANTIATE_TEST_SUITE_P(each, cp_of_facts,
                         ::testing::Values(refused_facts{"owner", {SYS_fchown}}, refused_facts{"mode", {SYS_fchmod}},
                                           refused_facts{"times", {SYS_utimensat}}),
                         [](const auto& info) { return std::string(info.param.fact); });

TEST(cp, small_files_are_copied_without_calls_that_a_sandbox_refuses) {
  if (const auto why = testing::lacks_filters(); !why.empty()) GTEST_SKIP() << why;
  for (const long call : {SYS_sendfile, SYS_linkat, SYS_renameat2, SYS_ioctl}) {
    for (const int error : {EPERM, ENOSYS, EINVAL, EOPNOTSUPP}) {
      const scratch_directory directory;
      fs::create_directory(directory.path() + "/from");
      for (const std::size_t bytes : {1, 4096, 100001}) std::ignore = directory.make_file("from/" + std::to_string(bytes), bytes);
      EXPECT_EQ(testing::run_in_child([&] {
                  if (!testing::deny_system_call(call, error)) return 2;
                  const auto ended = cp({"-r", directory.path() + "/from", directory.path() + "/to"});
                  std::fputs(ended.err.c_str(), stderr);
                  return ended.exit_code;
                }),
                0)
          << call << " fails with " << error;
      for (const auto* name : {"1", "4096", "100001"})
        EXPECT_EQ(text_in(directory.path() + "/to/" + name), text_in(directory.path() + "/from/" + name)) << call;
    }
  }
}

TEST(cp, usage_errors_are_told) {
  for (const words& wrong : std::vector<words>{{}, {"one"}, {"a", "b", "--fast"}}) EXPECT_EQ(cp(wrong).exit_code, 2);
}

}  // namespace
}  // namespace penstock::cli_test
