// Binds threads to NUMA nodes. Free functions; thread-safe.
#pragma once

#include "penstock/status.hpp"

namespace penstock::cli {

// Restricts the calling thread, and threads that it starts, to the usable cores of this NUMA node.
// Errors: not_found if the node does not exist or none of its cores may be used; os errors.
status run_on_node(int node);

}  // namespace penstock::cli
