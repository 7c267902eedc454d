// What a request would do, and why.
#pragma once

#include "core/decide.hpp"
#include "penstock/engine.hpp"

namespace penstock::core {

// What a blocking request on such memory would do, and what is worth knowing besides.
result<plan> explain(runtime& with, file_core& file, memory_kind memory, const transfer& what, const io_options& options);

}  // namespace penstock::core
