#include "remote/credentials/signature.hpp"

#include <fmt/format.h>
#include <string.h>  // NOLINT(modernize-deprecated-headers): explicit_bzero is glibc's

#include <algorithm>
#include <span>
#include <utility>

#include "sys/secret.hpp"

namespace penstock::source::remote {

namespace {

constexpr std::string_view signing_algorithm = "AWS4-HMAC-SHA256";

std::span<const std::byte> bytes_of_text(std::string_view text) { return std::as_bytes(std::span(text.data(), text.size())); }
std::string_view text_of_digest(const sys::digest& of) { return {reinterpret_cast<const char*>(of.data()), of.size()}; }

std::string in_hexadecimal(const sys::digest& of) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string made;
  made.reserve(of.size() * 2);
  for (const std::byte byte : of) {
    made.push_back(digits[std::to_integer<unsigned>(byte >> 4)]);
    made.push_back(digits[std::to_integer<unsigned>(byte & std::byte{15})]);
  }
  return made;
}

std::string name_in_small(std::string_view name) {
  std::string made(name);
  std::ranges::transform(made, made.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; });
  return made;
}

// Trims spaces and replaces each run of spaces with one.
std::string value_in_short(std::string_view value) {
  std::string made;
  for (const char c : value) {
    if (c != ' ' && c != '\t') {
      made.push_back(c);
    } else if (!made.empty() && made.back() != ' ') {
      made.push_back(' ');
    }
  }
  if (made.ends_with(' ')) made.pop_back();
  return made;
}

// Returns one line per name, sorted by name. Combines the values of repeated names.
std::vector<header> in_signing_order(const url& address, const std::vector<header>& headers) {
  std::vector<header> made{{"host", address.authority()}};
  for (const header& one : headers) {
    auto name = name_in_small(one.name);
    if (name == "host") continue;
    const auto same = std::ranges::find(made, name, &header::name);
    if (same == made.end()) {
      made.push_back({std::move(name), value_in_short(one.value)});
    } else {
      same->value += fmt::format(",{}", value_in_short(one.value));
    }
  }
  std::ranges::sort(made, {}, &header::name);
  return made;
}

// Normalizes the encoding of a parameter's name or value for signing.
std::string encoded_anew(std::string_view part) {
  const auto decoded = percent_decoded(part);
  return percent_encoded(decoded ? std::string_view(*decoded) : part, false);
}

std::string canonical_query(std::string_view query) {
  std::vector<std::pair<std::string, std::string>> parameters;
  while (!query.empty()) {
    const auto one = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(one.size() + 1, query.size()));
    const auto name = one.substr(0, one.find('='));
    const auto value = name.size() == one.size() ? std::string_view() : one.substr(name.size() + 1);
    if (!one.empty()) parameters.emplace_back(encoded_anew(name), encoded_anew(value));
  }
  std::ranges::sort(parameters);
  std::string made;
  for (const auto& [name, value] : parameters) made += fmt::format("{}{}={}", made.empty() ? "" : "&", name, value);
  return made;
}

result<secret_text> secret_hmac(const secret_text& key, std::string_view of) {
  auto made = sys::hmac_sha256(key.reveal(), bytes_of_text(of));
  if (!made) return made.error();
  secret_text kept(text_of_digest(*made));
  explicit_bzero(made->data(), made->size());
  return kept;
}

result<secret_text> derive_key(const secret_text& secret, std::string_view day, const signing_scope& scope) {
  std::string first("AWS4");
  first += secret.reveal();
  result<secret_text> key = secret_text::taken_from(first);
  for (const std::string_view part :
       {day, std::string_view(scope.region), std::string_view(scope.service), std::string_view("aws4_request")}) {
    key = secret_hmac(*key, part);
    if (!key) break;
  }
  return key;
}

}  // namespace

