// No setting of the AWS tools is ignored silently: a table says what each one does, and these tests go through the table.
#include "remote/credentials/aws_settings.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "remote/credentials/credential_search.hpp"
#include "remote/outside_world.hpp"
#include "remote/s3/s3_settings.hpp"

namespace penstock::source::remote {
namespace {

using penstock::testing::outside_world;
using effect = aws_setting::effect;

std::string profile_with(std::string_view key, std::string_view value) {
  const bool is_nested = key.starts_with("s3.");
  return "[default]\n" + std::string(is_nested ? "s3 =\n  " : "") + std::string(key.substr(is_nested ? 3 : 0)) + " = " +
         std::string(value) + "\n";
}

// What one value of a setting leads to, by its variable and by a profile.
struct outcome {
  std::string by;
  std::string error;
};
std::vector<outcome> outcomes_of(const aws_setting& one, const std::string& value) {
  std::vector<outcome> made;
  for (const bool by_variable : {true, false}) {
    if (by_variable ? one.variable.empty() : one.key.empty()) continue;
    outside_world outside;
    outside.write(".aws/config", by_variable ? "[default]\n" : profile_with(one.key, value));
    if (by_variable) outside.variables[std::string(one.variable)] = value;
    const auto found = find_s3_settings({}, outside.lookup(), *outside.kernel);
    made.push_back({std::string(by_variable ? one.variable : one.key.substr(one.key.starts_with("s3.") ? 3 : 0)),
                    found.ok() ? std::string() : std::string(found.error().message())});
  }
  return made;
}

TEST(aws_settings, a_checked_one_accepts_its_words_and_refuses_all_others_by_name) {
  for (const auto& each : aws_settings()) {
    if (each.has != effect::checked) continue;
    EXPECT_FALSE(each.why.empty()) << each.key << each.variable;
    for (const auto& [by, error] : outcomes_of(each, "odd")) {
      EXPECT_TRUE(error.starts_with(by)) << by << ": " << error;
      EXPECT_NE(error.find(each.why), std::string::npos) << error;
    }
    std::string word;
    for (const char letter : std::string(each.words) + " ") {
      if (letter != ' ') word += letter;
      if (letter != ' ' || word.empty()) continue;
      for (const auto& [by, error] : outcomes_of(each, word)) EXPECT_EQ(error, "") << by << " = " << word;
      word.clear();
    }
  }
}

TEST(aws_settings, one_without_effect_says_why_and_may_have_any_value) {
  for (const auto& each : aws_settings()) {
    if (each.has != effect::none) continue;
    EXPECT_FALSE(each.why.empty()) << each.key << each.variable;
    for (const auto& [by, error] : outcomes_of(each, "odd")) EXPECT_EQ(error, "") << by;
  }
}

TEST(aws_settings, those_that_the_searches_read_are_those_that_are_served_or_checked) {
  std::set<std::string> read;
  const std::map<std::string, std::string> worlds[] = {
      {},
      {{"AWS_ACCESS_KEY_ID", "A"}, {"AWS_SECRET_ACCESS_KEY", "B"}},
      {{"AWS_WEB_IDENTITY_TOKEN_FILE", "token"}, {"AWS_ROLE_ARN", "role"}},
      {{"AWS_CONTAINER_CREDENTIALS_FULL_URI", "http://127.0.0.1/"}},
  };
  for (const auto& variables : worlds) {
    outside_world outside;
    for (const auto& [name, value] : variables) outside.variables[name] = name.ends_with("_FILE") ? outside.write(value, "t") : value;
    auto world = outside.world();
    const auto look = world.variable;
    world.variable = [&](std::string_view name) {
      read.insert(std::string(name));
      return look(name);
    };
    (void)find_s3_settings({}, world.variable, *outside.kernel);
    (void)find_credentials({}, world);
  }
  std::set<std::string> known;
  for (const auto& each : aws_settings()) {
    if (!each.variable.empty() && each.has != effect::none) known.insert(std::string(each.variable));
  }
  read.erase("HOME");
  EXPECT_EQ(read, known);
}

TEST(aws_settings, a_variable_comes_before_the_profile) {
  outside_world outside;
  outside.write(".aws/config", profile_with("retry_mode", "odd"));
  EXPECT_FALSE(find_s3_settings({}, outside.lookup(), *outside.kernel).ok());
  outside.variables["AWS_RETRY_MODE"] = "Standard";
  EXPECT_TRUE(find_s3_settings({}, outside.lookup(), *outside.kernel).ok());
}

}  // namespace
}  // namespace penstock::source::remote
