#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <limits>
#include <string>

#include "base/no_memory.hpp"
#include "base/printable.hpp"
#include "penstock/tensors.hpp"

namespace penstock {

namespace {

struct type_facts {
  std::string_view name;
  unsigned bits;
};

constexpr std::array<type_facts, tensor_type_count> types{{
    {"BOOL", 8},    {"F4", 4},          {"F6_E2M3", 6},     {"F6_E3M2", 6}, {"U8", 8},   {"I8", 8},   {"F8_E5M2", 8}, {"F8_E4M3", 8},
    {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16}, {"F16", 16}, {"BF16", 16},   {"I32", 32},
    {"U32", 32},    {"F32", 32},        {"C64", 64},        {"F64", 64},    {"I64", 64}, {"U64", 64},
}};

const type_facts& facts_of(tensor_type type) noexcept {
  assert(static_cast<std::size_t>(type) < types.size());
  return types[static_cast<std::size_t>(type)];
}

}  // namespace

std::string_view to_string(tensor_type type) noexcept { return facts_of(type).name; }

unsigned bits_of(tensor_type type) noexcept { return facts_of(type).bits; }

result<tensor_type> parse_tensor_type(std::string_view name) {
  return or_no_memory([&]() -> result<tensor_type> {
    const auto* const found = std::ranges::find(types, name, &type_facts::name);
    if (found != types.end()) return static_cast<tensor_type>(found - types.begin());
    constexpr std::size_t most = 40;
    return status(errc::invalid_argument, fmt::format("unknown tensor type \"{}\"", printable_text(std::string(name.substr(0, most)))));
  });
}

result<std::uint64_t> tensor_bytes(tensor_type type, std::span<const std::uint64_t> shape) {
  // Multiply in shape order: 2^40 x 2^40 x 0 elements overflow and are rejected, as in the format's own library.
  std::uint64_t bits = 1;
  bool fits = true;
  for (const std::uint64_t length : shape) fits = fits && !__builtin_mul_overflow(bits, length, &bits);
  fits = fits && !__builtin_mul_overflow(bits, bits_of(type), &bits);
  if (fits && bits % 8 == 0) return bits / 8;
  return or_no_memory([&]() -> result<std::uint64_t> {
    if (!fits) return status(errc::invalid_argument, "its size in bits does not fit into 64 bits");
    return status(errc::invalid_argument, fmt::format("its {} bits of type {} are not a whole number of bytes", bits, to_string(type)));
  });
}

}  // namespace penstock