result<std::vector<header>> signer::sign(const signed_request& request, const std::shared_ptr<const credentials>& by, wall_time at) {
  if (by->anonymous()) return std::vector<header>();
  const auto time = signing_time(at);
  const auto day = time.substr(0, 8);
  std::vector<header> added{{"x-amz-date", time}};
  if (scope_.service == "s3") added.push_back({"x-amz-content-sha256", std::string(request.payload_hash)});
  if (!by->session_token.empty()) added.push_back({"x-amz-security-token", std::string(by->session_token.reveal())});
  auto all = request.headers;
  all.insert(all.end(), added.begin(), added.end());
  const auto canonical = make_canonical(request, all);
  const auto hash = payload_hash(canonical.text);
  if (!hash) return hash.error();
  const auto key = key_of(day, by);
  if (!key) return key.error();
  const auto scope = fmt::format("{}/{}/{}/aws4_request", day, scope_.region, scope_.service);
  const auto signature =
      sys::hmac_sha256(key->reveal(), bytes_of_text(fmt::format("{}\n{}\n{}\n{}", signing_algorithm, time, scope, *hash)));
  if (!signature) return signature.error();
  added.push_back({"authorization", fmt::format("{} Credential={}/{}, SignedHeaders={}, Signature={}", signing_algorithm, by->access_key_id,
                                                scope, canonical.signed_headers, in_hexadecimal(*signature))});
  return added;
}

result<secret_text> signer::key_of(const std::string& day, const std::shared_ptr<const credentials>& by) {
  {
    const std::lock_guard hold(mutex_);
    if (last_.of == by && last_.day == day) return last_.key;
  }
  auto key = derive_key(by->secret_access_key, day, scope_);
  if (!key) return key;
  const std::lock_guard hold(mutex_);
  last_.day = day;
  last_.of = by;
  last_.key = *key;
  return key;
}

std::string signing_time(wall_time at) {
  const auto whole = std::chrono::floor<std::chrono::seconds>(at);
  const auto midnight = std::chrono::floor<std::chrono::days>(whole);
  const std::chrono::year_month_day date(midnight);
  const std::chrono::hh_mm_ss time(whole - midnight);
  return fmt::format("{:04}{:02}{:02}T{:02}{:02}{:02}Z", static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                     static_cast<unsigned>(date.day()), time.hours().count(), time.minutes().count(), time.seconds().count());
}

result<std::string> payload_hash(std::string_view payload) {
  const auto made = sys::sha256(bytes_of_text(payload));
  if (!made) return made.error();
  return in_hexadecimal(*made);
}

std::string in_base64(std::string_view bytes) {
  constexpr std::string_view digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t at = 0; at < bytes.size(); at += 3) {
    std::uint32_t three = 0;
    for (std::size_t i = at; i < at + 3; ++i) three = three << 8 | (i < bytes.size() ? static_cast<unsigned char>(bytes[i]) : 0U);
    for (std::size_t i = 0; i < 4; ++i) text.push_back(at + i <= bytes.size() ? digits[three >> (18 - 6 * i) & 63] : '=');
  }
  return text;
}

result<std::string> content_md5(std::string_view payload) {
  const auto made = sys::md5(bytes_of_text(payload));
  if (!made) return made.error();
  return in_base64({reinterpret_cast<const char*>(made->data()), made->size()});
}

canonical_request make_canonical(const signed_request& request, const std::vector<header>& headers) {
  canonical_request made;
  made.text = fmt::format("{}\n{}\n{}\n", request.method, request.address.path, canonical_query(request.address.query.unredacted()));
  for (const auto& [name, value] : in_signing_order(request.address, headers)) {
    made.text += fmt::format("{}:{}\n", name, value);
    made.signed_headers += fmt::format("{}{}", made.signed_headers.empty() ? "" : ";", name);
  }
  made.text += fmt::format("\n{}\n{}", made.signed_headers, request.payload_hash);
  return made;
}

}  // namespace penstock::source::remote
