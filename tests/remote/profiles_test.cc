// Parsing of the files of the AWS tools.
#include "remote/credentials/profiles.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>

#include "remote/outside_world.hpp"

namespace penstock::source::remote {
namespace {

using penstock::testing::outside_world;

profile profile_of(std::string_view file, profile_format format, std::string_view name) {
  profile made;
  EXPECT_TRUE(read_profile(file, format, name, made));
  return made;
}

TEST(profiles, keys_of_one_profile_are_read) {
  constexpr std::string_view file =
      "\xef\xbb\xbf# a comment\r\n[default]\r\naws_access_key_id = AKIADEFAULT\r\naws_secret_access_key=one/two+three=\r\n\r\n"
      "[ other ] ; of another account\nAWS_ACCESS_KEY_ID=AKIAOTHER # mine\naws_secret_access_key = four#five\naws_session_token = six\n";
  const auto first = profile_of(file, profile_format::credentials, "default");
  EXPECT_EQ(first.access_key_id, "AKIADEFAULT");
  EXPECT_EQ(first.secret_access_key.reveal(), "one/two+three=");
  EXPECT_TRUE(first.session_token.empty());
  const auto other = profile_of(file, profile_format::credentials, "other");
  EXPECT_EQ(other.access_key_id, "AKIAOTHER");
  EXPECT_EQ(other.secret_access_key.reveal(), "four#five");
  EXPECT_EQ(other.session_token.reveal(), "six");
}

TEST(profiles, the_configuration_calls_them_by_another_heading) {
  constexpr std::string_view file =
      "[default]\nregion = eu-west-1\n[profile my one]\nregion=us-west-2\ns3 =\n  region = nested\n  endpoint_url = nested\n"
      "credential_process = /bin/tool --for x\n[profile \"quoted\"]\nregion=ap-south-1\n[services x]\nregion=none\n[sso-session "
      "y]\nregion=none\n";
  EXPECT_EQ(profile_of(file, profile_format::config, "default").setting("region"), "eu-west-1");
  const auto mine = profile_of(file, profile_format::config, "my one");
  EXPECT_EQ(mine.setting("region"), "us-west-2");
  EXPECT_EQ(mine.setting("endpoint_url"), "");
  EXPECT_EQ(mine.setting("s3.endpoint_url"), "nested");
  EXPECT_EQ(mine.credential_process, "/bin/tool --for x");
  EXPECT_EQ(profile_of(file, profile_format::config, "quoted").setting("region"), "ap-south-1");
  profile none;
  for (const char* const name : {"x", "y", "services x", "profile my one", "", "my"})
    EXPECT_FALSE(read_profile(file, profile_format::config, name, none)) << name;
  EXPECT_EQ(none.setting("region"), "");
}

TEST(profiles, keys_of_one_file_are_not_mixed_with_those_of_the_other) {
  profile both;
  read_profile("[default]\naws_access_key_id=A\naws_secret_access_key=B\n", profile_format::credentials, "default", both);
  read_profile("[default]\naws_access_key_id=C\naws_secret_access_key=D\naws_session_token=E\nregion=eu-west-1\n", profile_format::config,
               "default", both);
  EXPECT_EQ(both.access_key_id, "A");
  EXPECT_EQ(both.secret_access_key.reveal(), "B");
  EXPECT_TRUE(both.session_token.empty());
  EXPECT_EQ(both.setting("region"), "eu-west-1");
}

TEST(profiles, the_files_lie_below_home_or_where_variables_say) {
  outside_world outside;
  outside.write(".aws/credentials", "[default]\naws_access_key_id=A\n[work]\naws_access_key_id=W\n");
  outside.write(".aws/config", "[default]\nregion=eu-west-1\n");
  const auto usual = find_profile(*outside.kernel, outside.lookup(), "");
  ASSERT_TRUE(usual.ok()) << usual.error().message();
  EXPECT_EQ(usual->values.access_key_id, "A");
  EXPECT_EQ(usual->values.setting("region"), "eu-west-1");
  EXPECT_FALSE(usual->is_asked_for);
  outside.variables["AWS_PROFILE"] = "work";
  EXPECT_EQ(find_profile(*outside.kernel, outside.lookup(), "")->values.access_key_id, "W");
  EXPECT_EQ(find_profile(*outside.kernel, outside.lookup(), "default")->values.access_key_id, "A");
  outside.write("elsewhere", "[work]\naws_access_key_id=E\n");
  outside.variables["AWS_SHARED_CREDENTIALS_FILE"] = "~/elsewhere";
  EXPECT_EQ(find_profile(*outside.kernel, outside.lookup(), "")->values.access_key_id, "E");
}

TEST(profiles, a_section_of_services_has_endpoints_for_those_that_name_it) {
  constexpr std::string_view file =
      "[services here] # mine\ns3 =\n  endpoint_url = http://s3\n  other = x\nSTS =\n\tendpoint_url=http://sts\n[default]\nservices = "
      "here\n"
      "s3 =\n    addressing_style = path\n    # a comment\n    use_dualstack_endpoint = true\nregion = r\n  addressing_style = of_nothing\n"
      "[profile other]\nservices = there\n[profile none]\nregion = x\n";
  const auto one = profile_of(file, profile_format::config, "default");
  EXPECT_EQ(one.endpoint_of_service("s3"), "http://s3");
  EXPECT_EQ(one.endpoint_of_service("sts"), "http://sts");
  EXPECT_EQ(one.endpoint_of_service("dynamodb"), "");
  EXPECT_EQ(one.setting("s3.addressing_style"), "path");
  EXPECT_EQ(one.setting("s3.use_dualstack_endpoint"), "true");
  EXPECT_EQ(one.setting("region"), "r");
  EXPECT_EQ(profile_of(file, profile_format::config, "other").endpoint_of_service("s3"), "");
  EXPECT_EQ(profile_of(file, profile_format::config, "none").endpoint_of_service("s3"), "");
  outside_world outside;
  outside.write(".aws/config", file);
  EXPECT_TRUE(find_profile(*outside.kernel, outside.lookup(), "").ok());
  const auto missing = find_profile(*outside.kernel, outside.lookup(), "other");
  EXPECT_EQ(missing.error().code(), errc::not_found);
  EXPECT_NE(missing.error().message().find("[services there]"), std::string::npos) << missing.error().message();
}

TEST(profiles, a_default_one_may_be_named_by_another_variable) {
  outside_world outside;
  outside.write(".aws/config", "[profile one]\nregion=of-one\n[profile two]\nregion=of-two\n");
  outside.variables["AWS_DEFAULT_PROFILE"] = "two";
  EXPECT_EQ(find_profile(*outside.kernel, outside.lookup(), "")->values.setting("region"), "of-two");
  outside.variables["AWS_PROFILE"] = "one";
  EXPECT_EQ(find_profile(*outside.kernel, outside.lookup(), "")->values.setting("region"), "of-one");
}

TEST(profiles, one_that_is_asked_for_has_to_be_there) {
  outside_world outside;
  EXPECT_FALSE(find_profile(*outside.kernel, outside.lookup(), "")->is_there);
  const auto missing = find_profile(*outside.kernel, outside.lookup(), "work");
  EXPECT_EQ(missing.error().code(), errc::not_found);
  EXPECT_NE(missing.error().message().find("'work'"), std::string::npos);
  EXPECT_NE(missing.error().message().find(".aws/config (not found)"), std::string::npos);
}

TEST(profiles, a_file_that_cannot_be_read_is_an_error) {
  outside_world outside;
  outside.write(".aws/credentials", std::string(most_profile_bytes + 1, '#'));
  EXPECT_EQ(find_profile(*outside.kernel, outside.lookup(), "").error().code(), errc::invalid_argument);
  outside.variables["AWS_SHARED_CREDENTIALS_FILE"] = outside.home.path().string();
  EXPECT_FALSE(find_profile(*outside.kernel, outside.lookup(), "").ok());
}

TEST(profiles, a_home_that_is_none_is_no_error) {
  outside_world outside;
  outside.variables.erase("HOME");
  const auto without = find_profile(*outside.kernel, outside.lookup(), "");
  ASSERT_TRUE(without.ok()) << without.error().message();
  EXPECT_EQ(without->looked_at, "~/.aws/credentials (HOME is not set) and ~/.aws/config (HOME is not set)");
  outside.variables["HOME"] = "/dev/null";
  const auto nowhere = find_profile(*outside.kernel, outside.lookup(), "");
  ASSERT_TRUE(nowhere.ok()) << nowhere.error().message();
  EXPECT_EQ(nowhere->looked_at, "/dev/null/.aws/credentials (not accessible) and /dev/null/.aws/config (not accessible)");
  outside.variables["AWS_CONFIG_FILE"] = "/dev/null/config";
  EXPECT_EQ(find_profile(*outside.kernel, outside.lookup(), "").error().code(), errc::not_a_file);
}

TEST(small_file, a_fifo_is_refused_and_not_waited_for) {
  outside_world outside;
  const auto fifo = outside.home.file("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_EQ(read_small_file(*outside.kernel, fifo, 100).error().code(), errc::not_a_file);
}

TEST(small_file, has_as_many_bytes_as_may_be) {
  outside_world outside;
  EXPECT_EQ(read_small_file(*outside.kernel, outside.write("a", std::string(10000, 'x')), 10000).value_or(""), std::string(10000, 'x'));
  EXPECT_FALSE(read_small_file(*outside.kernel, outside.write("a", std::string(10001, 'x')), 10000).ok());
  EXPECT_EQ(read_small_file(*outside.kernel, outside.write("b", ""), 10).value_or("none"), "");
  EXPECT_EQ(read_small_file(*outside.kernel, outside.home.file("c"), 10).error().code(), errc::not_found);
}

}  // namespace
}  // namespace penstock::source::remote
