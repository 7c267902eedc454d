#include "remote/credentials/credential_search.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <utility>
#include <vector>

#include "base/printable.hpp"
#include "remote/credentials/credential_answers.hpp"
#include "remote/net/s3_error.hpp"

namespace penstock::source::remote {

namespace {

constexpr unsigned most_metadata_seconds = 300;
constexpr unsigned most_metadata_attempts = 100;
constexpr std::chrono::milliseconds container_timeout{2000};
constexpr std::chrono::milliseconds sts_timeout{10000};
constexpr std::size_t most_token_file_bytes = std::size_t{64} << 10;
constexpr int http_ok = 200;
constexpr std::string_view how_to_allow =
    "to allow it, set PENSTOCK_ALLOW_CREDENTIAL_PROCESS=1 in the environment, or the option allow_credential_process";

// nullopt: not configured here; the search continues.
using finding = result<std::optional<credentials>>;

// Parses a number from 1 to `most`. Error: invalid_argument.
result<unsigned> number_of(std::string_view text, std::string_view name, unsigned most) {
  unsigned made = 1;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), made);
  if (text.empty() || (problem == std::errc() && end == text.data() + text.size() && made >= 1 && made <= most)) return made;
  return status(errc::invalid_argument,
                fmt::format("{} is '{}'; it must be a number from 1 to {}", name, printable_text(std::string(text.substr(0, 60))), most));
}

// Returns the first line, without its end.
std::string_view first_line(std::string_view text) {
  text = text.substr(0, text.find_first_of("\r\n"));
  return text;
}

class credential_search {
 public:
  credential_search(const credential_options& options, const credential_world& world) : options_(options), world_(world) {}
  result<credentials> run();

 private:
  finding in_environment();
  finding in_asked_profile();
  finding in_profile();
  finding of_profile(const found_profile& found);
  finding of_process(const found_profile& found, const std::string& command);
  finding of_command_line(const found_profile& found, std::string_view kind);
  finding of_program(const std::string& command, const std::string& what);
  finding by_web_identity();
  finding in_old_files();
  finding of_container();
  finding of_instance();

  result<credentials> usable(credentials found) const;
  result<credentials> assume_role(std::string_view role, const std::string& session, const std::string& token_file);
  result<url> sts_address() const;
  result<url> container_address() const;
  result<std::vector<header>> container_headers();
  result<url> metadata_address(std::string_view path) const;
  result<std::string> ask_metadata(std::string_view method, std::string_view path, const header& with);
  result<std::string> metadata_token();

  [[nodiscard]] std::optional<std::string> variable(std::string_view name) const { return variable_set(world_.variable, name); }
  // Returns the variable's value, or else that in the profile; empty if neither is set.
  [[nodiscard]] std::string setting(std::string_view name, std::string_view key) const {
    return variable(name).value_or(profile_.setting(key));
  }
  result<std::string> ask(const control_request& request, std::string_view what) const;
  result<std::string> token_in(const std::string& file, std::string_view what) const;
  finding not_here(std::string what) {
    looked_at_.push_back(std::move(what));
    return std::optional<credentials>();
  }

  const credential_options& options_;
  const credential_world& world_;
  std::vector<std::string> looked_at_;
  profile profile_;  // without its keys
};

result<credentials> credential_search::run() {
  if (options_.anonymous) {
    credentials nobody;
    nobody.found_in = "anonymous";
    return nobody;
  }
  if (options_.given) return usable(*options_.given);
  constexpr std::array<finding (credential_search::*)(), 7> steps{&credential_search::in_asked_profile, &credential_search::in_environment,
                                                                  &credential_search::in_profile,       &credential_search::by_web_identity,
                                                                  &credential_search::in_old_files,     &credential_search::of_container,
                                                                  &credential_search::of_instance};
  for (const auto step : steps) {
    auto found = (this->*step)();
    if (!found) return found.error();
    if (!*found) continue;
    return usable(std::move(**found));
  }
  std::string message("no credentials were found. ");
  if (options_.for_google) {
    message +=
        "Google Cloud Storage requires an HMAC key (GOOG..., created under Settings > Interoperability): set AWS_ACCESS_KEY_ID and "
        "AWS_SECRET_ACCESS_KEY, or access_key_id and secret_access_key. Service accounts and gcloud logins are not used. ";
  }
  message += "Penstock looked at:";
  for (const auto& each : looked_at_) message += fmt::format("{} {}", &each == &looked_at_.front() ? "" : ";", each);
  message += ". For public objects, use anonymous access";
  return status(errc::permission_denied, std::move(message));
}

