// The only place where the environment is read.
#pragma once

#include "path/registry.hpp"
#include "penstock/options.hpp"

namespace penstock::core {

// engine_options::from_environment(), where PENSTOCK_PATH names one of these.
result<engine_options> read_environment(const path::path_table& paths);

}  // namespace penstock::core
