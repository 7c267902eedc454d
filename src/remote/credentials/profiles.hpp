// Reads one profile from the AWS tools' files, ~/.aws/credentials and ~/.aws/config ("Configuration and credential file settings", AWS CLI
// user guide). Reads them on each call and caches nothing. Thread-safe.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/status.hpp"
#include "remote/credentials/secret_text.hpp"
#include "sys/kernel.hpp"

namespace penstock::source::remote {

// Looks up an environment variable; nullopt if unset. variable_set() treats an empty value as unset.
using variable_lookup = std::function<std::optional<std::string>(std::string_view name)>;
[[nodiscard]] std::optional<std::string> variable_set(const variable_lookup& lookup, std::string_view name);

inline constexpr std::size_t most_profile_bytes = std::size_t{1} << 20;

// The settings of a profile from both files; ~/.aws/credentials takes precedence.
struct profile {
  std::string access_key_id;
  secret_text secret_access_key;
  secret_text session_token;
  std::string credential_process;
  std::string role_arn;
  std::string role_session_name;
  std::string web_identity_token_file;
  bool needs_another = false;                                     // a role that uses source_profile or credential_source
  bool signs_on = false;                                          // with sso_session, sso_start_url or login_session
  std::map<std::string, std::string, std::less<>> settings;       // all other settings; those nested in "s3 =" as "s3.KEY"
  std::map<std::string, std::string> service_endpoints;           // keyed by "SECTION/SERVICE", from all [services SECTION]
  [[nodiscard]] std::string setting(std::string_view key) const;  // empty: not set
  // Returns the endpoint of a service, such as "s3", in the profile's services section; empty: not set.
  [[nodiscard]] std::string endpoint_of_service(const std::string& service) const;
};

enum class profile_format : unsigned char { credentials, config };

// Adds the named profile's settings from a file, without replacing existing ones. Returns false if the file does not contain the profile.
bool read_profile(std::string_view file, profile_format format, std::string_view name, profile& to);

struct found_profile {
  std::string name;
  bool is_asked_for = false;  // selected by the caller, AWS_PROFILE or AWS_DEFAULT_PROFILE, rather than by default
  bool is_there = false;
  std::string looked_at;  // the files that were searched, for messages
  profile values;
};

// Finds the profile asked_for; if empty, that of AWS_PROFILE, AWS_DEFAULT_PROFILE, or "default", in this order. Searches the files that
// AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE refer to, or by default those below HOME. A file that does not exist, or is below an
// inaccessible HOME, counts as one without the profile. Blocks. Errors: those of read_small_file; not_found (a profile that was asked for
// is in neither file, or its services section is missing).
result<found_profile> find_profile(sys::kernel& kernel, const variable_lookup& lookup, std::string_view asked_for);

// Reads a whole file. Blocks. Errors: os (the file cannot be read; not_found if it does not exist), not_a_file, invalid_argument (the file
// is larger than most_bytes).
result<std::string> read_small_file(sys::kernel& kernel, const std::string& path, std::size_t most_bytes);

}  // namespace penstock::source::remote
