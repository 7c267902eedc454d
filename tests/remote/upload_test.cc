// Written objects are complete on the server or absent, whatever the server does. Over a server that keeps them in memory.
#include "remote/s3/upload.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <future>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "remote/s3/s3_upload.hpp"
#include "remote/servers.hpp"
#include "support/forwarding_kernel.hpp"
#include "support/object_store.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;
using client = web_server::client;
using then = web_server::then;
using source::remote::upload;

constexpr std::uint64_t mib = std::uint64_t{1} << 20;

std::string drawn_content(std::size_t size, unsigned seed = 1) {
  std::string made(size, '\0');
  std::minstd_rand drawn(seed);
  for (std::size_t at = 0; at < size; at += 4) {
    const auto value = static_cast<std::uint32_t>(drawn());
    std::memcpy(made.data() + at, &value, std::min<std::size_t>(4, size - at));
  }
  return made;
}

class uploads : public ::testing::Test {
 protected:
  static source::remote::network_settings quick() {
    source::remote::network_settings made;
    made.threads = 2;
    made.attempts = 4;
    made.first_pause = 1ms;
    made.most_pause = 5ms;
    return made;
  }
  remote_options options(std::optional<std::uint64_t> size = {}) {
    remote_options made;
    made.endpoint = store_.server().origin();
    made.region = "eu-central-1";
    made.access_key_id = "AKIDEXAMPLE";
    made.secret_access_key = "hidden-secret";
    made.size = size;
    return made;
  }
  status save_with(const remote_options& how, const std::string& content) {
    auto made = servers_->begin_upload("s3://bucket/a key", how);
    if (!made) return made.error();
    if (auto problem = write_all(**made, content); !problem.ok()) return problem;
    return (*made)->complete(true);
  }
  std::shared_ptr<upload> begin(std::optional<std::uint64_t> size = {}, const std::string& url = "s3://bucket/a key") {
    auto made = servers_->begin_upload(url, options(size));
    EXPECT_TRUE(made.ok()) << made.error().message();
    return made.ok() ? *made : nullptr;
  }
  static status write(upload& to, const std::string& content, std::uint64_t first, std::uint64_t length) {
    return to.write(reinterpret_cast<const std::byte*>(content.data()) + first, length, first).error;
  }
  static status write_all(upload& to, const std::string& content, std::uint64_t piece = mib) {
    for (std::uint64_t at = 0; at < content.size(); at += piece) {
      if (auto problem = write(to, content, at, std::min<std::uint64_t>(piece, content.size() - at)); !problem.ok()) return problem;
    }
    return {};
  }
  // Writes it, in order, and completes it.
  status save(const std::string& content, bool replace = true) {
    const auto to = begin();
    if (auto problem = write_all(*to, content); !problem.ok()) return problem;
    return to->complete(replace);
  }
  // At each part, the first time that it comes, before its bytes are read.
  void set_early_fault(std::function<std::optional<then>(const web_request&, const client&)> act) {
    auto seen = std::make_shared<std::pair<std::mutex, std::set<std::string>>>();
    store_.server().set_early_answer([act = std::move(act), seen](const web_request& asked, const client& to) -> std::optional<then> {
      if (asked.method != "PUT" || asked.target.find("partNumber") == std::string::npos) return std::nullopt;
      {
        const std::lock_guard guard(seen->first);
        if (!seen->second.insert(asked.target).second) return std::nullopt;
      }
      return act(asked, to);
    });
  }
  void expect_nothing_left() {
    EXPECT_EQ(store_.uploads(), 0U);
    EXPECT_EQ(store_.get(path), std::nullopt);
  }

  static constexpr const char* path = "/bucket/a%20key";
  object_store store_;
  std::shared_ptr<sys::kernel> kernel_ = sys::make_kernel();
  std::unique_ptr<source::remote::servers> servers_ =
      std::make_unique<source::remote::servers>(quick(), source::remote::surroundings{{}, kernel_});
};

