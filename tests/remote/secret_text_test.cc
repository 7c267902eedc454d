// A secret is not printed, and not left in memory.
#include "remote/credentials/secret_text.hpp"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <type_traits>
#include <utility>

namespace penstock::source::remote {
namespace {

template <class T>
concept streamable = requires(std::ostream& to, const T& value) {
  to << value;
};

static_assert(!streamable<secret_text>);
static_assert(!fmt::is_formattable<secret_text>::value);
static_assert(!std::is_convertible_v<secret_text, std::string> && !std::is_convertible_v<secret_text, std::string_view>);

TEST(secret_text, is_copied_and_moved_whole) {
  secret_text one("wJalr");
  const secret_text copy = one;
  const secret_text moved = std::move(one);
  EXPECT_EQ(copy.reveal(), "wJalr");
  EXPECT_EQ(moved.reveal(), "wJalr");
  EXPECT_TRUE(copy == moved);
  one = moved;
  EXPECT_EQ(one.reveal(), "wJalr");
  one = secret_text();
  EXPECT_TRUE(one.empty());
  EXPECT_FALSE(one == moved);
  EXPECT_FALSE(secret_text("wJalr") == secret_text("wJals"));
}

TEST(secret_text, leaves_nothing_in_the_text_that_it_came_in) {
  std::string text("hidden");
  const auto taken = secret_text::taken_from(text);
  EXPECT_EQ(taken.reveal(), "hidden");
  EXPECT_TRUE(text.empty());
  EXPECT_EQ(std::string(text.data(), 6), std::string(6, '\0'));  // within the capacity of any std::string
}

}  // namespace
}  // namespace penstock::source::remote
