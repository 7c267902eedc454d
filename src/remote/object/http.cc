#include "remote/object/http.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include <fmt/format.h>

#include "base/printable.hpp"
#include "remote/net/redirect.hpp"

namespace penstock::source::remote {

namespace {

constexpr unsigned most_redirects = 5;
constexpr std::size_t most_bytes_of_first =
    std::size_t{16} << 10;  // limit on the response body when the first byte is requested; error bodies contain the reason

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

// Ways to query the size. They are tried in order until a response contains it.
enum class way : std::uint8_t { head, first_byte, whole };

bool is_success(int status) noexcept { return status == 200 || status == 206; }

// S3 supports HEAD, so its 404 is final. Other servers may respond to HEAD with 404 and still serve the object to GET.
bool is_answer_of_s3(const sys::web_answer& answer) { return !answer.header("x-amz-request-id").empty(); }

// The server or a proxy is overloaded, so the status does not depend on the method.
bool is_overloaded(int status) noexcept { return status == 429 || status == 502 || status == 503 || status == 504; }

// Returns true if the next way may provide more than this response.
bool next_may_tell(way asked, const sys::web_answer& answer) {
  if (is_overloaded(answer.status) || (answer.status == 404 && is_answer_of_s3(answer))) return false;
  const bool is_redirect = answer.status >= 300 && answer.status < 400;
  if (is_redirect || asked == way::whole || size_of(answer, asked == way::head)) return false;
  return asked == way::head || answer.status == 206 || answer.status == 416;
}

}  // namespace

std::optional<std::uint64_t> size_of(const sys::web_answer& answer, bool of_head) {
  const auto length = number(answer.header("content-length"));
  if (of_head) return length == 0U || !is_success(answer.status) ? std::nullopt : length;
  const auto range = answer.header("content-range");
  if (answer.status == 416) return parse_unsatisfied_range(range) == 0U ? std::optional<std::uint64_t>(0) : std::nullopt;
  if (!is_success(answer.status)) return std::nullopt;
  if (const auto here = parse_content_range(range)) return here->total;
  if (answer.status != 200 || !range.empty()) return std::nullopt;
  return length || answer.is_cut ? length : answer.body.size();
}

status check_headers(const std::vector<header>& headers) {
  constexpr std::array<std::string_view, 7> own{"host",      "range", "if-match", "accept-encoding", "content-length", "transfer-encoding",
                                                "connection"};
  for (const auto& each : headers) {
    const bool is_name =
        !each.name.empty() &&
        each.name.find_first_not_of("!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == std::string::npos;
    if (!is_name)
      return {errc::invalid_argument, fmt::format("\"{}\" is not a valid header name", printable_text(each.name.substr(0, 60)))};
    const bool is_value =
        std::all_of(each.value.begin(), each.value.end(), [](char c) { return c == '\t' || static_cast<unsigned char>(c) >= ' '; }) &&
        each.value.find('\x7f') == std::string::npos;
    if (!is_value) return {errc::invalid_argument, fmt::format("the value of header {} contains control characters", each.name)};
    const header none{each.name, {}};
    if (std::any_of(own.begin(), own.end(), [&](std::string_view name) { return header_value({none}, name).has_value(); }))
      return {errc::invalid_argument, fmt::format("header {} is set by Penstock itself", each.name)};
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
    if (!fits) each->clear();  // the value is sent back to the server in requests
  }
  return made;
}

namespace {

// Repeats one request until it gets a usable response.
class asker {
 public:
  asker(network& by, const question& what, const patience& how) : by_(by), what_(what), how_(how) {}

  result<sys::web_answer> ask() {
    for (unsigned tries = 1;; ++tries) {
      auto answer = once(what_.method, {});
      if (answer && !how_.is_worth_another_try(answer->status)) return answer;
      if (auto problem = wait(answer, what_.method, tries); !problem.ok()) return problem;
    }
  }

  // Tries the next way if one fails.
  result<size_answer> ask_for_size() {
    auto by = what_.method == "HEAD" ? way::head : way::first_byte;
    for (unsigned tries = 1;;) {
      const std::string_view method = by == way::head ? "HEAD" : "GET";
      auto answer = once(method, by == way::first_byte ? "bytes=0-0" : "");
      const bool busy = answer && how_.is_worth_another_try(answer->status);
      if (answer && !busy && !next_may_tell(by, *answer)) return size_answer{*std::move(answer), by == way::head};
      const bool broke_head = by == way::head && !answer && answer.error().code() == errc::io && !sys::is_unknown_host(answer.error());
      if (by == way::head || (answer && !busy)) by = by == way::head ? way::first_byte : way::whole;
      if ((answer && !busy) || broke_head) continue;
      if (auto problem = wait(answer, method, tries++); !problem.ok()) return problem;
    }
  }

 private:
  result<sys::web_answer> once(std::string_view method, std::string_view range) {
    auto headers = what_.headers(method);
    if (!headers) return headers.error();
    sys::web_request asked;
    asked.timeout = how_.question_within;
    asked.method = method;
    asked.url = what_.address.unredacted();
    asked.most_bytes = what_.most_bytes;
    asked.begins_only = what_.begins_only;
    for (const auto& each : *headers) asked.headers.push_back({each.name, each.value});
    if (!range.empty()) asked.headers.push_back({"Range", std::string(range)});
    asked.headers.push_back({"Accept-Encoding", "identity"});
    auto answer = by_.exchange(asked, how_.stop_requested);
    if (answer) by_.meet(what_.address, answer->latency);
    return answer;
  }

  // Waits before the next attempt. Returns an error if no attempts are left.
  status wait(const result<sys::web_answer>& answer, std::string_view method, unsigned tries) {
    auto problem = answer ? error_of(answer->status, what_.address.shown()) : answer.error().with_context(asked_for(method, what_.address));
    const bool took_long = !answer && problem.code() == errc::timed_out;
    if (!answer && sys::is_unknown_host(problem)) return problem;
    if (!answer && problem.code() != errc::io && !(took_long && how_.asks_again_what_took_long)) return problem;
    const remote_retry told{answer ? answer->status : 0, problem.code(), {}, tries, how_.attempts};
    const auto after = answer ? pause_of(answer->header("retry-after")) : std::chrono::milliseconds(0);
    if (tries < how_.attempts && by_.pause(how_, told, after)) return {};
    if (by_.stopped() || (how_.stop_requested && how_.stop_requested()))
      return {errc::cancelled, asked_for(method, what_.address) + ": stopped while waiting for a server that asked to retry later"};
    return problem.with_context(fmt::format("after {} {}", tries, tries == 1 ? "try" : "tries"));
  }

  network& by_;
  const question& what_;
  const patience& how_;
};

}  // namespace

result<sys::web_answer> ask(network& by, const question& what, const patience& how) { return asker(by, what, how).ask(); }

result<size_answer> ask_for_size(network& by, question what, const patience& how) {
  what.most_bytes = most_bytes_of_first;
  what.begins_only = true;
  return asker(by, what, how).ask_for_size();
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
  object_facts made{address.shown(), address, size.value_or(0)};
  if (size) return made;
  std::string_view method = by_head ? "HEAD" : "GET";
  auto at = address;
  for (unsigned moves = 0; moves <= most_redirects;) {
    const auto headers_there = [&](std::string_view) -> result<std::vector<header>> {
      return at.same_origin(address) ? headers : std::vector<header>();
    };
    const auto told = ask_for_size(by, {.method = method, .address = at, .headers = headers_there}, how);
    if (!told) return told.error();
    const auto& answer = told->answer;
    if (answer.status >= 300 && answer.status < 400) {
      auto to = redirect_target(at, answer.header("location"));
      if (!to) return to.error().with_context(fmt::format("{}: the server sent a redirect", made.name));
      at = *std::move(to);
      by.tell_of(network_listener::event::redirect);
      ++moves;
      continue;
    }
    const bool is_whole = answer.status == 200 && !told->of_head && answer.header("content-range").empty();
    if (const auto known = is_whole && answer.is_cut ? size_of(answer, false).value_or(unknown_bytes) : size_of(answer, told->of_head)) {
      made.size = *known;
      made.has_ranges = !is_whole && answer.header("accept-ranges") != "none";
      made.of = version_of(answer);
      if (moves > 0) made.found = std::move(at);
      return made;
    }
    if (moves > 0 && method == "HEAD") {  // the redirect's target may be signed for HEAD
      method = "GET";
      at = address;
      moves = 0;
      continue;
    }
    if (!is_success(answer.status) && answer.status != 416) return error_of(answer.status, made.name);
    return ::penstock::status(errc::unsupported, fmt::format("{}: the server does not report its size", made.name));
  }
  return ::penstock::status(errc::io, fmt::format("{}: more than {} redirects", made.name, most_redirects));
}

}  // namespace penstock::source::remote
