#include "remote/s3/s3_settings.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <initializer_list>
#include <utility>

#include "base/printable.hpp"

namespace penstock::source::remote {

namespace {

struct found_setting {
  std::string value;
  std::string from;
};

std::string without_blanks(std::string_view text) {
  const auto begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return std::string(text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1));
}

// Returns the first value that is set: by the program, by a variable or by the profile.
found_setting first_setting(const std::string& given, std::initializer_list<std::string_view> names, const variable_lookup& lookup,
                            std::initializer_list<std::string> of_profile) {
  if (!given.empty()) return {without_blanks(given), "the program"};
  for (const auto name : names) {
    if (const auto value = variable_set(lookup, name); value && !without_blanks(*value).empty())
      return {without_blanks(*value), std::string(name)};
  }
  for (const auto& each : of_profile) {
    if (!each.empty()) return {each, "the profile"};
  }
  return {};
}

status no_word(const found_setting& of, std::string_view what, std::string_view words) {
  return {errc::invalid_argument,
          fmt::format("{} from {} is '{}', but must be {}", what, of.from, printable_text(of.value.substr(0, 100)), words)};
}

result<bool> switch_of(const found_setting& of, std::string_view what) {
  const auto word = in_small_letters(of.value);
  if (word == "true" || word == "1") return true;
  if (word.empty() || word == "false" || word == "0") return false;
  return no_word(of, what, "true or false");
}

result<addressing> style_of(const found_setting& of) {
  if (of.value.empty() || of.value == "auto") return addressing::automatic;
  if (of.value == "path") return addressing::path;
  if (of.value == "virtual") return addressing::virtual_host;
  return no_word(of, "the addressing style", "auto, path or virtual");
}

class settings_search {
 public:
  settings_search(const s3_options& options, const variable_lookup& lookup, const profile& values)
      : options_(options), lookup_(lookup), profile_(values) {}

  result<s3_settings> all() {
    for (const auto step : {&settings_search::find_endpoint, &settings_search::find_region, &settings_search::find_kind_of_endpoint,
                            &settings_search::find_requests, &settings_search::find_certificates}) {
      if (auto problem = (this->*step)(); !problem.ok()) return problem;
    }
    return std::move(made_);
  }

 private:
  status find_endpoint() {
    const auto ignores = switch_of(
        first_setting({}, {"AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"}, lookup_, {profile_.setting("ignore_configured_endpoint_urls")}),
        "the setting to ignore endpoints");
    if (!ignores) return ignores.error();
    const auto found =
        *ignores
            ? found_setting{options_.endpoint_url, "the program"}
            : first_setting(options_.endpoint_url, {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}, lookup_,
                            {profile_.endpoint_of_service("s3"), profile_.setting("s3.endpoint_url"), profile_.setting("endpoint_url")});
    if (found.value.empty()) return {};
    auto address = parse_http_url(found.value);
    if (!address) return address.error().with_context(fmt::format("the endpoint from {}", found.from));
    made_.endpoint = std::move(*address);
    return {};
  }

  status find_region() {
    auto region = first_setting(options_.region, {"AWS_REGION", "AWS_DEFAULT_REGION"}, lookup_, {profile_.setting("region")});
    const auto by_arn = first_setting({}, {"AWS_S3_USE_ARN_REGION"}, lookup_,
                                      {profile_.setting("s3_use_arn_region"), profile_.setting("s3.use_arn_region")});
    const auto uses_arn = by_arn.value.empty() ? result<bool>(true) : switch_of(by_arn, "the setting to use an ARN's region");
    if (!uses_arn) return uses_arn.error();
    if (const auto& named = options_.access_point_region; !named.empty()) {
      if (!*uses_arn && region.value != named && !region.value.empty())
        return {errc::invalid_argument, fmt::format("the access point is in {}, the region from {} is {}, and use_arn_region is false",
                                                    named, region.from, shown_text(region.value))};
      region = {named, "the name of the access point"};
    }
    made_.is_region_assumed = region.value.empty();
    if (made_.is_region_assumed) region = {std::string(assumed_region), "nowhere"};
    if (!is_region_name(region.value))
      return {errc::invalid_argument,
              fmt::format("the region from {1} is '{0}', which is not a valid region name", shown_text(region.value), region.from)};
    made_.region = std::move(region.value);
    made_.region_from = std::move(region.from);
    return {};
  }

