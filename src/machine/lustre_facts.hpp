// What the client of Lustre on a machine is set to. Thread-safe; reads small files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "machine/tree.hpp"

namespace penstock::machine {

// A number of a target or of a mount; the name is that of its folder: "fast-OST0000-osc-ffff0".
struct lustre_value {
  std::string owner;
  std::uint64_t value = 0;
};

struct lustre_facts {
  std::string version;
  // Of the targets (osc) that show each.
  std::vector<lustre_value> pages_per_rpc, rpcs_in_flight, checksums, dirty_mib, idle_timeout_s;
  std::vector<lustre_value> read_ahead_mib;  // of the mounts (llite)
  // Parameters of the modules; nothing: not loaded, or not shown.
  std::optional<std::uint64_t> cpu_partitions;
  std::optional<std::string> cpu_pattern;
  std::optional<std::string> networks;  // of lnet: "o2ib0(ib0,ib1),tcp(eth0)"; empty where lnetctl has set them
  std::optional<std::uint64_t> peer_credits, concurrent_sends, peer_credits_hiw, map_on_demand;  // of ko2iblnd
};

lustre_facts gather_lustre(const tree& from);

}  // namespace penstock::machine
