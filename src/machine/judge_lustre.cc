// Judges the facts from gather_lustre according to NVIDIA's guides to GPUDirect Storage (best practices, "EXAScaler"; troubleshooting,
// "EXAScaler File System Performance").
#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "machine/examine.hpp"

namespace penstock::machine {

namespace {

// Adds one finding for all bad values.
template <class Bad>
void judge_values(std::string_view id, const std::vector<lustre_value>& all, std::string_view what, Bad bad, findings& out) {
  const auto is_bad = [&](const lustre_value& each) { return bad(each.value); };
  const auto first = std::ranges::find_if(all, is_bad);
  if (first == all.end()) return;
  const auto target = fmt::format("{} of {} {} ({}, ...)", std::ranges::count_if(all, is_bad), all.size(), what, first->owner);
  out.add(id, {}, {{"target", target}, {"value", std::to_string(first->value)}});
}

void judge_parameters(const lustre_facts& known, findings& out) {
  const auto below = [](std::uint64_t least) { return [least](std::uint64_t value) { return value < least; }; };
  const auto is_on = [](std::uint64_t value) { return value != 0; };
  judge_values("fs.lustre_pages", known.pages_per_rpc, "targets", below(4096), out);
  judge_values("fs.lustre_rpcs", known.rpcs_in_flight, "targets", below(32), out);
  judge_values("fs.lustre_checksums", known.checksums, "targets", is_on, out);
  judge_values("fs.lustre_dirty", known.dirty_mib, "targets", below(512), out);
  judge_values("fs.lustre_idle", known.idle_timeout_s, "targets", is_on, out);
  judge_values("fs.lustre_read_ahead", known.read_ahead_mib, "mounts", below(2048), out);
}

// The default is one partition per NUMA node.
void judge_partitions(const lustre_facts& known, findings& out) {
  if (!known.cpu_partitions || !known.cpu_pattern) return;
  const bool by_node = *known.cpu_partitions == 0 && *known.cpu_pattern == "N";
  const auto pattern = known.cpu_pattern->empty() ? std::string("no pattern") : "the pattern " + *known.cpu_pattern;
  out.add(by_node ? "fs.lustre_partitions_few" : "fs.lustre_partitions", {},
          {{"count", *known.cpu_partitions == 0 ? std::string("a default number of") : std::to_string(*known.cpu_partitions)},
           {"pattern", pattern}});
}

// Returns the InfiniBand interfaces: ib0 and ib1 for "o2ib0(ib0,ib1),tcp0(eth0)". A net without a list uses the first interface.
std::vector<std::string> infiniband_interfaces(const std::string& networks) {
  std::vector<std::string> all;
  for (std::size_t at = networks.find("o2ib"); at != std::string::npos; at = networks.find("o2ib", at + 1)) {
    const auto end = std::min(networks.find_first_of("(,", at), networks.size());
    if (end == networks.size() || networks[end] == ',') {
      all.push_back(networks.substr(at, end - at));
      continue;
    }
    for (const auto& each : words_of(networks.substr(end + 1, networks.find(')', end) - end - 1), ',')) all.push_back(trimmed(each));
  }
  return all;
}

void judge_networks(const platform_facts& platform, const lustre_facts& known, findings& out) {
  const auto ports =
      std::ranges::count_if(platform.ports, [](const auto& each) { return each.port.active() && each.link_mode == "InfiniBand"; });
  if (!known.networks || ports == 0) return;
  if (known.networks->empty()) return out.add("fs.lustre_ports_unknown");
  const auto used = infiniband_interfaces(*known.networks);
  const bool all = std::ssize(used) >= ports;
  out.add(all ? "fs.lustre_ports" : "fs.lustre_ports_few", {},
          {{"used", used.empty() ? "none" : fmt::format("{}", fmt::join(used, ", "))}, {"count", std::to_string(ports)}});
}

// Returns the values that differ from the guide. 0 leaves the choice to the module, except for map_on_demand.
std::vector<std::string> few_credits(const lustre_facts& known) {
  std::vector<std::string> few;
  const auto look = [&](std::string_view name, const std::optional<std::uint64_t>& value, std::uint64_t least) {
    if (value && *value > 0 && *value < least) few.push_back(fmt::format("{} {}", name, *value));
  };
  look("peer_credits", known.peer_credits, 32);
  look("concurrent_sends", known.concurrent_sends, 64);
  look("peer_credits_hiw", known.peer_credits_hiw, 16);
  if (known.map_on_demand && *known.map_on_demand > 0) few.push_back(fmt::format("map_on_demand {}", *known.map_on_demand));
  return few;
}

}  // namespace

findings judge_lustre(const platform_facts& platform, const lustre_facts& known) {
  findings out;
  judge_parameters(known, out);
  judge_partitions(known, out);
  judge_networks(platform, known, out);
  if (const auto few = few_credits(known); !few.empty()) {
    out.add("fs.lustre_credits", {}, {{"values", fmt::format("{}", fmt::join(few, ", "))}});
  } else if (known.peer_credits) {
    out.add("fs.lustre_credits_enough", {}, {{"count", std::to_string(*known.peer_credits)}});
  }
  return out;
}

}  // namespace penstock::machine
