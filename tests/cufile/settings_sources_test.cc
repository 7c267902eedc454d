// The sources of cuFile's settings.
#include "cufile/settings_sources.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>

#include "support/temp_dir.hpp"

namespace penstock::testing {
namespace {

using cufile::sourced_setting;

class settings_sources : public ::testing::Test {
 protected:
  void write(const std::string& text) const { std::ofstream(file_) << text; }
  cufile::sourced_settings trace() const {
    const auto lookup = [this](const char* name) { return environment_.contains(name) ? environment_.at(name).c_str() : nullptr; };
    return cufile::trace_settings(lookup, file_, "/etc/cufile.json");
  }
  sourced_setting value(std::string_view key) const { return *std::ranges::find(kept_.values, key, &sourced_setting::key); }
  temp_dir dir_;
  std::string file_ = dir_.file("cufile.json");
  std::map<std::string, std::string> environment_;
  cufile::sourced_settings kept_;
};

TEST_F(settings_sources, variables_come_before_the_file_and_the_file_before_defaults) {
  write(R"({"logging": {"level": "INFO"}, "properties": {"use_compat_mode": false, "io_batchsize": 64}})");
  environment_ = {{"CUFILE_LOGGING_LEVEL", "TRACE"}, {"CUFILE_FORCE_COMPAT_MODE", "1"}};
  kept_ = trace();
  EXPECT_TRUE(kept_.problem.ok());
  EXPECT_TRUE(kept_.file_exists);
  EXPECT_TRUE(kept_.refused.empty());
  EXPECT_EQ(value("logging.level").value, "TRACE");
  EXPECT_EQ(value("logging.level").source, "CUFILE_LOGGING_LEVEL");
  EXPECT_EQ(value("properties.force_compat_mode").value, "true");
  EXPECT_EQ(value("properties.allow_compat_mode").value, "false");  // by its older name
  EXPECT_EQ(value("properties.allow_compat_mode").source, "/etc/cufile.json");
  EXPECT_EQ(value("properties.io_batchsize").value, "64");
  EXPECT_EQ(value("properties.io_batchsize").standard, "128");
  EXPECT_EQ(value("properties.use_poll_mode").source, "");
  EXPECT_EQ(kept_.values.size(), cufile::all_keys().size());
}

TEST_F(settings_sources, what_is_not_taken_is_named_and_changes_nothing) {
  write(R"({"properties": {"io_batchsize": 9999}, "typo": 1})");
  environment_ = {{"CUFILE_LOGGING_LEVEL", "LOUD"}};
  kept_ = trace();
  ASSERT_EQ(kept_.refused.size(), 3U);
  EXPECT_EQ(kept_.refused[0].find("/etc/cufile.json: properties.io_batchsize = 9999: "), 0U);
  EXPECT_EQ(kept_.refused[2].find("environment variable CUFILE_LOGGING_LEVEL=LOUD: "), 0U);
  EXPECT_EQ(value("properties.io_batchsize").value, "128");
  EXPECT_EQ(value("logging.level").source, "");
}

TEST_F(settings_sources, a_file_that_is_broken_is_a_problem_and_a_missing_one_is_none) {
  kept_ = trace();
  EXPECT_FALSE(kept_.file_exists);
  EXPECT_TRUE(kept_.problem.ok());
  write("{ broken");
  kept_ = trace();
  EXPECT_TRUE(kept_.file_exists);
  EXPECT_NE(kept_.problem.message().find("line 1"), std::string::npos);
}

}  // namespace
}  // namespace penstock::testing
