#include "machine/finding.hpp"

#include <algorithm>
#include <cstdlib>

namespace penstock::machine {

namespace {

std::string filled(std::string_view pattern, facts known) {
  std::string text(pattern);
  for (const auto& [name, value] : known) {
    const std::string place = "{" + std::string(name) + "}";
    for (auto at = text.find(place); at != std::string::npos; at = text.find(place, at + value.size())) {
      text.replace(at, place.size(), value);
    }
  }
  return text;
}

}  // namespace

std::string_view to_string(verdict of) noexcept {
  constexpr std::string_view names[] = {"ok", "slow", "broken", "unknown"};
  return names[static_cast<std::size_t>(of)];
}

std::string_view to_string(group of) noexcept {
  constexpr std::string_view names[] = {"platform", "libraries", "file_systems"};
  return names[static_cast<std::size_t>(of)];
}

void findings::add(std::string_view id, std::string subject, facts known) {
  const auto entries = all_findings();
  const auto entry = std::ranges::find(entries, id, &known_finding::id);
  if (entry == entries.end()) std::abort();  // a bug: the catalogue lacks this entry
  all_.push_back(
      {std::string(id), entry->where, entry->verdict, std::move(subject), filled(entry->reason, known), filled(entry->remedy, known)});
}

std::size_t findings::count(verdict of) const { return static_cast<std::size_t>(std::ranges::count(all_, of, &finding::verdict)); }

}  // namespace penstock::machine
