// The only place where the environment is read.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "path/registry.hpp"
#include "penstock/options.hpp"
#include "source/remote/network.hpp"

namespace penstock::core {

// engine_options::from_environment(), where PENSTOCK_PATH names one of these.
result<engine_options> read_environment(const path::path_table& paths);

// How servers are reached: certificates from CURL_CA_BUNDLE, SSL_CERT_FILE or AWS_CA_BUNDLE, and SSL_CERT_DIR; and whether a proxy is
// named.
source::remote::network_settings read_web_environment();
// A variable as it is now: what hands out credentials may change it.
std::optional<std::string> environment_variable(std::string_view name);

}  // namespace penstock::core
