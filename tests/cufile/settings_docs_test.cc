// The tables of docs/reference/cufile-json.md match the keys in the code. PENSTOCK_UPDATE_PAGE=1 writes them into the page.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "cufile/settings_data.hpp"

namespace penstock::cufile {
namespace {

constexpr std::string_view begin_mark = "<!-- generated from src/cufile/settings_keys.cc -->\n";
constexpr std::string_view end_mark = "<!-- end of the generated part -->\n";
// The keys with this effect have a table of their own.
constexpr std::string_view used_by_nvidia = "used by NVIDIA's library for GPU-direct transfers";

std::string page() {
  std::stringstream text;
  text << std::ifstream(PENSTOCK_CUFILE_PAGE).rdbuf();
  return text.str();
}

std::string default_of(const key& one) { return one.standard.empty() ? std::string() : fmt::format("`{}`", one.standard); }

std::string expected_tables() {
  std::string own = "| key | default | what it does |\n|---|---|---|\n";
  std::string nvidias = "| key | default |\n|---|---|\n";
  for (const key& one : all_keys()) {
    if (one.effect == used_by_nvidia) {
      nvidias += fmt::format("| `{}` | {} |\n", one.name, default_of(one));
    } else {
      own += fmt::format("| `{}` | {} | {} |\n", one.name, default_of(one), one.effect);
    }
  }
  return fmt::format(
      "{}\n### Keys with a meaning in Penstock\n\n{}\n### Keys for NVIDIA's library\n\nThese are {}. Elsewhere they do nothing.\n\n{}\n{}",
      begin_mark, own, used_by_nvidia, nvidias, end_mark);
}

std::string generated_part(const std::string& text) {
  const auto begin = text.find(begin_mark);
  const auto end = text.find(end_mark);
  if (begin == std::string::npos || end == std::string::npos || end < begin) return {};
  return text.substr(begin, end + end_mark.size() - begin);
}

TEST(cufile_page, says_what_each_key_does) {
  std::string text = page();
  const std::string found = generated_part(text);
  ASSERT_FALSE(found.empty()) << "the marks are missing";
  if (const char* update = std::getenv("PENSTOCK_UPDATE_PAGE"); update != nullptr && *update == '1') {
    text.replace(text.find(begin_mark), found.size(), expected_tables());
    std::ofstream(PENSTOCK_CUFILE_PAGE) << text;
    return;
  }
  EXPECT_EQ(found, expected_tables()) << "PENSTOCK_UPDATE_PAGE=1 writes the tables into the page";
}

TEST(cufile_page, names_each_variable) {
  const std::string text = page();
  for (const key& one : all_keys()) {
    if (one.variable == nullptr) continue;
    EXPECT_NE(text.find(fmt::format("`{}`", one.variable)), std::string::npos) << one.variable;
  }
  for (const auto& one : all_lone_variables()) EXPECT_NE(text.find(fmt::format("`{}`", one.name)), std::string::npos) << one.name;
}

TEST(cufile_keys, each_says_what_it_does_or_why_nothing) {
  for (const key& one : all_keys()) {
    EXPECT_FALSE(one.effect.empty()) << one.name;
    EXPECT_EQ(one.role == key_role::idle, one.effect.starts_with("nothing")) << one.name;
    const bool may_be_handed = one.parameter >= 0 && (one.kind == key_kind::size || one.kind == key_kind::flag);
    EXPECT_TRUE(!one.is_handed || may_be_handed) << one.name;
  }
}

}  // namespace
}  // namespace penstock::cufile
