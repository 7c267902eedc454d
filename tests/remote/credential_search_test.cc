// The places that are searched for credentials, their order, and what is refused. Every secret contains "hush", which no message may show.
#include "remote/credentials/credential_search.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "remote/credentials/credential_answers.hpp"
#include "remote/outside_world.hpp"

namespace penstock::source::remote {
namespace {

using penstock::testing::outside_world;

constexpr std::string_view json_keys =
    R"({"Code":"Success","LastUpdated":"x","Type":"AWS-HMAC","AccessKeyId":"ASIAJSON","SecretAccessKey":"jsonhush","Token":"tokenhush",)"
    R"("Expiration":"2026-01-01T06:00:00Z","Other":{"a":[1,2,null]}})";
constexpr std::string_view sts_keys =
    "<AssumeRoleWithWebIdentityResponse xmlns=\"https://sts.amazonaws.com/doc/2011-06-15/\"><AssumeRoleWithWebIdentityResult><Credentials>"
    "<AccessKeyId>ASIASTS</AccessKeyId><SecretAccessKey>stshush</SecretAccessKey><SessionToken>tokenhush</SessionToken>"
    "<Expiration>2026-01-01T01:00:00Z</Expiration></Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>";

class credential_search_test : public ::testing::Test {
 protected:
  credentials find() {
    const auto found = find_credentials(options, outside.world());
    EXPECT_TRUE(found.ok()) << found.error().message();
    return found.ok() ? *found : credentials{};
  }

  std::string refusal(errc code) {
    const auto found = find_credentials(options, outside.world());
    EXPECT_FALSE(found.ok());
    EXPECT_EQ(found.error().code(), code) << found.error().message();
    EXPECT_EQ(found.error().message().find("hush"), std::string_view::npos) << found.error().message();
    return std::string(found.error().message());
  }

  void set_keys() {
    outside.variables["AWS_ACCESS_KEY_ID"] = "AKIAENV";
    outside.variables["AWS_SECRET_ACCESS_KEY"] = "envhush";
  }

  void serve(int status_code, std::string_view body) {
    outside.serve = [=](const control_request&) { return outside_world::answered(status_code, std::string(body)); };
  }

  // An instance whose role has the keys.
  void serve_metadata(std::string_view keys) {
    outside.serve = [keys = std::string(keys)](const control_request& request) {
      if (request.address.path == "/latest/api/token") return outside_world::answered(request.method == "PUT" ? 200 : 405, "metahush");
      if (header_value(request.headers, "x-aws-ec2-metadata-token") != "metahush") return outside_world::answered(401, "");
      if (request.address.path == "/latest/meta-data/iam/security-credentials/") return outside_world::answered(200, "my-role\n");
      if (request.address.path == "/latest/meta-data/iam/security-credentials/my-role") return outside_world::answered(200, keys);
      return outside_world::answered(404, "");
    };
  }

