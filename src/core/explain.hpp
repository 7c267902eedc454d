// Explains what a request would do, and why.
#pragma once

#include <string_view>

#include "core/request/decide.hpp"
#include "penstock/facts.hpp"

namespace penstock::core {

// Describes what a blocking request on memory of the named device would do, and adds useful remarks. "" and "host" mean host memory.
result<plan> explain(runtime& with, file_core& file, std::string_view device, const transfer& what, const io_options& options);

}  // namespace penstock::core
