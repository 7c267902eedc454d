#include "remote/credentials/aws_settings.hpp"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/printable.hpp"
#include "remote/net/url.hpp"

namespace penstock::source::remote {

namespace {

constexpr std::string_view off = "false 0";
constexpr std::string_view of_botocore = "it only affects botocore's data files and argument checks";
constexpr std::string_view of_command = "only AWS CLI commands use it";
constexpr std::string_view of_other_services = "S3 does not use it";
constexpr std::string_view of_transfers = "Penstock chooses the number of connections and the part size itself";
constexpr std::string_view of_monitoring = "Penstock sends no monitoring data";
constexpr std::string_view of_program = "it is passed to the program that finds the credentials";

constexpr aws_setting served(std::string_view key, std::string_view variable) { return {key, variable, aws_setting::effect::served}; }
constexpr aws_setting checked(std::string_view key, std::string_view variable, std::string_view words, std::string_view why) {
  return {key, variable, aws_setting::effect::checked, words, why};
}
constexpr aws_setting idle(std::string_view key, std::string_view variable, std::string_view why) {
  return {key, variable, aws_setting::effect::none, {}, why};
}

constexpr std::array all_aws_settings{
    // --- location of S3
    served("", "AWS_PROFILE"),
    served("", "AWS_DEFAULT_PROFILE"),
    served("", "AWS_CONFIG_FILE"),
    served("", "AWS_SHARED_CREDENTIALS_FILE"),
    served("region", "AWS_DEFAULT_REGION"),
    served("region", "AWS_REGION"),
    served("endpoint_url", "AWS_ENDPOINT_URL"),
    served("s3.endpoint_url", "AWS_ENDPOINT_URL_S3"),
    served("services", "AWS_ENDPOINT_URL_STS"),
    served("ignore_configured_endpoint_urls", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"),
    served("use_fips_endpoint", "AWS_USE_FIPS_ENDPOINT"),
    served("use_dualstack_endpoint", "AWS_USE_DUALSTACK_ENDPOINT"),
    served("s3.use_dualstack_endpoint", ""),
    served("s3.addressing_style", ""),
    served("s3_use_arn_region", "AWS_S3_USE_ARN_REGION"),
    served("s3.use_arn_region", ""),
    checked("s3.use_accelerate_endpoint", "", off, "transfer acceleration is not supported"),
    checked("s3_us_east_1_regional_endpoint", "AWS_S3_US_EAST_1_REGIONAL_ENDPOINT", "legacy regional",
            "must be legacy or regional (Penstock uses the regional endpoint, which serves the same objects)"),
    checked("s3.us_east_1_regional_endpoint", "", "legacy regional",
            "must be legacy or regional (Penstock uses the regional endpoint, which serves the same objects)"),
    idle("s3.s3_disable_multiregion_access_points", "AWS_S3_DISABLE_MULTIREGION_ACCESS_POINTS",
         "multi-region access points are always rejected"),
    idle("s3_disable_multiregion_access_points", "", "multi-region access points are always rejected"),
    idle("s3_disable_express_session_auth", "AWS_S3_DISABLE_EXPRESS_SESSION_AUTH", "directory buckets are always rejected"),
    // --- requests to S3
    served("", "AWS_REQUEST_PAYER"),
    served("request_checksum_calculation", "AWS_REQUEST_CHECKSUM_CALCULATION"),
    served("max_attempts", "AWS_MAX_ATTEMPTS"),
    served("s3.payload_signing_enabled", ""),
    checked("response_checksum_validation", "AWS_RESPONSE_CHECKSUM_VALIDATION", "when_supported when_required",
            "must be when_supported or when_required (S3 checksums cover whole objects, but Penstock reads ranges)"),
    checked("retry_mode", "AWS_RETRY_MODE", "legacy standard adaptive",
            "must be legacy, standard or adaptive (Penstock always uses the same retry rules)"),
    checked("defaults_mode", "AWS_DEFAULTS_MODE", "legacy standard in-region cross-region mobile auto",
            "must be legacy, standard, in-region, cross-region, mobile or auto (Penstock always uses the same timeouts)"),
    checked("s3.signature_version", "", "s3v4 v4", "only version 4 (s3v4) is supported"),
    idle("auth_scheme_preference", "AWS_AUTH_SCHEME_PREFERENCE", "requests to S3 are signed with version 4"),
    idle("sigv4a_signing_region_set", "AWS_SIGV4A_SIGNING_REGION_SET", "requests to S3 are signed with version 4"),
    idle("sdk_ua_app_id", "AWS_SDK_UA_APP_ID", "it is only a name for the server's log"),
    idle("", "AWS_EXECUTION_ENV", "it is only a name for the server's log"),
    idle("tcp_keepalive", "BOTOCORE_TCP_KEEPALIVE", "Penstock replaces unresponsive connections"),
    // --- TLS and proxies
    served("ca_bundle", "AWS_CA_BUNDLE"),
    checked("proxy_ca_bundle", "", "",
            "certificates only for a proxy are not supported: add them to the file that AWS_CA_BUNDLE refers to"),
    checked("proxy_client_cert", "", "", "client certificates for a proxy are not supported"),
    checked("proxy_use_forwarding_for_https", "", off, "https requests pass through a proxy only in a tunnel"),
    // --- credentials
    served("aws_access_key_id", "AWS_ACCESS_KEY_ID"),
    served("aws_secret_access_key", "AWS_SECRET_ACCESS_KEY"),
    served("aws_session_token", "AWS_SESSION_TOKEN"),
    served("aws_security_token", "AWS_SECURITY_TOKEN"),
    served("role_arn", "AWS_ROLE_ARN"),
    served("role_session_name", "AWS_ROLE_SESSION_NAME"),
    served("web_identity_token_file", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    served("credential_process", ""),
    served("source_profile", ""),
    served("credential_source", ""),
    served("sso_session", ""),
    served("sso_start_url", ""),
    served("login_session", ""),
    idle("sso_region", "", of_program),
    idle("sso_account_id", "", of_program),
    idle("sso_role_name", "", of_program),
    idle("mfa_serial", "", of_program),
    idle("external_id", "", of_program),
    idle("duration_seconds", "", of_program),
    idle("", "AWS_LOGIN_CACHE_DIRECTORY", of_program),
    served("", "AWS_CREDENTIAL_FILE"),
    served("", "BOTO_CONFIG"),
    idle("", "AWS_CREDENTIAL_EXPIRATION", "keys are looked up again when S3 reports them as expired"),
    idle("aws_account_id", "AWS_ACCOUNT_ID", of_other_services),
    served("", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"),
    served("", "AWS_CONTAINER_CREDENTIALS_FULL_URI"),
    served("", "AWS_CONTAINER_AUTHORIZATION_TOKEN"),
    served("", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"),
    served("", "AWS_EC2_METADATA_DISABLED"),
    served("ec2_metadata_service_endpoint", "AWS_EC2_METADATA_SERVICE_ENDPOINT"),
    served("ec2_metadata_service_endpoint_mode", "AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"),
    served("imds_use_ipv6", "AWS_IMDS_USE_IPV6"),
    served("metadata_service_timeout", "AWS_METADATA_SERVICE_TIMEOUT"),
    served("metadata_service_num_attempts", "AWS_METADATA_SERVICE_NUM_ATTEMPTS"),
    idle("ec2_metadata_v1_disabled", "AWS_EC2_METADATA_V1_DISABLED", "version 1 of the metadata service is never used"),
    checked("sts_regional_endpoints", "AWS_STS_REGIONAL_ENDPOINTS", "legacy regional",
            "must be legacy or regional (Penstock uses the regional STS endpoint, which returns the same credentials)"),
    // --- aws s3 cp and related commands
    idle("s3.max_concurrent_requests", "", of_transfers),
    idle("s3.max_queue_size", "", of_transfers),
    idle("s3.multipart_threshold", "", of_transfers),
    idle("s3.multipart_chunksize", "", of_transfers),
    idle("s3.max_bandwidth", "", of_command),
    idle("s3.io_chunksize", "", of_transfers),
    idle("s3.preferred_transfer_client", "", of_command),
    idle("s3.target_bandwidth", "", of_command),
    idle("s3.should_stream", "", of_command),
    idle("s3.disk_throughput", "", of_command),
    idle("s3.direct_io", "", of_command),
    // --- other commands and services
    idle("output", "AWS_DEFAULT_OUTPUT", of_command),
    idle("cli_pager", "AWS_PAGER", of_command),
    idle("cli_auto_prompt", "AWS_CLI_AUTO_PROMPT", of_command),
    idle("cli_binary_format", "", of_command),
    idle("cli_follow_urlparam", "", of_command),
    idle("cli_history", "AWS_CLI_HISTORY_FILE", of_command),
    idle("cli_timestamp_format", "", of_command),
    idle("", "AWS_CLI_FILE_ENCODING", of_command),
    idle("data_path", "AWS_DATA_PATH", of_botocore),
    idle("api_versions", "", of_botocore),
    idle("parameter_validation", "", of_botocore),
    idle("csm_enabled", "AWS_CSM_ENABLED", of_monitoring),
    idle("csm_host", "AWS_CSM_HOST", of_monitoring),
    idle("csm_port", "AWS_CSM_PORT", of_monitoring),
    idle("csm_client_id", "AWS_CSM_CLIENT_ID", of_monitoring),
    idle("endpoint_discovery_enabled", "AWS_ENDPOINT_DISCOVERY_ENABLED", of_other_services),
    idle("account_id_endpoint_mode", "AWS_ACCOUNT_ID_ENDPOINT_MODE", of_other_services),
    idle("disable_host_prefix_injection", "AWS_DISABLE_HOST_PREFIX_INJECTION", of_other_services),
    idle("request_min_compression_size_bytes", "AWS_REQUEST_MIN_COMPRESSION_SIZE_BYTES", of_other_services),
    idle("disable_request_compression", "AWS_DISABLE_REQUEST_COMPRESSION", of_other_services),
};

bool is_one_of(std::string_view words, std::string_view word) {
  while (!words.empty()) {
    const auto one = words.substr(0, words.find(' '));
    words.remove_prefix(std::min(one.size() + 1, words.size()));
    if (one == word) return true;
  }
  return false;
}

}  // namespace

std::span<const aws_setting> aws_settings() { return all_aws_settings; }

result<variable_lookup> put_before(std::span<const aws_value> values, const variable_lookup& lookup, found_profile& to) {
  if (values.empty()) return lookup;
  std::set<std::string, std::less<>> hidden;
  for (const auto& [key, value] : values) {
    const auto is_it = [&](const aws_setting& one) { return one.key == key || (one.key.starts_with("s3.") && one.key.substr(3) == key); };
    if (std::ranges::none_of(all_aws_settings, is_it))
      return status(errc::invalid_argument, fmt::format("'{}' is not a setting of the AWS tools", printable_text(key.substr(0, 60))));
    for (const auto& one : all_aws_settings) {
      if (!is_it(one)) continue;
      to.values.settings[std::string(one.key)] = value;
      if (!one.variable.empty()) hidden.emplace(one.variable);
    }
  }
  return variable_lookup(
      [lookup, hidden = std::move(hidden)](std::string_view name) { return hidden.contains(name) ? std::nullopt : lookup(name); });
}

status check_aws_settings(const variable_lookup& lookup, const found_profile& found) {
  for (const auto& each : all_aws_settings) {
    if (each.has != aws_setting::effect::checked) continue;
    const auto by_variable = each.variable.empty() ? std::nullopt : variable_set(lookup, each.variable);
    const auto value = by_variable ? *by_variable : each.key.empty() ? std::string() : found.values.setting(each.key);
    if (value.empty() || is_one_of(each.words, in_small_letters(value))) continue;
    const auto key = each.key.substr(each.key.starts_with("s3.") ? 3 : 0);
    const auto name = by_variable ? std::string(each.variable) : fmt::format("{} in the profile '{}'", key, printable_text(found.name));
    return {errc::unsupported, fmt::format("{} is '{}': {}", name, printable_text(value.substr(0, 100)), each.why)};
  }
  return {};
}

}  // namespace penstock::source::remote
