// Objects on servers, read by every kind of request into host and device memory, from a server that misbehaves: the bytes are right, or an
// error says what is wrong. Nothing hangs, and no request is repeated without limit.
#include <atomic>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "contract/contract_fixture.hpp"
#include "support/child.hpp"
#include "support/web_server.hpp"

namespace penstock::testing::remote_tests {
namespace {

using namespace std::chrono_literals;
using client = web_server::client;
using then = web_server::then;

constexpr std::size_t size = 5 * mib + 77;

core::seams doors_with(const source::remote::network_settings& web) {
  engine_options options;
  options.use_cuda = false;
  auto doors = core::real_seams(options);
  doors.web = web;
  return doors;
}

// So short that a test need not wait, so long that a slow machine keeps them.
source::remote::network_settings quick() {
  source::remote::network_settings made;
  made.attempts = 4;
  made.first_pause = 1ms;
  made.most_pause = 5ms;
  return made;
}

enum class kind { call, future, batch };

struct served {
  explicit served(source::remote::network_settings web = quick()) : house({}, doors_with(web)) {}
  file open(const std::string& url) {
    auto opened = house.engine().open(url);
    EXPECT_TRUE(opened.ok()) << told(opened.error());
    return opened.ok() ? *std::move(opened) : file();
  }
  file open() { return open(server.url()); }
  io_result read(const file& from, kind how, void* memory, std::uint64_t length, std::int64_t offset) {
    if (how == kind::call) return from.read(memory, length, offset);
    if (how == kind::future) return from.read_async(memory, length, offset).wait();
    const io_request asked{.target = &from, .memory = memory, .length = length, .offset = offset};
    return house.engine().submit(std::span(&asked, 1)).wait().front();
  }
  bytes content = pattern::make(size, 9);
  web_server server{content};
  open_house house;
};

web_server::answer on_data(std::function<std::optional<then>(const web_request&, const client&, web_server&)> what, web_server& of) {
  return [what = std::move(what), &of](const web_request& asked, const client& to) -> std::optional<then> {
    return asked.method == "HEAD" ? std::nullopt : what(asked, to, of);
  };
}

// At each piece, the first time it is asked for: what is missing of it later has the same end.
template <class Do>
auto once(Do act) {
  return [act, lock = std::make_shared<std::mutex>(), seen = std::make_shared<std::set<std::uint64_t>>()](
             const web_request& asked, const client& to, web_server& of) -> std::optional<then> {
    {
      const std::lock_guard guard(*lock);
      if (!seen->insert(asked.range->second).second) return std::nullopt;
    }
    return act(asked, to, of);
  };
}

using act = std::function<std::optional<then>(const web_request&, const client&, web_server&)>;
// What a server does, and what comes of it: the bytes, or an error with these words.
struct kind_of_fault {
  const char* name;
  act what;
  const char* words;  // empty: it heals
  errc code = errc::io;
};

act replies(std::string text) {
  return [text = std::move(text)](const web_request&, const client& to, web_server&) -> std::optional<then> {
    to.send(text);
    return then::close;
  };
}
act with_head(std::function<std::string(std::string)> change) {
  return [change = std::move(change)](const web_request& asked, const client& to, web_server& of) -> std::optional<then> {
    to.send(change(of.head_of(asked)));
    to.send(of.body_of(asked));
    return then::close;
  };
}
std::string replaced(std::string text, std::string_view from, std::string_view to) {
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from << " in " << text;
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}
act cut_after(std::size_t bytes_of_body) {
  return [bytes_of_body](const web_request& asked, const client& to, web_server& of) -> std::optional<then> {
    to.send(of.head_of(asked));
    to.send(of.body_of(asked).substr(0, bytes_of_body));
    return then::close;
  };
}
std::optional<then> in_chunks(const web_request& asked, const client& to, web_server& of) {
  auto head = of.head_of(asked);
  const auto at = head.find("Content-Length");
  head.replace(at, head.find("\r\n", at) - at, "Transfer-Encoding: chunked");
  to.send(head);
  const auto body = of.body_of(asked);
  for (std::size_t done = 0, next = 1; done < body.size(); next = next * 3 + 1) {
    const auto part = body.substr(done, next);
    if (!to.send(fmt::format("{:x};name=value\r\n{}\r\n", part.size(), part))) return then::close;
    done += part.size();
  }
  to.send("0\r\nTrailer: value\r\n\r\n");
  return then::keep;
}
std::optional<then> in_chunks_without_an_end(const web_request& asked, const client& to, web_server& of) {
  auto head = of.head_of(asked);
  const auto at = head.find("Content-Length");
  head.replace(at, head.find("\r\n", at) - at, "Transfer-Encoding: chunked");
  const auto body = of.body_of(asked);
  to.send(head + fmt::format("{:x}\r\n{}\r\n", body.size(), body));
  return then::close;
}
std::optional<then> a_part_only(const web_request& asked, const client& to, web_server& of) {
  auto less = asked;
  less.range->second = less.range->first + (less.range->second - less.range->first) / 2;
  to.send(of.head_of(less));
  to.send(of.body_of(less));
  return then::keep;
}
std::optional<then> endless_headers(const web_request&, const client& to, web_server&) {
  to.send("HTTP/1.1 206 Partial Content\r\n");
  const std::string line = "X-More: " + std::string(1000, 'x') + "\r\n";
  for (int i = 0; i < 100'000 && to.send(line); ++i) {
  }
  return then::close;
}
std::optional<then> reset(const web_request& asked, const client& to, web_server& of) {
  to.send(of.head_of(asked));
  to.send(of.body_of(asked).substr(0, 1000));
  to.reset();
  return then::close;
}

const std::string no_body = "Content-Length: 0\r\n\r\n";

std::vector<kind_of_fault> all_faults() {
  const auto replaced_by = [](const std::string& from, const std::string& to) {
    return with_head([=](std::string head) { return replaced(std::move(head), from, to); });
  };
  return {
      {"closed_before_an_answer", once(replies("")), ""},
      {"half_a_head", once(replies("HTTP/1.1 206 Par")), ""},
      {"garbage_once", once(replies("SSH-2.0-OpenSSH_9.2\r\n\r\n")), ""},
      {"cut_at_the_first_byte", once(cut_after(0)), ""},
      {"cut_in_the_middle", once(cut_after(100'000)), ""},
      {"reset_in_the_middle", once(reset), ""},
      {"busy_once", once(replies("HTTP/1.1 503 Slow Down\r\nRetry-After: 0\r\n" + no_body)), ""},
      {"too_many_requests_once", once(replies("HTTP/1.1 429 Too Many\r\n" + no_body)), ""},
      {"internal_error_once", once(replies("HTTP/1.1 500 Oh\r\nContent-Length: 5\r\n\r\nsorry")), ""},
      {"chunks", in_chunks, ""},
      {"chunks_without_an_end", in_chunks_without_an_end, ""},
      {"half_of_each_range", a_part_only, ""},
      {"ends_with_the_connection", with_head([](std::string head) {
         const auto at = head.find("Content-Length");
         head.erase(at, head.find("\r\n", at) + 2 - at);
         return replaced(std::move(head), "HTTP/1.1", "HTTP/1.0");
       }),
       ""},
      {"continues_first",
       with_head([](const std::string& head) { return "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nA: b\r\n\r\n" + head; }), ""},
      {"status_200_with_the_range", replaced_by("206 Partial Content", "200 OK"), ""},

      {"no_ranges",
       [](const web_request& asked, const client& to, web_server& of) -> std::optional<then> {
         auto whole = asked;
         whole.range.reset();
         to.send(of.head_of(whole));
         to.send(of.body_of(whole));
         return then::close;
       },
       ""},
      {"another_range", with_head([](std::string head) { return replaced(std::move(head), "bytes ", "bytes 1"); }),
       "instead of the requested"},
      {"a_range_that_is_none", replaced_by("Content-Range: bytes", "Content-Range: lines"), "invalid Content-Range", errc::unsupported},
      {"another_version", replaced_by("\"first\"", "\"second\""), "was replaced while"},
      {"another_size", replaced_by("/" + std::to_string(size), "/99999999"), "now has 99999999 bytes"},
      {"stored_compressed", replaced_by("ETag:", "Content-Encoding: gzip\r\nETag:"), ""},
      {"compressed_on_the_way", with_head([](std::string head) {
         return replaced(replaced(std::move(head), "ETag:", "Content-Encoding: gzip\r\nETag:"), "Content-Length: ", "Content-Length: 1");
       }),
       "as gzip", errc::unsupported},
      {"without_its_version", replaced_by("ETag: \"first\"\r\n", ""), "was replaced while"},
      {"a_byte_at_a_time",
       [](const web_request& asked, const client& to, web_server& of) -> std::optional<then> {
         auto less = asked;
         less.range->second = less.range->first;
         to.send(of.head_of(less));
         to.send(of.body_of(less));
         return then::keep;
       },
       "a few bytes of each range"},
      {"longer_than_its_range", replaced_by("Content-Length: ", "Content-Length: 1"), "for a range of"},
      {"two_lengths", replaced_by("Content-Length: ", "Content-Length: 7\r\nContent-Length: "), "Content-Length is"},
      {"not_found", replies("HTTP/1.1 404 No\r\n" + no_body), "status 404", errc::not_found},
      {"forbidden", replies("HTTP/1.1 403 No\r\n" + no_body), "status 403", errc::permission_denied},
      {"precondition_failed", replies("HTTP/1.1 412 No\r\n" + no_body), "was replaced while"},
      {"range_behind_the_end", replies("HTTP/1.1 416 No\r\nContent-Range: bytes */5\r\n" + no_body), "5 bytes instead of"},
      {"always_busy", replies("HTTP/1.1 503 No\r\n" + no_body), "status 503"},
      {"always_garbage", replies("220 mail.example.org ESMTP\r\n\r\n"), "is not valid HTTP"},
      {"always_cut_at_once", cut_after(0), "before the end"},
      {"always_closed", replies(""), "before responding"},
      {"endless_headers", endless_headers, "larger than 64 KiB"},
      {"redirect_without_an_address", replies("HTTP/1.1 302 Found\r\n" + no_body), "it contains no address"},
      {"redirect_to_where_credentials_are", replies("HTTP/1.1 302 Found\r\nLocation: http://169.254.169.254/latest\r\n" + no_body),
       "machine credentials"},
      {"redirect_in_a_circle", replies("HTTP/1.1 307 Found\r\nLocation: /data\r\n" + no_body), "too many"},
      {"informational_without_end",
       [](const web_request&, const client& to, web_server&) -> std::optional<then> {
         for (int i = 0; i < 10'000 && to.send("HTTP/1.1 103 Hints\r\n\r\n"); ++i) {
         }
         return then::close;
       },
       "informational responses"},
  };
}

using place_and_kind = std::tuple<std::size_t, memory_place, kind>;

class remote_faults : public ::testing::TestWithParam<place_and_kind> {};

TEST_P(remote_faults, give_the_right_bytes_or_an_error_in_words) {
  const auto& [index, place, how] = GetParam();
  const auto all = all_faults();
  const auto& fault = all[index];
  served with;
  const auto from = with.open();
  with.server.set_answer(on_data(fault.what, with.server));
  guarded_memory memory(with.house, place, size);
  const auto outcome = with.read(from, how, memory.data(), size, 0);
  if (*fault.words == '\0') {
    EXPECT_TRUE(outcome.ok()) << told(outcome.error);
    EXPECT_EQ(outcome.bytes_done, size);
    memory.expect(with.content);
    return;
  }
  EXPECT_EQ(outcome.error.code(), fault.code) << told(outcome.error);
  EXPECT_NE(told(outcome.error).find(fault.words), std::string::npos) << told(outcome.error);
  EXPECT_NE(told(outcome.error).find(with.server.url()), std::string::npos) << told(outcome.error);
  EXPECT_LT(with.server.requests().size(), 400U);
  with.server.set_answer({});
  EXPECT_EQ(with.read(from, how, memory.data(), 1000, 5).bytes_done, 1000U) << "it works again";
}

std::string name_of(const ::testing::TestParamInfo<place_and_kind>& info) {
  const auto& [index, place, how] = info.param;
  return std::string(all_faults()[index].name) + (place == memory_place::device ? "_device" : "_host") +
         (how == kind::call     ? "_call"
          : how == kind::future ? "_future"
                                : "_batch");
}

INSTANTIATE_TEST_SUITE_P(kinds, remote_faults,
                         ::testing::Combine(::testing::Range<std::size_t>(0, all_faults().size()),
                                            ::testing::Values(memory_place::pageable, memory_place::device),
                                            ::testing::Values(kind::call, kind::future, kind::batch)),
                         name_of);

TEST(remote_objects, any_range_is_what_it_is) {
  served with;
  const auto from = with.open();
  EXPECT_EQ(from.size().value_or(0), size);
  const std::array<std::pair<std::uint64_t, std::uint64_t>, 6> ranges{
      {{0, 1}, {1, 4095}, {4096, 4096}, {size - 1, 1}, {3 * mib - 5, 2 * mib}, {0, size}}};
  for (const auto place : {memory_place::pageable, memory_place::device}) {
    for (const auto& [offset, length] : ranges) {
      guarded_memory memory(with.house, place, length, 3);
      EXPECT_EQ(from.read(memory.data(), length, static_cast<std::int64_t>(offset)).bytes_done, length);
      memory.expect(std::span(with.content).subspan(offset, length));
    }
    guarded_memory memory(with.house, place, 100);
    EXPECT_EQ(from.read(memory.data(), 100, size - 10).bytes_done, 10U);
    EXPECT_EQ(from.read(memory.data(), 100, size).bytes_done, 0U);
  }
}

TEST(remote_objects, each_request_names_the_version_that_was_found) {
  served with;
  const auto from = with.open();
  guarded_memory memory(with.house, memory_place::pageable, 100);
  EXPECT_TRUE(from.read(memory.data(), 100, 0).ok());
  const auto asked = with.server.requests().back();
  EXPECT_EQ(asked.header("if-match"), "\"first\"");
  EXPECT_EQ(asked.header("range"), "bytes=0-99");
  EXPECT_EQ(asked.header("accept-encoding"), "identity");
  auto other = with.content;
  other[0] ^= std::byte{1};
  with.server.put(other, "\"second\"");
  const auto outcome = from.read(memory.data(), 100, 0);
  EXPECT_NE(told(outcome.error).find("was replaced while"), std::string::npos) << told(outcome.error);
  const auto anew = with.open();
  EXPECT_EQ(anew.read(memory.data(), 100, 0).bytes_done, 100U);
  memory.expect(std::span(other).first(100));
}

TEST(remote_objects, explain_tells_who_serves_them_and_which_version) {
  served with;
  const auto from = with.open();
  const auto plan = with.house.engine().explain(from, "host:0", size, 0);
  ASSERT_TRUE(plan.ok()) << told(plan.error());
  std::string all;
  for (const auto& each : plan->remarks) all += each + "\n";
  EXPECT_NE(all.find(" concurrent connections"), std::string::npos) << all;
  EXPECT_NE(all.find("ETag \"first\""), std::string::npos) << all;
}

TEST(remote_objects, what_is_asked_of_servers_is_counted) {
  served with;
  const auto from = with.open();
  const auto count = [&] { return with.house.engine().stats().usage; };
  EXPECT_EQ(std::tuple(count().remote_requests, count().remote_bytes), std::tuple(1U, 0U)) << "how large it is";
  std::atomic<int> refusals{2};
  with.server.set_answer(on_data(
      [&](const web_request&, const client& to, web_server&) -> std::optional<then> {
        if (refusals.fetch_sub(1) <= 0) return std::nullopt;
        to.send("HTTP/1.1 503 Slow Down\r\n" + no_body);
        return then::keep;
      },
      with.server));
  guarded_memory memory(with.house, memory_place::device, size);
  EXPECT_EQ(from.read(memory.data(), size, 0).bytes_done, size);
  const auto seen = count();
  EXPECT_EQ(seen.remote_bytes, size);
  EXPECT_EQ(seen.remote_tls_bytes, 0U);
  EXPECT_EQ(std::tuple(seen.remote_retries, seen.remote_put_offs), std::tuple(2U, 2U));
  EXPECT_EQ(seen.remote_requests, with.server.requests().size());
  EXPECT_GE(seen.remote_connections, 1U);
  EXPECT_EQ(std::tuple(seen.remote_redirects, seen.remote_unversioned), std::tuple(0U, 0U));
}

TEST(remote_objects, without_a_strong_etag_are_counted_once) {
  served with;
  with.server.put(with.content, "W/\"weak\"");
  const auto from = with.open();
  guarded_memory memory(with.house, memory_place::pageable, 100);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(from.read(memory.data(), 100, 0).bytes_done, 100U);
  EXPECT_EQ(with.house.engine().stats().usage.remote_unversioned, 1U);
}

TEST(remote_objects, are_not_written) {
  served with;
  const auto refused = with.house.engine().open(with.server.url(), {.write = true});
  EXPECT_EQ(refused.error().code(), errc::unsupported);
  EXPECT_TRUE(with.server.requests().empty());
  const auto from = with.open();
  const bytes some(10);
  EXPECT_EQ(from.write(some.data(), some.size(), 0).error.code(), errc::permission_denied);
}

TEST(remote_objects, whose_size_is_given_are_not_asked_for_before_they_are_read) {
  served with;
  const auto from = with.house.engine().open_remote(with.server.url(), {.size = size});
  ASSERT_TRUE(from.ok()) << told(from.error());
  EXPECT_TRUE(with.server.requests().empty());
  guarded_memory memory(with.house, memory_place::device, size);
  EXPECT_EQ(from->read(memory.data(), size, 0).bytes_done, size);
  memory.expect(with.content);
}

TEST(remote_objects, headers_of_the_user_go_to_his_server_and_to_no_other) {
  served with;
  web_server elsewhere{with.content};
  with.server.set_answer([&](const web_request& asked, const client& to) -> std::optional<then> {
    if (asked.target == "/there") return std::nullopt;
    to.send("HTTP/1.1 302 Found\r\nLocation: " + elsewhere.url("/data") + "\r\n" + no_body);
    return then::keep;
  });
  const remote_options how{.headers = {{"Authorization", "Bearer something"}}};
  auto from = with.house.engine().open_remote(with.server.url(), how);
  ASSERT_TRUE(from.ok()) << told(from.error());
  guarded_memory memory(with.house, memory_place::pageable, 100);
  EXPECT_TRUE(from->read(memory.data(), 100, 0).ok());
  EXPECT_EQ(with.server.requests().front().header("authorization"), "Bearer something");
  EXPECT_FALSE(elsewhere.requests().empty());
  for (const auto& each : elsewhere.requests()) EXPECT_EQ(each.header("authorization"), "");
}

// A name, where the literal address is refused before anybody looks.
TEST(remote_objects, no_redirect_to_a_name_leads_to_where_credentials_are) {
  auto settings = quick();
  settings.door.resolved = {"elsewhere.example:80:169.254.169.254"};
  served with(settings);
  const auto redirect = [](const web_request&, const client& to) -> std::optional<then> {
    to.send("HTTP/1.1 302 Found\r\nLocation: http://elsewhere.example/latest\r\n" + no_body);
    return then::keep;
  };
  const auto from = with.open();
  with.server.set_answer(redirect);
  EXPECT_EQ(with.house.engine().open(with.server.url()).error().code(), errc::permission_denied);
  guarded_memory memory(with.house, memory_place::pageable, 100);
  const auto outcome = from.read(memory.data(), 100, 0);
  EXPECT_EQ(outcome.error.code(), errc::permission_denied) << told(outcome.error);
  EXPECT_NE(told(outcome.error).find("elsewhere.example"), std::string::npos) << told(outcome.error);
}

TEST(remote_objects, errors_do_not_show_what_a_query_holds) {
  served with;
  with.server.set_answer([](const web_request&, const client& to) -> std::optional<then> {
    to.send("HTTP/1.1 403 No\r\n" + no_body);
    return then::keep;
  });
  const auto refused = with.house.engine().open(with.server.url("/data?X-Amz-Signature=abcdef&token=hidden"));
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(told(refused.error()).find("abcdef"), std::string::npos) << told(refused.error());
  EXPECT_EQ(told(refused.error()).find("hidden"), std::string::npos) << told(refused.error());
}

// A server that takes requests and does not answer.
std::optional<then> silent(const web_request& asked, const client& to) {
  if (asked.method == "HEAD") return std::nullopt;
  to.hold();
  return then::close;
}

TEST(remote_objects, a_server_that_does_not_answer_is_an_error_in_time) {
  auto settings = quick();
  settings.attempts = 2;
  settings.answer_within = 50ms;
  served with(settings);
  const auto from = with.open();
  with.server.set_answer(silent);
  guarded_memory memory(with.house, memory_place::device, size);
  const auto outcome = from.read(memory.data(), size, 0);
  EXPECT_EQ(outcome.error.code(), errc::timed_out) << told(outcome.error);
  EXPECT_NE(told(outcome.error).find("has not responded for 50 ms"), std::string::npos) << told(outcome.error);
}

TEST(remote_objects, a_server_that_sends_next_to_nothing_is_an_error_in_time) {
  auto settings = quick();
  settings.attempts = 2;
  settings.stall_after = 50ms;
  served with(settings);
  const auto from = with.open();
  with.server.set_answer(on_data(
      [](const web_request& asked, const client& to, web_server& of) -> std::optional<then> {
        to.send(of.head_of(asked));
        while (to.send("x")) std::this_thread::sleep_for(5ms);
        return then::close;
      },
      with.server));
  guarded_memory memory(with.house, memory_place::pageable, size);
  const auto outcome = from.read(memory.data(), 5 * mib, 0, {.deadline = deadline_clock::now() + 3s});
  EXPECT_EQ(outcome.error.code(), errc::timed_out) << told(outcome.error);
}

TEST(remote_objects, deadlines_and_cancel_hold_beside_a_silent_server) {
  served with;
  const auto from = with.open();
  with.server.set_answer(silent);
  guarded_memory memory(with.house, memory_place::device, size);
  EXPECT_EQ(from.read(memory.data(), size, 0, {.deadline = deadline_clock::now() + 20ms}).error.code(), errc::timed_out);
  auto stopped = from.read_async(memory.data(), size, 0);
  EXPECT_FALSE(stopped.wait_for(5ms));
  stopped.cancel();
  EXPECT_EQ(stopped.wait().error.code(), errc::cancelled);
  with.server.set_answer({});
  EXPECT_EQ(from.read(memory.data(), size, 0).bytes_done, size);
  memory.expect(with.content);
}

TEST(remote_objects, a_file_closes_though_its_server_is_silent) {
  served with;
  auto from = with.open();
  with.server.set_answer(silent);
  auto memory = std::make_unique<guarded_memory>(with.house, memory_place::pageable, size);
  auto left = from.read_async(memory->data(), size, 0);
  left.cancel();
  (void)left.wait();
  EXPECT_TRUE(from.close().ok());
}

TEST(remote_objects, one_silent_server_holds_up_no_other) {
  served with;
  served other;
  const auto stuck = with.open();
  with.server.set_answer(silent);
  const auto free = with.open(other.server.url());
  guarded_memory memory(with.house, memory_place::device, size);
  guarded_memory second(with.house, memory_place::device, size);
  std::vector<operation> waiting;
  for (int i = 0; i < 20; ++i) waiting.push_back(stuck.read_async(memory.data(), size, 0));
  EXPECT_EQ(free.read(second.data(), size, 0).bytes_done, size);
  second.expect(other.content);
  for (auto& each : waiting) each.cancel();
  for (auto& each : waiting) (void)each.wait();
}

TEST(remote_objects, a_server_that_goes_away_is_an_error_and_may_come_back) {
  served with;
  const auto from = with.open();
  with.server.stop();
  guarded_memory memory(with.house, memory_place::device, size);
  const auto outcome = from.read(memory.data(), size, 0);
  EXPECT_EQ(outcome.error.code(), errc::io) << told(outcome.error);
  EXPECT_NE(told(outcome.error).find("after 4 tries"), std::string::npos) << told(outcome.error);
}

TEST(remote_objects, few_connections_serve_many_pieces) {
  served with;
  const auto from = with.open();
  guarded_memory memory(with.house, memory_place::device, size);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(from.read(memory.data(), size, 0).bytes_done, size);
  EXPECT_LE(with.server.most_connections(), 17U) << "eight, as long as more are no faster, and that of the first question";
}

TEST(remote_objects, a_piece_whose_connection_falls_silent_is_asked_for_on_another_and_before_long) {
  auto settings = quick();
  settings.hedge_after = 200ms;
  served with(settings);
  const auto from = with.open();
  guarded_memory memory(with.house, memory_place::device, size);
  for (const std::size_t sent : {std::size_t{0}, std::size_t{50'000}}) {
    with.server.set_answer({});
    // One piece in fifty may be late; on a busy machine others were.
    for (std::uint64_t late = ~0ULL; late != with.house.engine().stats().usage.remote_hedges;) {
      late = with.house.engine().stats().usage.remote_hedges;
      for (int i = 0; i < 60; ++i) EXPECT_EQ(from.read(memory.data(), size, 0).bytes_done, size);
    }
    std::atomic<int> stalls{1};
    with.server.set_answer(on_data(
        [&](const web_request& asked, const client& to, web_server& of) -> std::optional<then> {
          if (stalls.fetch_sub(1) <= 0) return std::nullopt;
          if (sent > 0) to.send(of.head_of(asked) + of.body_of(asked).substr(0, sent));
          to.hold();
          return then::close;
        },
        with.server));
    const auto before = with.house.engine().stats().usage;
    EXPECT_EQ(from.read(memory.data(), size, 0).bytes_done, size);
    memory.expect(with.content);
    const auto seen = with.house.engine().stats().usage;
    EXPECT_GE(seen.remote_hedges, before.remote_hedges + 1);
    EXPECT_EQ(seen.remote_retries, before.remote_retries) << "which is no failure of the server's";
  }
}

TEST(remote_objects, a_server_that_is_slow_as_a_whole_is_not_asked_twice) {
  auto settings = quick();
  settings.hedge_after = 1ms;
  served with(settings);
  with.server.set_answer(on_data(
      [](const web_request& asked, const client& to, web_server& of) -> std::optional<then> {
        std::this_thread::sleep_for(150ms);  // longer than it takes until somebody looks
        to.send(of.head_of(asked));
        to.send(of.body_of(asked));
        return then::keep;
      },
      with.server));
  const auto from = with.open();
  guarded_memory memory(with.house, memory_place::device, size);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(from.read(memory.data(), size, 0).bytes_done, size);
  EXPECT_EQ(with.house.engine().stats().usage.remote_hedges, 0U);
}

// As a firewall leaves them that has forgotten its connections.
TEST(remote_objects, kept_connections_that_have_all_fallen_silent_cost_one_try) {
  auto settings = quick();
  settings.attempts = 2;
  settings.answer_within = 50ms;
  served with(settings);
  const auto from = with.open();
  guarded_memory memory(with.house, memory_place::device, size);
  std::atomic<bool> forgotten{false};
  std::mutex lock;
  std::set<int> known;
  with.server.set_answer([&](const web_request&, const client& to) -> std::optional<then> {
    {
      const std::lock_guard guard(lock);
      if (!forgotten.load()) known.insert(to.number());
      if (!forgotten.load() || !known.contains(to.number())) return std::nullopt;
    }
    to.hold();
    const std::lock_guard guard(lock);
    known.erase(to.number());
    return then::close;
  });
  for (int i = 0; i < 5; ++i) EXPECT_EQ(from.read(memory.data(), size, 0).bytes_done, size);
  forgotten.store(true);
  guarded_memory part(with.house, memory_place::pageable, 100);
  const auto outcome = from.read(part.data(), 100, 0);
  EXPECT_EQ(outcome.bytes_done, 100U) << told(outcome.error);
  part.expect(std::span(with.content).first(100));
}

TEST(remote_objects, a_forked_child_is_told_and_does_not_hang) {
  served with;
  const auto from = with.open();
  guarded_memory memory(with.house, memory_place::pageable, 1000);
  EXPECT_TRUE(from.read(memory.data(), 1000, 0).ok());
  EXPECT_EQ(run_in_child([&] {
              alarm(10);
              return from.read(memory.data(), 1000, 0).error.code() == errc::forked ? 7 : 1;
            }),
            7);
}

TEST(remote_urls, that_are_wrong_are_refused_in_words) {
  open_house house({}, doors_with(quick()));
  const std::vector<std::pair<std::string, errc>> wrong{{"http://", errc::invalid_argument},
                                                        {"http://user:hush@host/x", errc::invalid_argument},
                                                        {"https://host:99999/x", errc::invalid_argument},
                                                        {"http://nobody.invalid/x", errc::io}};
  for (const auto& [url, code] : wrong) {
    const auto refused = house.engine().open(url);
    EXPECT_EQ(refused.error().code(), code) << url << ": " << told(refused.error());
    EXPECT_EQ(told(refused.error()).find("hush"), std::string::npos) << told(refused.error());
  }
}

TEST(remote_urls, without_libcurl_say_what_to_install) {
  auto web = quick();
  web.door.library = "/nowhere/libcurl.so.4";
  open_house house({}, doors_with(web));
  const auto refused = house.engine().open("http://127.0.0.1/x");
  EXPECT_EQ(refused.error().code(), errc::unsupported);
  EXPECT_NE(told(refused.error()).find("install libcurl4"), std::string::npos) << told(refused.error());
}

}  // namespace
}  // namespace penstock::testing::remote_tests
