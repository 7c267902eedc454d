// Summarizes the findings in one or two sentences. Free functions; thread-safe.
#pragma once

#include <string>

#include "machine/finding.hpp"
#include "machine/platform_facts.hpp"

namespace penstock::machine {

// Returns text such as "Everything that matters is fine: expect up to 55 GB/s from the page cache into the GPU (its PCIe link)."
std::string summary(const platform_facts& known, const findings& found);

}  // namespace penstock::machine
