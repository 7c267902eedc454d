#include "source/remote/http.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "base/printable.hpp"
#include "source/remote/redirect.hpp"

namespace penstock::source::remote {

namespace {

constexpr unsigned most_redirects = 5;

class http_protocol final : public protocol {
 public:
  http_protocol(url home, const std::vector<header>& headers) : home_(std::move(home)) {
    for (const auto& each : headers) lines_ += fmt::format("{}: {}\r\n", each.name, each.value);
  }
  result<std::string> headers(const url& address, std::string_view /*range*/) override {
    return address.same_origin(home_) ? lines_ : std::string();
  }
  [[nodiscard]] bool follows() const noexcept override { return true; }

 private:
  const url home_;
  std::string lines_;
};

std::optional<std::uint64_t> number(std::string_view text) {
  std::uint64_t made = 0;
  const auto* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, made);
  return !text.empty() && read.ec == std::errc() && read.ptr == end ? std::optional(made) : std::nullopt;
}

std::string asked_for(std::string_view method, const url& address) { return fmt::format("{} {}", method, address.shown()); }

bool refuses_head(int status) noexcept { return status == 400 || status == 403 || status == 405 || status == 501; }

}  // namespace

std::optional<std::uint64_t> size_of(const sys::web_answer& answer, bool of_head) {
  if (of_head) return number(answer.header("content-length"));
  if (const auto range = parse_content_range(answer.header("content-range"))) return range->total;
  if (answer.status == 416) return parse_unsatisfied_range(answer.header("content-range"));  // of an empty one
  return std::nullopt;
}

status check_headers(const std::vector<header>& headers) {
  constexpr std::array<std::string_view, 7> own{"host",      "range", "if-match", "accept-encoding", "content-length", "transfer-encoding",
                                                "connection"};
  for (const auto& each : headers) {
    const bool is_name =
        !each.name.empty() &&
        each.name.find_first_not_of("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == std::string::npos;
    if (!is_name) return {errc::invalid_argument, fmt::format("\"{}\" is no name of a header", printable_text(each.name.substr(0, 60)))};
    const bool is_value =
        std::all_of(each.value.begin(), each.value.end(), [](char c) { return c == '\t' || static_cast<unsigned char>(c) >= ' '; }) &&
        each.value.find('\x7f') == std::string::npos;
    if (!is_value) return {errc::invalid_argument, fmt::format("the value of header {} has control characters", each.name)};
    const header none{each.name, {}};
    if (std::any_of(own.begin(), own.end(), [&](std::string_view name) { return header_value({none}, name).has_value(); }))
      return {errc::invalid_argument, fmt::format("header {} is Penstock's own", each.name)};
  }
  return {};
}

std::shared_ptr<protocol> make_http_protocol(const url& home, const std::vector<header>& headers) {
  return std::make_shared<http_protocol>(home, headers);
}

version version_of(const sys::web_answer& answer) {
  version made{std::string(answer.header("etag")), std::string(answer.header("last-modified"))};
  for (auto* const each : {&made.etag, &made.last_modified}) {
    const bool fits = std::all_of(each->begin(), each->end(), [](char c) { return static_cast<unsigned char>(c) >= ' ' && c != '\x7f'; });
    if (!fits) each->clear();  // it will be sent back
  }
  return made;
}

result<sys::web_answer> ask(network& by, std::string_view method, const url& address, const std::vector<header>& headers,
                            const patience& how, std::size_t most_bytes) {
  sys::web_request asked;
  asked.timeout = how.question_within;
  asked.method = method;
  asked.url = address.unredacted();
  asked.most_bytes = most_bytes;
  for (const auto& each : headers) asked.headers.push_back({each.name, each.value});
  asked.headers.push_back({"Accept-Encoding", "identity"});
  for (unsigned tries = 1;; ++tries) {
    auto answer = by.exchange(asked);
    const bool late = !answer && answer.error().code() == errc::timed_out && how.asks_again_what_took_long;
    const bool busy = answer && how.is_worth_another_try(answer->status);
    if (answer && !busy) return answer;
    auto problem = answer ? error_of(answer->status, address.shown()) : answer.error().with_context(asked_for(method, address));
    if (!late && !busy) return problem;
    const remote_retry told{answer ? answer->status : 0, problem.code(), {}, tries, how.attempts};
    const auto after = answer ? pause_of(answer->header("retry-after")) : std::chrono::milliseconds(0);
    if (tries >= how.attempts || !by.pause(how, told, after))
      return problem.with_context(fmt::format("after {} {}", tries, tries == 1 ? "try" : "tries"));
  }
}

status error_of(int status, std::string_view shown) {
  const auto told = [&](errc code, std::string_view words) {
    return ::penstock::status(code, fmt::format("{}: the server answered with status {}{}", shown, status, words));
  };
  if (status == 404 || status == 410) return told(errc::not_found, " (there is no such object)");
  if (status == 401 || status == 403) return told(errc::permission_denied, " (access denied)");
  return told(errc::io, "");
}

result<object_facts> find_http_object(network& by, const url& address, const std::vector<header>& headers,
                                      std::optional<std::uint64_t> size, const patience& how, bool by_head) {
  object_facts made{address.shown(), address, size.value_or(0), {}};
  if (size) return made;
  std::string_view method = by_head ? "HEAD" : "GET";
  for (unsigned moves = 0; moves <= most_redirects;) {
    std::vector<header> sent;
    if (made.address.same_origin(address)) sent = headers;
    if (method == "GET") sent.push_back({"Range", "bytes=0-0"});
    auto answer = ask(by, method, made.address, sent, how);
    if (!answer) return answer.error();
    const auto status = answer->status;
    if (status >= 300 && status < 400) {
      auto to = redirect_target(made.address, answer->header("location"));
      if (!to) return to.error().with_context(fmt::format("{}: the server sends its reader to another address", made.name));
      made.address = *std::move(to);
      by.tell_of(network_listener::event::redirect);
      ++moves;
      continue;
    }
    const bool of_head = method == "HEAD";
    if (of_head && refuses_head(status)) {
      method = "GET";
      continue;
    }
    if (status != 200 && status != 206 && !(status == 416 && !of_head)) return error_of(status, made.name);
    const auto known = size_of(*answer, of_head);
    if (known) {
      made.size = *known;
      made.of = version_of(*answer);
      return made;
    }
    if (!of_head)
      return ::penstock::status(errc::unsupported,
                                fmt::format("{}: the server does not say how large it is; it serves no ranges", made.name));
    method = "GET";
  }
  return ::penstock::status(errc::io, fmt::format("{}: more than {} redirects", made.name, most_redirects));
}

}  // namespace penstock::source::remote
