// Objects on servers with a cache on the node: reads return the server's bytes, whatever is in the folder and whichever process is killed.
// Each object is fetched once, and errors of the cache never fail a read.
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "contract/contract_fixture.hpp"
#include "remote/cache/cache_map.hpp"
#include "support/faulty_kernel.hpp"
#include "support/web_server.hpp"
#include "sys/peer.hpp"

namespace penstock::testing::node_cache_tests {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using client = web_server::client;
using then = web_server::then;

constexpr std::size_t object_bytes = 5 * mib + 77;
constexpr std::uint64_t seed = 21;
constexpr std::uint64_t block = source::remote::cache_block_bytes;

core::seams quick_doors(std::shared_ptr<sys::kernel> kernel = nullptr) {
  auto doors = impatient_doors(4);
  if (kernel != nullptr) doors.kernel = std::move(kernel);
  return doors;
}

// What is asked of a server, without the questions for sizes.
std::uint64_t bytes_asked(const web_server& of) {
  std::uint64_t sum = 0;
  for (const auto& each : of.requests()) {
    if (each.method == "GET" && each.range) sum += each.range->second - each.range->first + 1;
  }
  return sum;
}

std::string all_remarks(const engine& with, const file& from) {
  const auto plan = with.explain(from, "host:0", object_bytes, 0);
  EXPECT_TRUE(plan.ok()) << told(plan.error());
  std::string all;
  if (plan.ok()) {
    for (const auto& each : plan->remarks) all += each + "\n";
  }
  return all;
}

// An engine, as a process has one, that keeps what it reads in a folder.
struct reader {
  explicit reader(std::string folder, std::uint64_t bytes = 0, std::shared_ptr<sys::kernel> kernel = nullptr)
      : house(options_of(std::move(folder), bytes), quick_doors(std::move(kernel))) {}
  static engine_options options_of(std::string folder, std::uint64_t bytes) {
    engine_options made;
    made.use_cuda = false;
    made.node_cache_dir = std::move(folder);
    made.node_cache_bytes = bytes;
    return made;
  }
  file open(const std::string& url, const remote_options& how = {}) {
    auto opened = house.engine().open_remote(url, how);
    EXPECT_TRUE(opened.ok()) << told(opened.error());
    return opened.ok() ? *std::move(opened) : file();
  }
  void expect(const file& from, std::span<const std::byte> content, memory_place place = memory_place::pageable) {
    guarded_memory memory(house, place, content.size());
    const auto got = from.read(memory.data(), content.size(), 0);
    EXPECT_TRUE(got.ok()) << told(got.error);
    EXPECT_EQ(got.bytes_done, content.size());
    memory.expect(content);
  }
  [[nodiscard]] std::string remarks(const file& from) { return all_remarks(house.engine(), from); }
  open_house house;
};

class node_cache : public ::testing::Test {
 protected:
  [[nodiscard]] std::string folder() const { return dir_.file("cache"); }
  [[nodiscard]] std::vector<fs::path> files(std::string_view end) const {
    std::vector<fs::path> found;
    for (const auto& each : fs::directory_iterator(folder())) {
      if (each.path().string().ends_with(end)) found.push_back(each.path());
    }
    return found;
  }
  [[nodiscard]] std::uint64_t bytes_kept() const {
    std::uint64_t sum = 0;
    for (const auto& each : files("")) {
      struct stat facts {};
      if (::stat(each.c_str(), &facts) == 0) sum += static_cast<std::uint64_t>(facts.st_blocks) * 512;
    }
    return sum;
  }
  // Reads all of it once, as another process would.
  void fill() {
    reader first(folder());
    first.expect(first.open(server_.url()), content_);
  }
  void expect_all_is_kept() {
    const auto before = bytes_asked(server_);
    reader with(folder());
    with.expect(with.open(server_.url()), content_);
    EXPECT_EQ(bytes_asked(server_), before);
  }

