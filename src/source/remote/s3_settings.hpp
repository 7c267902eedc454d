// Where S3 is: region, endpoint and certificates, as the AWS tools find them ("Settings reference", AWS SDKs and tools reference guide).
// Blocks where a profile is read. Thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "penstock/status.hpp"
#include "source/remote/profiles.hpp"
#include "source/remote/url.hpp"
#include "sys/kernel.hpp"

namespace penstock::source::remote {

// What a program says itself; what is empty is looked for.
struct s3_options {
  std::string region;
  std::string endpoint_url;
  std::string ca_bundle;
  std::string profile;
};

struct s3_settings {
  std::string region;
  std::string region_from;  // in words; "nowhere" where it is the one that S3 has for those who name none
  bool is_region_assumed = false;
  std::optional<url> endpoint;
  std::string ca_bundle;  // a file of certificates; empty: the system's
};

inline constexpr std::string_view assumed_region = "us-east-1";  // as boto3: S3 there answers with the bucket's own region

// The region: the program's, AWS_REGION, AWS_DEFAULT_REGION, the profile's, else us-east-1. The endpoint: the program's,
// AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL, the profile's, but for the program's all only where AWS_IGNORE_CONFIGURED_ENDPOINT_URLS is not
// true. Certificates: the program's, AWS_CA_BUNDLE, the profile's. Errors: invalid_argument (no region, no URL), and find_profile's.
result<s3_settings> find_s3_settings(const s3_options& options, const variable_lookup& lookup, sys::kernel& kernel);

}  // namespace penstock::source::remote
