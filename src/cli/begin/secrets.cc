#include "cli/begin/secrets.hpp"

#include <algorithm>
#include <array>
#include <cstddef>

namespace penstock::cli {
namespace {

using namespace std::string_view_literals;

constexpr std::string_view blanks = " \t\r\n";
constexpr std::string_view ends_of_url = " \t\r\n\"'<>|\\\0"sv;

char lower_letter(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; }

std::string in_lower_case(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), lower_letter);
  return out;
}

bool is_of_name(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.';
}

std::size_t end_of(std::string_view text, std::size_t from, std::string_view ends) {
  return std::min(text.find_first_of(ends, from), text.size());
}

// Removes the user information and the query from a URL such as "https://user:word@host/path?X-Amz-Signature=...".
std::string url_without_secrets(std::string_view url) {
  const std::size_t begin = url.find("://") + 3;
  std::string out(url.substr(0, begin));
  std::string_view rest = url.substr(begin);
  const std::size_t query = rest.find_first_of("?#");
  const bool has_query = query != std::string_view::npos;
  const std::string_view place = rest.substr(0, query);
  // A password that is not escaped may contain '/' or '@', so the host starts after the last '@'.
  const std::size_t at = place.rfind('@');
  if (at != std::string_view::npos) out += removed_mark;
  out += at == std::string_view::npos ? place : place.substr(at);
  if (has_query) out.append(1, rest[query]).append(removed_mark);
  return out;
}

std::string without_secret_urls(std::string_view text) {
  std::string out;
  std::size_t done = 0;
  for (std::size_t at = text.find("://"); at != std::string_view::npos; at = text.find("://", done)) {
    const std::size_t end = end_of(text, at, ends_of_url);
    out.append(text.substr(done, at - done)).append(url_without_secrets(text.substr(at, end - at)));
    done = end;
  }
  return out.append(text.substr(done));
}

// Returns the position after the bracket or quote that closes the one at `from`; the end of the text if nothing closes it.
std::size_t end_of_enclosed(std::string_view text, std::size_t from) {
  const char open = text[from];
  const char close = open == '[' ? ']' : open == '{' ? '}' : open;
  int depth = 0;
  for (std::size_t i = from; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == close && (open == close ? i > from : --depth == 0)) {
      return i + 1;
    } else if (text[i] == open) {
      ++depth;
    }
  }
  return text.size();
}

// Specifies where a value ends; depends on how its name is written.
enum class value_form {
  line,  // at the end of the line: after the colon of a header ("Authorization: Basic x"), or "password = two words"
  word,  // at a space: "password=a;b" on a command line
  item,  // at the end of a JSON item
};

// Text that directly follows a closing quote or bracket belongs to the value, as in a shell.
std::size_t end_of_value(std::string_view text, std::size_t from, value_form form) {
  if (from >= text.size()) return text.size();
  const bool is_enclosed = std::string_view("\"'[{").find(text[from]) != std::string_view::npos;
  const std::size_t behind = is_enclosed ? end_of_enclosed(text, from) : from;
  if (form == value_form::item) return is_enclosed ? behind : end_of(text, behind, " \t\r\n,;&}]\0"sv);
  return end_of(text, behind, form == value_form::line ? "\r\n\0"sv : " \t\r\n\0"sv);
}

bool says_nothing(std::string_view value) {
  return value == "true" || value == "false" || value == "null" || value == "[]" || value == "{}";
}

std::string without_secret_values(std::string_view text) {
  std::string out;
  std::size_t done = 0;
  for (std::size_t at = 0; at < text.size();) {
    if (!is_of_name(text[at])) {
      ++at;
      continue;
    }
    std::size_t end = at;
    while (end < text.size() && is_of_name(text[end])) ++end;
    const bool is_secret = names_secret(text.substr(at, end - at));
    at = end;
    if (!is_secret) continue;
    const bool is_quoted = end < text.size() && (text[end] == '"' || text[end] == '\'');
    if (is_quoted) ++end;
    const std::size_t sign = std::min(text.find_first_not_of(" \t", end), text.size());
    if (sign == text.size() || (text[sign] != '=' && text[sign] != ':')) continue;
    const std::size_t value = std::min(text.find_first_not_of(text[sign] == ':' ? " \t\r\n" : " \t", sign + 1), text.size());
    const bool stands_apart = sign > end || value > sign + 1;
    const auto form = is_quoted ? value_form::item : text[sign] == ':' || stands_apart ? value_form::line : value_form::word;
    const std::size_t value_end = end_of_value(text, value, form);
    if (value_end == value || says_nothing(text.substr(value, value_end - value))) continue;
    out.append(text.substr(done, value - done)).append(removed_mark);
    at = done = value_end;
  }
  return out.append(text.substr(done));
}

bool is_letter_or_digit(char c) { return is_of_name(c) && c != '_' && c != '-' && c != '.'; }

