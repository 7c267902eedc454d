// Objects written by every kind of request from host and device memory: they are complete on the server, or absent.
#include <atomic>
#include <cerrno>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "contract/contract_fixture.hpp"
#include "support/child.hpp"
#include "support/object_store.hpp"

namespace penstock::testing::upload_tests {
namespace {

using namespace std::chrono_literals;
using client = web_server::client;
using then = web_server::then;

constexpr std::size_t size = 19 * mib + 77;

enum class kind { call, future, batch };

struct served {
  remote_options options() {
    remote_options made;
    made.endpoint = store.server().origin();
    made.region = "eu-central-1";
    made.access_key_id = "AKIDEXAMPLE";
    made.secret_access_key = "hidden-secret";
    return made;
  }
  upload begin() {
    auto begun = house.engine().begin_upload("s3://bucket/key", options());
    EXPECT_TRUE(begun.ok()) << told(begun.error());
    return begun.ok() ? *std::move(begun) : upload();
  }
  file open(const upload& of) {
    auto opened = of.open();
    EXPECT_TRUE(opened.ok()) << told(opened.error());
    return opened.ok() ? *std::move(opened) : file();
  }
  io_result write(const file& to, kind how, void* memory, std::uint64_t length, std::int64_t offset) {
    if (how == kind::call) return to.write(memory, length, offset);
    if (how == kind::future) return to.write_async(memory, length, offset).wait();
    const io_request asked{.target = &to, .memory = memory, .length = length, .offset = offset, .is_write = true};
    return house.engine().submit(std::span(&asked, 1)).wait().front();
  }
  void hold_parts() {
    store.set_fault([](const web_request& asked, const client& to) -> std::optional<then> {
      if (asked.target.find("partNumber") == std::string::npos) return std::nullopt;
      to.hold();
      return then::close;
    });
  }
  [[nodiscard]] bool has(std::span<const std::byte> content) const {
    const auto there = store.get("/bucket/key");
    return there && there->size() == content.size() && std::memcmp(there->data(), content.data(), content.size()) == 0;
  }
  object_store store;
  open_house house{{}, impatient_doors(4)};
};

using place_and_kind = std::tuple<memory_place, kind>;

class written_objects : public ::testing::TestWithParam<place_and_kind> {};

TEST_P(written_objects, are_what_was_written) {
  const auto& [place, how] = GetParam();
  served with;
  const auto content = pattern::make(size, 4);
  guarded_memory memory(with.house, place, size);
  memory.fill(content);
  const auto pending = with.begin();
  auto to = with.open(pending);
  const std::size_t half = size / 2;  // the second one first
  for (const auto& [first, length] : {std::pair(half, size - half), std::pair(std::size_t{0}, half)}) {
    const auto put = with.write(to, how, memory.data() + first, length, static_cast<std::int64_t>(first));
    ASSERT_TRUE(put.ok()) << told(put.error);
    EXPECT_EQ(put.bytes_done, length);
  }
  EXPECT_EQ(to.size().value_or(0), size);
  ASSERT_TRUE(to.close().ok());
  EXPECT_EQ(with.store.get("/bucket/key"), std::nullopt) << "before it is published";
  const auto published = pending.publish();
  ASSERT_TRUE(published.ok()) << told(published);
  EXPECT_TRUE(with.has(content));
  memory.expect_untouched();
}

TEST_P(written_objects, of_a_few_bytes_are_what_was_written) {
  const auto& [place, how] = GetParam();
  served with;
  const auto content = pattern::make(70'001, 5);
  guarded_memory memory(with.house, place, content.size(), 5);
  memory.fill(content);
  const auto pending = with.begin();
  auto to = with.open(pending);
  ASSERT_TRUE(with.write(to, how, memory.data(), content.size(), 0).ok());
  ASSERT_TRUE(to.close().ok());
  ASSERT_TRUE(pending.publish().ok());
  EXPECT_TRUE(with.has(content));
}

std::string name_of(const ::testing::TestParamInfo<place_and_kind>& info) {
  const auto& [place, how] = info.param;
  return to_string(place) + (how == kind::call ? "_call" : how == kind::future ? "_future" : "_batch");
}

INSTANTIATE_TEST_SUITE_P(kinds, written_objects,
                         ::testing::Combine(::testing::Values(memory_place::pageable, memory_place::device),
                                            ::testing::Values(kind::call, kind::future, kind::batch)),
                         name_of);

TEST(uploads_of_an_engine, say_what_they_are) {
  served with;
  const auto pending = with.begin();
  const auto to = with.open(pending);
  EXPECT_EQ(to.path(), "s3://bucket/key");
  EXPECT_EQ(pending.url(), "s3://bucket/key");
  const auto plan = with.house.engine().explain(to, "host:0", size, 0, true);
  ASSERT_TRUE(plan.ok()) << told(plan.error());
  std::string all;
  for (const auto& each : plan->remarks) all += each + "\n";
  EXPECT_NE(all.find("an upload to 127.0.0.1"), std::string::npos) << all;
}

TEST(uploads_of_an_engine, are_not_read) {
  served with;
  const auto pending = with.begin();
  bytes some(10);
  EXPECT_EQ(with.open(pending).read(some.data(), some.size(), 0).error.code(), errc::permission_denied);
}

TEST(uploads_of_an_engine, that_are_dropped_leave_nothing) {
  served with;
  with.hold_parts();
  auto content = pattern::make(size, 6);
  auto pending = with.begin();
  {
    const auto to = with.open(pending);
    ASSERT_TRUE(to.write(content.data(), size, 0).ok());
  }
  pending.discard();
  EXPECT_EQ(with.store.uploads(), 0U);
  EXPECT_EQ(with.store.aborted(), 1U);
  EXPECT_EQ(pending.publish().code(), errc::closed);
}

TEST(uploads_of_an_engine, fail_with_the_object_and_the_part_named) {
  served with;
  with.store.set_fault([](const web_request& asked, const client& to) -> std::optional<then> {
    if (asked.target.find("partNumber=2&") == std::string::npos) return std::nullopt;
    to.send(object_store::error(403, "AccessDenied"));
    return then::keep;
  });
  auto content = pattern::make(size, 6);
  const auto pending = with.begin();
  auto to = with.open(pending);
  (void)to.write(content.data(), size, 0);
  (void)to.close();
  const auto failed = pending.publish();
  EXPECT_EQ(failed.code(), errc::permission_denied) << told(failed);
  for (const auto* word : {"s3://bucket/key", "part 2", "AccessDenied"})
    EXPECT_NE(failed.message().find(word), std::string_view::npos) << failed.message();
  EXPECT_EQ(failed.message().find("hidden-secret"), std::string_view::npos);
}

// The server holds all parts, so the write waits for room, of which it needs more than there may be.
TEST(uploads_of_an_engine, have_requests_that_end_when_they_are_cancelled) {
  served with;
  with.hold_parts();
  const std::uint64_t much = std::uint64_t{2} << 30;
  for (const auto place : {memory_place::pageable, memory_place::device}) {
    const bytes part(8 * mib);
    guarded_memory memory(with.house, place, 8 * mib);
    const auto pending = with.begin();
    auto to = with.open(pending);
    std::vector<operation> all;
    for (std::uint64_t at = 0; at < much; at += memory.size())
      all.push_back(to.write_async(memory.data(), memory.size(), static_cast<std::int64_t>(at)));
    for (auto& each : all) each.cancel();
    std::size_t cancelled = 0;
    for (auto& each : all) cancelled += each.wait().error.code() == errc::cancelled ? 1 : 0;
    EXPECT_GT(cancelled, 0U);
    ASSERT_TRUE(to.close().ok());
  }
  EXPECT_EQ(with.store.uploads(), 0U);
}

TEST(uploads_of_an_engine, have_requests_that_keep_their_deadlines) {
  served with;
  with.hold_parts();
  std::vector<std::byte> much(300 * mib);
  const auto pending = with.begin();
  const auto to = with.open(pending);
  io_options soon;
  soon.deadline = deadline_clock::now() + 300ms;
  EXPECT_EQ(to.write(much.data(), much.size(), 0, soon).error.code(), errc::timed_out);
}

TEST(uploads_of_an_engine, are_not_those_of_a_forked_child) {
  served with;
  const auto pending = with.begin();
  EXPECT_EQ(run_in_child([&] {
              auto opened = pending.open();
              return !opened && opened.error().code() == errc::forked && pending.publish().code() == errc::forked ? 7 : 1;
            }),
            7);
  auto to = with.open(pending);
  bytes some(10);
  ASSERT_TRUE(to.write(some.data(), some.size(), 0).ok());
  ASSERT_TRUE(to.close().ok());
  EXPECT_TRUE(pending.publish().ok());
}

TEST(pending_objects, are_written_as_files_are) {
  served with;
  auto content = pattern::make(size, 7);
  for (const bool replaces : {true, false}) {
    auto pending = pending_file::create(with.house.engine(), "s3://bucket/key", {.remote = with.options()});
    ASSERT_TRUE(pending.ok()) << told(pending.error());
    EXPECT_TRUE(pending->is_object());
    EXPECT_EQ(pending->descriptor(), -1);
    EXPECT_EQ(pending->path(), "s3://bucket/key");
    auto to = pending->open(with.house.engine());
    ASSERT_TRUE(to.ok()) << told(to.error());
    ASSERT_TRUE(to->truncate(size).ok());
    ASSERT_TRUE(to->write(content.data(), size, 0).ok());
    ASSERT_TRUE(to->close().ok());
    const auto published = pending->publish({.replace = replaces});
    EXPECT_EQ(published.native(), replaces ? 0 : EEXIST) << told(published);
    EXPECT_TRUE(with.has(content));
    if (replaces) {
      EXPECT_EQ(pending->publish().code(), errc::closed);
    }
  }
  EXPECT_EQ(with.store.uploads(), 0U);
}

TEST(pending_objects, are_not_to_be_had_of_other_servers) {
  served with;
  const auto refused = pending_file::create(with.house.engine(), with.store.server().url());
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.error().code(), errc::unsupported);
}

}  // namespace
}  // namespace penstock::testing::upload_tests
