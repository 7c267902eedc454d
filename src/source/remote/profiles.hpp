// The files that the AWS tools keep, ~/.aws/credentials and ~/.aws/config ("Configuration and credential file settings", AWS CLI user
// guide): one profile of them. Read when asked for, and not kept. Thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/status.hpp"
#include "source/remote/secret_text.hpp"
#include "sys/kernel.hpp"

namespace penstock::source::remote {

// A variable of the environment; nothing where it is not set. What is set to nothing counts as not set.
using variable_lookup = std::function<std::optional<std::string>(std::string_view name)>;
[[nodiscard]] std::optional<std::string> variable_set(const variable_lookup& lookup, std::string_view name);

inline constexpr std::size_t most_profile_bytes = std::size_t{1} << 20;

// What a profile says, of both files; where both say it, ~/.aws/credentials.
struct profile {
  std::string access_key_id;
  secret_text secret_access_key;
  secret_text session_token;
  std::string credential_process;
  std::string role_arn;
  std::string role_session_name;
  std::string web_identity_token_file;
  bool needs_another = false;                                     // a role by way of source_profile or credential_source
  bool signs_on = false;                                          // by sso_session, sso_start_url or login_session
  std::map<std::string, std::string, std::less<>> settings;       // all others; those that follow "s3 =" as "s3.KEY"
  std::map<std::string, std::string> service_endpoints;           // by "SECTION/SERVICE", of all [services SECTION]
  [[nodiscard]] std::string setting(std::string_view key) const;  // empty: it says nothing
  // What its section of services says of a service, such as "s3"; empty: nothing.
  [[nodiscard]] std::string endpoint_of_service(const std::string& service) const;
};

enum class profile_format : unsigned char { credentials, config };

// Adds what a file says about the profile of that name, without replacing. False where it does not name the profile.
bool read_profile(std::string_view file, profile_format format, std::string_view name, profile& to);

struct found_profile {
  std::string name;
  bool is_asked_for = false;  // by the caller, AWS_PROFILE or AWS_DEFAULT_PROFILE, and not just the default
  bool is_there = false;
  std::string looked_at;  // in words
  profile values;
};

// asked_for, else AWS_PROFILE, else AWS_DEFAULT_PROFILE, else "default"; in the files that AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE
// name, else in those below HOME. A file that is not there, or below a HOME that is out of reach, is as one that does not name the profile.
// Blocks. Errors: as read_small_file; not_found (a profile that is asked for is in neither, or its section of services is missing).
result<found_profile> find_profile(sys::kernel& kernel, const variable_lookup& lookup, std::string_view asked_for);

// A whole file. Blocks. Errors: os (it cannot be read; not_found where it is not there), not_a_file, invalid_argument (it is longer).
result<std::string> read_small_file(sys::kernel& kernel, const std::string& path, std::size_t most_bytes);

}  // namespace penstock::source::remote