TEST_F(uploads, of_little_are_one_request) {
  const auto content = drawn_content(100'000);
  const auto saved = save(content);
  ASSERT_TRUE(saved.ok()) << saved.message();
  EXPECT_EQ(store_.get(path), content);
  EXPECT_EQ(store_.server().requests().size(), 1U);
}

// A bucket with Object Lock, as Amazon's answers.
TEST_F(uploads, have_a_checksum_where_the_server_wants_one) {
  std::atomic<unsigned> with{0}, without{0};
  store_.set_fault([&](const web_request& asked, const client& to) -> std::optional<then> {
    if (asked.method != "PUT") return std::nullopt;
    const auto sum = asked.header("content-md5");
    if (!sum.empty()) {
      ++with;
      EXPECT_EQ(sum, *source::remote::content_md5(asked.body));
      EXPECT_NE(asked.header("authorization").find("content-md5"), std::string::npos) << "it is signed";
      return std::nullopt;
    }
    ++without;
    constexpr std::string_view body =
        "<Error><Code>InvalidRequest</Code><Message>Content-MD5 OR x-amz-checksum- HTTP header is required for Put Object requests with "
        "Object "
        "Lock parameters</Message></Error>";
    return to.send(object_store::plain(400, body)) ? then::keep : then::close;
  });
  const auto little = drawn_content(1000), much = drawn_content(5 * 8 * mib);
  ASSERT_TRUE(save(little).ok());
  EXPECT_EQ(store_.get(path), little);
  EXPECT_EQ(with.load(), 1U);
  EXPECT_EQ(without.load(), 1U);
  ASSERT_TRUE(save(much).ok());
  EXPECT_TRUE(store_.get(path) == much);
  EXPECT_EQ(with.load(), 1U + 5U);
  ASSERT_TRUE(begin()->complete(true).ok()) << "of nothing";
  EXPECT_EQ(store_.get(path), "");
}

TEST_F(uploads, whose_checksums_do_not_help_end_with_what_the_server_says) {
  store_.set_fault([](const web_request& asked, const client& to) -> std::optional<then> {
    if (asked.method != "PUT") return std::nullopt;
    return to.send(object_store::plain(400, "<Error><Code>InvalidRequest</Code><Message>never</Message></Error>")) ? then::keep
                                                                                                                   : then::close;
  });
  const auto refused = save(drawn_content(1000));
  EXPECT_NE(refused.message().find("InvalidRequest: never"), std::string::npos) << refused.message();
}

TEST_F(uploads, of_bytes_that_are_published_have_a_known_md5) {
  EXPECT_EQ(*source::remote::content_md5(""), "1B2M2Y8AsgTpgAmY7PhCfg==");
  EXPECT_EQ(*source::remote::content_md5("abc"), "kAFQmDzST7DWlj99KOF/cg==");
}

TEST_F(uploads, say_what_object_is_to_be_made) {
  auto how = options();
  how.content_type = "text/plain; charset=utf-8";
  how.server_side_encryption = "aws:kms";
  how.sse_kms_key_id = "arn:aws:kms:eu-central-1:1:key/x";
  how.storage_class = "STANDARD_IA";
  how.acl = "bucket-owner-full-control";
  how.tags = {{"a b", "1&2"}, {"c", ""}};
  how.requester_pays = true;
  for (const std::size_t bytes : {std::size_t{10}, std::size_t{9 * mib}}) {
    const auto before = store_.server().requests().size();
    const auto saved = save_with(how, drawn_content(bytes));
    ASSERT_TRUE(saved.ok()) << saved.message();
    const auto first = store_.server().requests().at(before);  // that makes the object, or begins its upload
    EXPECT_EQ(first.header("content-type"), "text/plain; charset=utf-8");
    EXPECT_EQ(first.header("x-amz-server-side-encryption"), "aws:kms");
    EXPECT_EQ(first.header("x-amz-server-side-encryption-aws-kms-key-id"), "arn:aws:kms:eu-central-1:1:key/x");
    EXPECT_EQ(first.header("x-amz-storage-class"), "STANDARD_IA");
    EXPECT_EQ(first.header("x-amz-acl"), "bucket-owner-full-control");
    EXPECT_EQ(first.header("x-amz-tagging"), "a%20b=1%262&c=");
    for (auto at = before; at < store_.server().requests().size(); ++at) {
      EXPECT_EQ(store_.server().requests().at(at).header("x-amz-request-payer"), "requester");
      EXPECT_EQ(store_.server().requests().at(at).header("x-amz-storage-class").empty(), at != before);
    }
  }
  how.server_side_encryption = "AES256";
  EXPECT_EQ(save_with(how, "x").code(), errc::invalid_argument) << "a key is for aws:kms";
  how = options();
  how.storage_class = "A\r\nx-evil: 1";
  EXPECT_EQ(save_with(how, "x").code(), errc::invalid_argument);
}

TEST_F(uploads, of_nothing_make_an_empty_object) {
  ASSERT_TRUE(begin()->complete(true).ok());
  EXPECT_EQ(store_.get(path), "");
}

TEST_F(uploads, come_in_parts_from_pieces_in_any_order) {
  const auto content = drawn_content(3 * 8 * mib + 12'345);
  for (const bool is_known : {false, true}) {
    const auto to = begin(is_known ? std::optional<std::uint64_t>(content.size()) : std::nullopt);
    constexpr std::uint64_t piece = 300'007;
    std::vector<std::uint64_t> places;
    for (std::uint64_t at = 0; at < content.size(); at += piece) places.push_back(at);
    std::shuffle(places.begin(), places.end(), std::minstd_rand(3));
    for (const auto at : places) {
      const auto problem = write(*to, content, at, std::min<std::uint64_t>(piece, content.size() - at));
      ASSERT_TRUE(problem.ok()) << problem.message();
    }
    const auto completed = to->complete(true);
    ASSERT_TRUE(completed.ok()) << completed.message();
    EXPECT_TRUE(store_.get(path) == content);
  }
  EXPECT_EQ(store_.parts_taken(), 8U);
  EXPECT_EQ(store_.uploads(), 0U);
}

TEST_F(uploads, are_written_by_many_threads) {
  const auto content = drawn_content(5 * 8 * mib);
  const auto to = begin();
  std::atomic<std::uint64_t> next{0};
  std::vector<std::thread> writers;
  for (int i = 0; i < 4; ++i) {
    writers.emplace_back([&] {
      for (auto at = next.fetch_add(mib); at < content.size(); at = next.fetch_add(mib)) EXPECT_TRUE(write(*to, content, at, mib).ok());
    });
  }
  for (auto& each : writers) each.join();
  ASSERT_TRUE(to->complete(true).ok());
  EXPECT_TRUE(store_.get(path) == content);
}

TEST_F(uploads, heal_where_the_server_refuses_parts_for_a_while) {
  const auto content = drawn_content(20 * mib);
  for (const auto* refusal : {"503 Slow Down", "500 Internal Server Error"}) {
    set_early_fault([refusal](const web_request& asked, const client& to) -> std::optional<then> {
      to.take(std::stoull(asked.header("content-length")) - asked.body.size());
      to.send(fmt::format("HTTP/1.1 {}\r\nContent-Length: 0\r\n\r\n", refusal));
      return then::keep;
    });
    const auto saved = save(content);
    ASSERT_TRUE(saved.ok()) << refusal << ": " << saved.message();
    EXPECT_TRUE(store_.get(path) == content);
  }
}

TEST_F(uploads, are_as_patient_as_their_options_say) {
  const auto content = drawn_content(1000);
  store_.set_fault([](const web_request& asked, const client& to) -> std::optional<then> {
    if (asked.method != "PUT") return std::nullopt;
    return to.send(object_store::error(503, "SlowDown")) ? then::keep : then::close;
  });
  auto how = options();
  how.attempts = 2;
  how.retry_pause = 1ms;
  how.retries = std::make_shared<remote_retries>();
  const auto saved = save_with(how, content);
  EXPECT_EQ(saved.code(), errc::io) << saved.message();
  EXPECT_EQ(store_.asked("PUT", ""), 2U);
  const auto told = how.retries->take();
  ASSERT_EQ(told.size(), 1U);
  EXPECT_EQ(told[0].status, 503);
  EXPECT_EQ(told[0].attempts, 2U);
}

TEST_F(uploads, are_asked_again_after_the_answers_that_their_options_list) {
  const auto content = drawn_content(1000);
  std::atomic<int> refusals{1};
  store_.set_fault([&refusals](const web_request&, const client& to) -> std::optional<then> {
    if (refusals.fetch_sub(1) <= 0) return std::nullopt;
    return to.send(object_store::error(418, "Teapot")) ? then::keep : then::close;
  });
  auto how = options();
  how.retried_statuses = std::vector<int>{418};
  const auto saved = save_with(how, content);
  ASSERT_TRUE(saved.ok()) << saved.message();
  EXPECT_EQ(store_.get(path), content);
}

TEST_F(uploads, heal_where_the_connection_breaks_within_a_part) {
  const auto content = drawn_content(20 * mib);
  for (const bool by_reset : {false, true}) {
    set_early_fault([by_reset](const web_request&, const client& to) -> std::optional<then> {
      to.take(mib);
      if (by_reset) to.reset();
      return then::close;
    });
    const auto saved = save(content);
    ASSERT_TRUE(saved.ok()) << saved.message();
    EXPECT_TRUE(store_.get(path) == content);
  }
}

TEST_F(uploads, heal_where_the_server_takes_a_part_and_its_answer_is_lost) {
  const auto content = drawn_content(20 * mib);
  std::atomic<bool> is_first{true};
  store_.set_fault([&](const web_request& asked, const client&) -> std::optional<then> {
    if (asked.target.find("partNumber=2&") == std::string::npos || !is_first.exchange(false)) return std::nullopt;
    (void)store_.work(asked);
    return then::close;
  });
  ASSERT_TRUE(save(content).ok());
  EXPECT_TRUE(store_.get(path) == content);
}

TEST_F(uploads, end_where_the_server_refuses_before_it_has_read_a_part) {
  const auto content = drawn_content(20 * mib);
  for (const bool waits : {false, true}) {
    store_.server().set_early_answer([waits](const web_request& asked, const client& to) -> std::optional<then> {
      if (asked.method != "PUT") return std::nullopt;
      to.send(object_store::error(403, "AccessDenied"));
      if (waits) to.hold();
      return then::close;
    });
    const auto saved = save(content);
    EXPECT_EQ(saved.code(), errc::permission_denied) << saved.message();
    EXPECT_NE(saved.message().find("AccessDenied"), std::string_view::npos) << saved.message();
    EXPECT_NE(saved.message().find("part "), std::string_view::npos) << saved.message();
    EXPECT_EQ(saved.message().find("hidden-secret"), std::string_view::npos);
    expect_nothing_left();
  }
  EXPECT_EQ(store_.aborted(), 2U);
}

TEST_F(uploads, heal_where_the_server_says_that_it_is_busy_before_it_has_read_a_part) {
  const auto content = drawn_content(20 * mib);
  set_early_fault([](const web_request&, const client& to) -> std::optional<then> {
    to.send(object_store::error(503, "SlowDown"));
    return then::close;
  });
  const auto saved = save(content);
  ASSERT_TRUE(saved.ok()) << saved.message();
  EXPECT_TRUE(store_.get(path) == content);
  EXPECT_GT(servers_->net().counts().throttled, 0U);
}

TEST_F(uploads, do_not_believe_a_server_that_thanks_for_bytes_it_has_not_had) {
  store_.server().set_early_answer([](const web_request& asked, const client& to) -> std::optional<then> {
    if (asked.method != "PUT") return std::nullopt;
    to.send(object_store::plain(200, {}, "ETag: \"x\"\r\n"));
    // Not for ever: what the kernels on the way have taken of a part may be all of it, and then the connection is used again.
    std::this_thread::sleep_for(50ms);
    return then::close;
  });
  const auto saved = save(drawn_content(20 * mib));
  EXPECT_EQ(saved.code(), errc::io) << saved.message();
  expect_nothing_left();
}

TEST_F(uploads, give_up_on_a_server_that_takes_no_bytes) {
  auto impatient = quick();
  impatient.stall_after = 200ms;
  impatient.attempts = 2;
  servers_ = std::make_unique<source::remote::servers>(impatient, source::remote::surroundings{{}, kernel_});
  store_.server().set_early_answer([](const web_request& asked, const client& to) -> std::optional<then> {
    if (asked.method != "PUT") return std::nullopt;
    to.wait_until_gone();
    return then::close;
  });
  const auto saved = save(drawn_content(20 * mib));
  EXPECT_EQ(saved.code(), errc::timed_out) << saved.message();
  expect_nothing_left();
}

TEST_F(uploads, heal_where_the_end_is_an_error_with_a_good_status) {
  const auto content = drawn_content(20 * mib);
  std::atomic<bool> is_first{true};
  store_.set_fault([&](const web_request& asked, const client& to) -> std::optional<then> {
    if (asked.method != "POST" || asked.body.empty() || !is_first.exchange(false)) return std::nullopt;
    to.send(object_store::error(200, "InternalError"));
    return then::keep;
  });
  const auto saved = save(content);
  ASSERT_TRUE(saved.ok()) << saved.message();
  EXPECT_TRUE(store_.get(path) == content);
}

TEST_F(uploads, end_where_the_end_is_an_error_for_good_with_a_good_status) {
  store_.set_fault([&](const web_request& asked, const client& to) -> std::optional<then> {
    if (asked.method != "POST" || asked.body.empty()) return std::nullopt;
    to.send(object_store::error(200, "AccessDenied"));
    return then::keep;
  });
  const auto saved = save(drawn_content(20 * mib));
  EXPECT_EQ(saved.code(), errc::permission_denied) << saved.message();
  expect_nothing_left();
}

TEST_F(uploads, are_complete_where_the_answer_to_the_end_is_lost) {
  const auto content = drawn_content(20 * mib);
  for (const bool replace : {true, false}) {
    store_.set_fault([&](const web_request& asked, const client&) -> std::optional<then> {
      if (asked.method != "POST" || asked.body.empty()) return std::nullopt;
      (void)store_.work(asked);  // once: then there is no such upload
      return then::close;
    });
    const auto to = begin({}, replace ? "s3://bucket/replaced" : "s3://bucket/new");
    ASSERT_TRUE(write_all(*to, content).ok());
    const auto completed = to->complete(replace);
    ASSERT_TRUE(completed.ok()) << completed.message();
  }
  EXPECT_TRUE(store_.get("/bucket/replaced") == content);
  EXPECT_TRUE(store_.get("/bucket/new") == content);
}

TEST_F(uploads, are_complete_where_what_became_of_them_is_found_out_later) {
  const auto content = drawn_content(20 * mib);
  for (const std::size_t size : {std::size_t{1000}, content.size()}) {
    store_.remove(path);
    store_.set_fault([&](const web_request& asked, const client& to) -> std::optional<then> {
      if (asked.method == "HEAD" && store_.get(path)) return to.send(object_store::plain(403)) ? then::keep : then::close;
      const bool is_end = asked.method == "POST" ? !asked.body.empty() : asked.target.find("partNumber") == std::string::npos;
      if (asked.method == "HEAD" || !is_end) return std::nullopt;
      (void)store_.work(asked);
      return then::close;
    });
    const auto to = begin();
    ASSERT_TRUE(write_all(*to, content.substr(0, size)).ok());
    const auto unknown = to->complete(false);
    EXPECT_NE(unknown.message().find("is not known"), std::string_view::npos) << unknown.message();
    EXPECT_EQ(to->write(reinterpret_cast<const std::byte*>(content.data()), 10, size).error.code(), errc::invalid_argument);
    store_.set_fault({});
    const auto completed = to->complete(false);
    EXPECT_TRUE(completed.ok()) << completed.message();
    EXPECT_TRUE(store_.get(path) == content.substr(0, size));
  }
}

TEST_F(uploads, may_still_come_where_the_end_was_not_answered) {
  store_.set_fault([&](const web_request& asked, const client&) -> std::optional<then> {
    return asked.method == "POST" && !asked.body.empty() ? std::optional(then::close) : std::nullopt;
  });
  const auto saved = save(drawn_content(20 * mib));
  EXPECT_EQ(saved.code(), errc::io) << saved.message();
  EXPECT_NE(saved.message().find("is not known"), std::string_view::npos) << saved.message();
}

TEST_F(uploads, of_little_are_complete_where_the_answer_is_lost) {
  const auto content = drawn_content(1000);
  store_.set_fault([&](const web_request& asked, const client&) -> std::optional<then> {
    if (asked.method != "PUT") return std::nullopt;
    (void)store_.work(asked);
    return then::close;
  });
  const auto saved = save(content);
  ASSERT_TRUE(saved.ok()) << saved.message();
  EXPECT_EQ(store_.get(path), content);
}

TEST_F(uploads, are_not_complete_where_another_object_is_there_after_an_answer_was_lost) {
  store_.put(path, "of somebody else");
  store_.set_fault([&](const web_request& asked, const client&) -> std::optional<then> {
    return asked.method == "POST" && !asked.body.empty() ? std::optional(then::close) : std::nullopt;
  });
  const auto saved = save(drawn_content(20 * mib));
  EXPECT_EQ(saved.code(), errc::io) << saved.message();
  EXPECT_EQ(store_.get(path), "of somebody else");
  EXPECT_EQ(store_.uploads(), 0U);
}

TEST_F(uploads, leave_what_is_there_where_they_are_told_to) {
  store_.put(path, "there before");
  for (const std::size_t size : {std::size_t{1000}, std::size_t{20 * mib}}) {
    const auto saved = save(drawn_content(size), false);
    EXPECT_EQ(saved.domain(), error_domain::os);
    EXPECT_EQ(saved.native(), EEXIST) << saved.message();
    EXPECT_EQ(store_.get(path), "there before");
  }
  EXPECT_EQ(store_.uploads(), 0U);
}

TEST_F(uploads, leave_what_has_come_meanwhile_where_they_are_told_to) {
  for (const std::size_t size : {std::size_t{1000}, std::size_t{20 * mib}}) {
    store_.set_fault([&](const web_request& asked, const client&) -> std::optional<then> {
      if (asked.header("if-none-match") == "*") store_.put(path, "meanwhile");
      return std::nullopt;
    });
    store_.remove(path);
    const auto saved = save(drawn_content(size), false);
    EXPECT_EQ(saved.native(), EEXIST) << saved.message();
    EXPECT_EQ(store_.get(path), "meanwhile");
  }
}

TEST_F(uploads, end_where_their_last_part_was_cut) {
  const auto content = drawn_content(20 * mib);
  store_.put(path, "there before");
  const auto to = begin();
  ASSERT_TRUE(write(*to, content, 0, 14 * mib).ok());
  EXPECT_EQ(to->complete(false).native(), EEXIST);
  EXPECT_EQ(write(*to, content, 16 * mib, mib).code(), errc::invalid_argument);
  const auto completed = to->complete(true);
  ASSERT_TRUE(completed.ok()) << completed.message();
  EXPECT_TRUE(store_.get(path) == content.substr(0, 14 * mib));
}

TEST_F(uploads, name_bytes_that_were_never_written) {
  const auto content = drawn_content(20 * mib);
  const auto to = begin(content.size());
  ASSERT_TRUE(write(*to, content, 0, 9 * mib).ok());
  ASSERT_TRUE(write(*to, content, 9 * mib + 10, content.size() - 9 * mib - 10).ok());
  const auto hole = to->complete(true);
  EXPECT_EQ(hole.code(), errc::invalid_argument);
  EXPECT_NE(hole.message().find(fmt::format("bytes {}-{} ", 9 * mib, 9 * mib + 9)), std::string_view::npos) << hole.message();
  ASSERT_TRUE(write(*to, content, 9 * mib, 10).ok());
  ASSERT_TRUE(to->complete(true).ok());
  EXPECT_TRUE(store_.get(path) == content);
}

TEST_F(uploads, name_the_end_where_that_was_never_written) {
  const auto to = begin(100);
  ASSERT_TRUE(write(*to, "0123456789", 0, 10).ok());
  const auto hole = to->complete(true);
  EXPECT_NE(hole.message().find("bytes 10-99 of 100"), std::string_view::npos) << hole.message();
}

TEST_F(uploads, take_a_byte_again_until_its_part_is_sent) {
  const auto content = drawn_content(9 * mib);
  const auto to = begin(content.size());
  const std::string other(1000, 'x');
  ASSERT_TRUE(write(*to, other, 0, 1000).ok());
  ASSERT_TRUE(write(*to, content, 0, 8 * mib).ok());
  const auto late = write(*to, other, 0, 1000);
  EXPECT_EQ(late.code(), errc::invalid_argument);
  EXPECT_NE(late.message().find("cannot be written again"), std::string_view::npos) << late.message();
  ASSERT_TRUE(write(*to, content, 8 * mib, mib).ok());
  ASSERT_TRUE(to->complete(true).ok());
  EXPECT_TRUE(store_.get(path) == content);
}

TEST_F(uploads, take_no_byte_behind_their_size) {
  const auto to = begin(100);
  EXPECT_EQ(write(*to, std::string(200, 'x'), 0, 101).code(), errc::invalid_argument);
  EXPECT_EQ(to->set_size(50).code(), errc::ok);
  EXPECT_EQ(write(*to, std::string(200, 'x'), 0, 51).code(), errc::invalid_argument);
}

TEST_F(uploads, that_are_dropped_leave_nothing) {
  const auto content = drawn_content(30 * mib);
  {
    const auto to = begin();
    ASSERT_TRUE(write_all(*to, content).ok());
  }
  expect_nothing_left();
  EXPECT_EQ(store_.aborted(), 1U);
}

TEST_F(uploads, that_are_dropped_while_parts_are_under_way_leave_nothing) {
  store_.set_fault([](const web_request& asked, const client& to) -> std::optional<then> {
    if (asked.target.find("partNumber") == std::string::npos) return std::nullopt;
    to.hold();
    return then::close;
  });
  const auto content = drawn_content(30 * mib);
  {
    const auto to = begin();
    ASSERT_TRUE(write_all(*to, content).ok());
  }
  expect_nothing_left();
  EXPECT_EQ(store_.aborted(), 1U);
}

// Parts that the server holds fill all the room there is; who waits for more is told to stop.
TEST_F(uploads, have_writers_wait_for_room_until_they_are_told_to_stop) {
  std::atomic<bool> holds{true};
  store_.set_fault([&holds](const web_request& asked, const client& to) -> std::optional<then> {
    if (asked.target.find("partNumber") == std::string::npos || !holds.load()) return std::nullopt;
    to.hold();
    return then::close;
  });
  const std::string part(8 * mib, 'a');
  const auto to = begin();
  const source::stop_question stopped = [] { return status(errc::cancelled, "the test says so"); };
  std::uint64_t at = 0;
  status how;
  for (; how.ok() && at <= 2 * upload::most_held_bytes; at += part.size())
    how = to->write(reinterpret_cast<const std::byte*>(part.data()), part.size(), at, stopped).error;
  EXPECT_EQ(how.code(), errc::cancelled) << how.message();
  EXPECT_LE(at, upload::least_held_bytes + part.size());
  to->abort();
  expect_nothing_left();
}

TEST_F(uploads, that_are_stopped_while_the_server_begins_them_are_aborted_too) {
  std::atomic<bool> has_begun{false};
  store_.set_fault([&](const web_request& asked, const client& to) -> std::optional<then> {
    if (!asked.target.ends_with("?uploads")) return std::nullopt;
    const auto begun = store_.work(asked);
    has_begun.store(true);
    std::this_thread::sleep_for(150ms);  // the answer is on its way
    to.send(begun);
    return then::keep;
  });
  const std::string part(8 * mib, 'a');
  const auto to = begin();
  const source::stop_question stopped = [&] { return has_begun.load() ? status(errc::cancelled, "the test says so") : status(); };
  status how;
  for (std::uint64_t at = 0; how.ok() && at < 4 * part.size(); at += part.size())
    how = to->write(reinterpret_cast<const std::byte*>(part.data()), part.size(), at, stopped).error;
  EXPECT_TRUE(how.ok() || how.code() == errc::cancelled) << how.message();
  to->abort();
  expect_nothing_left();
}

// A server that does not answer CreateMultipartUpload.
TEST_F(uploads, are_dropped_while_the_server_does_not_begin_them) {
  std::promise<void> asked_to_begin;
  store_.set_fault([&](const web_request& asked, const client& to) -> std::optional<then> {
    if (!asked.target.ends_with("?uploads")) return std::nullopt;
    asked_to_begin.set_value();
    to.hold();
    return then::close;
  });
  const auto content = drawn_content(8 * mib);
  const auto to = begin(20 * mib);
  status written;
  std::thread writer([&] { written = write(*to, content, 0, content.size()); });
  asked_to_begin.get_future().wait();
  to->abort();
  writer.join();
  EXPECT_FALSE(written.ok());
  expect_nothing_left();
}

TEST_F(uploads, are_begun_anew_where_the_writer_that_began_them_was_stopped) {
  std::atomic<bool> holds{true};
  std::atomic<bool> was_asked{false};
  store_.set_fault([&](const web_request& asked, const client& to) -> std::optional<then> {
    if (!asked.target.ends_with("?uploads") || !holds.load()) return std::nullopt;
    was_asked.store(true);
    to.hold();
    return then::close;
  });
  const auto content = drawn_content(20 * mib);
  const auto to = begin(content.size());
  const source::stop_question stopped = [&] { return was_asked.load() ? status(errc::cancelled, "the test says so") : status(); };
  const auto how = to->write(reinterpret_cast<const std::byte*>(content.data()), content.size(), 0, stopped);
  EXPECT_EQ(how.error.code(), errc::cancelled) << how.error.message();
  EXPECT_EQ(how.bytes_done, 8 * mib) << "which are kept";
  holds.store(false);
  ASSERT_TRUE(write(*to, content, 8 * mib, 12 * mib).ok());
  const auto completed = to->complete(true);
  ASSERT_TRUE(completed.ok()) << completed.message();
  EXPECT_TRUE(store_.get(path) == content);
}

TEST_F(uploads, hold_only_so_much_of_parts_that_cannot_be_sent) {
  const auto to = begin();
  status how;
  std::uint64_t at = 0;
  const std::byte some{};
  for (; how.ok() && at < 4 * upload::least_held_bytes; at += 8 * mib) how = to->write(&some, 1, at).error;
  EXPECT_EQ(how.code(), errc::out_of_memory);
  EXPECT_NE(how.message().find("approximately in order"), std::string_view::npos) << how.message();
  EXPECT_GT(at, upload::least_held_bytes);
}

// A machine or a container with so much memory.
class small_kernel final : public forwarding_kernel {
 public:
  explicit small_kernel(std::uint64_t total) : total_(total) {}
  result<sys::memory_state> memory_now() override { return sys::memory_state{total_, total_}; }

 private:
  const std::uint64_t total_;
};

TEST_F(uploads, hold_a_quarter_of_a_containers_memory_at_most) {
  servers_ =
      std::make_unique<source::remote::servers>(quick(), source::remote::surroundings{{}, std::make_shared<small_kernel>(256 * mib)});
  const auto to = begin();
  status how;
  std::uint64_t at = 0;
  const std::byte some{};
  for (; how.ok() && at < 4 * upload::least_held_bytes; at += 8 * mib) how = to->write(&some, 1, at).error;
  EXPECT_EQ(how.code(), errc::out_of_memory);
  // As much again is held where nothing can be sent.
  EXPECT_EQ(at, 2 * 64 * mib + 8 * mib);
}

TEST_F(uploads, of_the_largest_objects_have_room_for_their_parts) {
  const auto to = begin(source::remote::most_object_bytes);
  const std::byte some{};
  for (unsigned i = 0; i < 4; ++i) {
    const auto how = to->write(&some, 1, i * (std::uint64_t{1} << 30)).error;
    EXPECT_TRUE(how.ok()) << how.message();
  }
}

TEST_F(uploads, go_to_the_region_that_the_bucket_is_in) {
  store_.set_fault([](const web_request& asked, const client& to) -> std::optional<then> {
    if (asked.header("authorization").find("/eu-west-3/") != std::string::npos) return std::nullopt;
    to.send("HTTP/1.1 301 Moved\r\nx-amz-bucket-region: eu-west-3\r\nContent-Length: 0\r\n\r\n");
    return then::keep;
  });
  for (const std::size_t size : {std::size_t{1000}, std::size_t{20 * mib}}) {
    const auto content = drawn_content(size);
    const auto saved = save(content);
    ASSERT_TRUE(saved.ok()) << saved.message();
    EXPECT_TRUE(store_.get(path) == content);
  }
}

TEST_F(uploads, are_not_to_be_had_of_other_servers) {
  for (const auto& url : {store_.server().url(), store_.server().origin() + "/webhdfs/v1/file"}) {
    const auto refused = servers_->begin_upload(url, {});
    ASSERT_FALSE(refused.ok());
    EXPECT_EQ(refused.error().code(), errc::unsupported);
    EXPECT_NE(refused.error().message().find("objects can be written only to S3"), std::string_view::npos) << refused.error().message();
  }
}

TEST(words_of_uploads, are_read_from_answers_with_spaces_before_them) {
  using namespace source::remote;
  EXPECT_EQ(upload_id_of("  \n<?xml version=\"1.0\"?><R><UploadId>a/b+c</UploadId></R>"), "a/b+c");
  EXPECT_EQ(upload_id_of("<R><UploadId>a b</UploadId></R>"), std::nullopt);
  EXPECT_EQ(upload_id_of("<R></R>"), std::nullopt);
  EXPECT_EQ(upload_query("a/b+c", 7), "partNumber=7&uploadId=a%2Fb%2Bc");
  EXPECT_TRUE(says_completed("   <CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>"));
  EXPECT_FALSE(says_completed("   <CompleteMultipartUploadResult><ETag>x</ETag>"));
  EXPECT_FALSE(says_completed("<Error><Code>X</Code></Error>"));
  EXPECT_FALSE(says_completed(""));
  EXPECT_TRUE(fits_completion("\"abc-2\""));
  EXPECT_FALSE(fits_completion(""));
  EXPECT_FALSE(fits_completion("a\rb"));
}

}  // namespace
}  // namespace penstock::testing
