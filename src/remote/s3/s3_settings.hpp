// Determines S3's region, endpoint and certificates as the AWS tools do ("Settings reference", AWS SDKs and tools reference guide). Blocks
// if a profile is read. Thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/status.hpp"
#include "remote/credentials/aws_settings.hpp"
#include "remote/credentials/profiles.hpp"
#include "remote/net/url.hpp"
#include "sys/kernel.hpp"

namespace penstock::source::remote {

// The program's options. Empty ones are looked up.
struct s3_options {
  std::string region;
  std::string access_point_region{};  // from an ARN
  std::string endpoint_url;
  std::string ca_bundle;
  std::string profile;
  std::string addressing_style{};
  std::optional<bool> use_fips{};
  std::optional<bool> use_dualstack{};
  std::optional<bool> requester_pays{};
  bool use_ssl = true;
  std::vector<aws_value> settings{};
};

struct s3_settings {
  std::string region;
  std::string region_from;  // where the region was set, for messages; "nowhere" for S3's default region
  bool is_region_assumed = false;
  std::optional<url> endpoint;
  addressing style = addressing::automatic;
  bool fips = false;
  bool dualstack = false;
  bool use_ssl = true;
  bool requester_pays = false;
  bool always_checksums = false;        // send checksums even if no server has requested them
  std::optional<bool> signs_payload{};  // nullopt: only over http, where TLS does not protect the payload
  unsigned attempts = 0;                // 0: not set
  std::string ca_bundle;                // certificate file; empty: the system's
  [[nodiscard]] s3_place place() const { return {region, endpoint, style, fips, dualstack, use_ssl}; }
};

inline constexpr std::string_view assumed_region = "us-east-1";  // as in boto3; there S3 responds with the bucket's actual region

// Each setting is taken from the first of these that sets it: the program, a variable, the profile.
//   region            AWS_REGION, AWS_DEFAULT_REGION; region; otherwise us-east-1. The region in an ARN takes precedence, unless
//                     AWS_S3_USE_ARN_REGION or use_arn_region is false: then both must be equal
//   endpoint          AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL; s3 in the profile's services section, endpoint_url of s3, endpoint_url;
//                     only the program's if AWS_IGNORE_CONFIGURED_ENDPOINT_URLS or ignore_configured_endpoint_urls is true
//   style             addressing_style of s3
//   fips, dualstack   AWS_USE_FIPS_ENDPOINT, AWS_USE_DUALSTACK_ENDPOINT; use_fips_endpoint, use_dualstack_endpoint, also of s3
//   requester_pays    AWS_REQUEST_PAYER
//   always_checksums  AWS_REQUEST_CHECKSUM_CALCULATION; request_checksum_calculation
//   signs_payload     payload_signing_enabled of s3
//   attempts          AWS_MAX_ATTEMPTS; max_attempts
//   certificates      AWS_CA_BUNDLE; ca_bundle
// Errors: invalid_argument (an invalid region, URL or word; FIPS or dualstack with a custom endpoint); those of check_aws_settings and
// find_profile.
result<s3_settings> find_s3_settings(const s3_options& options, const variable_lookup& lookup, sys::kernel& kernel);

}  // namespace penstock::source::remote
