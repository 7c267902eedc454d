// What a request would do, and why.
#pragma once

#include <string_view>

#include "core/request/decide.hpp"
#include "penstock/facts.hpp"

namespace penstock::core {

// What a blocking request on memory of the device of that name would do, and what is worth knowing besides. "" and "host": of the host.
result<plan> explain(runtime& with, file_core& file, std::string_view device, const transfer& what, const io_options& options);

}  // namespace penstock::core
