#include "cli/common/progress_line.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "cli/common/sizes.hpp"

namespace penstock::cli {
namespace {

constexpr std::size_t least_bar = 8;
constexpr std::size_t most_bar = 40;
constexpr std::size_t least_name = 8;  // shorter pieces of a name are useless
constexpr double least_seconds = 0.2;  // speeds over a shorter time are too noisy

std::string time_left(double seconds) {
  const auto whole = static_cast<std::uint64_t>(std::min(seconds + 0.5, 359999.0));  // less than 100 hours
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

std::string figures_of(const progress_facts& facts, double part) {
  std::string text = fmt::format("{:3.0f}% of {}", part * 100, format_size(facts.total_bytes));
  if (facts.seconds < least_seconds || facts.done_bytes <= facts.first_byte) return text;
  const double speed = static_cast<double>(facts.done_bytes - facts.first_byte) / facts.seconds;
  text += fmt::format("  {:.2f} GB/s", speed / 1e9);
  const std::uint64_t left = facts.total_bytes - std::min(facts.done_bytes, facts.total_bytes);
  return text + fmt::format("  {} left", time_left(static_cast<double>(left) / speed));
}

// Keeps the end of a name, which is more specific than its beginning.
std::string shortened(std::string_view name, std::size_t columns) {
  if (name.size() <= columns) return std::string(name);
  return fmt::format("...{}", name.substr(name.size() - (columns - 3)));
}

}  // namespace

std::string progress_line(const progress_facts& facts, std::size_t columns) {
  const double part = std::min(1.0, static_cast<double>(facts.done_bytes) / static_cast<double>(facts.total_bytes));
  const std::string figures = figures_of(facts, part);
  std::string line(facts.phase);
  std::size_t used = line.size() + 1 + figures.size();
  if (used + least_name + 1 <= columns) {
    const std::size_t whole_bar = least_bar + 3;
    const bool both = used + least_name + 1 + whole_bar <= columns;
    line += " " + shortened(facts.name, columns - used - 1 - (both ? whole_bar : 0));
    used = line.size() + 1 + figures.size();
  }
  if (used + least_bar + 3 <= columns) {
    const std::size_t width = std::min(most_bar, columns - used - 3);
    const auto filled = static_cast<std::size_t>(part * static_cast<double>(width));
    line += fmt::format(" [{}{}]", std::string(filled, '#'), std::string(width - filled, '.'));
  }
  line += " " + figures;
  return line.substr(0, columns);
}

}  // namespace penstock::cli
