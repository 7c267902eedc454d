// Text that goes to others without what gives access: credentials in URLs, values of settings whose names speak of secrets, keys and tokens
// of known forms. It rather removes too much. Free functions; safe from any thread.
#pragma once

#include <string>
#include <string_view>

namespace penstock::cli {

// What stands in the place of a secret.
inline constexpr std::string_view removed_mark = "(removed)";

// "AWS_SECRET_ACCESS_KEY", "s3.password": whether a value of this name is nobody else's business.
bool names_secret(std::string_view name);
std::string without_secrets(std::string_view text);

}  // namespace penstock::cli
