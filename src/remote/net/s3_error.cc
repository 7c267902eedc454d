#include "remote/net/s3_error.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "base/printable.hpp"
#include "remote/net/url.hpp"
#include "remote/net/xml_scanner.hpp"

namespace penstock::source::remote {

namespace {

constexpr std::size_t most_code_bytes = 100;
constexpr std::size_t most_message_bytes = 500;

std::string code_only(std::string_view text) {
  const auto belongs = [](char c) { return (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') || c == '.' || c == '-'; };
  return text.size() <= most_code_bytes && std::ranges::all_of(text, belongs) ? std::string(text) : std::string();
}

std::string fit_to_show(std::string_view text) { return printable_text(std::string(text.substr(0, most_message_bytes))); }

void take_once(std::string& to, std::string value) {
  if (to.empty()) to = std::move(value);
}

void take_error_part(std::string_view name, std::string_view text, s3_error& to) {
  if (name == "Code") take_once(to.code, code_only(text));
  if (name == "Message") take_once(to.message, fit_to_show(text));
  if (name == "RequestId" || name == "RequestID") take_once(to.request_id, code_only(text));
  if (name == "Region" && is_region(text)) take_once(to.region, std::string(text));
  if (name == "Endpoint") take_once(to.endpoint, code_only(text));
}

status bad_list(std::string_view why) { return {errc::io, fmt::format("the server's object list is invalid: {}", why)}; }

// In a list, a space is encoded as a plus sign, and a plus sign is percent-encoded.
std::optional<std::string> key_of_list(std::string text, bool is_encoded) {
  if (!is_encoded) return text;
  std::ranges::replace(text, '+', ' ');
  return percent_decoded(text);
}

class list_reader {
 public:
  explicit list_reader(std::string_view body) : xml_(body) {}
  result<object_list> read();

 private:
  void take_begin();
  status take_end();
  status take_object();
  status take_folder();
  // Decodes all keys at the end, because the server may specify the encoding after the first object.
  status decode_keys();

  xml_scanner xml_;
  object_list made_;
  bool is_list_ = false;
  bool is_truncated_ = false;
  bool is_encoded_ = false;
  std::optional<std::string> key_;
  std::optional<std::uint64_t> size_;
};

result<object_list> list_reader::read() {
  for (;;) {
    const auto event = xml_.next();
    if (event == xml_event::broken || (event == xml_event::done && !is_list_)) return bad_list("it is not a list of objects");
    if (event == xml_event::done) break;
    if (event == xml_event::begin) {
      take_begin();
    } else if (auto problem = take_end(); !problem.ok()) {
      return problem;
    }
  }
  if (!is_truncated_) made_.continuation_token.clear();
  if (is_truncated_ && made_.continuation_token.empty()) return bad_list("it is truncated but contains no continuation token");
  if (auto problem = decode_keys(); !problem.ok()) return problem;
  return std::move(made_);
}

void list_reader::take_begin() {
  if (xml_.depth() == 1) is_list_ = xml_.name() == "ListBucketResult";
  if (xml_.depth() != 2) return;
  key_.reset();
  size_.reset();
}

status list_reader::take_end() {
  const auto name = xml_.name();
  if (xml_.depth() == 2) {
    if (name == "Contents") return take_object();
    if (name == "CommonPrefixes") return take_folder();
    if (name == "IsTruncated") is_truncated_ = xml_.text() == "true";
    if (name == "NextContinuationToken") made_.continuation_token = xml_.text();
    if (name == "EncodingType") is_encoded_ = xml_.text() == "url";
  }
  if (xml_.depth() == 3 && (name == "Key" || name == "Prefix")) key_ = xml_.text();
  if (xml_.depth() == 3 && name == "Size") {
    std::uint64_t size = 0;
    const auto& text = xml_.text();
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), size);
    if (problem != std::errc() || end != text.data() + text.size()) return bad_list("a size is not a number");
    size_ = size;
  }
  return {};
}

status list_reader::take_object() {
  if (!key_ || !size_) return bad_list("an object has no key or no size");
  if (made_.objects.size() == most_listed_objects) return bad_list(fmt::format("it contains more than {} objects", most_listed_objects));
  made_.objects.push_back({std::move(*key_), *size_});
  key_.reset();
  size_.reset();
  return {};
}

status list_reader::take_folder() {
  if (!key_) return bad_list("a folder has no name");
  if (made_.folders.size() == most_listed_objects) return bad_list(fmt::format("it contains more than {} folders", most_listed_objects));
  made_.folders.push_back(std::move(*key_));
  key_.reset();
  return {};
}

status list_reader::decode_keys() {
  for (auto& one : made_.folders) {
    auto key = key_of_list(std::move(one), is_encoded_);
    if (!key || !check_key(*key).ok() || !key->ends_with('/')) return bad_list("a folder is not a valid key prefix");
    one = std::move(*key);
  }
  for (auto& one : made_.objects) {
    auto key = key_of_list(std::move(one.key), is_encoded_);
    if (!key || !check_key(*key).ok()) return bad_list("a key is not a valid object key");
    one.key = std::move(*key);
  }
  return {};
}

}  // namespace

s3_error parse_s3_error(std::string_view body) {
  s3_error made;
  xml_scanner xml(body.substr(0, most_error_bytes));
  for (auto event = xml.next(); event == xml_event::begin || event == xml_event::end; event = xml.next()) {
    if (event == xml_event::end && xml.depth() <= 3) take_error_part(xml.name(), xml.text(), made);
  }
  return made;
}

std::string shown_error(int status_code, const s3_error& error) {
  auto shown = error.code.empty() ? fmt::format("HTTP {}", status_code) : error.code;
  if (!error.message.empty()) shown += fmt::format(": {}", error.message);
  if (!error.request_id.empty()) shown += fmt::format(" (request {})", error.request_id);
  return shown;
}

bool may_succeed_later(std::string_view code) {
  constexpr std::array<std::string_view, 10> codes{"SlowDown",
                                                   "RequestTimeout",
                                                   "InternalError",
                                                   "ServiceUnavailable",
                                                   "Throttling",
                                                   "ThrottlingException",
                                                   "RequestTimeTooSkewed",
                                                   "RequestThrottled",
                                                   "RequestLimitExceeded",
                                                   "BandwidthLimitExceeded"};
  return std::ranges::find(codes, code) != codes.end();
}

std::string list_query(std::string_view prefix, std::string_view continuation_token, bool one_level) {
  std::string made("list-type=2&encoding-type=url");
  if (one_level) made += "&delimiter=%2F";
  if (!prefix.empty()) made += fmt::format("&prefix={}", percent_encoded(prefix, false));
  if (!continuation_token.empty()) made += fmt::format("&continuation-token={}", percent_encoded(continuation_token, false));
  return made;
}

result<object_list> parse_object_list(std::string_view body) {
  if (body.size() > most_list_bytes) return bad_list(fmt::format("it is larger than {} bytes", most_list_bytes));
  return list_reader(body).read();
}

}  // namespace penstock::source::remote
