// Where an answer of 300 to 399 sends its reader, and whether that may be followed.
#pragma once

#include <string_view>

#include "penstock/status.hpp"
#include "source/remote/url.hpp"

namespace penstock::source::remote {

// from: the URL of the request. location: a URL, or a reference to be resolved against that (RFC 3986). Errors: invalid_argument, in words
// that name no more than the host: none, no URL, from https to http, to an address at which machines keep credentials (link-local, metadata
// services).
result<url> redirect_target(const url& from, std::string_view location);

}  // namespace penstock::source::remote
