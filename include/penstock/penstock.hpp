// Includes the whole C++ interface: #include <penstock/penstock.hpp>
#pragma once

#include "penstock/engine.hpp"            // IWYU pragma: export
#include "penstock/facts.hpp"             // IWYU pragma: export
#include "penstock/file_kinds.hpp"        // IWYU pragma: export
#include "penstock/gguf.hpp"              // IWYU pragma: export
#include "penstock/kv.hpp"                // IWYU pragma: export
#include "penstock/machine.hpp"           // IWYU pragma: export
#include "penstock/model.hpp"             // IWYU pragma: export
#include "penstock/options.hpp"           // IWYU pragma: export
#include "penstock/pending_file.hpp"      // IWYU pragma: export
#include "penstock/processes.hpp"         // IWYU pragma: export
#include "penstock/quiesce.hpp"           // IWYU pragma: export
#include "penstock/remote_retries.hpp"    // IWYU pragma: export
#include "penstock/status.hpp"            // IWYU pragma: export
#include "penstock/tensors.hpp"           // IWYU pragma: export
#include "penstock/torch_checkpoint.hpp"  // IWYU pragma: export
#include "penstock/tree.hpp"              // IWYU pragma: export
#include "penstock/version.hpp"           // IWYU pragma: export
