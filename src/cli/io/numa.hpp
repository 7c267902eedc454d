// Where threads run. Free functions; safe from any thread.
#pragma once

#include "penstock/status.hpp"

namespace penstock::cli {

// The calling thread, and those it starts, run on cores of this NUMA node only, of those that the process may use.
// Errors: not_found where there is no such node, or none of its cores may be used; os errors.
status run_on_node(int node);

}  // namespace penstock::cli
