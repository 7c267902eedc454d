#include "base/shown_urls.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace penstock {

namespace {

using namespace std::string_view_literals;

constexpr std::string_view between = "://";
constexpr std::string_view ends = " \t\r\n\"'<>\0"sv;

bool is_a_to_z(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_decimal(char c) { return c >= '0' && c <= '9'; }
char small_letter(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

// Returns true if this is a host or host:port.
bool is_plain_host(std::string_view authority) {
  const auto colon = authority.ends_with(']') ? std::string_view::npos : authority.rfind(':');
  const auto host = authority.substr(0, colon);
  const auto is_of_host = [](char c) { return is_a_to_z(c) || is_decimal(c) || "-._[]:%"sv.find(c) != std::string_view::npos; };
  return std::ranges::all_of(host, is_of_host) &&
         (colon == std::string_view::npos || std::ranges::all_of(authority.substr(colon + 1), is_decimal));
}

bool has_credential(std::string_view query) {
  constexpr std::array words{"signature="sv, "sig="sv, "token="sv, "credential="sv, "password="sv, "secret="sv, "key="sv};
  std::string small(query);
  std::ranges::transform(small, small.begin(), small_letter);
  return std::ranges::any_of(words, [&](std::string_view each) { return small.find(each) != std::string::npos; });
}

// Returns the scheme before "://", unchanged.
std::string_view scheme_before(std::string_view text) {
  std::size_t begin = text.size();
  while (begin > 0 &&
         (is_a_to_z(text[begin - 1]) || is_decimal(text[begin - 1]) || "+-."sv.find(text[begin - 1]) != std::string_view::npos))
    --begin;
  return text.substr(begin);
}

// Returns the text to show for the part of a URL after "://".
std::string shown_rest(std::string_view rest, bool has_query) {
  const auto query = rest.find_first_of("?#");
  const bool is_cut = query != std::string_view::npos && (has_query || has_credential(rest.substr(query)));
  const auto place = is_cut ? rest.substr(0, query) : rest;
  const auto slash = std::min(place.find('/'), place.size());
  auto at = place.substr(0, slash).rfind('@');
  // A password may contain a slash.
  if (at == std::string_view::npos && !is_plain_host(place.substr(0, slash))) at = place.rfind('@');
  std::string made = at == std::string_view::npos ? std::string(place) : "..." + std::string(place.substr(at));
  if (!is_cut) return made;
  // Keeps the punctuation of the surrounding sentence.
  const auto last = rest.find_last_not_of(":,;)]}.");
  return made.append(rest.substr(std::max(query, last == std::string_view::npos ? 0 : last + 1)));
}

}  // namespace

std::string without_url_secrets(std::string_view text) {
  std::string made;
  std::size_t done = 0;
  for (auto at = text.find(between); at != std::string_view::npos; at = text.find(between, done)) {
    const auto begin = at + between.size();
    const auto end = std::min(text.find_first_of(ends, begin), text.size());
    const auto scheme = scheme_before(text.substr(done, at - done));
    const bool is_by_name = scheme.starts_with("s3") || scheme.starts_with("S3") || scheme == "gs" || scheme == "gcs" || scheme == "hf";
    made.append(text.substr(done, begin - done)).append(shown_rest(text.substr(begin, end - begin), !is_by_name));
    done = end;
  }
  return made.append(text.substr(done));
}

}  // namespace penstock
