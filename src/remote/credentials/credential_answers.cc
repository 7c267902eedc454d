#include "remote/credentials/credential_answers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <string>
#include <utility>

#include "base/json_reader.hpp"
#include "remote/net/s3_error.hpp"
#include "remote/net/xml_scanner.hpp"

namespace penstock::source::remote {

namespace {

constexpr int most_answer_depth = 8;
constexpr std::size_t most_token_bytes = std::size_t{16} << 10;

// Fields as received.
struct raw_credentials {
  std::string id;
  secret_text secret;
  secret_text token;
  std::string expiration;
  std::string code;
};

status bad_answer(std::string_view what, std::string_view why) { return {errc::io, fmt::format("{}: {}", what, why)}; }

result<credentials> checked(raw_credentials raw, std::string_view what) {
  if (!raw.code.empty() && raw.code != "Success") return bad_answer(what, "the response reports a failure");
  if (!fits_header(raw.id) || raw.id.size() > 128 || !fits_header(raw.secret.reveal()) || raw.secret.reveal().size() > 1024)
    return bad_answer(what, "the response contains no keys");
  if (!raw.token.empty() && (!fits_header(raw.token.reveal()) || raw.token.reveal().size() > most_token_bytes))
    return bad_answer(what, "the response contains an invalid token");
  credentials made{.access_key_id = std::move(raw.id),
                   .secret_access_key = std::move(raw.secret),
                   .session_token = std::move(raw.token),
                   .expires_at = {},
                   .found_in = std::string(what)};
  if (raw.expiration.empty()) return made;
  made.expires_at = parse_time(raw.expiration);
  if (!made.expires_at) return bad_answer(what, "the response contains no valid expiration time for the keys");
  return made;
}

// Takes a string member; skips null.
template <class Take>
bool take_member(json_reader& json, Take&& take) {
  if (json.taken_null()) return true;
  std::string_view value;
  if (!json.string(value)) return false;
  take(value);
  return true;
}

bool read_member(json_reader& json, std::string_view key, raw_credentials& to) {
  const auto text_into = [&](std::string& member) { return take_member(json, [&](std::string_view value) { member = value; }); };
  const auto secret_into = [&](secret_text& member) {
    return take_member(json, [&](std::string_view value) { member = secret_text(value); });
  };
  if (key == "AccessKeyId") return text_into(to.id);
  if (key == "SecretAccessKey") return secret_into(to.secret);
  if (key == "Token" || key == "SessionToken") return secret_into(to.token);
  if (key == "Expiration") return text_into(to.expiration);
  if (key == "Code") return text_into(to.code);
  return json.skip(most_answer_depth);
}

// Parses and removes a fixed number of leading digits.
bool take_digits(std::string_view& text, std::size_t count, int& to) {
  if (text.size() < count || !std::ranges::all_of(text.substr(0, count), [](char c) { return c >= '0' && c <= '9'; })) return false;
  std::from_chars(text.data(), text.data() + count, to);
  text.remove_prefix(count);
  return true;
}

bool take_letter(std::string_view& text, std::string_view among) {
  if (text.empty() || among.find(text.front()) == std::string_view::npos) return false;
  text.remove_prefix(1);
  return true;
}

struct parts_of_time {
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
  std::chrono::minutes zone{0};
};

bool take_zone(std::string_view text, std::chrono::minutes& to) {
  if (text == "Z" || text == "z") return true;
  if (text.empty() || (text.front() != '+' && text.front() != '-')) return false;
  const int sign = text.front() == '-' ? -1 : 1;
  text.remove_prefix(1);
  int hours = 0, minutes = 0;
  if (!take_digits(text, 2, hours) || !take_letter(text, ":") || !take_digits(text, 2, minutes) || !text.empty()) return false;
  to = sign * (std::chrono::hours(hours) + std::chrono::minutes(minutes));
  return hours < 24 && minutes < 60;
}

bool take_time(std::string_view text, parts_of_time& to) {
  if (!take_digits(text, 4, to.year) || !take_letter(text, "-") || !take_digits(text, 2, to.month) || !take_letter(text, "-") ||
      !take_digits(text, 2, to.day) || !take_letter(text, "Tt ") || !take_digits(text, 2, to.hour) || !take_letter(text, ":") ||
      !take_digits(text, 2, to.minute) || !take_letter(text, ":") || !take_digits(text, 2, to.second))
    return false;
  if (text.starts_with('.')) text.remove_prefix(std::min(text.find_first_not_of("0123456789", 1), text.size()));
  return take_zone(text, to.zone);
}

}  // namespace

result<credentials> parse_json_credentials(std::string_view text, std::string_view what) {
  if (text.size() > most_credential_bytes) return bad_answer(what, "the response is too long");
  raw_credentials raw;
  json_reader json(text, "the response");
  if (!json.object([&](std::string_view key) { return read_member(json, key, raw); }) || !json.end())
    return bad_answer(what, json.problem().message());
  return checked(std::move(raw), what);
}

result<credentials> parse_sts_credentials(std::string_view text, std::string_view what) {
  if (text.size() > most_credential_bytes) return bad_answer(what, "the response is too long");
  raw_credentials raw;
  xml_scanner xml(text);
  auto event = xml.next();
  for (; event == xml_event::begin || event == xml_event::end; event = xml.next()) {
    if (event == xml_event::begin) continue;
    if (xml.name() == "AccessKeyId") raw.id = xml.text();
    if (xml.name() == "SecretAccessKey") raw.secret = secret_text(xml.text());
    if (xml.name() == "SessionToken") raw.token = secret_text(xml.text());
    if (xml.name() == "Expiration") raw.expiration = xml.text();
  }
  if (event == xml_event::broken) return bad_answer(what, "the response is not XML");
  return checked(std::move(raw), what);
}

std::optional<wall_time> parse_time(std::string_view text) {
  parts_of_time parts;
  if (!take_time(text, parts)) return std::nullopt;
  const std::chrono::year_month_day date(std::chrono::year(parts.year), std::chrono::month(static_cast<unsigned>(parts.month)),
                                         std::chrono::day(static_cast<unsigned>(parts.day)));
  // Limits years to 2200, so that sums do not overflow.
  if (!date.ok() || parts.year < 1970 || parts.year > 2200 || parts.hour > 23 || parts.minute > 59 || parts.second > 60)
    return std::nullopt;
  return std::chrono::sys_days(date) + std::chrono::hours(parts.hour) + std::chrono::minutes(parts.minute) +
         std::chrono::seconds(parts.second) - parts.zone;
}

bool fits_header(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](char c) { return c > ' ' && c < 0x7f; });
}

}  // namespace penstock::source::remote
