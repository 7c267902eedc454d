// All settings of the AWS tools (botocore's configprovider.py, "aws help config-vars" and "aws help s3-config") and their effect here: a
// setting is used, it is refused, or the table says why it has no effect. Pure functions, apart from what lookup does.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "penstock/status.hpp"
#include "source/remote/profiles.hpp"

namespace penstock::source::remote {

struct aws_setting {
  enum class effect : unsigned char {
    served,   // read by the search for settings or credentials
    checked,  // must have one of the values in words; has no effect
    none,     // ignored; see why
  };
  std::string_view key;       // name in a profile, "s3.KEY" if it follows "s3 ="; empty: only a variable sets it
  std::string_view variable;  // environment variable; empty: only a profile sets it
  effect has = effect::served;
  std::string_view words{};  // separated by spaces, in lower case
  std::string_view why{};    // for messages: what is unsupported, or what the words are
};

[[nodiscard]] std::span<const aws_setting> aws_settings();

// A setting from the program, by its name in a profile, with or without "s3.".
struct aws_value {
  std::string key;
  std::string value;
};
// Puts the program's settings into the profile. Returns the lookup without the variables that they override. Error: invalid_argument
// (unknown setting).
result<variable_lookup> put_before(std::span<const aws_value> values, const variable_lookup& lookup, found_profile& to);

// Error: unsupported (a checked setting has another value), which names the variable or the profile.
status check_aws_settings(const variable_lookup& lookup, const found_profile& found);

}  // namespace penstock::source::remote
