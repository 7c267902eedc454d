#include "source/remote/s3_settings.hpp"

#include <fmt/format.h>

#include <array>
#include <initializer_list>
#include <utility>

namespace penstock::source::remote {

namespace {

struct found_setting {
  std::string value;
  std::string from;
};

// The first that is set: what the program says, a variable, what the profile says.
found_setting first_setting(const std::string& given, std::initializer_list<std::string_view> names, const variable_lookup& lookup,
                            const std::string& of_profile) {
  if (!given.empty()) return {given, "the program"};
  for (const auto name : names) {
    if (auto value = variable_set(lookup, name)) return {std::move(*value), std::string(name)};
  }
  if (!of_profile.empty()) return {of_profile, "the profile"};
  return {};
}

}  // namespace

result<s3_settings> find_s3_settings(const s3_options& options, const variable_lookup& lookup, sys::kernel& kernel) {
  const auto found = find_profile(kernel, lookup, options.profile);
  if (!found) return found.error();
  const auto& of_profile = found->values;
  s3_settings made;
  auto region = first_setting(options.region, {"AWS_REGION", "AWS_DEFAULT_REGION"}, lookup, of_profile.region);
  made.is_region_assumed = region.value.empty();
  if (made.is_region_assumed) region = {std::string(assumed_region), "nowhere"};
  if (!is_region(region.value))
    return status(errc::invalid_argument, fmt::format("the region '{}' of {} is none", shown_text(region.value), region.from));
  made.region = std::move(region.value);
  made.region_from = std::move(region.from);

  const bool is_ignored = variable_set(lookup, "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS").value_or("") == "true";
  const auto endpoint =
      is_ignored ? found_setting{options.endpoint_url, "the program"}
                 : first_setting(options.endpoint_url, {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}, lookup, of_profile.endpoint_url);
  if (!endpoint.value.empty()) {
    auto address = parse_http_url(endpoint.value);
    if (!address) return address.error().with_context(fmt::format("the endpoint of {}", endpoint.from));
    made.endpoint = std::move(*address);
  }
  made.ca_bundle = first_setting(options.ca_bundle, {"AWS_CA_BUNDLE"}, lookup, of_profile.ca_bundle).value;
  return made;
}

}  // namespace penstock::source::remote
