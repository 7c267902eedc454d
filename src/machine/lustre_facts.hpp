// Settings of a machine's Lustre client. Thread-safe; reads small files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "machine/tree.hpp"

namespace penstock::machine {

// A setting of one target or mount. owner is the name of its folder: "fast-OST0000-osc-ffff0".
struct lustre_value {
  std::string owner;
  std::uint64_t value = 0;
};

struct lustre_facts {
  std::string version;
  // From each target (osc) that exposes the value.
  std::vector<lustre_value> pages_per_rpc, rpcs_in_flight, checksums, dirty_mib, idle_timeout_s;
  std::vector<lustre_value> read_ahead_mib;  // from each mount (llite)
  // Module parameters; empty: the module is not loaded or does not expose the value.
  std::optional<std::uint64_t> cpu_partitions;
  std::optional<std::string> cpu_pattern;
  std::optional<std::string> networks;  // parameter of lnet: "o2ib0(ib0,ib1),tcp(eth0)"; an empty string if lnetctl has set the networks
  std::optional<std::uint64_t> peer_credits, concurrent_sends, peer_credits_hiw, map_on_demand;  // parameters of ko2iblnd
};

lustre_facts gather_lustre(const tree& from);

}  // namespace penstock::machine
