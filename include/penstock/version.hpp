// The version of these headers, and of the library that is loaded.
#pragma once

#include <string_view>

#include "penstock/status.hpp"

#define PENSTOCK_VERSION_MAJOR 0
#define PENSTOCK_VERSION_MINOR 2
#define PENSTOCK_VERSION_PATCH 0

namespace penstock {

// "0.2.0", as built into the library.
PENSTOCK_API std::string_view version() noexcept;

}  // namespace penstock
