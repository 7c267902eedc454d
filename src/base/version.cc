#include "penstock/version.hpp"

#define PENSTOCK_TEXT_OF(token) #token
#define PENSTOCK_VERSION_TEXT(major, minor, patch) PENSTOCK_TEXT_OF(major) "." PENSTOCK_TEXT_OF(minor) "." PENSTOCK_TEXT_OF(patch)

namespace penstock {

std::string_view version() noexcept {
  return PENSTOCK_VERSION_TEXT(PENSTOCK_VERSION_MAJOR, PENSTOCK_VERSION_MINOR, PENSTOCK_VERSION_PATCH);
}

}  // namespace penstock
