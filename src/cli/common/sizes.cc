#include "cli/common/sizes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <limits>

namespace penstock::cli {
namespace {

struct unit {
  std::string_view name;  // lower case
  std::uint64_t bytes;
};

constexpr std::uint64_t ki = 1024;
constexpr std::array<unit, 14> units{{{"", 1},
                                      {"b", 1},
                                      {"k", ki},
                                      {"kib", ki},
                                      {"kb", 1000},
                                      {"m", ki* ki},
                                      {"mib", ki* ki},
                                      {"mb", 1000 * 1000},
                                      {"g", ki* ki* ki},
                                      {"gib", ki* ki* ki},
                                      {"gb", 1000 * 1000 * 1000},
                                      {"t", ki* ki* ki* ki},
                                      {"tib", ki* ki* ki* ki},
                                      {"tb", 1000ULL * 1000 * 1000 * 1000}}};

status bad_size(std::string_view text, std::string_view why) {
  return {errc::invalid_argument, fmt::format("\"{}\" is not a size: {}", text, why)};
}

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

std::string_view digits_of(std::string_view text) { return text.substr(0, std::min(text.find_first_not_of("0123456789"), text.size())); }

// Returns the bytes in 0.DECIMALS of a unit, rounded down. Starts at the last digit to avoid overflow and loss of precision.
std::uint64_t fraction_of(std::string_view decimals, std::uint64_t unit_bytes) {
  std::uint64_t bytes = 0;
  for (auto digit = decimals.rbegin(); digit != decimals.rend(); ++digit) {
    bytes = (static_cast<std::uint64_t>(*digit - '0') * unit_bytes + bytes) / 10;
  }
  return bytes;
}

}  // namespace

result<std::uint64_t> parse_size(std::string_view text) {
  // File offsets, and so sizes, are limited to signed 64-bit integers.
  constexpr std::uint64_t most = std::numeric_limits<std::int64_t>::max();
  std::uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc::invalid_argument) return bad_size(text, "it must begin with a digit");
  std::string_view suffix = text.substr(static_cast<std::size_t>(end - text.data()));
  const bool has_point = suffix.starts_with('.');
  const std::string_view decimals = has_point ? digits_of(suffix.substr(1)) : std::string_view();
  if (has_point && decimals.empty()) return bad_size(text, "a digit must follow the decimal point");
  suffix.remove_prefix(has_point ? 1 + decimals.size() : 0);
  const auto* found = std::find_if(units.begin(), units.end(), [name = lower(suffix)](const unit& u) { return u.name == name; });
  if (found == units.end()) return bad_size(text, "valid units are B, k, KiB, KB, M, MiB, MB, G, GiB, GB, T, TiB, TB");
  if (has_point && found->bytes == 1) return bad_size(text, "it must be a whole number of bytes");
  const std::uint64_t fraction = fraction_of(decimals, found->bytes);
  if (error == std::errc::result_out_of_range || number > (most - fraction) / found->bytes) return bad_size(text, "too large");
  return number * found->bytes + fraction;
}

result<std::uint64_t> parse_gdsio_size(std::string_view text) {
  std::string plain = lower(text);
  for (const std::string_view end : {"ib", "b"}) {
    if (plain.size() > end.size() && plain.ends_with(end)) {
      plain.resize(plain.size() - end.size());
      break;
    }
  }
  auto bytes = parse_size(plain);
  if (!bytes)
    return status(errc::invalid_argument,
                  fmt::format("\"{}\" is not a size: expected a number, optionally followed by K, M, G or T", text));
  return *bytes;
}

std::string format_size(std::uint64_t bytes) {
  constexpr std::array<std::string_view, 5> names{"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t index = 0;
  auto value = static_cast<double>(bytes);
  while (value >= 1024 && index + 1 < names.size()) value /= 1024, ++index;
  std::string digits = fmt::format("{:.2f}", value);
  digits.erase(digits.find_last_not_of('0') + 1);
  if (digits.back() == '.') digits.pop_back();
  return fmt::format("{} {}", digits, names[index]);
}

std::string counted(std::uint64_t count, std::string_view one, std::string_view several) {
  if (count == 1) return fmt::format("1 {}", one);
  return several.empty() ? fmt::format("{} {}s", count, one) : fmt::format("{} {}", count, several);
}

}  // namespace penstock::cli