  outside_world outside;
  credential_options options;
};

TEST_F(credential_search_test, those_of_the_program_come_first) {
  set_keys();
  options.given = credentials{"AKIAGIVEN", secret_text("givenhush"), {}, {}, {}};
  EXPECT_EQ(find().access_key_id, "AKIAGIVEN");
  EXPECT_EQ(find().found_in, "the program");
}

TEST_F(credential_search_test, those_of_the_environment_come_before_the_profile) {
  outside.write(".aws/credentials", "[default]\naws_access_key_id=AKIAFILE\naws_secret_access_key=filehush\n");
  EXPECT_EQ(find().access_key_id, "AKIAFILE");
  set_keys();
  outside.variables["AWS_SESSION_TOKEN"] = "tokenhush";
  const auto found = find();
  EXPECT_EQ(found.access_key_id, "AKIAENV");
  EXPECT_EQ(found.secret_access_key.reveal(), "envhush");
  EXPECT_EQ(found.session_token.reveal(), "tokenhush");
  EXPECT_EQ(found.expires_at, std::nullopt);
  EXPECT_TRUE(outside.asked.empty());
}

TEST_F(credential_search_test, a_profile_that_the_program_asks_for_comes_before_the_environment) {
  set_keys();
  outside.write(".aws/credentials", "[work]\naws_access_key_id=AKIAWORK\naws_secret_access_key=workhush\n");
  options.profile = "work";
  EXPECT_EQ(find().access_key_id, "AKIAWORK");
  options.profile = "other";
  refusal(errc::not_found);
  outside.write(".aws/config", "[profile other]\nregion = eu-west-1\n");
  EXPECT_NE(refusal(errc::permission_denied).find("contains no credentials"), std::string::npos);
}

TEST_F(credential_search_test, the_variable_names_a_profile) {
  outside.write(".aws/credentials", "[work]\naws_access_key_id=AKIAWORK\naws_secret_access_key=workhush\n");
  outside.variables["AWS_PROFILE"] = "work";
  EXPECT_EQ(find().access_key_id, "AKIAWORK");
  outside.variables["AWS_PROFILE"] = "missing";
  refusal(errc::not_found);
}

TEST_F(credential_search_test, half_of_a_pair_is_an_error) {
  outside.variables["AWS_SECRET_ACCESS_KEY"] = "envhush";
  EXPECT_EQ(refusal(errc::invalid_argument), "AWS_SECRET_ACCESS_KEY is set but AWS_ACCESS_KEY_ID is not");
  outside.variables.erase("AWS_SECRET_ACCESS_KEY");
  outside.write(".aws/credentials", "[default]\naws_secret_access_key=filehush\n");
  refusal(errc::unsupported);
}

TEST_F(credential_search_test, keys_that_no_header_can_have_are_refused) {
  set_keys();
  for (const char* const secret : {"envhush\n", "env hush", "env\x01hush", "hush\xc3\xa4"}) {
    outside.variables["AWS_SECRET_ACCESS_KEY"] = secret;
    refusal(errc::invalid_argument);
  }
}

TEST_F(credential_search_test, temporary_keys_need_their_token) {
  set_keys();
  outside.variables["AWS_ACCESS_KEY_ID"] = "ASIAENV";
  EXPECT_EQ(refusal(errc::invalid_argument), "the keys from the environment are temporary (ASIA...), but the session token is not set");
  outside.variables["AWS_SESSION_TOKEN"] = "tokenhush";
  EXPECT_EQ(find().access_key_id, "ASIAENV");
}

TEST_F(credential_search_test, none_is_an_error_that_lists_what_was_looked_at) {
  const auto told = refusal(errc::permission_denied);
  for (const char* const place :
       {"AWS_ACCESS_KEY_ID is not set", ".aws/credentials (not found)", ".aws/config (not found)", "AWS_WEB_IDENTITY_TOKEN_FILE is not set",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI are not set", "http://169.254.169.254/latest/api/token: nobody answers", "anonymous access"})
    EXPECT_NE(told.find(place), std::string::npos) << place << " is not in: " << told;
}

TEST_F(credential_search_test, nobody_is_anonymous_who_did_not_ask_for_it) {
  options.anonymous = true;
  EXPECT_TRUE(find().anonymous());
  EXPECT_TRUE(outside.asked.empty());
}

TEST_F(credential_search_test, a_program_of_a_profile_is_started_where_that_is_allowed) {
  outside.write(".aws/config", "[default]\ncredential_process = tool --x \"y z\"\n");
  std::vector<std::string> started;
  outside.run = [&](const std::string& command) -> result<std::string> {
    started.push_back(command);
    return std::string(R"({"Version": 1, "AccessKeyId": "ASIATOOL", "SecretAccessKey": "toolhush", "SessionToken": "tokenhush"})");
  };
  EXPECT_NE(refusal(errc::permission_denied).find("which Penstock may not run"), std::string::npos);
  EXPECT_NE(refusal(errc::permission_denied).find("PENSTOCK_ALLOW_CREDENTIAL_PROCESS=1"), std::string::npos);
  EXPECT_TRUE(started.empty());
  options.allow_process = true;
  EXPECT_EQ(find().access_key_id, "ASIATOOL");
  EXPECT_EQ(started, std::vector<std::string>{"tool --x \"y z\""});
  outside.run = [](const std::string&) -> result<std::string> {
    return std::string(R"({"AccessKeyId": "ASIATOOL", "SecretAccessKey": 1})");
  };
  refusal(errc::io);
}

TEST_F(credential_search_test, profiles_that_need_the_aws_tools_have_them_started_where_that_is_allowed) {
  for (const auto* text : {"role_arn = arn:aws:iam::1:role/x\nsource_profile = y\n", "sso_session = y\n", "sso_start_url = https://x\n"}) {
    outside.write(".aws/config", std::string("[default]\n") + text + "[profile work]\n" + text + "[profile o'dd]\n" + text);
    std::vector<std::string> started;
    outside.run = [&](const std::string& command) -> result<std::string> {
      started.push_back(command);
      return std::string(R"({"Version": 1, "AccessKeyId": "ASIATOOL", "SecretAccessKey": "toolhush", "SessionToken": "tokenhush"})");
    };
    options.allow_process = false;
    options.profile.clear();
    for (const auto* said : {"aws configure export-credentials", "PENSTOCK_ALLOW_CREDENTIAL_PROCESS=1", "allow_credential_process"})
      EXPECT_NE(refusal(errc::permission_denied).find(said), std::string::npos) << said;
    EXPECT_TRUE(started.empty());
    options.allow_process = true;
    EXPECT_EQ(find().access_key_id, "ASIATOOL");
    options.profile = "work";
    EXPECT_EQ(find().access_key_id, "ASIATOOL");
    EXPECT_EQ(started.front(), "aws configure export-credentials --format process --profile 'default'");
    EXPECT_EQ(started.back(), "aws configure export-credentials --format process --profile 'work'");
    options.profile = "o'dd";
    refusal(errc::unsupported);
    options.profile = "work";
    outside.run = [](const std::string&) -> result<std::string> { return status(errc::io, "it ended with 127"); };
    EXPECT_NE(refusal(errc::io).find("AWS CLI 2"), std::string::npos);
  }
}

TEST_F(credential_search_test, sts_is_asked_where_settings_say) {
  outside.variables["AWS_WEB_IDENTITY_TOKEN_FILE"] = outside.write("token", "webhush=\n");
  outside.variables["AWS_ROLE_ARN"] = "arn:aws:iam::123456789012:role/reader";
  options.region = "us-west-2";
  options.use_fips = true;
  serve(200, sts_keys);
  find();
  EXPECT_EQ(outside.asked.back().address.unredacted(), "https://sts-fips.us-west-2.amazonaws.com/");
  outside.write(".aws/config", "[default]\nservices = here\n[services here]\nsts =\n  endpoint_url = http://own:1\n");
  find();
  EXPECT_EQ(outside.asked.back().address.unredacted(), "http://own:1/");
  outside.variables["AWS_ENDPOINT_URL"] = "http://all:2";
  find();
  EXPECT_EQ(outside.asked.back().address.unredacted(), "http://all:2/");
  outside.variables["AWS_ENDPOINT_URL_STS"] = "http://sts:3";
  find();
  EXPECT_EQ(outside.asked.back().address.unredacted(), "http://sts:3/");
  outside.variables["AWS_IGNORE_CONFIGURED_ENDPOINT_URLS"] = "True";
  find();
  EXPECT_EQ(outside.asked.back().address.unredacted(), "https://sts-fips.us-west-2.amazonaws.com/");
}

TEST_F(credential_search_test, a_web_identity_is_exchanged_at_sts) {
  outside.variables["AWS_WEB_IDENTITY_TOKEN_FILE"] = outside.write("token", "webhush=\n");
  outside.variables["AWS_ROLE_ARN"] = "arn:aws:iam::123456789012:role/reader";
  options.region = "eu-west-1";
  serve(200, sts_keys);
  const auto found = find();
  EXPECT_EQ(found.access_key_id, "ASIASTS");
  EXPECT_EQ(found.session_token.reveal(), "tokenhush");
  EXPECT_EQ(found.expires_at, parse_time("2026-01-01T01:00:00Z"));
  ASSERT_EQ(outside.asked.size(), 1U);
  EXPECT_EQ(outside.asked[0].method, "POST");
  EXPECT_EQ(outside.asked[0].address.unredacted(), "https://sts.eu-west-1.amazonaws.com/");
  EXPECT_EQ(outside.asked[0].body,
            "Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn=arn%3Aaws%3Aiam%3A%3A123456789012%3Arole%2Freader&"
            "RoleSessionName=penstock&WebIdentityToken=webhush%3D");
}

TEST_F(credential_search_test, a_profile_may_name_a_web_identity) {
  outside.write(".aws/config", fmt::format("[default]\nrole_arn = arn:x\nrole_session_name = me\nweb_identity_token_file = {}\n",
                                           outside.write("token", "webhush")));
  outside.variables["AWS_ENDPOINT_URL_STS"] = "http://127.0.0.1:5000/";
  serve(200, sts_keys);
  EXPECT_EQ(find().access_key_id, "ASIASTS");
  EXPECT_EQ(outside.asked.at(0).address.authority(), "127.0.0.1:5000");
  EXPECT_NE(outside.asked.at(0).body.find("RoleSessionName=me&"), std::string::npos);
}

TEST_F(credential_search_test, a_web_identity_that_is_refused_is_an_error_and_no_other_is_taken) {
  outside.variables["AWS_WEB_IDENTITY_TOKEN_FILE"] = outside.write("token", "webhush");
  refusal(errc::invalid_argument);
  outside.variables["AWS_ROLE_ARN"] = "arn:x";
  serve(400, "<ErrorResponse><Error><Code>ExpiredTokenException</Code><Message>Token expired</Message></Error></ErrorResponse>");
  EXPECT_EQ(refusal(errc::permission_denied), "web identity at https://sts.amazonaws.com/: ExpiredTokenException: Token expired");
  serve(503, "");
  EXPECT_EQ(refusal(errc::io), "web identity at https://sts.amazonaws.com/: HTTP 503");
  EXPECT_EQ(outside.asked.size(), 2U);
  outside.write("token", "\n");
  refusal(errc::invalid_argument);
  outside.variables["AWS_WEB_IDENTITY_TOKEN_FILE"] = outside.home.file("missing");
  refusal(errc::not_found);
}

TEST_F(credential_search_test, a_container_hands_out_credentials) {
  outside.variables["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"] = "/v2/credentials/abc?id=1";
  serve(200, json_keys);
  EXPECT_EQ(find().access_key_id, "ASIAJSON");
  ASSERT_EQ(outside.asked.size(), 1U);
  EXPECT_EQ(outside.asked[0].address.unredacted(), "http://169.254.170.2/v2/credentials/abc?id=1");
  EXPECT_FALSE(outside.asked[0].use_proxy);
  EXPECT_EQ(header_value(outside.asked[0].headers, "Authorization"), std::nullopt);
  outside.variables["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"] = "@evil.com/";
  refusal(errc::invalid_argument);
}

TEST_F(credential_search_test, the_agent_of_eks_is_asked_with_the_token_of_a_file) {
  outside.variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://[fd00:ec2::23]/v1/credentials";
  outside.variables["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "Basic varhush";
  serve(200, json_keys);
  EXPECT_EQ(find().access_key_id, "ASIAJSON");
  EXPECT_EQ(header_value(outside.asked.at(0).headers, "Authorization"), "Basic varhush");
  outside.variables["AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"] = outside.write("token", "filehush\n");
  EXPECT_EQ(find().access_key_id, "ASIAJSON");
  EXPECT_EQ(header_value(outside.asked.at(1).headers, "Authorization"), "filehush");
  outside.write("token", "a\thush");
  refusal(errc::invalid_argument);
}

TEST_F(credential_search_test, a_container_is_not_asked_anywhere) {
  outside.variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = "http://evil.com/?hush";
  refusal(errc::invalid_argument);
  EXPECT_TRUE(outside.asked.empty());
  const auto may = [](std::string_view text) { return may_hand_out_credentials(*parse_http_url(text)); };
  for (const char* const text : {"https://any.example", "http://127.0.0.1:80/x", "http://127.9.9.9", "http://[::1]:1/", "http://localhost",
                                 "http://169.254.170.2", "http://169.254.170.23/v1", "http://[fd00:ec2::23]/", "http://[fd00:ec2:0::23]/"})
    EXPECT_TRUE(may(text)) << text;
  for (const char* const text :
       {"http://127.0.0.1.evil.com", "http://169.254.169.254", "http://169.254.170.3", "http://10.0.0.1", "http://0.0.0.0",
        "http://localhost.evil.com", "http://[fd00:ec2::24]/", "http://[::ffff:127.0.0.1]/", "http://0127.0.0.1"})
    EXPECT_FALSE(may(text)) << text;
}

TEST_F(credential_search_test, the_metadata_of_an_instance_is_asked_with_a_token) {
  serve_metadata(json_keys);
  const auto found = find();
  EXPECT_EQ(found.access_key_id, "ASIAJSON");
  EXPECT_EQ(found.expires_at, parse_time("2026-01-01T06:00:00Z"));
  ASSERT_EQ(outside.asked.size(), 3U);
  for (const auto& request : outside.asked) {
    EXPECT_EQ(request.address.authority(), "169.254.169.254");
    EXPECT_EQ(request.timeout, std::chrono::milliseconds(1000));
    EXPECT_FALSE(request.use_proxy);
  }
  EXPECT_EQ(header_value(outside.asked[0].headers, "X-aws-ec2-metadata-token-ttl-seconds"), "21600");
}

TEST_F(credential_search_test, version_one_of_the_metadata_is_not_asked) {
  outside.serve = [](const control_request& request) {
    return outside_world::answered(request.method == "PUT" ? 403 : 200, request.method == "PUT" ? "" : "my-role");
  };
  refusal(errc::permission_denied);
  EXPECT_EQ(outside.asked.size(), 1U);
}

TEST_F(credential_search_test, the_metadata_may_be_elsewhere_or_forbidden) {
  serve_metadata(json_keys);
  outside.variables["AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE"] = "IPv6";
  find();
  EXPECT_EQ(outside.asked.at(0).address.authority(), "[fd00:ec2::254]");
  outside.variables["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = "http://127.0.0.1:1338/";
  find();
  EXPECT_EQ(outside.asked.at(3).address.unredacted(), "http://127.0.0.1:1338/latest/api/token");
  outside.variables["AWS_EC2_METADATA_DISABLED"] = "true";
  EXPECT_NE(refusal(errc::permission_denied).find("AWS_EC2_METADATA_DISABLED is set"), std::string::npos);
  EXPECT_EQ(outside.asked.size(), 6U);
}

TEST_F(credential_search_test, the_metadata_is_asked_for_as_long_and_as_often_as_settings_say) {
  outside.write(".aws/config",
                "[default]\nmetadata_service_timeout = 3\nmetadata_service_num_attempts = 2\n"
                "ec2_metadata_service_endpoint = http://127.0.0.1:1338/\n");
  refusal(errc::permission_denied);
  ASSERT_EQ(outside.asked.size(), 2U);
  EXPECT_EQ(outside.asked[0].timeout, std::chrono::seconds(3));
  EXPECT_EQ(outside.asked[0].address.unredacted(), "http://127.0.0.1:1338/latest/api/token");
  outside.variables["AWS_METADATA_SERVICE_NUM_ATTEMPTS"] = "4";
  refusal(errc::permission_denied);
  EXPECT_EQ(outside.asked.size(), 6U);
  outside.variables["AWS_METADATA_SERVICE_TIMEOUT"] = "soon";
  EXPECT_NE(refusal(errc::invalid_argument).find("AWS_METADATA_SERVICE_TIMEOUT"), std::string::npos);
}

TEST_F(credential_search_test, keys_of_amazon_are_not_for_google) {
  options.for_google = true;
  outside.variables["AWS_ACCESS_KEY_ID"] = "GOOG1EXAMPLE";
  outside.variables["AWS_SECRET_ACCESS_KEY"] = "envhush";
  EXPECT_EQ(find().access_key_id, "GOOG1EXAMPLE");
  outside.variables["AWS_ACCESS_KEY_ID"] = "AKIAENV";
  EXPECT_NE(refusal(errc::permission_denied).find("requires an HMAC key (GOOG...)"), std::string::npos);
}

TEST_F(credential_search_test, one_key_of_two_is_refused_and_the_other_named) {
  options.given = credentials{"AKIAGIVEN", {}, {}, {}, {}};
  EXPECT_NE(refusal(errc::invalid_argument).find("secret_access_key is missing"), std::string::npos);
  options.given = credentials{"", secret_text("givenhush"), {}, {}, {}};
  EXPECT_NE(refusal(errc::invalid_argument).find("access_key_id is missing"), std::string::npos);
  options.given = credentials{"", {}, secret_text("tokenhush"), {}, {}};
  EXPECT_NE(refusal(errc::invalid_argument).find("access_key_id is missing"), std::string::npos);
}

TEST_F(credential_search_test, the_error_without_keys_for_google_says_which_keys_it_takes) {
  options.for_google = true;
  outside.serve = [](const control_request&) { return outside_world::answered(404, ""); };
  EXPECT_NE(refusal(errc::permission_denied).find("HMAC key (GOOG..."), std::string::npos);
}

TEST_F(credential_search_test, other_names_of_settings_are_read_or_refused) {
  set_keys();
  outside.variables["AWS_SECURITY_TOKEN"] = "oldhush";
  EXPECT_EQ(find().session_token.reveal(), "oldhush");
  outside.variables = {{"HOME", outside.variables["HOME"]}};
  outside.write(".aws/credentials", "[default]\naws_access_key_id=A\naws_secret_access_key=Bhush\naws_security_token=oldhush\n");
  EXPECT_EQ(find().session_token.reveal(), "oldhush");
  outside.write(".aws/credentials", "");
  outside.write(".aws/config", "[default]\nlogin_session = arn:aws:iam::1:user/x\n");
  EXPECT_NE(refusal(errc::permission_denied).find("signs in through a browser"), std::string::npos);
  outside.write(".aws/config", "");
  for (const auto* name : {"AWS_CREDENTIAL_FILE", "BOTO_CONFIG"}) {
    outside.variables = {{"HOME", outside.variables["HOME"]}, {name, "/etc/keys"}};
    EXPECT_NE(refusal(errc::unsupported).find(std::string(name) + " refers to /etc/keys"), std::string::npos);
  }
}

TEST_F(credential_search_test, expired_ones_and_failed_answers_are_refused) {
  serve_metadata(R"({"AccessKeyId":"A","SecretAccessKey":"jsonhush","Expiration":"2025-12-31T23:59:59Z"})");
  EXPECT_NE(refusal(errc::permission_denied).find("expired at 20251231T235959Z by this machine's clock"), std::string::npos);
  serve_metadata(R"({"Code":"AssumeRoleUnauthorizedAccess","Message":"jsonhush"})");
  refusal(errc::io);
  for (const char* const body :
       {"", "[]", "{", "{}", R"({"AccessKeyId":"A"})", R"({"AccessKeyId":"A","SecretAccessKey":"x hush"})",
        R"({"AccessKeyId":"A","SecretAccessKey":"xhush","Token":"a\nhush"})",
        R"({"AccessKeyId":"A","SecretAccessKey":"xhush","Expiration":"hush"})", R"({"AccessKeyId":"A","SecretAccessKey":"xhush"} hush)"}) {
    serve_metadata(body);
    refusal(errc::io);
  }
}

TEST(credential_answers, times_are_those_of_rfc_3339) {
  const auto seconds = [](std::string_view text) -> std::int64_t {
    const auto made = parse_time(text);
    return made ? std::chrono::floor<std::chrono::seconds>(*made).time_since_epoch().count() : -1;
  };
  EXPECT_EQ(seconds("2026-01-01T00:00:00Z"), 1767225600);
  EXPECT_EQ(seconds("2026-01-01T01:30:00.123456+01:30"), 1767225600);
  EXPECT_EQ(seconds("2025-12-31t23:00:00-01:00"), 1767225600);
  for (const char* const text :
       {"", "2026-01-01", "2026-01-01T00:00:00", "2026-13-01T00:00:00Z", "2026-02-30T00:00:00Z", "2026-01-01T24:00:00Z",
        "2026-01-01T00:00:00Zx", "9999-01-01T00:00:00Z", "1767225600", "2026-01-01T00:00:00+0100"})
    EXPECT_EQ(seconds(text), -1) << text;
}

}  // namespace
}  // namespace penstock::source::remote
