// Prints the findings of penstock check as text.
#include <fmt/format.h>

#include <string_view>
#include <utility>

#include "cli/common/check_machine.hpp"
#include "cli/common/say.hpp"
#include "machine/summary.hpp"
#include "machine/topology.hpp"

namespace penstock::cli {
namespace {

using machine::finding;
using machine::verdict;

std::string_view colour_of(verdict of) {
  constexpr std::string_view colours[] = {"\x1b[32m", "\x1b[33m", "\x1b[31m", "\x1b[36m"};
  return colours[static_cast<std::size_t>(of)];
}

void print_finding(const finding& each, bool coloured) {
  const auto word = fmt::format("{:<8}", to_string(each.verdict));
  const auto shown_word = coloured ? fmt::format("{}{}\x1b[0m", colour_of(each.verdict), word) : word;
  say_hanging(9, "  {} {}{}\n", as_is{shown_word}, each.subject.empty() ? "" : each.subject + ": ", each.reason);
  if (!each.remedy.empty()) say_hanging(3, "           -> {}\n", each.remedy);
}

std::string_view title_of(machine::group of) {
  constexpr std::string_view titles[] = {"platform", "libraries", "file systems"};
  return titles[static_cast<std::size_t>(of)];
}

void print_versions(const machine_report& report) {
  say("versions\n");
  for (const auto& [name, found] : versions(report)) say("  {:<17}{}\n", name, found.empty() ? "none" : found);
}

void print_topology(const machine_report& report) {
  say("topology\n");
  const auto all = machine::neighbours(report.platform);
  for (const auto& each : all) {
    say("  GPU {}  {:<8} {}: {}{}\n", each.gpu, each.what, each.peer, each.relation, each.shared.empty() ? "" : ", " + each.shared);
  }
  if (all.empty()) say("  no pairs of an NVIDIA GPU and a network card or NVMe drive\n");
}

constexpr std::string_view catalogue_beginning = R"(# Findings of penstock check
<!-- Generated: penstock check --findings > docs/reference/check.md -->

```sh
penstock check                # this machine; -q: only what needs attention
penstock check --json         # for programs; the names below are stable
```

| verdict | meaning |
|---|---|
| ok | nothing to do |
| slow | works, but could be faster |
| broken | does not work, or blocks another part: exit code 3 |
| unknown | could not be determined, often because only root has access |

The last line summarizes the findings for your machine. The tables list each finding with its name and its remedy; `{...}` stands for a value
from your machine. [All options](commands.md#penstock-check). The advice on NVIDIA's software follows NVIDIA's guides; nvidia-fs, ACS, Lustre,
WekaFS and VAST are tested only on recorded machines: experimental, not yet run on hardware.
)";

// Escapes text for a cell of a Markdown table.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) c == '|' ? out += "\\|" : out += c;
  return out;
}

}  // namespace

void print_findings(const std::vector<finding>& all, bool quiet) {
  const bool coloured = has_colour();
  for (const auto of : {machine::group::platform, machine::group::libraries, machine::group::file_systems}) {
    bool titled = false;
    for (const auto& each : all) {
      if (each.where != of || (quiet && (each.verdict == verdict::ok || each.verdict == verdict::unknown))) continue;
      if (!titled) say("{}\n", title_of(of));
      titled = true;
      print_finding(each, coloured);
    }
  }
}

void print_report(const machine_report& report, const machine_view& view) {
  if (view.versions) print_versions(report);
  if (view.topology) print_topology(report);
  if (!view.findings) return;
  print_findings(report.findings.all(), view.quiet);
  const auto& found = report.findings;
  if (!view.quiet) {
    say("{} ok, {} slow, {} broken, {} unknown\n", found.count(verdict::ok), found.count(verdict::slow), found.count(verdict::broken),
        found.count(verdict::unknown));
    say("{}\n", machine::summary(report.platform, found));
  }
}

void print_catalogue() {
  put_exactly(catalogue_beginning);
  for (const auto& [of, title] : {std::pair(machine::group::platform, "Platform"), std::pair(machine::group::libraries, "Libraries"),
                                  std::pair(machine::group::file_systems, "File systems")}) {
    put_exactly(fmt::format("\n## {}\n| finding | verdict | message | remedy |\n|---|---|---|---|\n", title));
    for (const auto& each : machine::all_findings()) {
      if (each.where == of)
        put_exactly(fmt::format("| `{}` | {} | {} | {} |\n", each.id, to_string(each.verdict), cell(each.reason), cell(each.remedy)));
    }
  }
}

nlohmann::json catalogue_json() {
  auto out = nlohmann::json::array();
  for (const auto& each : machine::all_findings())
    out.push_back({{"id", each.id}, {"verdict", to_string(each.verdict)}, {"reason", each.reason}, {"remedy", each.remedy}});
  return out;
}

}  // namespace penstock::cli
