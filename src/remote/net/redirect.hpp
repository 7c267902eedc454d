// Determines the target of a redirect (300 to 399), and whether it may be followed.
#pragma once

#include <string_view>

#include "penstock/status.hpp"
#include "remote/net/url.hpp"

namespace penstock::source::remote {

// from: the URL of the request. location: a URL, or a reference that is resolved against `from` (RFC 3986). Error: invalid_argument (no
// target, not a URL, from https to http, or an address that provides machine credentials: link-local, metadata services). Of the target,
// the message contains at most the host.
result<url> redirect_target(const url& from, std::string_view location);

}  // namespace penstock::source::remote
