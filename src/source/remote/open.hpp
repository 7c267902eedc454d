// From a URL to its source: the one place that knows which kinds of server there are.
#pragma once

#include <memory>
#include <string>

#include "penstock/options.hpp"
#include "source/remote/network.hpp"
#include "source/source.hpp"

namespace penstock::source::remote {

// Blocks while the server is asked how large the object is. Errors name the URL, without its query: invalid_argument (a URL that is none;
// something that objects on servers cannot), not_found, permission_denied, timed_out, unsupported (no libcurl, no ranges), io.
result<std::unique_ptr<source>> open(std::shared_ptr<network> by, const std::string& url, const remote_options& how);

}  // namespace penstock::source::remote
