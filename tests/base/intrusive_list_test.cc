#include "base/intrusive_list.hpp"

#include <gtest/gtest.h>

#include <array>
#include <vector>

namespace penstock {
namespace {

struct numbered {
  int number = 0;
  numbered* next = nullptr;
};
using row = intrusive_list<numbered, &numbered::next>;

std::vector<int> numbers_of(row all) {
  std::vector<int> seen;
  while (const auto* each = all.pop_front()) seen.push_back(each->number);
  return seen;
}

class intrusive_list_test : public ::testing::Test {
 protected:
  row all() {
    row made;
    for (auto& each : items_) made.push_back(each);
    return made;
  }
  std::array<numbered, 5> items_{{{1}, {2}, {3}, {4}, {5}}};
};

TEST_F(intrusive_list_test, gives_items_in_the_order_in_which_they_came) {
  auto made = all();
  EXPECT_EQ(made.size(), 5U);
  EXPECT_EQ(made.front().number, 1);
  EXPECT_EQ(numbers_of(std::move(made)), (std::vector<int>{1, 2, 3, 4, 5}));
}

TEST_F(intrusive_list_test, takes_items_again_after_it_was_emptied) {
  auto made = all();
  while (made.pop_front() != nullptr) {
  }
  EXPECT_TRUE(made.empty());
  EXPECT_EQ(made.pop_front(), nullptr);
  made.push_back(items_[3]);
  made.push_back(items_[1]);
  EXPECT_EQ(numbers_of(std::move(made)), (std::vector<int>{4, 2}));
}

TEST_F(intrusive_list_test, is_empty_once_moved_from) {
  auto made = all();
  row other;
  other = std::move(made);
  EXPECT_TRUE(made.empty());  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(other.size(), 5U);
  made.push_back(*other.pop_front());
  EXPECT_EQ(made.size(), 1U);
  EXPECT_EQ(other.size(), 4U);
}

TEST_F(intrusive_list_test, gives_those_that_match_and_keeps_the_others) {
  auto made = all();
  const auto odd = [](const numbered& each) { return each.number % 2 == 1; };
  EXPECT_EQ(numbers_of(made.take_if(odd)), (std::vector<int>{1, 3, 5}));
  EXPECT_TRUE(made.take_if(odd).empty());
  made.push_back(items_[0]);
  EXPECT_EQ(numbers_of(std::move(made)), (std::vector<int>{2, 4, 1}));
}

}  // namespace
}  // namespace penstock
