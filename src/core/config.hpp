// Reads the environment. No other file does so.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "path/registry.hpp"
#include "penstock/options.hpp"
#include "remote/net/network.hpp"

namespace penstock::core {

// Implements engine_options::from_environment(). PENSTOCK_PATH must name one of these paths.
result<engine_options> read_environment(const path::path_table& paths);

// Reads how to reach servers: certificates from CURL_CA_BUNDLE, SSL_CERT_FILE or AWS_CA_BUNDLE, and SSL_CERT_DIR, and whether a proxy is
// configured.
source::remote::network_settings read_web_environment();
// Reads a variable at the time of the call, not at startup, because programs that provide credentials may change it.
std::optional<std::string> environment_variable(std::string_view name);

}  // namespace penstock::core
