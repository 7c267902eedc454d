// Removes secrets from text that leaves the machine: credentials in URLs, values of settings with names like "password", and keys and
// tokens in known formats. When in doubt, removes the text. Free functions; thread-safe.
#pragma once

#include <string>
#include <string_view>

namespace penstock::cli {

// Replaces each secret.
inline constexpr std::string_view removed_mark = "(removed)";

// Returns true if a setting with this name contains a secret, such as "AWS_SECRET_ACCESS_KEY" or "s3.password".
bool names_secret(std::string_view name);
std::string without_secrets(std::string_view text);

}  // namespace penstock::cli
