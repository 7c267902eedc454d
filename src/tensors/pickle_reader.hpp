// Reads a pickle as data: the opcodes of protocol 2 of which torch.save makes dicts of tensors, and the names that they may call. Nothing
// is executed, and nothing is looked up. Takes memory in proportion to the pickle, and no stack however it is nested. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "penstock/status.hpp"
#include "penstock/tensors.hpp"

namespace penstock::tensors {

enum class pickle_kind : std::uint8_t { none, boolean, integer, real, text, list, tuple, dict, name, storage, tensor };

// A value: its place in pickle_content::nodes. Values may be reached in several ways, also from themselves.
using pickle_value = std::uint32_t;

struct pickle_node {
  pickle_kind kind = pickle_kind::none;
  std::uint32_t extra = 0;     // of list, tuple and dict: its place in items + 1, or 0 without any; of storage and tensor: its place there
  std::int64_t number = 0;     // of boolean and integer
  std::string_view text = {};  // of text, UTF-8; of name "module\nname"
};

struct pickled_storage {
  std::string_view type;  // "torch\nFloatStorage"
  std::string_view key;
  std::uint64_t count = 0;  // of elements of the type
};

struct pickled_tensor {
  std::uint32_t storage = 0;
  std::uint64_t offset = 0;  // in elements
  std::vector<std::uint64_t> shape, strides;
  std::string_view type;     // "torch\nuint16", where the storage has none; else empty
  bool is_deferred = false;  // its values are to be conjugated or negated
};

// The texts lie in the pickle.
struct pickle_content {
  std::vector<pickle_node> nodes;
  std::vector<std::vector<pickle_value>> items;  // of a dict: key, value, key, value
  std::vector<pickled_storage> storages;
  std::vector<pickled_tensor> tensors;
  std::unordered_map<pickle_value, pickle_value> states;  // attributes of dicts
  pickle_value root = 0;

  [[nodiscard]] const std::vector<pickle_value>& items_of(pickle_value value) const;
};

// Errors: invalid_argument; the message tells the byte of the pickle.
result<pickle_content> read_pickle(std::string_view pickle);

// Of a storage class or a dtype, as names in a pickle. Nothing where safetensors has no such type.
std::optional<tensor_type> type_of_name(std::string_view name);
// The same name in memory that lives as long as the program. Nothing where type_of_name() has nothing.
std::optional<std::string_view> lasting_type_name(std::string_view name);
// The storage class, or the dtype of a type that has none. Nothing where PyTorch has no such type.
struct torch_type_name {
  std::string_view name;
  bool is_dtype = false;
};
std::optional<torch_type_name> name_of_type(tensor_type type);
// In elements: what torch.save gives a contiguous tensor of this shape.
std::vector<std::uint64_t> dense_strides(const std::vector<std::uint64_t>& shape);
// What UntypedStorage counts are bytes.
inline constexpr std::string_view untyped_storage = "torch.storage\nUntypedStorage";

}  // namespace penstock::tensors
