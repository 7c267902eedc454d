// Where credentials are looked for, and in which order, which is that of the AWS tools ("Standardized credential providers", AWS SDKs and
// tools reference guide). What is there is used: where it turns out not to work, that is an error, and no other identity is taken instead.
// Blocks while it reads files and asks servers. Thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "penstock/status.hpp"
#include "source/remote/control.hpp"
#include "source/remote/profiles.hpp"
#include "source/remote/signature.hpp"
#include "sys/kernel.hpp"

namespace penstock::source::remote {

struct credential_options {
  std::optional<credentials> given;  // by the program
  std::string profile;               // asked for by name: then nothing else is looked at
  std::string region;                // for the server of STS; empty: the one for all regions
  bool anonymous = false;            // requests are not signed
  bool allow_process = false;        // programs may be started for credentials: a profile's credential_process, or the AWS command line
  bool use_fips = false;             // of STS's endpoints
  bool for_google = false;           // keys of Amazon's are refused: Google Cloud Storage has HMAC keys of its own
};

// Everything outside that the search sees.
struct credential_world {
  variable_lookup variable;
  control_call call;
  std::shared_ptr<sys::kernel> kernel;
  std::function<wall_time()> now;
  // sys::run_command, with most_credential_bytes and a time limit. Nothing: there is no way to start a program.
  std::function<result<std::string>(const std::string& command)> run;
};

// In this order: what is given; the profile that is asked for; AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; the profile of AWS_PROFILE, or
// the default one; web identity (AWS_WEB_IDENTITY_TOKEN_FILE, AWS_ROLE_ARN); the container (AWS_CONTAINER_CREDENTIALS_*); the instance's
// metadata (IMDSv2 alone). Errors: permission_denied (there are none: the message lists what was looked at; or a server refused them),
// invalid_argument (half of a pair is set, an address that may not be asked), and those of what was tried. No message has a secret.
result<credentials> find_credentials(const credential_options& options, const credential_world& world);

// Whether a container's credentials may be asked for there: by https, or at this machine or the addresses that ECS and EKS have for it.
[[nodiscard]] bool may_hand_out_credentials(const url& address);

}  // namespace penstock::source::remote
