// Parts of tensors: each selection is compared with one that takes the tensor's bits one by one.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "penstock/penstock.hpp"

namespace penstock {
namespace {

using shape = std::vector<std::uint64_t>;

tensor_facts tensor_of(tensor_type type, shape lengths) {
  tensor_facts tensor{"t", type, std::move(lengths)};
  tensor.bytes = *tensor_bytes(type, tensor.shape);
  return tensor;
}

// Returns whether a selection takes an element of a dimension, or nullopt if the dimension has no such elements.
struct taken {
  std::int64_t at, length;
  bool operator()(all_elements) const { return true; }
  bool operator()(std::int64_t index) const { return at == (index < 0 ? index + length : index); }
  bool operator()(model_rank rank) const { return at / (length / rank.count) == rank.number; }
  bool operator()(const index_range& range) const {
    const std::int64_t far = length + 1;
    const auto from_end = [&](std::int64_t index) { return index < 0 ? std::max(-far, index) + length : index; };
    const std::int64_t first = std::max<std::int64_t>(0, from_end(range.first));
    return at >= first && at < from_end(range.end.value_or(length)) && (at - first) % range.step == 0;
  }
};

// The bits of a tensor's selected elements, as positions in the tensor.
std::vector<std::uint64_t> bits_one_by_one(const tensor_facts& tensor, const tensor_selection& selection) {
  const unsigned width = bits_of(tensor.type);
  std::vector<std::uint64_t> found;
  for (std::uint64_t element = 0; element < tensor.bytes * 8 / width; ++element) {
    std::uint64_t rest = element;
    bool is_taken = true;
    for (std::size_t i = tensor.shape.size(); i-- > 0; rest /= tensor.shape[i]) {
      const auto at = static_cast<std::int64_t>(rest % tensor.shape[i]), length = static_cast<std::int64_t>(tensor.shape[i]);
      is_taken = is_taken && (i >= selection.size() || std::visit(taken{at, length}, selection[i]));
    }
    for (unsigned bit = 0; is_taken && bit < width; ++bit) found.push_back(element * width + bit);
  }
  return found;
}

std::vector<std::uint64_t> bits_of_runs(const tensor_part& part) {
  std::vector<std::uint64_t> found;
  for (std::uint64_t run = 0; run < part.runs(); ++run) {
    for (std::uint64_t bit = 0; bit < part.run_bytes * 8; ++bit) found.push_back(part.start_of(run) * 8 + bit);
  }
  return found;
}

// True if adjacent bits always come in whole bytes of the tensor.
bool are_bytes(const std::vector<std::uint64_t>& bits) {
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if ((i == 0 || bits[i] != bits[i - 1] + 1) && bits[i] % 8 != 0) return false;
    if ((i + 1 == bits.size() || bits[i + 1] != bits[i] + 1) && bits[i] % 8 != 7) return false;
  }
  return true;
}

void expect_as_one_by_one(const tensor_facts& tensor, const tensor_selection& selection) {
  const auto expected = bits_one_by_one(tensor, selection);
  const auto part = part_of(tensor, selection);
  if (!part) {
    EXPECT_LT(bits_of(tensor.type), 8U) << part.error().message();
    EXPECT_NE(part.error().message().find("would not start at byte boundaries"), std::string::npos) << part.error().message();
    const auto has_step = [](const auto& each) {
      return std::holds_alternative<index_range>(each) && std::get<index_range>(each).step > 1;
    };
    EXPECT_TRUE(!are_bytes(expected) || std::ranges::any_of(selection, has_step));
    return;
  }
  EXPECT_EQ(bits_of_runs(*part), expected);
  EXPECT_EQ(part->bytes() * 8, expected.size());
  std::uint64_t count = bits_of(tensor.type);
  for (const std::uint64_t length : part->shape) count *= length;
  EXPECT_EQ(count, expected.size()) << "the shape";
}

// Gaps are read so often with these that each rule applies to some small tensors.
void expect_as_one_by_one_with_gaps(const tensor_facts& tensor, const tensor_selection& selection, const gap_options& gaps) {
  const auto part = part_of(tensor, selection, gaps);
  if (!part) {
    EXPECT_FALSE(part_of(tensor, selection)) << "gaps make no part impossible";
    return;
  }
  const auto read = bits_of_runs(*part);
  tensor_facts array{"read", tensor.type, part->shape, 0, part->bytes()};
  std::vector<std::uint64_t> found;
  for (const std::uint64_t bit : bits_one_by_one(array, part->cut)) found.push_back(read[bit]);
  EXPECT_EQ(found, bits_one_by_one(tensor, selection));
}

// --- the table

struct selection_case {
  const char* name;
  tensor_type type;
  shape lengths;
  tensor_selection selection;
  shape expected_shape;
  std::uint64_t expected_runs;
};

class selection_test : public ::testing::TestWithParam<selection_case> {};

TEST_P(selection_test, reads_the_same_bytes_as_selecting_elements_one_by_one) {
  const auto& [name, type, lengths, selection, expected_shape, expected_runs] = GetParam();
  const tensor_facts tensor = tensor_of(type, lengths);
  expect_as_one_by_one(tensor, selection);
  const auto part = part_of(tensor, selection);
  ASSERT_TRUE(part) << part.error().message();
  EXPECT_EQ(part->shape, expected_shape);
  EXPECT_EQ(part->runs(), expected_runs);
}

constexpr auto f32 = tensor_type::f32;
constexpr auto f4 = tensor_type::f4;
constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();
constexpr std::int64_t least = std::numeric_limits<std::int64_t>::min();
constexpr all_elements all;

INSTANTIATE_TEST_SUITE_P(
    model_parts, selection_test,
    ::testing::Values(selection_case{"no_dimensions", f32, {}, {}, {}, 1}, selection_case{"everything", f32, {2, 3}, {}, {2, 3}, 1},
                      selection_case{"rows", f32, {4, 6}, {index_range{1, 3}}, {2, 6}, 1},
                      selection_case{"columns", f32, {4, 6}, {all, index_range{1, 3}}, {4, 2}, 4},
                      selection_case{"columns_of_a_cube_are_one_axis", f32, {3, 4, 6}, {all, all, index_range{1, 3}}, {3, 4, 2}, 12},
                      selection_case{"a_box", f32, {4, 5, 6}, {index_range{1, 3}, index_range{2, 4}, index_range{3, 6}}, {2, 2, 3}, 4},
                      selection_case{"an_index", f32, {4, 6}, {2}, {6}, 1},
                      selection_case{"a_negative_index", f32, {4, 6}, {-4, -1}, {}, 1},
                      selection_case{"an_index_in_the_middle", f32, {4, 5, 6}, {all, 3}, {4, 6}, 4},
                      selection_case{"negative_ends", f32, {9}, {index_range{-5, -1}}, {4}, 1},
                      selection_case{"ends_outside", f32, {9}, {index_range{least, most}}, {9}, 1},
                      selection_case{"a_range_before_the_start", f32, {9}, {index_range{-20, -10}}, {0}, 1},
                      selection_case{"reversed_ends", f32, {9, 2}, {index_range{5, 3}}, {0, 2}, 1},
                      selection_case{"a_step", f32, {9, 2}, {index_range{.first = 1, .step = 3}}, {3, 2}, 3},
                      selection_case{"a_step_past_the_end", f32, {9, 2}, {index_range{.first = 4, .step = most}}, {1, 2}, 1},
                      selection_case{"steps_in_two_dimensions", f32, {5, 7}, {index_range{.step = 2}, index_range{.step = 3}}, {3, 3}, 9},
                      selection_case{"even_steps_are_one_axis", f32, {4, 6}, {all, index_range{.step = 2}}, {4, 3}, 12},
                      selection_case{"a_rank", f32, {4, 6}, {all, model_rank{1, 3}}, {4, 2}, 4},
                      selection_case{"a_rank_and_an_index", f32, {3, 4, 6}, {1, model_rank{1, 2}}, {2, 6}, 1},
                      selection_case{"a_dimension_without_elements", f32, {4, 0, 6}, {index_range{1, 3}}, {2, 0, 6}, 1},
                      selection_case{"a_rank_of_nothing", f32, {4, 0}, {all, model_rank{1, 2}}, {4, 0}, 1},
                      selection_case{"half_bytes", f4, {4, 6}, {all, index_range{2, 4}}, {4, 2}, 4},
                      selection_case{"rows_of_half_bytes_that_are_adjacent", f4, {4, 3}, {index_range{2, 4}}, {2, 3}, 1},
                      selection_case{"six_bits", tensor_type::f6_e2m3, {2, 8}, {all, index_range{4, 8}}, {2, 4}, 2},
                      selection_case{"eight_bytes", tensor_type::c64, {3, 3}, {all, 1}, {3}, 3}),
    [](const auto& each) { return std::string(each.param.name); });

TEST(model_parts, match_random_selections_of_single_elements) {
  const auto seed = std::random_device()();
  SCOPED_TRACE("the seed is " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto number = [&](std::int64_t least_one, std::int64_t most_one) {
    return std::uniform_int_distribution<std::int64_t>(least_one, most_one)(random);
  };
  int parts = 0, wider = 0;
  for (int i = 0; i < 3000 && !::testing::Test::HasFailure(); ++i) {
    tensor_facts tensor{"t", static_cast<tensor_type>(random() % tensor_type_count), {}};
    for (auto dimensions = number(0, 4); dimensions > 0; --dimensions) tensor.shape.push_back(static_cast<std::uint64_t>(number(0, 5)));
    if (bits_of(tensor.type) < 8) tensor.shape.push_back(8);
    tensor.bytes = *tensor_bytes(tensor.type, tensor.shape);
    tensor_selection selection;
    for (const std::uint64_t each : tensor.shape) {
      const auto length = static_cast<std::int64_t>(each);
      const auto kind = number(0, 5);
      if (kind == 0 && length > 0) {
        selection.emplace_back(number(-length, length - 1));
      } else if (kind == 1) {
        const auto ranks = static_cast<unsigned>(length % 3 == 0 ? 3 : length % 2 == 0 ? 2 : 1);
        selection.emplace_back(model_rank{static_cast<unsigned>(random() % ranks), ranks});
      } else if (kind > 2) {
        const auto end = number(0, 3) == 0 ? std::nullopt : std::optional(number(-7, 7));
        selection.emplace_back(index_range{number(-7, 7), end, number(1, 3)});
      } else {
        selection.emplace_back(all);
      }
    }
    expect_as_one_by_one(tensor, selection);
    const gap_options gaps{static_cast<std::uint64_t>(number(0, 30)), 40, static_cast<std::uint64_t>(number(0, 4)), number(0, 1) == 0};
    expect_as_one_by_one_with_gaps(tensor, selection, gaps);
    const auto part = part_of(tensor, selection, gaps);
    parts += part ? 1 : 0;
    wider += part && !part->cut.empty() ? 1 : 0;
  }
  EXPECT_GT(parts, 2000);
  EXPECT_GT(wider, 100);
}

TEST(model_parts, of_a_rank_equal_a_selection_by_rank) {
  const tensor_facts tensor = tensor_of(f32, {4, 6});
  for (unsigned rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(*part_of(tensor, 0, {rank, 2}), *part_of(tensor, {model_rank{rank, 2}}));
    EXPECT_EQ(*part_of(tensor, 1, {rank, 2}), *part_of(tensor, {all, model_rank{rank, 2}}));
    EXPECT_EQ(*part_of(tensor, -2, {rank, 2}), *part_of(tensor, 0, {rank, 2}));
  }
}

TEST(model_parts, are_read_with_gaps_if_runs_would_be_short_and_many) {
  const auto table = tensor_of(f32, {10'000, 64});
  const auto column = part_of(table, {all, 3}, {});
  EXPECT_EQ(column->runs(), 1U);
  EXPECT_EQ(column->shape, (shape{10'000, 64}));
  EXPECT_EQ(column->cut, (tensor_selection{all, 3}));
  EXPECT_EQ(part_of(table, {all, 3})->runs(), 10'000U);
  const auto few = part_of(tensor_of(f32, {100, 64}), {all, 3}, {});
  EXPECT_EQ(few->runs(), 100U);
  EXPECT_TRUE(few->cut.empty());
  const tensor_selection every_fourth = {index_range{.first = 1, .step = 4}};
  EXPECT_EQ(part_of(tensor_of(f32, {8, 1000}), every_fourth, {})->cut, (tensor_selection{index_range{.step = 4}, all}));
  EXPECT_TRUE(part_of(tensor_of(f32, {8, 2000}), every_fourth, {})->cut.empty());
  const tensor_selection left_half = {all, index_range{0, 1024}};
  EXPECT_EQ(part_of(tensor_of(f32, {2048, 2048}), left_half, {.to_host = true})->runs(), 1U);
  EXPECT_EQ(part_of(tensor_of(f32, {2048, 2048}), left_half, {})->runs(), 2048U);
}

TEST(model_parts, that_do_not_exist_are_refused) {
  const auto expect_refusal = [](const result<tensor_part>& part, std::string_view why) {
    ASSERT_FALSE(part) << why;
    EXPECT_EQ(part.error().code(), errc::invalid_argument);
    const std::string message(part.error().message());
    EXPECT_NE(message.find("tensor \"t\""), std::string::npos) << message;
    EXPECT_NE(message.find(why), std::string::npos) << message;
  };
  const tensor_facts tensor = tensor_of(tensor_type::u8, {4, 6});
  expect_refusal(part_of(tensor, 2, {0, 2}), "there is no dimension 2");
  expect_refusal(part_of(tensor, -3, {0, 2}), "there is no dimension -3");
  expect_refusal(part_of(tensor, {0, 0, 0}), "there is no dimension 2");
  expect_refusal(part_of(tensor_of(f32, {}), 0, {0, 1}), "there is no dimension 0");
  expect_refusal(part_of(tensor, {all, 6}), "there is no index 6 in dimension 1");
  expect_refusal(part_of(tensor, {-5}), "there is no index -5 in dimension 0");
  expect_refusal(part_of(tensor, {least}), "there is no index -9223372036854775808");
  expect_refusal(part_of(tensor, {most}), "there is no index 9223372036854775807");
  expect_refusal(part_of(tensor_of(f32, {0}), {0}), "there is no index 0 in dimension 0");
  expect_refusal(part_of(tensor, {index_range{.step = 0}}), "the step 0 in dimension 0 is not positive");
  expect_refusal(part_of(tensor, {all, index_range{.step = -1}}), "the step -1 in dimension 1 is not positive");
  expect_refusal(part_of(tensor, 0, {2, 2}), "rank 2 of 2 does not exist");
  expect_refusal(part_of(tensor, 0, {0, 0}), "rank 0 of 0 does not exist");
  expect_refusal(part_of(tensor, 1, {0, 4}), "6 rows of dimension 1 cannot be divided evenly among 4");
  expect_refusal(part_of(tensor_of(f4, {2, 4}), 1, {0, 4}), "of type F4 would not start at byte boundaries");
  expect_refusal(part_of(tensor_of(f4, {2, 4}), {all, index_range{.step = 2}}), "of type F4 would not start at byte boundaries");
  expect_refusal(part_of({"t", tensor_type::u8, {4, 6}, 0, 23}, 1, {0, 2}), "the size is 24 bytes, not 23");
  expect_refusal(part_of({"t", tensor_type::u8, {std::uint64_t{1} << 63, 4}, 0, 0}, 0, {0, 2}), "64 bits");
  EXPECT_EQ(part_of({"", tensor_type::u8, {4}, 0, 4}, {4}).error().message(), "there is no index 4 in dimension 0");
  const tensor_selection every_other = {all, index_range{.step = 2}};
  EXPECT_EQ(part_of(tensor_of(tensor_type::u8, {1 << 12, 1 << 13}), every_other)->runs(), most_part_runs);
  expect_refusal(part_of(tensor_of(tensor_type::u8, {1 << 12, 1 << 14}), every_other),
                 "the part has 33554432 runs of 1 bytes in the file, but the limit is 16777216 runs");
}

}  // namespace
}  // namespace penstock