  bytes content_ = pattern::make(object_bytes, seed);
  web_server server_{content_};
  temp_dir dir_ = temp_dir::on_build_disk();
};

TEST_F(node_cache, a_second_reader_asks_the_server_for_the_version_alone) {
  fill();
  EXPECT_EQ(bytes_asked(server_), content_.size());
  const auto before = server_.requests().size();
  reader second(folder());
  const auto from = second.open(server_.url());
  for (const auto place : {memory_place::pageable, memory_place::aligned, memory_place::device}) second.expect(from, content_, place);
  EXPECT_EQ(server_.requests().size(), before + 1);
  EXPECT_EQ(server_.requests().back().method, "HEAD");
  EXPECT_EQ(from.path(), server_.url());
  EXPECT_NE(second.remarks(from).find("all of it is in the node cache in " + folder()), std::string::npos) << second.remarks(from);
  EXPECT_TRUE(from.descriptor().ok()) << "it is a local file";
  EXPECT_EQ(second.house.engine().open(server_.url(), {.write = true}).error().code(), errc::unsupported);
}

TEST_F(node_cache, files_and_folder_are_the_users_alone) {
  fill();
  struct stat facts {};
  ASSERT_EQ(::stat(folder().c_str(), &facts), 0);
  EXPECT_EQ(facts.st_mode & 07777, 0700U);
  ASSERT_EQ(files(".data").size(), 1U);
  ASSERT_EQ(files(".map").size(), 1U);
  for (const auto& each : files("")) {
    ASSERT_EQ(::stat(each.c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 07777, 0600U) << each;
  }
}

TEST_F(node_cache, ranges_are_fetched_by_blocks_and_each_once) {
  reader with(folder());
  const auto from = with.open(server_.url());
  std::mt19937_64 drawn(4);
  for (int i = 0; i < 200; ++i) {
    const auto offset = drawn() % content_.size();
    const auto length = std::min<std::uint64_t>(content_.size() - offset, 1 + drawn() % (i % 4 == 0 ? 700'000 : 5'000));
    guarded_memory memory(with.house, i % 2 == 0 ? memory_place::pageable : memory_place::device, length, i % 7);
    ASSERT_EQ(from.read(memory.data(), length, static_cast<std::int64_t>(offset)).bytes_done, length);
    memory.expect(std::span(content_).subspan(offset, length));
  }
  EXPECT_LE(bytes_asked(server_), content_.size());
  with.expect(from, content_);
  EXPECT_EQ(bytes_asked(server_), content_.size());
  expect_all_is_kept();
}

TEST_F(node_cache, a_small_read_of_a_cold_object_costs_a_block) {
  reader with(folder());
  const auto from = with.open(server_.url());
  bytes memory(100);
  EXPECT_EQ(from.read(memory.data(), memory.size(), 3 * mib + 5).bytes_done, 100U);
  EXPECT_EQ(bytes_asked(server_), block);
  EXPECT_EQ(from.read(memory.data(), memory.size(), 3 * mib + 500).bytes_done, 100U);
  EXPECT_EQ(bytes_asked(server_), block);
  EXPECT_EQ(from.read(memory.data(), memory.size(), object_bytes - 50).bytes_done, 50U);
  EXPECT_NE(with.remarks(from).find(fmt::format("{} of {} bytes are in the node cache", block + 77, object_bytes)), std::string::npos)
      << with.remarks(from);
}

TEST_F(node_cache, a_map_that_was_replaced_while_its_maker_waited_for_the_folder_keeps_its_data) {
  fill();
  const auto before = bytes_asked(server_);
  const auto map = files(".map").front();
  const auto aside = folder() + "/aside";
  fs::rename(map, aside);
  const sys::owned_descriptor locked(::open(folder().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  ASSERT_EQ(::flock(locked.get(), LOCK_EX), 0);
  reader with(folder());
  auto opening = std::async(std::launch::async, [&] { return with.open(server_.url()); });
  while (!fs::exists(map)) std::this_thread::yield();
  // The one that it has made is evicted, and another process brings what is valid.
  fs::rename(aside, map);
  ASSERT_EQ(::flock(locked.get(), LOCK_UN), 0);
  with.expect(opening.get(), content_);
  EXPECT_EQ(bytes_asked(server_), before);
  expect_all_is_kept();
}

TEST_F(node_cache, an_object_that_was_replaced_is_fetched_anew_and_the_old_one_goes) {
  fill();
  const auto old = files(".data");
  auto other = content_;
  other[5] ^= std::byte{1};
  server_.put(other, "\"second\"");
  reader with(folder());
  with.expect(with.open(server_.url()), other);
  EXPECT_EQ(bytes_asked(server_), 2 * content_.size());
  ASSERT_EQ(files(".data").size(), 1U);
  EXPECT_NE(files(".data"), old);
}

TEST_F(node_cache, readers_of_an_old_version_keep_it_though_its_file_goes) {
  fill();
  reader with(folder());
  const auto old = with.open(server_.url());
  auto other = content_;
  other[5] ^= std::byte{1};
  server_.put(other, "\"second\"");
  reader later(folder());
  later.expect(later.open(server_.url()), other);
  with.expect(old, content_);
}

TEST_F(node_cache, addresses_with_another_query_are_other_objects) {
  reader with(folder());
  with.expect(with.open(server_.url("/data?id=1")), content_);
  with.expect(with.open(server_.url("/data?id=2")), content_);
  EXPECT_EQ(bytes_asked(server_), 2 * content_.size());
  EXPECT_EQ(files(".data").size(), 2U);
}

TEST_F(node_cache, without_a_strong_etag_the_time_of_the_last_change_tells_versions_apart) {
  server_.put(content_, "W/\"weak\"");
  fill();
  expect_all_is_kept();
}

TEST_F(node_cache, an_object_without_a_version_is_not_kept_and_explain_says_so) {
  server_.set_answer([&](const web_request& asked, const client& to) -> std::optional<then> {
    auto head = server_.head_of(asked);
    for (const auto* each : {"ETag:", "Last-Modified:"}) {
      const auto at = head.find(each);
      head.erase(at, head.find("\r\n", at) + 2 - at);
    }
    to.send(head + (asked.method == "HEAD" ? "" : server_.body_of(asked)));
    return then::keep;
  });
  reader with(folder());
  const auto from = with.open(server_.url());
  with.expect(from, content_);
  EXPECT_NE(with.remarks(from).find("it is not kept in the node cache: the server reports no version"), std::string::npos)
      << with.remarks(from);
}

TEST_F(node_cache, an_object_whose_size_is_given_is_not_kept_and_explain_says_so) {
  reader with(folder());
  const auto from = with.open(server_.url(), {.size = object_bytes});
  with.expect(from, content_);
  EXPECT_NE(with.remarks(from).find("its size was set by an option"), std::string::npos) << with.remarks(from);
}

TEST_F(node_cache, options_of_an_object_count_instead_of_the_engines) {
  reader with(folder());
  remote_options none;
  none.cache_dir = "";
  with.expect(with.open(server_.url(), none), content_);
  EXPECT_FALSE(fs::exists(folder()));
  remote_options elsewhere;
  elsewhere.cache_dir = dir_.file("elsewhere");
  with.expect(with.open(server_.url(), elsewhere), content_);
  EXPECT_FALSE(fs::exists(folder()));
  EXPECT_TRUE(fs::exists(dir_.file("elsewhere")));
}

TEST_F(node_cache, any_number_of_folders_is_used_one_after_the_other) {
  reader with(folder());
  for (int i = 0; i < 40; ++i) {
    remote_options how;
    how.cache_dir = dir_.file(std::to_string(i));
    const auto from = with.open(server_.url(), how);
    with.expect(from, std::span(content_).first(block));
    EXPECT_TRUE(fs::exists(dir_.file(std::to_string(i))));
  }
  EXPECT_EQ(bytes_asked(server_), 40 * block);
}

TEST_F(node_cache, the_environment_names_folder_and_bound) {
  const auto bound = [](const char* text) {
    ::setenv("PENSTOCK_CACHE_BYTES", text, 1);
    const auto options = engine_options::from_environment();
    ::unsetenv("PENSTOCK_CACHE_BYTES");
    return options.ok() ? options->node_cache_bytes : std::uint64_t{77};
  };
  EXPECT_EQ(bound("200G"), std::uint64_t{200} << 30);
  EXPECT_EQ(bound("12345"), 12345U);
  EXPECT_EQ(bound("3K"), 3072U);
  for (const auto* wrong : {"G", "12X", "-1", "99999999T", "1.5G", " 1"}) EXPECT_EQ(bound(wrong), 77U) << wrong;
  ::setenv("PENSTOCK_CACHE_DIR", folder().c_str(), 1);
  EXPECT_EQ(engine_options::from_environment()->node_cache_dir, folder());
  ::setenv("PENSTOCK_CACHE_DIR", "here", 1);
  const auto refused = engine_options::from_environment();
  ::unsetenv("PENSTOCK_CACHE_DIR");
  EXPECT_NE(told(refused.error()).find("PENSTOCK_CACHE_DIR=here: expected an absolute path"), std::string::npos) << told(refused.error());
}

TEST_F(node_cache, a_server_that_is_gone_is_an_error_though_all_is_kept) {
  fill();
  server_.stop();
  reader with(folder());
  EXPECT_FALSE(with.house.engine().open(server_.url()).ok());
}

// --- folders that are not to be trusted

TEST_F(node_cache, a_folder_that_others_may_write_in_is_refused_in_words_and_the_object_is_read) {
  fs::create_directory(folder());
  fs::permissions(folder(), fs::perms::all);
  reader with(folder());
  const auto from = with.open(server_.url());
  with.expect(from, content_);
  EXPECT_NE(with.remarks(from).find(folder() + " is writable by other users"), std::string::npos) << with.remarks(from);
  EXPECT_TRUE(files("").empty());
}

TEST_F(node_cache, a_folder_of_another_user_is_refused_in_words_and_the_object_is_read) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a folder away";
  fs::create_directory(folder());
  fs::permissions(folder(), fs::perms::owner_all);
  if (::chown(folder().c_str(), 65534, 65534) != 0) GTEST_SKIP() << "user ids cannot be set here";
  reader with(folder());
  const auto from = with.open(server_.url());
  with.expect(from, content_);
  EXPECT_NE(with.remarks(from).find("belongs to user 65534"), std::string::npos) << with.remarks(from);
  EXPECT_TRUE(files("").empty());
}

TEST_F(node_cache, a_folder_that_is_a_link_or_cannot_be_made_is_refused_in_words) {
  fs::create_directory(dir_.file("real"));
  fs::create_directory_symlink(dir_.file("real"), folder());
  const std::vector<std::pair<std::string, std::string>> wrong{
      {folder(), "is a symbolic link or not a folder"}, {dir_.file("a/b/c"), "create the folder"}, {"cache", "must be an absolute path"}};
  for (const auto& [name, words] : wrong) {
    reader with(name);
    const auto from = with.open(server_.url());
    with.expect(from, content_);
    EXPECT_NE(with.remarks(from).find(words), std::string::npos) << with.remarks(from);
  }
}

// What was done to the files of an object that is kept whole, or to a half of one.
struct damage {
  const char* name;
  void (*does)(const fs::path& map, const fs::path& data);
};
void change_byte(const fs::path& of, std::uint64_t at) {
  std::fstream file(of, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const auto was = file.get();
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(was ^ 0x55));
}
const std::vector<damage>& damages() {
  static const std::vector<damage> all{
      {"map_is_empty", [](const fs::path& map, const fs::path&) { fs::resize_file(map, 0); }},
      {"map_is_short", [](const fs::path& map, const fs::path&) { fs::resize_file(map, 4000); }},
      {"map_lacks_a_block", [](const fs::path& map, const fs::path&) { fs::resize_file(map, fs::file_size(map) - 1); }},
      {"map_is_long", [](const fs::path& map, const fs::path&) { fs::resize_file(map, fs::file_size(map) + 1); }},
      {"magic", [](const fs::path& map, const fs::path&) { change_byte(map, 0); }},
      {"size", [](const fs::path& map, const fs::path&) { change_byte(map, 17); }},
      {"inode", [](const fs::path& map, const fs::path&) { change_byte(map, 24); }},
      {"sum", [](const fs::path& map, const fs::path&) { change_byte(map, 4090); }},
      {"state_of_a_block", [](const fs::path& map, const fs::path&) { change_byte(map, 4100); }},
      {"sum_of_a_block", [](const fs::path& map, const fs::path&) { change_byte(map, source::remote::cache_sum_offset(object_bytes, 3)); }},
      {"data_is_gone", [](const fs::path&, const fs::path& data) { fs::remove(data); }},
      {"data_begins_otherwise", [](const fs::path&, const fs::path& data) { change_byte(data, 0); }},
      {"data_is_other_in_between", [](const fs::path&, const fs::path& data) { change_byte(data, mib + 4711); }},
      {"data_was_cut_and_lengthened",
       [](const fs::path&, const fs::path& data) {
         fs::resize_file(data, mib);
         fs::resize_file(data, object_bytes);
       }},
      {"data_is_short", [](const fs::path&, const fs::path& data) { fs::resize_file(data, 1000); }},
      {"data_is_long", [](const fs::path&, const fs::path& data) { fs::resize_file(data, object_bytes + 1); }},
      {"data_is_a_copy",
       [](const fs::path&, const fs::path& data) {
         fs::rename(data, data.string() + "x");
         fs::copy_file(data.string() + "x", data);
       }},
      {"data_is_a_link",
       [](const fs::path&, const fs::path& data) {
         fs::rename(data, data.string() + "x");
         fs::create_symlink(data.string() + "x", data);
       }},
      {"data_has_a_second_name", [](const fs::path&, const fs::path& data) { fs::create_hard_link(data, data.string() + "x"); }},
      {"data_is_readable_by_others", [](const fs::path&, const fs::path& data) { fs::permissions(data, fs::perms(0644)); }},
      {"map_is_a_folder",
       [](const fs::path& map, const fs::path&) {
         fs::remove(map);
         fs::create_directory(map);
       }},
      {"map_is_a_pipe",
       [](const fs::path& map, const fs::path&) {
         fs::remove(map);
         EXPECT_EQ(::mkfifo(map.c_str(), 0600), 0);
       }},
  };
  return all;
}

class damaged_files : public node_cache, public ::testing::WithParamInterface<std::size_t> {};

TEST_P(damaged_files, are_not_believed) {
  const auto& what = damages()[GetParam()];
  for (const auto kept : {3 * mib, object_bytes}) {
    fs::remove_all(folder());
    {
      reader with(folder());
      with.expect(with.open(server_.url()), std::span(content_).first(kept));
    }
    const auto map = files(".map").front();
    const auto data = files(".data").front();
    what.does(map, data);
    reader with(folder());
    const auto from = with.open(server_.url());
    bytes small(100);  // in the block that is other in between
    EXPECT_EQ(from.read(small.data(), small.size(), mib + 4700).bytes_done, small.size());
    EXPECT_TRUE(std::ranges::equal(small, std::span(content_).subspan(mib + 4700, small.size()))) << kept;
    with.expect(from, content_);
    reader again(folder());
    again.expect(again.open(server_.url()), content_, memory_place::device);
  }
}

// What is changed while it is read from the folder block by block is fetched anew, and kept.
TEST_F(node_cache, a_block_that_is_changed_while_an_object_is_open_is_fetched_anew) {
  reader with(folder());
  const auto from = with.open(server_.url());
  with.expect(from, std::span(content_).first(3 * mib));
  const auto before = bytes_asked(server_);
  change_byte(files(".data").front(), mib + 4711);
  for (int i = 0; i < 2; ++i) with.expect(from, std::span(content_).first(3 * mib));
  EXPECT_GE(bytes_asked(server_), before + block);
  EXPECT_LE(bytes_asked(server_), before + 3 * mib);
  EXPECT_EQ(with.remarks(from).find("read without the node cache"), std::string::npos) << with.remarks(from);
}

INSTANTIATE_TEST_SUITE_P(all, damaged_files, ::testing::Range<std::size_t>(0, damages().size()),
                         [](const auto& info) { return std::string(damages()[info.param].name); });

TEST_F(node_cache, data_that_becomes_short_while_it_is_read_is_fetched_past_the_cache) {
  reader with(folder());
  const auto from = with.open(server_.url());
  with.expect(from, std::span(content_).first(3 * mib));
  fs::resize_file(files(".data").front(), 1000);
  with.expect(from, content_);
  EXPECT_NE(with.remarks(from).find("read without the node cache"), std::string::npos) << with.remarks(from);
}

// What is on the disk of an object that was not sealed is not known after the machine has been started anew.
TEST_F(node_cache, of_an_earlier_start_of_the_machine_only_what_was_sealed_counts) {
  {
    reader with(folder());
    with.expect(with.open(server_.url()), std::span(content_).first(3 * mib));
  }
  const auto map = files(".map").front();
  source::remote::cache_head_text text{};
  std::fstream file(map, std::ios::in | std::ios::out | std::ios::binary);
  file.read(reinterpret_cast<char*>(text.data()), text.size());
  auto head = source::remote::decode_cache_head(text);
  ASSERT_TRUE(head);
  head->boot = "another";
  text = source::remote::encode(*head);
  file.seekp(0);
  file.write(reinterpret_cast<const char*>(text.data()), text.size());
  file.close();
  const auto before = bytes_asked(server_);
  reader with(folder());
  with.expect(with.open(server_.url()), content_);
  EXPECT_EQ(bytes_asked(server_), before + content_.size());
}

TEST_F(node_cache, an_object_that_is_whole_is_sealed) {
  source::remote::cache_head_text text{};
  reader with(folder());
  const auto from = with.open(server_.url());
  with.expect(from, content_);
  std::optional<source::remote::cache_map_head> head;
  do {
    std::ifstream(files(".map").front(), std::ios::binary).read(reinterpret_cast<char*>(text.data()), text.size());
    head = source::remote::decode_cache_head(text);
    std::this_thread::yield();
  } while (!head || !head->is_sealed);
  EXPECT_EQ(head->size, object_bytes);
  EXPECT_EQ(head->shown, server_.url());
}

// --- room

TEST_F(node_cache, the_bound_is_kept_and_what_was_used_longest_ago_goes) {
  constexpr std::uint64_t most = 20 * mib;
  for (int i = 0; i < 6; ++i) {
    reader with(folder(), most);
    with.expect(with.open(server_.url(fmt::format("/{}", i))), content_);
    EXPECT_LE(bytes_kept(), most);
  }
  const auto before = bytes_asked(server_);
  reader with(folder(), most);
  with.expect(with.open(server_.url("/5")), content_);
  with.expect(with.open(server_.url("/4")), content_);
  EXPECT_EQ(bytes_asked(server_), before);
  with.expect(with.open(server_.url("/0")), content_);
  EXPECT_EQ(bytes_asked(server_), before + content_.size());
}

TEST_F(node_cache, an_object_without_room_is_read_past_it) {
  reader with(folder(), 2 * mib);
  const auto from = with.open(server_.url());
  with.expect(from, content_);
  with.expect(from, content_, memory_place::device);
  EXPECT_LE(bytes_kept(), 2 * mib);
}

TEST_F(node_cache, what_somebody_has_open_is_not_evicted) {
  constexpr std::uint64_t most = 12 * mib;
  reader with(folder(), most);
  with.expect(with.open(server_.url("/first")), content_);
  const auto held = with.open(server_.url("/first"));
  for (int i = 0; i < 4; ++i) with.expect(with.open(server_.url(fmt::format("/{}", i))), content_);
  const auto before = bytes_asked(server_);
  reader other(folder(), most);
  other.expect(other.open(server_.url("/first")), content_);
  EXPECT_EQ(bytes_asked(server_), before);
}

TEST_F(node_cache, a_full_disk_does_not_fail_a_read) {
  auto faulty = std::make_shared<faulty_kernel>();
  reader with(folder(), 0, faulty);
  const auto from = with.open(server_.url());
  faulty->fail({.call = "pwrite", .nth = 1, .error = ENOSPC, .lasting = true});
  with.expect(from, content_);
  EXPECT_NE(with.remarks(from).find("no more are cached: "), std::string::npos) << with.remarks(from);
  faulty->disarm();
  fill();
  expect_all_is_kept();
}

TEST_F(node_cache, a_file_system_that_is_too_small_does_not_fail_a_read) {
  fs::create_directory(folder());
  if (::mount("tmpfs", folder().c_str(), "tmpfs", 0, "size=2m,mode=700") != 0) GTEST_SKIP() << "file systems cannot be mounted here";
  {
    reader with(folder(), 100 * mib);
    const auto from = with.open(server_.url());
    with.expect(from, content_);
    with.expect(from, content_, memory_place::device);
  }
  EXPECT_EQ(::umount(folder().c_str()), 0);
}

// Every call of the kernel's that a read with a cache makes fails once, each in a reader of its own.
TEST_F(node_cache, no_failing_call_brings_wrong_bytes) {
  fs::create_directory(folder());
  fs::permissions(folder(), fs::perms::owner_all);
  for (const auto* call : {"pread", "pwrite", "describe", "file_size", "descriptor_flags", "reopen"}) {
    for (std::uint64_t nth = 1; nth <= 3; ++nth) {
      auto faulty = std::make_shared<faulty_kernel>();
      reader with(folder(), 0, faulty);
      faulty->fail({.call = call, .nth = nth, .error = EIO});
      const auto opened = with.house.engine().open(server_.url());
      bytes memory(content_.size());
      if (opened.ok() && opened->read(memory.data(), memory.size(), 0).ok()) {
        EXPECT_EQ(memory, content_) << call << " " << nth;
      }
      if (nth == 2) {
        for (const auto& each : files("")) fs::remove(each);
      }
    }
  }
}

// --- several processes

class process {
 public:
  process(const std::string& url, const std::string& folder) {
    const auto seed_text = std::to_string(seed);
    pid_ = ::fork();
    if (pid_ == 0) {
      ::execl(PENSTOCK_CACHE_READER_PATH, PENSTOCK_CACHE_READER_PATH, url.c_str(), folder.c_str(), seed_text.c_str(),
              static_cast<char*>(nullptr));
      ::_exit(99);
    }
  }
  process(const process&) = delete;
  process& operator=(const process&) = delete;
  ~process() {
    if (pid_ > 0) kill_it();
  }
  int wait() {
    int outcome = 0;
    EXPECT_EQ(::waitpid(std::exchange(pid_, 0), &outcome, 0) > 0, true);
    return WIFEXITED(outcome) ? WEXITSTATUS(outcome) : -1;
  }
  void kill_it() {
    ::kill(pid_, SIGKILL);
    ::waitpid(std::exchange(pid_, 0), nullptr, 0);
  }

 private:
  pid_t pid_ = 0;
};

TEST_F(node_cache, eight_processes_at_once_fetch_each_byte_once) {
  std::vector<std::unique_ptr<process>> all;
  for (int i = 0; i < 8; ++i) all.push_back(std::make_unique<process>(server_.url(), folder()));
  for (auto& each : all) EXPECT_EQ(each->wait(), 0);
  EXPECT_EQ(bytes_asked(server_), content_.size());
  expect_all_is_kept();
}

TEST_F(node_cache, two_engines_of_a_process_fetch_each_byte_once) {
  reader one(folder());
  reader other(folder());
  const auto of_one = one.open(server_.url());
  const auto of_other = other.open(server_.url());
  bytes first(content_.size());
  bytes second(content_.size());
  auto begun = of_one.read_async(first.data(), first.size(), 0);
  auto also = of_other.read_async(second.data(), second.size(), 0);
  EXPECT_TRUE(begun.wait().ok());
  EXPECT_TRUE(also.wait().ok());
  EXPECT_EQ(first, content_);
  EXPECT_EQ(second, content_);
  EXPECT_EQ(bytes_asked(server_), content_.size());
}

// Holds the answers to requests for bytes until it is told to let go.
struct held_server {
  explicit held_server(web_server& of) : server(of) {
    of.set_answer([this](const web_request& asked, const client& to) -> std::optional<then> {
      if (asked.method == "HEAD" || is_open.load()) return std::nullopt;
      if (!came.exchange(true)) first.set_value();
      to.hold();
      return then::close;
    });
  }
  ~held_server() { server.set_answer({}); }
  held_server(const held_server&) = delete;
  held_server& operator=(const held_server&) = delete;
  web_server& server;
  std::atomic<bool> is_open{false};
  std::atomic<bool> came{false};
  std::promise<void> first;
};

TEST_F(node_cache, those_who_wait_for_one_that_is_killed_go_on) {
  held_server held(server_);
  process fetching(server_.url(), folder());
  held.first.get_future().wait();
  reader with(folder());
  const auto from = with.open(server_.url());
  bytes memory(content_.size());
  auto waiting = from.read_async(memory.data(), memory.size(), 0);
  EXPECT_FALSE(waiting.wait_for(20ms));
  held.is_open.store(true);
  fetching.kill_it();
  const auto outcome = waiting.wait();
  EXPECT_TRUE(outcome.ok()) << told(outcome.error);
  EXPECT_EQ(memory, content_);
  expect_all_is_kept();
}

TEST_F(node_cache, deadlines_and_cancel_hold_for_those_who_wait_for_another_process) {
  held_server held(server_);
  process fetching(server_.url(), folder());
  held.first.get_future().wait();
  reader with(folder());
  auto from = with.open(server_.url());
  bytes memory(content_.size());
  EXPECT_EQ(from.read(memory.data(), memory.size(), 0, {.deadline = deadline_clock::now() + 20ms}).error.code(), errc::timed_out);
  auto stopped = from.read_async(memory.data(), memory.size(), 0);
  EXPECT_FALSE(stopped.wait_for(5ms));
  stopped.cancel();
  EXPECT_EQ(stopped.wait().error.code(), errc::cancelled);
  auto left = from.read_async(memory.data(), memory.size(), 0);
  left.cancel();
  (void)left.wait();
  EXPECT_TRUE(from.close().ok());
}

TEST_F(node_cache, whoever_is_killed_whenever_no_reader_gets_a_wrong_byte) {
  std::mt19937_64 drawn(11);
  server_.set_answer([](const web_request&, const client&) -> std::optional<then> { return std::nullopt; });
  for (int round = 0; round < 12; ++round) {
    if (round % 4 == 0 && fs::exists(folder())) fs::remove_all(folder());
    std::vector<std::unique_ptr<process>> all;
    const auto killed_at = server_.requests().size() + drawn() % 10;
    for (int i = 0; i < 3; ++i) all.push_back(std::make_unique<process>(server_.url(), folder()));
    while (server_.requests().size() < killed_at && server_.requests().size() < 3) std::this_thread::yield();
    all.front()->kill_it();
    for (std::size_t i = 1; i < all.size(); ++i) EXPECT_EQ(all[i]->wait(), 0);
  }
  fill();
  expect_all_is_kept();
}

}  // namespace
}  // namespace penstock::testing::node_cache_tests
