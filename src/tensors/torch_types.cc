#include <algorithm>
#include <array>

#include "tensors/pickle_reader.hpp"

namespace penstock::tensors {

namespace {

struct torch_type {
  std::string_view storage;  // empty: tensors of this type use UntypedStorage
  std::string_view dtype;
  tensor_type type;
};

constexpr std::array<torch_type, 20> torch_types{{
    {"torch\nBoolStorage", "torch\nbool", tensor_type::boolean},
    {"torch\nByteStorage", "torch\nuint8", tensor_type::u8},
    {"torch\nCharStorage", "torch\nint8", tensor_type::i8},
    {"torch\nShortStorage", "torch\nint16", tensor_type::i16},
    {"torch\nIntStorage", "torch\nint32", tensor_type::i32},
    {"torch\nLongStorage", "torch\nint64", tensor_type::i64},
    {"torch\nHalfStorage", "torch\nfloat16", tensor_type::f16},
    {"torch\nBFloat16Storage", "torch\nbfloat16", tensor_type::bf16},
    {"torch\nFloatStorage", "torch\nfloat32", tensor_type::f32},
    {"torch\nDoubleStorage", "torch\nfloat64", tensor_type::f64},
    {"torch\nComplexFloatStorage", "torch\ncomplex64", tensor_type::c64},
    {"", "torch\nuint16", tensor_type::u16},
    {"", "torch\nuint32", tensor_type::u32},
    {"", "torch\nuint64", tensor_type::u64},
    {"", "torch\nfloat8_e5m2", tensor_type::f8_e5m2},
    {"", "torch\nfloat8_e4m3fn", tensor_type::f8_e4m3},
    {"", "torch\nfloat8_e8m0fnu", tensor_type::f8_e8m0},
    {"", "torch\nfloat8_e4m3fnuz", tensor_type::f8_e4m3fnuz},
    {"", "torch\nfloat8_e5m2fnuz", tensor_type::f8_e5m2fnuz},
    {"", "torch\nfloat4_e2m1fn_x2", tensor_type::f4},  // PyTorch counts pairs, safetensors elements
}};

}  // namespace

std::optional<tensor_type> type_of_name(std::string_view name) {
  const auto* const found =
      std::ranges::find_if(torch_types, [&](const torch_type& each) { return each.storage == name || each.dtype == name; });
  if (name.empty() || found == torch_types.end()) return std::nullopt;
  return found->type;
}

std::optional<std::string_view> lasting_type_name(std::string_view name) {
  if (name.empty()) return std::nullopt;
  for (const torch_type& each : torch_types) {
    if (each.storage == name) return each.storage;
    if (each.dtype == name) return each.dtype;
  }
  return std::nullopt;
}

std::optional<torch_type_name> name_of_type(tensor_type type) {
  const auto* const found = std::ranges::find(torch_types, type, &torch_type::type);
  if (found == torch_types.end()) return std::nullopt;
  if (found->storage.empty()) return torch_type_name{found->dtype, true};
  return torch_type_name{found->storage, false};
}

std::vector<std::uint64_t> dense_strides(const std::vector<std::uint64_t>& shape) {
  std::vector<std::uint64_t> strides(shape.size());
  std::uint64_t step = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    strides[i] = step;
    step *= std::max<std::uint64_t>(shape[i], 1);
  }
  return strides;
}

}  // namespace penstock::tensors