  status find_kind_of_endpoint() {
    const auto word = [](std::optional<bool> given) { return !given ? std::string() : *given ? "true" : "false"; };
    const auto fips = first_setting(word(options_.use_fips), {"AWS_USE_FIPS_ENDPOINT"}, lookup_, {profile_.setting("use_fips_endpoint")});
    const auto dualstack = first_setting(word(options_.use_dualstack), {"AWS_USE_DUALSTACK_ENDPOINT"}, lookup_,
                                         {profile_.setting("s3.use_dualstack_endpoint"), profile_.setting("use_dualstack_endpoint")});
    const auto uses_fips = switch_of(fips, "the setting to use FIPS endpoints");
    if (!uses_fips) return uses_fips.error();
    const auto uses_dualstack = switch_of(dualstack, "the setting to use dualstack endpoints");
    if (!uses_dualstack) return uses_dualstack.error();
    const auto style = style_of(first_setting(options_.addressing_style, {}, lookup_, {profile_.setting("s3.addressing_style")}));
    if (!style) return style.error();
    made_.fips = *uses_fips;
    made_.dualstack = *uses_dualstack;
    made_.style = *style;
    if (!made_.endpoint || (!made_.fips && !made_.dualstack)) return {};
    return {errc::invalid_argument,
            fmt::format("{} requests an Amazon endpoint {}, but a different endpoint is configured: {}",
                        made_.fips ? fips.from : dualstack.from, made_.fips ? "for FIPS" : "with IPv4 and IPv6", made_.endpoint->shown())};
  }

  status find_requests() {
    const auto payer = first_setting({}, {"AWS_REQUEST_PAYER"}, lookup_, {});
    if (!payer.value.empty() && payer.value != "requester") return no_word(payer, "the payer", "requester");
    made_.use_ssl = options_.use_ssl;
    made_.requester_pays = options_.requester_pays.value_or(!payer.value.empty());
    const auto checksums =
        first_setting({}, {"AWS_REQUEST_CHECKSUM_CALCULATION"}, lookup_, {profile_.setting("request_checksum_calculation")});
    made_.always_checksums = checksums.value == "when_supported" || checksums.value == "WHEN_SUPPORTED";
    if (!checksums.value.empty() && !made_.always_checksums && checksums.value != "when_required" && checksums.value != "WHEN_REQUIRED")
      return no_word(checksums, "the setting for checksums", "when_supported or when_required");
    const found_setting signs{profile_.setting("s3.payload_signing_enabled"), "the profile"};
    const auto signs_payload = switch_of(signs, "the setting to sign payloads");
    if (!signs_payload) return signs_payload.error();
    if (!signs.value.empty()) made_.signs_payload = *signs_payload;
    const auto attempts = first_setting({}, {"AWS_MAX_ATTEMPTS"}, lookup_, {profile_.setting("max_attempts")});
    const auto& text = attempts.value;
    if (text.empty()) return {};
    const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), made_.attempts);
    const bool is_number = problem == std::errc() && end == text.data() + text.size() && made_.attempts >= 1 && made_.attempts <= 1000;
    return is_number ? status() : no_word(attempts, "the number of attempts", "a number from 1 to 1000");
  }

  status find_certificates() {
    made_.ca_bundle = first_setting(options_.ca_bundle, {"AWS_CA_BUNDLE"}, lookup_, {}).value;
    if (!made_.ca_bundle.empty() || profile_.setting("ca_bundle").empty()) return {};
    return {errc::unsupported, "the profile sets ca_bundle, which Penstock does not use: set AWS_CA_BUNDLE instead"};
  }

  const s3_options& options_;
  const variable_lookup& lookup_;
  const profile& profile_;
  s3_settings made_;
};

}  // namespace

result<s3_settings> find_s3_settings(const s3_options& options, const variable_lookup& lookup, sys::kernel& kernel) {
  auto found = find_profile(kernel, lookup, options.profile);
  if (!found) return found.error();
  const auto rest = put_before(options.settings, lookup, *found);
  if (!rest) return rest.error();
  if (auto problem = check_aws_settings(*rest, *found); !problem.ok()) return problem;
  return settings_search(options, *rest, found->values).all();
}

}  // namespace penstock::source::remote