result<credentials> credential_search::usable(credentials found) const {
  if (found.found_in.empty()) found.found_in = "the program";
  if (options_.given && (found.access_key_id.empty() || found.secret_access_key.reveal().empty())) {
    const auto missing = found.access_key_id.empty() ? "access_key_id" : "secret_access_key";
    return status(errc::invalid_argument, fmt::format("{} is missing: access_key_id and secret_access_key must be set together", missing));
  }
  const bool fits = fits_header(found.access_key_id) && fits_header(found.secret_access_key.reveal()) &&
                    (found.session_token.empty() || fits_header(found.session_token.reveal()));
  if (!fits)
    return status(errc::invalid_argument, fmt::format("the keys from {} are empty, or contain a space or a line break", found.found_in));
  if (options_.for_google &&
      (found.access_key_id.starts_with("AKIA") || found.access_key_id.starts_with("ASIA") || !found.session_token.empty()))
    return status(errc::permission_denied,
                  fmt::format("the keys from {} are Amazon's; Google Cloud Storage requires an HMAC key (GOOG...) or anonymous access",
                              found.found_in));
  if (found.access_key_id.starts_with("ASIA") && found.session_token.empty())
    return status(errc::invalid_argument,
                  fmt::format("the keys from {} are temporary (ASIA...), but the session token is not set", found.found_in));
  if (found.expires_at && *found.expires_at <= world_.now())
    return status(errc::permission_denied,
                  fmt::format("the keys from {} expired at {} by this machine's clock", found.found_in, signing_time(*found.expires_at)));
  return found;
}

