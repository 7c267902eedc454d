// The address of S3, and the settings that determine it.
#include "remote/s3/s3_settings.hpp"

#include <gtest/gtest.h>

#include <string>

#include "remote/outside_world.hpp"

namespace penstock::source::remote {
namespace {

using penstock::testing::outside_world;

class s3_settings_test : public ::testing::Test {
 protected:
  s3_settings find() {
    const auto found = find_s3_settings(options, outside.lookup(), *outside.kernel);
    EXPECT_TRUE(found.ok()) << found.error().message();
    return found.ok() ? *found : s3_settings{};
  }
  outside_world outside;
  s3_options options;
};

TEST_F(s3_settings_test, the_region_is_the_first_that_is_named) {
  EXPECT_EQ(find().region, "us-east-1");
  EXPECT_TRUE(find().is_region_assumed);
  outside.write(".aws/config", "[default]\nregion = eu-west-1\n");
  EXPECT_EQ(find().region, "eu-west-1");
  EXPECT_EQ(find().region_from, "the profile");
  EXPECT_FALSE(find().is_region_assumed);
  outside.variables["AWS_DEFAULT_REGION"] = "eu-west-2";
  EXPECT_EQ(find().region, "eu-west-2");
  outside.variables["AWS_REGION"] = "eu-west-3";
  EXPECT_EQ(find().region_from, "AWS_REGION");
  options.region = "eu-north-1";
  EXPECT_EQ(find().region, "eu-north-1");
}

TEST_F(s3_settings_test, a_region_cannot_name_a_host) {
  outside.variables["AWS_REGION"] = "x.evil.com/";
  const auto refused = find_s3_settings(options, outside.lookup(), *outside.kernel);
  EXPECT_EQ(refused.error().code(), errc::invalid_argument);
  EXPECT_EQ(refused.error().message(), "the region from AWS_REGION is 'x.evil.com/', which is not a valid region name");
}

TEST_F(s3_settings_test, the_endpoint_is_the_first_that_is_named) {
  EXPECT_EQ(find().endpoint, std::nullopt);
  outside.write(".aws/config", "[default]\nendpoint_url = http://127.0.0.1:1\n");
  EXPECT_EQ(find().endpoint->port, 1);
  outside.variables["AWS_ENDPOINT_URL"] = "http://127.0.0.1:2";
  EXPECT_EQ(find().endpoint->port, 2);
  outside.variables["AWS_ENDPOINT_URL_S3"] = "http://127.0.0.1:3";
  EXPECT_EQ(find().endpoint->port, 3);
  options.endpoint_url = "http://127.0.0.1:4";
  EXPECT_EQ(find().endpoint->port, 4);
  outside.variables["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] = "true";
  EXPECT_EQ(find().endpoint->port, 4);
  options.endpoint_url = "";
  EXPECT_EQ(find().endpoint, std::nullopt);
}

TEST_F(s3_settings_test, regions_of_other_servers_are_taken_as_they_are) {
  for (const auto* region : {"us-east-1", "auto", "RegionOne", "SBG", "eu_west_1", "us-east-1 ", " x\t", "default.rgw"}) {
    outside.variables["AWS_REGION"] = region;
    const std::string_view text(region);
    const auto begin = text.find_first_not_of(" \t");
    EXPECT_EQ(find().region, text.substr(begin, text.find_last_not_of(" \t") - begin + 1)) << region;
  }
}

TEST_F(s3_settings_test, an_endpoint_may_be_that_of_a_service_in_the_profile) {
  outside.write(".aws/config",
                "[default]\nservices = here\nendpoint_url = http://h:1\n[services here]\ns3 =\n  endpoint_url = http://h:2\n");
  EXPECT_EQ(find().endpoint->port, 2);
  outside.write(".aws/config", "[default]\nendpoint_url = http://h:1\ns3 =\n  endpoint_url = http://h:3\n");
  EXPECT_EQ(find().endpoint->port, 3);
  outside.write(".aws/config", "[default]\nendpoint_url = http://h:1\nignore_configured_endpoint_urls = true\n");
  EXPECT_EQ(find().endpoint, std::nullopt);
}

// Each way to say it, and what is to come of it.
TEST_F(s3_settings_test, settings_of_the_aws_tools_are_obeyed) {
  struct row {
    const char* variable;
    const char* value;
    const char* config;
    bool (*holds)(const s3_settings&);
  };
  const row rows[] = {
      {"AWS_USE_FIPS_ENDPOINT", "true", "", [](const s3_settings& of) { return of.fips && !of.dualstack; }},
      {"", "", "use_fips_endpoint = True", [](const s3_settings& of) { return of.fips; }},
      {"AWS_USE_FIPS_ENDPOINT", "false", "use_fips_endpoint = true", [](const s3_settings& of) { return !of.fips; }},
      {"AWS_USE_DUALSTACK_ENDPOINT", "true", "", [](const s3_settings& of) { return of.dualstack && !of.fips; }},
      {"", "", "use_dualstack_endpoint = true", [](const s3_settings& of) { return of.dualstack; }},
      {"", "", "s3 =\n  use_dualstack_endpoint = true", [](const s3_settings& of) { return of.dualstack; }},
      {"", "", "s3 =\n  addressing_style = path", [](const s3_settings& of) { return of.style == addressing::path; }},
      {"", "", "s3 =\n  addressing_style = virtual", [](const s3_settings& of) { return of.style == addressing::virtual_host; }},
      {"", "", "s3 =\n  addressing_style = auto", [](const s3_settings& of) { return of.style == addressing::automatic; }},
      {"AWS_REQUEST_PAYER", "requester", "", [](const s3_settings& of) { return of.requester_pays; }},
      {"AWS_REQUEST_CHECKSUM_CALCULATION", "when_supported", "", [](const s3_settings& of) { return of.always_checksums; }},
      {"", "", "request_checksum_calculation = when_required", [](const s3_settings& of) { return !of.always_checksums; }},
      {"", "", "s3 =\n  payload_signing_enabled = true", [](const s3_settings& of) { return of.signs_payload == true; }},
      {"", "", "s3 =\n  payload_signing_enabled = false", [](const s3_settings& of) { return of.signs_payload == false; }},
      {"AWS_MAX_ATTEMPTS", "7", "max_attempts = 3", [](const s3_settings& of) { return of.attempts == 7; }},
      {"", "", "max_attempts = 3", [](const s3_settings& of) { return of.attempts == 3; }},
      {"", "", "",
       [](const s3_settings& of) { return !of.fips && !of.dualstack && !of.requester_pays && of.attempts == 0 && !of.signs_payload; }},
  };
  for (const auto& each : rows) {
    outside.write(".aws/config", std::string("[default]\n") + each.config + "\n");
    if (*each.variable != '\0') outside.variables[each.variable] = each.value;
    EXPECT_TRUE(each.holds(find())) << each.variable << " " << each.config;
    outside.variables.erase(each.variable);
  }
}

TEST_F(s3_settings_test, settings_of_the_aws_tools_that_cannot_be_obeyed_are_refused) {
  const std::pair<const char*, const char*> configurations[] = {
      {"use_fips_endpoint = maybe", "true or false"},
      {"use_fips_endpoint = true\nendpoint_url = http://own", "FIPS"},
      {"use_dualstack_endpoint = true\nendpoint_url = http://own", "IPv4 and IPv6"},
      {"s3 =\n  addressing_style = odd", "auto, path or virtual"},
      {"s3 =\n  payload_signing_enabled = maybe", "true or false"},
      {"request_checksum_calculation = always", "when_required"},
      {"max_attempts = many", "a number from 1"},
      {"ca_bundle = /etc/own.pem", "AWS_CA_BUNDLE"},
      {"services = missing", "[services missing]"},
  };
  for (const auto& [text, said] : configurations) {
    outside.write(".aws/config", std::string("[default]\n") + text + "\n");
    const auto refused = find_s3_settings(options, outside.lookup(), *outside.kernel).error();
    EXPECT_NE(refused.message().find(said), std::string::npos) << text << ": " << refused.message();
  }
}

TEST_F(s3_settings_test, an_access_point_is_asked_in_its_own_region) {
  options.access_point_region = "us-west-2";
  outside.variables["AWS_REGION"] = "eu-west-1";
  EXPECT_EQ(find().region, "us-west-2");
  outside.variables["AWS_S3_USE_ARN_REGION"] = "false";
  const auto refused = find_s3_settings(options, outside.lookup(), *outside.kernel);
  EXPECT_EQ(refused.error().message(),
            "the access point is in us-west-2, the region from AWS_REGION is eu-west-1, and use_arn_region is false");
  outside.variables["AWS_REGION"] = "us-west-2";
  EXPECT_EQ(find().region, "us-west-2");
}

TEST_F(s3_settings_test, settings_of_the_program_come_before_variables_and_profile) {
  outside.write(".aws/config", "[default]\nretry_mode = odd\ns3 =\n  payload_signing_enabled = false\n");
  outside.variables["AWS_RETRY_MODE"] = "odd too";
  options.settings = {{"retry_mode", "standard"}, {"payload_signing_enabled", "true"}};
  EXPECT_EQ(find().signs_payload, true);
  options.settings = {{"no_such_setting", "true"}};
  EXPECT_EQ(find_s3_settings(options, outside.lookup(), *outside.kernel).error().message(),
            "'no_such_setting' is not a setting of the AWS tools");
}

TEST_F(s3_settings_test, what_the_program_says_comes_first) {
  outside.variables["AWS_USE_FIPS_ENDPOINT"] = "true";
  outside.variables["AWS_REQUEST_PAYER"] = "requester";
  options.use_fips = false;
  options.requester_pays = false;
  options.use_dualstack = true;
  options.addressing_style = "path";
  const auto found = find();
  EXPECT_FALSE(found.fips || found.requester_pays);
  EXPECT_TRUE(found.dualstack);
  EXPECT_EQ(found.style, addressing::path);
}

TEST_F(s3_settings_test, an_endpoint_with_a_password_is_refused_without_showing_it) {
  outside.variables["AWS_ENDPOINT_URL"] = "http://u:hush@h";
  const auto refused = find_s3_settings(options, outside.lookup(), *outside.kernel);
  EXPECT_EQ(refused.error().message(),
            "the endpoint from AWS_ENDPOINT_URL: URL http://...: a URL must not contain a user name or password");
}

TEST_F(s3_settings_test, certificates_may_be_in_a_file) {
  EXPECT_EQ(find().ca_bundle, "");
  outside.variables["AWS_CA_BUNDLE"] = "/etc/own.pem";
  EXPECT_EQ(find().ca_bundle, "/etc/own.pem");
  options.ca_bundle = "/etc/mine.pem";
  EXPECT_EQ(find().ca_bundle, "/etc/mine.pem");
}

TEST_F(s3_settings_test, a_profile_that_is_asked_for_has_to_be_there) {
  options.profile = "work";
  EXPECT_EQ(find_s3_settings(options, outside.lookup(), *outside.kernel).error().code(), errc::not_found);
}

}  // namespace
}  // namespace penstock::source::remote
