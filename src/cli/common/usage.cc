#include "cli/common/usage.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <numeric>
#include <utility>

#include "base/output.hpp"

namespace penstock::cli {
namespace {

// Returns the edit distance: the number of letters to change, insert, delete or transpose.
std::size_t distance(std::string_view from, std::string_view to) {
  std::vector<std::size_t> before;
  std::vector<std::size_t> above(to.size() + 1);
  std::iota(above.begin(), above.end(), std::size_t{0});
  for (std::size_t i = 1; i <= from.size(); ++i) {
    std::vector<std::size_t> row(to.size() + 1, i);
    for (std::size_t j = 1; j <= to.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (from[i - 1] == to[j - 1] ? 0 : 1)});
      const bool swapped = i > 1 && j > 1 && from[i - 1] == to[j - 2] && from[i - 2] == to[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
    before = std::exchange(above, std::move(row));
  }
  return above.back();
}

}  // namespace

std::string nearest_name(std::string_view word, const std::vector<std::string>& names) {
  const std::size_t dashes = std::min(word.find_first_not_of('-'), word.size());
  const std::size_t letters = word.size() - dashes;
  std::string best;
  std::size_t fewest = std::max<std::size_t>(1, letters / 3) + 1;
  for (const std::string& name : names) {
    const bool begun = letters >= 2 && name.starts_with(word);
    // Short options such as -x and -y differ in one letter but are unrelated.
    const std::size_t apart = begun ? 0 : name.size() <= dashes + 1 || letters < 2 ? fewest : distance(word, name);
    if (apart < fewest) fewest = apart, best = name;
  }
  return best;
}

std::string suggestion(std::string_view word, const std::vector<std::string>& names) {
  const std::string name = nearest_name(word, names);
  return name.empty() ? name : fmt::format("; did you mean {}?", name);
}

CLI::Validator one_of(std::vector<std::string> names) {
  const std::string list = fmt::format("{}", fmt::join(names, ", "));
  const auto check = [names = std::move(names), list](const std::string& word) {
    const auto is_listed = [&names](std::string_view one) { return std::find(names.begin(), names.end(), one) != names.end(); };
    const bool known = is_listed(word) || (word == "auto" && is_listed("automatic")) || (word == "automatic" && is_listed("auto"));
    return known ? std::string() : fmt::format("\"{}\" is not one of {}{}", word, list, suggestion(word, names));
  };
  return {check, "{" + list + "}"};
}

void add_cache_option(CLI::App& command, std::string& word) {
  const auto rename = [](std::string& name) {
    if (name == "keep") print_error("penstock: --cache keep is deprecated: use --cache fill\n");
    if (name == "keep") name = "fill";
    return std::string();
  };
  command.add_option("--cache", word, "Read uncached bytes through the page cache (fill) or bypass it (bypass)")
      ->transform(CLI::Validator(rename, ""))
      ->check(one_of({"auto", "fill", "bypass"}));
}

CLI::Validator whole_number(std::uint64_t least, std::uint64_t most) {
  return {[least, most](const std::string& word) {
            std::uint64_t number = 0;
            const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
            const bool is_number = error != std::errc::invalid_argument && end == word.data() + word.size();
            if (is_number && error == std::errc() && number >= least && number <= most) return std::string();
            if (most != no_limit) return fmt::format("\"{}\" is not an integer from {} to {}", word, least, most);
            if (is_number && (error != std::errc() || number >= least)) return fmt::format("\"{}\" is too large", word);
            return fmt::format("\"{}\" is not an integer greater than or equal to {}", word, least);
          },
          ""};
}

CLI::Validator number_of_seconds(double least, double most) {
  return {[least, most](const std::string& word) {
            double seconds = 0;
            const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), seconds);
            // Also false for NaN.
            const bool good = error == std::errc() && end == word.data() + word.size() && seconds >= least && seconds <= most;
            return good ? std::string() : fmt::format("\"{}\" is not a number of seconds from {} to {}", word, least, most);
          },
          ""};
}

}  // namespace penstock::cli
