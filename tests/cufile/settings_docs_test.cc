// docs/guides/cufile.md tells of each key what the table of keys says, and of no other.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <vector>

#include "cufile/settings_data.hpp"

namespace penstock::cufile {
namespace {

std::vector<std::string> lines_of_page() {
  std::ifstream page(PENSTOCK_CUFILE_PAGE);
  std::vector<std::string> lines;
  for (std::string line; std::getline(page, line);) lines.push_back(line);
  return lines;
}

std::string row_of(const key& one) {
  const auto standard = one.standard.empty() ? std::string() : fmt::format("`{}`", one.standard);
  return fmt::format("| `{}` | {} | {} |", one.name, standard, one.effect);
}

TEST(cufile_page, tells_of_each_key_what_it_does) {
  const auto lines = lines_of_page();
  auto at = std::find(lines.begin(), lines.end(), "| key | default | what it does |");
  ASSERT_LT(lines.end() - at, 1'000'000);
  ASSERT_GT(lines.end() - at, 2);
  at += 2;
  for (const key& one : all_keys()) {
    ASSERT_NE(at, lines.end());
    EXPECT_EQ(*at, row_of(one));
    ++at;
  }
  EXPECT_EQ(*at, "");
}

TEST(cufile_page, names_each_variable) {
  std::string page;
  for (const auto& line : lines_of_page()) page += line + '\n';
  for (const key& one : all_keys()) {
    if (one.variable == nullptr) continue;
    EXPECT_NE(page.find(fmt::format("`{}`", one.variable)), std::string::npos) << one.variable;
  }
  for (const auto& one : all_lone_variables()) EXPECT_NE(page.find(fmt::format("`{}`", one.name)), std::string::npos) << one.name;
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
