#include "cufile/settings_keys.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace penstock::cufile {

namespace {

using enum key_kind;

constexpr std::size_t max_slabs = 64;

std::optional<std::size_t> parse_size(std::string_view text) {
  std::size_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

std::optional<bool> parse_flag(std::string_view text) {
  for (const std::string_view yes : {"true", "1", "yes", "on"}) {
    if (same_word(text, yes)) return true;
  }
  for (const std::string_view no : {"false", "0", "no", "off"}) {
    if (same_word(text, no)) return false;
  }
  return {};
}

// "7" or "0x1f"
std::optional<std::uint64_t> parse_number(std::string_view text) {
  const bool is_hex = text.starts_with("0x") || text.starts_with("0X");
  if (is_hex) text.remove_prefix(2);
  std::uint64_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value, is_hex ? 16 : 10);
  if (problem != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

bool is_address(const std::string& text) {
  std::array<unsigned char, sizeof(in6_addr)> bytes{};
  return inet_pton(AF_INET, text.c_str(), bytes.data()) == 1 || inet_pton(AF_INET6, text.c_str(), bytes.data()) == 1;
}

void note(const key& where, std::string text, settings& target) {
  if (same_word(text, where.standard)) {
    target.changed.erase(where.name);
  } else {
    target.changed[where.name] = std::move(text);
  }
}

std::vector<std::string_view> words_of(std::string_view text) {
  std::vector<std::string_view> words;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    words.push_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return words;
}

std::vector<std::size_t> parse_sizes(std::string_view text) {
  std::vector<std::size_t> sizes;
  for (const auto word : words_of(text)) sizes.push_back(parse_size(word).value_or(0));
  return sizes;
}

bool is_choice(const key& where, std::string_view word) {
  const auto all = words_of(where.choices);
  return all.empty() || std::ranges::any_of(all, [&](auto choice) { return same_word(choice, word); });
}

// "NOTICE, ERROR or TRACE"
std::string choices_text(const key& where) {
  const auto all = words_of(where.choices);
  return fmt::format("{} or {}", fmt::join(all.begin(), all.end() - 1, ", "), all.back());
}

}  // namespace

bool same_word(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

std::string expected_size(const key& where) {
  const auto what = where.step == 1 ? std::string("a whole number") : fmt::format("a multiple of {}", where.step);
  if (where.range.most == 0) return fmt::format("expected {} from {}", what, where.range.least);
  return fmt::format("expected {} from {} to {}", what, where.range.least, where.range.most);
}

refusal store_size(const key& where, std::size_t value, settings& target) {
  if (!where.range.holds(value) || value % where.step != 0) return expected_size(where);
  if (where.parameter >= 0) target.sizes[static_cast<std::size_t>(where.parameter)] = value;
  note(where, fmt::format("{}", value), target);
  return {};
}

// The only key with a limit is the log size, in MiB.
refusal store_limit(const key& where, std::optional<std::size_t> value, settings& target) {
  if (value && !where.range.holds(*value)) return expected_size(where) + ", or -1";
  note(where, value ? fmt::format("{}", *value) : "-1", target);
  target.log_max_bytes = value ? std::uint64_t{*value} << 20 : std::numeric_limits<std::uint64_t>::max();
  return {};
}

refusal store_flag(const key& where, bool value, settings& target) {
  if (where.parameter >= 0) target.flags[static_cast<std::size_t>(where.parameter)] = value;
  if (where.name == "fs.generic.posix_unaligned_writes") target.posix_unaligned_writes = value;
  note(where, value ? "true" : "false", target);
  return {};
}

refusal store_word(const key& where, std::string value, settings& target) {
  if (value.find('\0') != std::string::npos) return "expected a string without NUL bytes";
  if (!is_choice(where, value)) return "expected " + choices_text(where);
  note(where, value, target);
  if (where.parameter >= 0) target.words[static_cast<std::size_t>(where.parameter)] = std::move(value);
  return {};
}

namespace {

// Returns null if the key is not a denylist.
std::vector<std::string>* deny_list(const key& where, deny_lists& in) {
  if (where.name == "denylist.drivers") return &in.drivers;
  if (where.name == "denylist.devices") return &in.devices;
  if (where.name == "denylist.mounts") return &in.mounts;
  return where.name == "denylist.filesystems" ? &in.filesystems : nullptr;
}

}  // namespace

refusal store_list(const key& where, std::vector<std::string> value, settings& target) {
  if (!std::ranges::all_of(value, [&](const std::string& word) { return is_choice(where, word); })) {
    return "expected each string to be " + choices_text(where);
  }
  note(where, fmt::format("{}", fmt::join(value, " ")), target);
  if (auto* const denied = deny_list(where, target.denied)) *denied = std::move(value);
  return {};
}

refusal store_addresses(const key& where, const std::vector<std::string>& value, settings& target) {
  if (!std::ranges::all_of(value, is_address)) return "expected a list of IP addresses";
  note(where, fmt::format("{}", fmt::join(value, " ")), target);
  return {};
}

refusal store_table(const key& where, const std::string& text, settings& target) {
  note(where, text, target);
  return {};
}

refusal store_number(const key& where, std::string_view text, settings& target) {
  const auto value = parse_number(text);
  if (!value) return "expected a whole number";
  note(where, value == parse_number(where.standard) ? std::string(where.standard) : std::string(text), target);
  return {};
}

slab_pool pool_of(const key& where) {
  const bool posix = where.parameter == CUFILE_PARAM_POSIX_POOL_SLAB_SIZE_KB || where.parameter == CUFILE_PARAM_POSIX_POOL_SLAB_COUNT;
  return posix ? slab_pool::posix : slab_pool::gpu_bounce;
}

refusal store_slabs(const key& where, std::vector<std::size_t> value, settings& target) {
  if (value.empty() || value.size() > max_slabs) return fmt::format("expected 1 to {} whole numbers", max_slabs);
  if (where.kind == slab_sizes) {
    const bool fits = std::ranges::all_of(value, [&](std::size_t each) { return each > 0 && each % where.step == 0; });
    const bool grows = std::ranges::adjacent_find(value, std::ranges::greater_equal()) == value.end();
    if (!fits || !grows) return fmt::format("expected multiples of {} in increasing order", where.step);
  }
  note(where, fmt::format("{}", fmt::join(value, " ")), target);
  slab_array& slabs = target.slabs(pool_of(where));
  (where.kind == slab_sizes ? slabs.sizes_kb : slabs.counts) = std::move(value);
  return {};
}

refusal store_text(const key& where, std::string_view text, settings& target) {
  switch (where.kind) {
    case size:
      if (const auto value = parse_size(text)) return store_size(where, *value, target);
      return expected_size(where);
    case limit:
      if (text == "-1") return store_limit(where, {}, target);
      return store_limit(where, parse_size(text).value_or(0), target);
    case flag:
      if (const auto value = parse_flag(text)) return store_flag(where, *value, target);
      return "expected true or false";
    case word:
      return store_word(where, std::string(text), target);
    case slab_sizes:
    case slab_counts:
      return store_slabs(where, parse_sizes(text), target);
    case number:
      return store_number(where, text, target);
    case list:
    case addresses:
    case table:
      return {};  // no defaults are stored, and no variable sets tables
  }
  return {};
}

}  // namespace penstock::cufile
