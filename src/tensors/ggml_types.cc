#include <algorithm>
#include <array>

#include "penstock/gguf.hpp"

namespace penstock {

namespace {

// A block contains quantized elements and their shared scales, each in whole bytes; block_bytes is the sum.
constexpr std::array<ggml_type, 34> ggml_table{{
    {0, "F32", 1, 4, tensor_type::f32},     {1, "F16", 1, 2, tensor_type::f16},     {2, "Q4_0", 32, 18, std::nullopt},
    {3, "Q4_1", 32, 20, std::nullopt},      {6, "Q5_0", 32, 22, std::nullopt},      {7, "Q5_1", 32, 24, std::nullopt},
    {8, "Q8_0", 32, 34, std::nullopt},      {9, "Q8_1", 32, 40, std::nullopt},      {10, "Q2_K", 256, 84, std::nullopt},
    {11, "Q3_K", 256, 110, std::nullopt},   {12, "Q4_K", 256, 144, std::nullopt},   {13, "Q5_K", 256, 176, std::nullopt},
    {14, "Q6_K", 256, 210, std::nullopt},   {15, "Q8_K", 256, 292, std::nullopt},   {16, "IQ2_XXS", 256, 66, std::nullopt},
    {17, "IQ2_XS", 256, 74, std::nullopt},  {18, "IQ3_XXS", 256, 98, std::nullopt}, {19, "IQ1_S", 256, 50, std::nullopt},
    {20, "IQ4_NL", 32, 18, std::nullopt},   {21, "IQ3_S", 256, 110, std::nullopt},  {22, "IQ2_S", 256, 82, std::nullopt},
    {23, "IQ4_XS", 256, 136, std::nullopt}, {24, "I8", 1, 1, tensor_type::i8},      {25, "I16", 1, 2, tensor_type::i16},
    {26, "I32", 1, 4, tensor_type::i32},    {27, "I64", 1, 8, tensor_type::i64},    {28, "F64", 1, 8, tensor_type::f64},
    {29, "IQ1_M", 256, 56, std::nullopt},   {30, "BF16", 1, 2, tensor_type::bf16},  {34, "TQ1_0", 256, 54, std::nullopt},
    {35, "TQ2_0", 256, 66, std::nullopt},   {39, "MXFP4", 32, 17, std::nullopt},    {40, "NVFP4", 64, 36, std::nullopt},
    {41, "Q1_0", 128, 18, std::nullopt},
}};
static_assert(std::ranges::is_sorted(ggml_table, {}, &ggml_type::number));

}  // namespace

std::span<const ggml_type> ggml_types() noexcept { return ggml_table; }

const ggml_type* find_ggml_type(std::uint32_t number) noexcept {
  const auto* const found = std::ranges::lower_bound(ggml_table, number, {}, &ggml_type::number);
  return found == ggml_table.end() || found->number != number ? nullptr : &*found;
}

}  // namespace penstock