// Prefixes of known keys and tokens: Amazon, JSON web tokens, Hugging Face, GitHub, GitLab, Google, OpenAI and others, Slack, NVIDIA, npm,
// PyPI, DigitalOcean, SendGrid, Stripe, Databricks, Vault, Docker, Replicate, Groq and age.
constexpr std::array beginnings_of_tokens{
    "AKIA"sv,      "ASIA"sv,   "ABIA"sv,     "ACCA"sv,           "AROA"sv,     "eyJ"sv,         "hf_"sv,    "api_org_"sv,
    "ghp_"sv,      "gho_"sv,   "ghu_"sv,     "ghs_"sv,           "ghr_"sv,     "github_pat_"sv, "glpat-"sv, "gldt-"sv,
    "glrt-"sv,     "glptt-"sv, "glcbt-"sv,   "glft-"sv,          "gloas-"sv,   "AIza"sv,        "ya29."sv,  "GOCSPX-"sv,
    "GOOG1"sv,     "sk-"sv,    "sk_live_"sv, "sk_test_"sv,       "rk_live_"sv, "whsec_"sv,      "xoxa-"sv,  "xoxb-"sv,
    "xoxc-"sv,     "xoxd-"sv,  "xoxe-"sv,    "xoxe."sv,          "xoxo-"sv,    "xoxp-"sv,       "xoxr-"sv,  "xoxs-"sv,
    "xapp-"sv,     "nvapi-"sv, "npm_"sv,     "pypi-"sv,          "dop_v1_"sv,  "SG."sv,         "dapi"sv,   "hvs."sv,
    "dckr_pat_"sv, "r8_"sv,    "gsk_"sv,     "AGE-SECRET-KEY-"sv};

// Names of folders and options may have the same prefixes; unlike tokens, short ones have no digit or capital letter after the prefix.
std::size_t token_length(std::string_view text) {
  constexpr std::size_t least = 12;
  std::size_t length = 0;
  while (length < text.size() && is_of_name(text[length])) ++length;
  const std::string_view word = text.substr(0, length);
  const bool is_token = std::ranges::any_of(beginnings_of_tokens, [&](std::string_view each) { return word.starts_with(each); });
  if (length < least || !is_token) return 0;
  const bool is_drawn = std::ranges::any_of(word.substr(4), [](char c) { return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z'); });
  return is_drawn || length >= 24 ? length : 0;
}

// Finds "Bearer abc" and "Basic dXNlcjpwdw==" anywhere. Both are also English words, so the text after "basic" must look like base64.
std::size_t authorization_length(std::string_view text) {
  const auto follows = [&](std::string_view word) {
    return text.size() > word.size() && in_lower_case(text.substr(0, word.size())) == word;
  };
  constexpr std::string_view bearer = "bearer ", basic = "basic ";
  if (follows(bearer)) return end_of(text, bearer.size(), blanks);
  if (!follows(basic)) return 0;
  constexpr std::string_view of_base64 = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=_-";
  const std::size_t end = std::min(text.find_first_not_of(of_base64, basic.size()), text.size());
  const std::string_view value = text.substr(basic.size(), end - basic.size());
  const bool is_drawn =
      value.size() >= 8 && value.substr(1).find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789=") != std::string_view::npos;
  return is_drawn ? end : 0;
}

std::string without_tokens(std::string_view text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const bool begins = at == 0 || !is_letter_or_digit(text[at - 1]);
    const std::size_t length = begins ? std::max(token_length(text.substr(at)), authorization_length(text.substr(at))) : 0;
    if (length > 0) {
      out += removed_mark;
      at += length;
    } else {
      out += text[at++];
    }
  }
  return out;
}

std::string without_private_keys(std::string_view text) {
  constexpr std::string_view begin = "-----BEGIN ", kind = "PRIVATE KEY", end = "-----END ";
  std::string out;
  std::size_t done = 0;
  for (std::size_t at = text.find(begin); at != std::string_view::npos; at = text.find(begin, at + 1)) {
    const std::size_t line_end = end_of(text, at, "\n");
    if (at < done || text.substr(at, line_end - at).find(kind) == std::string_view::npos) continue;
    const std::size_t last = std::min(text.find(end, at), text.size());
    out.append(text.substr(done, at - done)).append(removed_mark);
    done = end_of(text, last, "\n");
  }
  return out.append(text.substr(done));
}

// Returns true if a word begins here: after a separator, or at a capital letter after a lower-case letter ("s3.key", "sharedKey").
bool begins_word(std::string_view name, std::size_t at) {
  if (at == 0 || name[at - 1] == '_' || name[at - 1] == '-' || name[at - 1] == '.') return true;
  return lower_letter(name[at]) != name[at] && lower_letter(name[at - 1]) == name[at - 1];
}

}  // namespace

bool names_secret(std::string_view name) {
  constexpr std::array<std::string_view, 13> words{"secret",     "password",      "passwd",     "passphrase", "token",
                                                   "credential", "signature",     "access_key", "accesskey",  "apikey",
                                                   "api_key",    "authorization", "private_key"};
  const std::string lower = in_lower_case(name);
  // These count only as whole words at the end, because other words contain them: "keyboard", "bypass", "author", "design".
  for (const std::string_view last : {"key", "pass", "auth", "sig"}) {
    if (lower.ends_with(last) && begins_word(name, name.size() - last.size())) return true;
  }
  if (lower.ends_with("pwd") || lower.ends_with("cookie")) return true;
  return std::ranges::any_of(words, [&](std::string_view each) { return lower.find(each) != std::string::npos; });
}

std::string without_secrets(std::string_view text) {
  return without_tokens(without_secret_values(without_secret_urls(without_private_keys(text))));
}

}  // namespace penstock::cli