// --- existing keys
finding credential_search::in_environment() {
  auto id = variable("AWS_ACCESS_KEY_ID");
  auto secret = variable("AWS_SECRET_ACCESS_KEY");
  if (!id && !secret) return not_here("the environment (AWS_ACCESS_KEY_ID is not set)");
  if (!id || !secret)
    return status(errc::invalid_argument, fmt::format("{} is set but {} is not", id ? "AWS_ACCESS_KEY_ID" : "AWS_SECRET_ACCESS_KEY",
                                                      id ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID"));
  auto token = variable("AWS_SESSION_TOKEN").value_or(variable("AWS_SECURITY_TOKEN").value_or(""));
  credentials made{.access_key_id = std::move(*id),
                   .secret_access_key = secret_text::taken_from(*secret),
                   .session_token = secret_text::taken_from(token),
                   .expires_at = {},
                   .found_in = "the environment"};
  return std::optional(std::move(made));
}

finding credential_search::in_asked_profile() {
  if (options_.profile.empty()) return std::optional<credentials>();
  const auto found = find_profile(*world_.kernel, world_.variable, options_.profile);
  if (!found) return found.error();
  auto made = of_profile(*found);
  if (made.ok() && !*made)
    return status(errc::permission_denied,
                  fmt::format("the profile '{}' in {} contains no credentials", printable_text(found->name), found->looked_at));
  return made;
}

finding credential_search::in_profile() {
  const auto found = find_profile(*world_.kernel, world_.variable, {});
  if (!found) return found.error();
  auto made = of_profile(*found);
  if (!made || *made) return made;
  return not_here(fmt::format("the profile '{}' in {}", printable_text(found->name), found->looked_at));
}

finding credential_search::of_profile(const found_profile& found) {
  const auto& values = found.values;
  profile_.settings = values.settings;
  profile_.service_endpoints = values.service_endpoints;
  const auto what = fmt::format("the profile '{}'", printable_text(found.name));
  if (values.needs_another) return of_command_line(found, "assumes a role with other credentials");
  if (!values.role_arn.empty() && !values.web_identity_token_file.empty()) {
    auto made = assume_role(values.role_arn, values.role_session_name, values.web_identity_token_file);
    if (!made) return made.error().with_context(what);
    return std::optional(std::move(*made));
  }
  if (!values.access_key_id.empty() || !values.secret_access_key.empty()) {
    if (values.access_key_id.empty() || values.secret_access_key.empty())
      return status(errc::unsupported, fmt::format("{} contains only one of aws_access_key_id and aws_secret_access_key", what));
    return std::optional(credentials{.access_key_id = values.access_key_id,
                                     .secret_access_key = values.secret_access_key,
                                     .session_token = values.session_token,
                                     .expires_at = {},
                                     .found_in = what});
  }
  if (!values.credential_process.empty()) return of_process(found, values.credential_process);
  if (values.signs_on) return of_command_line(found, "signs in through a browser");
  return std::optional<credentials>();
}

finding credential_search::of_process(const found_profile& found, const std::string& command) {
  const auto what = fmt::format("the credential_process of the profile '{}'", printable_text(found.name));
  if (!options_.allow_process || world_.run == nullptr)
    return status(errc::permission_denied, fmt::format("{} is a program, which Penstock may not run; {}", what, how_to_allow));
  return of_program(command, what);
}

// Runs the AWS command line for kinds of sign-in that only the AWS tools support.
finding credential_search::of_command_line(const found_profile& found, std::string_view kind) {
  const auto what = fmt::format("the profile '{}'", printable_text(found.name));
  const bool is_plain = std::ranges::all_of(found.name, [](char c) { return c > ' ' && c < 0x7f && c != '\''; });
  if (!is_plain) return status(errc::unsupported, fmt::format("{} {}, but its name cannot be passed to the AWS CLI", what, kind));
  if (!options_.allow_process || world_.run == nullptr) {
    return status(errc::permission_denied, fmt::format("{} {}, which requires `aws configure export-credentials`, but running programs "
                                                       "is not allowed; {}",
                                                       what, kind, how_to_allow));
  }
  auto found_there = of_program(fmt::format("aws configure export-credentials --format process --profile '{}'", found.name), what);
  if (found_there) return found_there;
  return found_there.error().with_context(fmt::format("{} {}; Penstock ran `aws configure export-credentials` (AWS CLI 2)", what, kind));
}

finding credential_search::of_program(const std::string& command, const std::string& what) {
  auto printed = world_.run(command);
  if (!printed) return printed.error().with_context(what);
  auto made = parse_json_credentials(*printed, what);
  wipe(*printed);
  if (!made) return made.error();
  return std::optional(std::move(*made));
}

// --- web identity: STS exchanges a token from a file for the credentials of a role
finding credential_search::by_web_identity() {
  const auto file = variable("AWS_WEB_IDENTITY_TOKEN_FILE");
  const auto role = variable("AWS_ROLE_ARN");
  if (!file) return not_here("web identity (AWS_WEB_IDENTITY_TOKEN_FILE is not set)");
  if (!role) return status(errc::invalid_argument, "AWS_WEB_IDENTITY_TOKEN_FILE is set but AWS_ROLE_ARN is not");
  auto made = assume_role(*role, variable("AWS_ROLE_SESSION_NAME").value_or(""), *file);
  if (!made) return made.error();
  return std::optional(std::move(*made));
}

result<credentials> credential_search::assume_role(std::string_view role, const std::string& session, const std::string& token_file) {
  constexpr std::string_view what = "web identity";
  auto token = token_in(token_file, what);
  if (!token) return token.error();
  const auto address = sts_address();
  if (!address) return address.error();
  control_request request;
  request.method = "POST";
  request.address = *address;
  request.headers = {{"Content-Type", "application/x-www-form-urlencoded"}};
  request.body = fmt::format("Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn={}&RoleSessionName={}&WebIdentityToken={}",
                             percent_encoded(role, false), percent_encoded(session.empty() ? "penstock" : session, false),
                             percent_encoded(*token, false));
  wipe(*token);
  request.timeout = sts_timeout;
  request.most_bytes = most_credential_bytes;
  auto body = ask(request, fmt::format("{} at {}", what, address->shown()));
  wipe(request.body);
  if (!body) return body.error();
  auto made = parse_sts_credentials(*body, what);
  wipe(*body);
  return made;
}

result<url> credential_search::sts_address() const {
  const auto ignores = in_small_letters(setting("AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "ignore_configured_endpoint_urls"));
  std::string endpoint;
  for (const auto& each : {variable("AWS_ENDPOINT_URL_STS").value_or(""), variable("AWS_ENDPOINT_URL").value_or(""),
                           profile_.endpoint_of_service("sts"), profile_.setting("endpoint_url")}) {
    if (endpoint.empty() && ignores != "true") endpoint = each;
  }
  if (!endpoint.empty()) {
    auto address = parse_http_url(endpoint);
    return address ? std::move(address) : address.error().with_context("the STS endpoint (from AWS_ENDPOINT_URL_STS or the profile)");
  }
  const auto* const kind = options_.use_fips ? "-fips" : "";
  if (options_.region.empty())
    return parse_http_url(options_.use_fips ? "https://sts-fips.us-east-1.amazonaws.com/" : "https://sts.amazonaws.com/");
  if (!is_region(options_.region))
    return status(errc::invalid_argument, fmt::format("'{}' is not an AWS region, so it has no STS endpoint", shown_text(options_.region)));
  return parse_http_url(
      fmt::format("https://sts{}.{}.amazonaws.com{}/", kind, options_.region, options_.region.starts_with("cn-") ? ".cn" : ""));
}

// --- files of tools older than the AWS CLI, which botocore still reads
finding credential_search::in_old_files() {
  for (const auto* name : {"AWS_CREDENTIAL_FILE", "BOTO_CONFIG"}) {
    const auto file = variable(name);
    if (file)
      return status(
          errc::unsupported,
          fmt::format("{} refers to {}, but files of this kind are not supported: put the keys into ~/.aws/credentials, or unset {}", name,
                      printable_text(*file), name));
  }
  return std::optional<credentials>();
}

// --- container: ECS, and EKS with the Pod Identity Agent
finding credential_search::of_container() {
  if (!variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") && !variable("AWS_CONTAINER_CREDENTIALS_FULL_URI"))
    return not_here("the container (AWS_CONTAINER_CREDENTIALS_RELATIVE_URI and AWS_CONTAINER_CREDENTIALS_FULL_URI are not set)");
  const auto address = container_address();
  if (!address) return address.error();
  auto headers = container_headers();
  if (!headers) return headers.error();
  control_request request;
  request.address = *address;
  request.headers = std::move(*headers);
  request.timeout = container_timeout;
  request.most_bytes = most_credential_bytes;
  request.use_proxy = false;
  const auto what = fmt::format("the container's credentials at {}", address->shown());
  auto body = ask(request, what);
  if (!body) return body.error();
  auto made = parse_json_credentials(*body, what);
  wipe(*body);
  if (!made) return made.error();
  return std::optional(std::move(*made));
}

result<url> credential_search::container_address() const {
  if (const auto path = variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")) {
    // Accept only a path: anything else could refer to another host.
    if (!path->starts_with('/')) return status(errc::invalid_argument, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI must begin with a slash");
    return parse_http_url("http://169.254.170.2" + *path);
  }
  auto address = parse_http_url(variable("AWS_CONTAINER_CREDENTIALS_FULL_URI").value_or(""));
  if (!address) return address.error().with_context("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (may_hand_out_credentials(*address)) return address;
  return status(errc::invalid_argument, fmt::format("AWS_CONTAINER_CREDENTIALS_FULL_URI: {} must use https", address->authority()));
}

result<std::vector<header>> credential_search::container_headers() {
  std::string token;
  if (const auto file = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")) {
    auto read = token_in(*file, "the container's credentials");
    if (!read) return read.error();
    token = std::move(*read);
  } else {
    token = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN").value_or("");
  }
  std::vector<header> headers{{"Accept", "application/json"}};
  if (token.empty()) return headers;
  // The value is a scheme and a token. It may contain spaces, but no line break.
  if (!std::ranges::all_of(token, [](char c) { return c >= ' ' && c < 0x7f; }))
    return status(errc::invalid_argument, "the token for the container's credentials contains an invalid character");
  headers.push_back({"Authorization", std::move(token)});
  return headers;
}

// --- instance metadata
finding credential_search::of_instance() {
  constexpr std::string_view what = "the instance's metadata";
  if (in_small_letters(variable("AWS_EC2_METADATA_DISABLED").value_or("")) == "true")
    return not_here(fmt::format("{} (AWS_EC2_METADATA_DISABLED is set)", what));
  const auto token = metadata_token();
  if (!token && token.error().code() == errc::invalid_argument) return token.error();
  if (!token) return not_here(fmt::format("{} ({})", what, token.error().message()));
  const header with{"X-aws-ec2-metadata-token", token.value_or("")};
  constexpr std::string_view roles = "/latest/meta-data/iam/security-credentials/";
  const auto named = ask_metadata("GET", roles, with);
  if (!named) return not_here(fmt::format("{} ({})", what, named.error().message()));
  const auto role = first_line(*named);
  if (!fits_header(role)) return not_here(fmt::format("{} (the instance has no role)", what));
  auto body = ask_metadata("GET", fmt::format("{}{}", roles, percent_encoded(role, false)), with);
  if (!body) return body.error();
  auto made = parse_json_credentials(*body, what);
  wipe(*body);
  if (!made) return made.error();
  return std::optional(std::move(*made));
}

result<url> credential_search::metadata_address(std::string_view path) const {
  auto base = setting("AWS_EC2_METADATA_SERVICE_ENDPOINT", "ec2_metadata_service_endpoint");
  if (base.empty()) {
    const auto mode = in_small_letters(setting("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "ec2_metadata_service_endpoint_mode"));
    const bool is_ipv6 = mode.empty() ? in_small_letters(setting("AWS_IMDS_USE_IPV6", "imds_use_ipv6")) == "true" : mode == "ipv6";
    base = is_ipv6 ? "http://[fd00:ec2::254]" : "http://169.254.169.254";
  }
  while (base.ends_with('/')) base.pop_back();
  auto address = parse_http_url(fmt::format("{}{}", base, path));
  return address ? std::move(address) : address.error().with_context("AWS_EC2_METADATA_SERVICE_ENDPOINT");
}

// Returns an IMDSv2 token. Does not fall back to version 1, which needs no token: an attacker who can make our server send a GET could read
// the response.
result<std::string> credential_search::metadata_token() {
  constexpr std::string_view path = "/latest/api/token";
  auto token = ask_metadata("PUT", path, {"X-aws-ec2-metadata-token-ttl-seconds", "21600"});
  if (token && !fits_header(*token)) return status(errc::io, fmt::format("{}: the response is not a token", path));
  return token;
}

result<std::string> credential_search::ask_metadata(std::string_view method, std::string_view path, const header& with) {
  const auto address = metadata_address(path);
  if (!address) return address.error();
  const auto seconds = number_of(setting("AWS_METADATA_SERVICE_TIMEOUT", "metadata_service_timeout"),
                                 "AWS_METADATA_SERVICE_TIMEOUT (metadata_service_timeout)", most_metadata_seconds);
  if (!seconds) return seconds.error();
  const auto attempts = number_of(setting("AWS_METADATA_SERVICE_NUM_ATTEMPTS", "metadata_service_num_attempts"),
                                  "AWS_METADATA_SERVICE_NUM_ATTEMPTS (metadata_service_num_attempts)", most_metadata_attempts);
  if (!attempts) return attempts.error();
  control_request request;
  request.method = method;
  request.address = *address;
  request.headers = {with};
  request.timeout = std::chrono::seconds(*seconds);
  request.most_bytes = most_credential_bytes;
  request.use_proxy = false;
  for (unsigned tries = 1;; ++tries) {
    auto answer = ask(request, address->shown());
    if (answer || answer.error().code() == errc::permission_denied || tries >= *attempts) return answer;
  }
}

// --- helpers
result<std::string> credential_search::ask(const control_request& request, std::string_view what) const {
  auto answer = world_.call(request);
  if (!answer) return answer.error().with_context(what);
  if (answer->status_code == http_ok) return std::move(answer->body);
  const bool may_be_later = answer->status_code == 429 || answer->status_code >= 500;
  return status(may_be_later ? errc::io : errc::permission_denied,
                fmt::format("{}: {}", what, shown_error(answer->status_code, parse_s3_error(answer->body))));
}

result<std::string> credential_search::token_in(const std::string& file, std::string_view what) const {
  auto text = read_small_file(*world_.kernel, file, most_token_file_bytes);
  if (!text) return text.error().with_context(what);
  std::string token(first_line(*text));
  wipe(*text);
  if (token.empty()) return status(errc::invalid_argument, fmt::format("{}: {} contains no token", what, printable_text(file)));
  return token;
}

}  // namespace

result<credentials> find_credentials(const credential_options& options, const credential_world& world) {
  return credential_search(options, world).run();
}

bool may_hand_out_credentials(const url& address) {
  if (address.tls) return true;
  if (address.host == "localhost" || address.host == "169.254.170.2" || address.host == "169.254.170.23") return true;
  in_addr four{};
  if (inet_pton(AF_INET, address.host.c_str(), &four) == 1) return ntohl(four.s_addr) >> 24 == 127;
  in6_addr six{}, eks{};
  inet_pton(AF_INET6, "fd00:ec2::23", &eks);
  if (inet_pton(AF_INET6, address.host.c_str(), &six) != 1) return false;
  return IN6_IS_ADDR_LOOPBACK(&six) || IN6_ARE_ADDR_EQUAL(&six, &eks);
}

}  // namespace penstock::source::remote
