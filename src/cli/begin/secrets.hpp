// Removes secrets from text that leaves the machine: credentials in URLs, values of settings with names like "password", and keys and
// tokens of known formats. If in doubt, it removes the text. Free functions; safe from any thread.
#pragma once

#include <string>
#include <string_view>

namespace penstock::cli {

// Replaces each secret.
inline constexpr std::string_view removed_mark = "(removed)";

// Returns whether a setting with this name holds a secret, such as "AWS_SECRET_ACCESS_KEY" or "s3.password".
bool names_secret(std::string_view name);
std::string without_secrets(std::string_view text);

}  // namespace penstock::cli
