// Searches for credentials in the same order as the AWS tools ("Standardized credential providers", AWS SDKs and tools reference guide).
// The first ones found are used; if they do not work, that is an error, and no other identity is tried. Blocks while it reads files and
// queries servers. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/status.hpp"
#include "remote/credentials/profiles.hpp"
#include "remote/credentials/signature.hpp"
#include "remote/net/control.hpp"
#include "sys/kernel.hpp"

namespace penstock::source::remote {

struct credential_options {
  std::optional<credentials> given;  // by the program
  std::string profile;               // if set, nothing else is searched
  std::string region;                // for the STS endpoint; empty: the global one
  bool anonymous = false;            // do not sign requests
  bool allow_process = false;        // programs may be run to obtain credentials: a profile's credential_process, or the AWS command line
  bool use_fips = false;             // for STS endpoints
  bool for_google = false;           // reject Amazon's keys, because Google Cloud Storage has its own HMAC keys
};

// All external functions that the search uses.
struct credential_world {
  variable_lookup variable;
  control_call call;
  std::shared_ptr<sys::kernel> kernel;
  std::function<wall_time()> now;
  // sys::run_command, with most_credential_bytes and a time limit. Empty: programs cannot be run.
  std::function<result<std::string>(const std::string& command)> run;
};

// Searches in this order: the given credentials; the named profile; AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; the profile that
// AWS_PROFILE selects, or the default one; web identity (AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN); the container
// (AWS_CONTAINER_CREDENTIALS_*); the instance metadata service (IMDSv2 only). Errors: permission_denied (none were found, and the message
// lists where they were searched; or a server rejected them), invalid_argument (only one of two keys is set, or an address must not be
// queried), and those of the provider in use. Messages never contain a secret.
result<credentials> find_credentials(const credential_options& options, const credential_world& world);

// Returns true if a container's credentials may be requested from this address: over https, or from this machine or the addresses that ECS
// and EKS use for this purpose.
[[nodiscard]] bool may_hand_out_credentials(const url& address);

}  // namespace penstock::source::remote
