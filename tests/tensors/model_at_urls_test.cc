// Models on servers: files are opened many at once, and errors are those of the first file.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "penstock/penstock.hpp"
#include "support/engines.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"
#include "support/web_server.hpp"

namespace penstock {
namespace {

using testing::web_request;
using testing::web_server;

// A server of files "/NAME", each a safetensors file with one tensor called NAME.
class model_at_urls : public ::testing::Test {
 protected:
  model_at_urls() {
    server_.set_answer([this](const web_request& asked, const web_server::client& to) { return answer(asked, to); });
  }
  std::vector<std::string> urls(int count) {
    std::vector<std::string> made;
    for (int i = 0; i < count; ++i) {
      const std::string name = fmt::format("shard-{}.safetensors", i);
      contents_[name] = file_of(name);
      made.push_back(server_.url("/" + name));
    }
    return made;
  }
  static std::string file_of(const std::string& tensor) {
    std::vector<tensor_facts> all = {{tensor, tensor_type::u8, {3}}};
    return *make_safetensors(all) + "abc";
  }
  // From now on, a file's first request is answered only after this many files have been requested.
  void hold_until_requested(std::size_t files) {
    const std::lock_guard guard(lock_);
    seen_.clear();
    needed_ = files;
    changed_.notify_all();
  }
  void TearDown() override { hold_until_requested(0); }
  void wait_for_requests(const std::string& name) {
    std::unique_lock guard(lock_);
    const auto next = seen_.insert(name).second ? seen_.size() : 0;
    if (next > 0) changed_.notify_all();
    changed_.wait(guard, [this] { return seen_.size() >= needed_; });
  }
  std::optional<web_server::then> answer(const web_request& asked, const web_server::client& to) {
    const std::string name = asked.target.substr(1);
    wait_for_requests(name);
    const auto found = contents_.find(name);
    if (found == contents_.end()) {
      to.send("HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
      return web_server::then::keep;
    }
    const std::string& content = found->second;
    const auto [first, last] = asked.range.value_or(std::pair<std::uint64_t, std::uint64_t>(0, content.size() - 1));
    const auto end = std::min<std::uint64_t>(last, content.size() - 1);
    const std::string body = content.substr(first, end - first + 1);
    const std::string head =
        asked.range ? fmt::format("206 Partial Content\r\nContent-Range: bytes {}-{}/{}", first, end, content.size()) : "200 OK";
    to.send(fmt::format("HTTP/1.1 {}\r\nETag: \"{}\"\r\nAccept-Ranges: bytes\r\nContent-Length: {}\r\n\r\n", head, name, body.size()));
    if (asked.method != "HEAD") to.send(body);
    return web_server::then::keep;
  }

  std::map<std::string, std::string> contents_;  // by name; constant while a model is opened
  std::mutex lock_;
  std::condition_variable changed_;
  std::set<std::string> seen_;
  std::size_t needed_ = 0;
  engine engine_ = testing::made_engine(testing::without_cuda());
  web_server server_{{}};
};

TEST_F(model_at_urls, sixteen_files_are_requested_before_the_first_is_answered) {
  const auto paths = urls(20);
  hold_until_requested(16);
  const auto opened = model::open(engine_, paths);
  ASSERT_TRUE(opened) << opened.error().message();
  ASSERT_EQ(opened->files().size(), paths.size());
  for (std::size_t i = 0; i < paths.size(); ++i) {
    EXPECT_EQ(opened->files()[i].path, paths[i]) << "in order";
    EXPECT_EQ(opened->files()[i].header.tensors().at(0).name, paths[i].substr(server_.url("/").size()));
  }
}

TEST_F(model_at_urls, files_of_a_disk_may_be_among_them) {
  const testing::temp_dir directory;
  const std::string local = directory.file("local.safetensors");
  const std::string content = file_of("local");
  testing::store_file(local, std::as_bytes(std::span(content)));
  auto paths = urls(3);
  paths.insert(paths.begin() + 1, local);
  const auto opened = model::open(engine_, paths);
  ASSERT_TRUE(opened) << opened.error().message();
  EXPECT_EQ(opened->files()[1].path, local);
  EXPECT_EQ(opened->tensor_count(), 4U);
}

TEST_F(model_at_urls, an_error_names_the_first_file_that_fails) {
  const auto paths = urls(20);
  for (const char* name : {"shard-2.safetensors", "shard-5.safetensors", "shard-15.safetensors"}) contents_.erase(name);
  hold_until_requested(16);  // all three fail at the same time
  for (int i = 0; i < 5; ++i) {
    const auto opened = model::open(engine_, paths);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().code(), errc::not_found);
    EXPECT_NE(opened.error().message().find("shard-2.safetensors"), std::string::npos) << opened.error().message();
  }
}

TEST_F(model_at_urls, a_bad_header_is_named_like_a_missing_file) {
  const auto paths = urls(4);
  contents_["shard-1.safetensors"] = std::string(100, 'x');
  contents_.erase("shard-3.safetensors");
  const auto opened = model::open(engine_, paths);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), errc::invalid_argument);
  EXPECT_NE(opened.error().message().find("shard-1.safetensors"), std::string::npos) << opened.error().message();
}

TEST_F(model_at_urls, stop_requested_is_called_on_the_calling_thread_only_and_stops_all) {
  const auto paths = urls(20);
  hold_until_requested(1000);  // never answered
  std::atomic<int> elsewhere{0};
  remote_options how;
  how.stop_requested = [&, caller = std::this_thread::get_id()] {
    if (std::this_thread::get_id() != caller) ++elsewhere;
    const std::lock_guard guard(lock_);
    return seen_.size() >= 16;
  };
  const auto opened = model::open(engine_, paths, how);
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().code(), errc::cancelled) << opened.error().message();
  EXPECT_EQ(elsewhere.load(), 0);
}

TEST_F(model_at_urls, a_load_ends_early_if_its_watch_says_so) {
  const auto paths = urls(1);
  std::vector<tensor_facts> all = {{"a", tensor_type::u8, {4 << 20}}};
  contents_["shard-0.safetensors"] = *make_safetensors(all) + std::string(4 << 20, 'x');
  const auto from = model::open(engine_, paths);
  ASSERT_TRUE(from) << from.error().message();
  const auto layout = lay_out(*from);
  ASSERT_TRUE(layout);
  std::vector<std::byte> memory(layout->bytes);
  void* const there = memory.data();
  const auto say_no = [] { return false; };
  const auto run_out = []() -> bool { throw std::bad_alloc(); };
  const std::pair<std::function<bool()>, errc> ways[] = {{say_no, errc::cancelled}, {run_out, errc::out_of_memory}};
  for (const auto& [end, expected] : ways) {
    hold_until_requested(1000);  // never answered
    load_watch watch;
    watch.proceed = [&, first = true](std::span<const load_progress>) mutable {
      const std::lock_guard guard(lock_);
      if (seen_.empty() || !std::exchange(first, false)) return true;
      return end();
    };
    const status error = load_model(engine_, *layout, {&there, 1}, {}, watch);
    EXPECT_EQ(error.code(), expected) << error.message();
    hold_until_requested(0);
  }
}

}  // namespace
}  // namespace penstock
