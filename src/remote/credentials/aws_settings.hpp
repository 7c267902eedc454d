// All settings of the AWS tools (botocore's configprovider.py, "aws help config-vars" and "aws help s3-config") and their effect here: a
// setting is used, rejected, or ignored for the reason in the table. Pure functions, apart from lookup.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "penstock/status.hpp"
#include "remote/credentials/profiles.hpp"

namespace penstock::source::remote {

struct aws_setting {
  enum class effect : unsigned char {
    served,   // used when looking up settings or credentials
    checked,  // must have one of the values in words; has no effect
    none,     // ignored; see why
  };
  std::string_view key;       // the name in a profile, "s3.KEY" if nested in "s3 ="; empty: only a variable sets it
  std::string_view variable;  // environment variable; empty: only a profile sets it
  effect has = effect::served;
  std::string_view words{};  // the allowed values, separated by spaces, in lower case
  std::string_view why{};    // for messages: what is unsupported, or which values are allowed
};

[[nodiscard]] std::span<const aws_setting> aws_settings();

// A setting from the program, by its name in a profile, with or without "s3.".
struct aws_value {
  std::string key;
  std::string value;
};
// Adds the program's settings to the profile. Returns the lookup without the variables that they override. Error: invalid_argument (unknown
// setting).
result<variable_lookup> put_before(std::span<const aws_value> values, const variable_lookup& lookup, found_profile& to);

// Error: unsupported (a checked setting has a different value); the message contains the variable or the profile.
status check_aws_settings(const variable_lookup& lookup, const found_profile& found);

}  // namespace penstock::source::remote
