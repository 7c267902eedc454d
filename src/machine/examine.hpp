// Turns facts about a machine into findings. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "machine/finding.hpp"
#include "machine/library_facts.hpp"
#include "machine/platform_facts.hpp"
#include "machine/storage_facts.hpp"

namespace penstock::machine {

// Returns text such as "128 GiB" or "8.5 MiB".
std::string bytes_text(std::uint64_t bytes);

findings judge_platform(const platform_facts& known);
// Assesses the RDMA network cards, individually and in relation to the GPUs.
findings judge_network(const platform_facts& known);
findings judge_libraries(const platform_facts& platform, const library_facts& known);
findings judge_lustre(const platform_facts& platform, const lustre_facts& known);
findings judge_file_systems(const platform_facts& platform, const settings_facts& settings, const storage_facts& known);

// of_machine: the findings of the other functions. Holes matter only if P2PDMA reads the file.
findings judge_holes(const findings& of_machine, const mount_facts& mount, const file_facts& file);

}  // namespace penstock::machine
