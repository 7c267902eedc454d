// Where S3 is, and who says so.
#include "source/remote/s3_settings.hpp"

#include <gtest/gtest.h>

#include <string>

#include "source/remote/outside_world.hpp"

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
  EXPECT_EQ(refused.error().message(), "the region 'x.evil.com/' of AWS_REGION is none");
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

TEST_F(s3_settings_test, an_endpoint_with_a_password_is_refused_without_showing_it) {
  outside.variables["AWS_ENDPOINT_URL"] = "http://u:hush@h";
  const auto refused = find_s3_settings(options, outside.lookup(), *outside.kernel);
  EXPECT_EQ(refused.error().message(),
            "the endpoint of AWS_ENDPOINT_URL: URL http://...: a user name or password does not belong into a URL");
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
