// Reads a pickle as data: the protocol 2 opcodes that torch.save uses for dicts of tensors, and the names that they may call. Does not
// execute or import anything. Memory use is proportional to the pickle's size; stack use is constant regardless of nesting depth. Not
// thread-safe.
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

// A value, as its index in pickle_content::nodes. A value may be reachable in several ways, even from itself.
using pickle_value = std::uint32_t;

struct pickle_node {
  pickle_kind kind = pickle_kind::none;
  std::uint32_t extra = 0;     // list, tuple, dict: index in items + 1, or 0 if empty; storage, tensor: index in storages or tensors
  std::int64_t number = 0;     // boolean, integer
  std::string_view text = {};  // text: UTF-8; name: "module\nname"
};

struct pickled_storage {
  std::string_view type;  // "torch\nFloatStorage"
  std::string_view key;
  std::uint64_t count = 0;  // in elements of type `type`
};

struct pickled_tensor {
  std::uint32_t storage = 0;
  std::uint64_t offset = 0;  // in elements
  std::vector<std::uint64_t> shape, strides;
  std::string_view type;     // "torch\nuint16" if the storage is untyped; else empty
  bool is_deferred = false;  // lazily conjugated or negated: PyTorch does that on access
};

// The strings point into the pickle.
struct pickle_content {
  std::vector<pickle_node> nodes;
  std::vector<std::vector<pickle_value>> items;  // for a dict: key, value, key, value, ...
  std::vector<pickled_storage> storages;
  std::vector<pickled_tensor> tensors;
  std::unordered_map<pickle_value, pickle_value> states;  // attributes set on dicts
  pickle_value root = 0;

  [[nodiscard]] const std::vector<pickle_value>& items_of(pickle_value value) const;
};

// Errors: invalid_argument; the message includes the byte offset in the pickle.
result<pickle_content> read_pickle(std::string_view pickle);

// Returns the type for the name of a storage class or dtype in a pickle. Returns nothing if safetensors has no such type.
std::optional<tensor_type> type_of_name(std::string_view name);
// Returns an equal name with static lifetime. Returns nothing if type_of_name() does.
std::optional<std::string_view> lasting_type_name(std::string_view name);
// Returns the storage class of a type, or its dtype if it has no storage class. Returns nothing if PyTorch has no such type.
struct torch_type_name {
  std::string_view name;
  bool is_dtype = false;
};
std::optional<torch_type_name> name_of_type(tensor_type type);
// Returns the strides, in elements, that torch.save writes for a contiguous tensor of this shape.
std::vector<std::uint64_t> dense_strides(const std::vector<std::uint64_t>& shape);
// The storage class whose element count is in bytes.
inline constexpr std::string_view untyped_storage = "torch.storage\nUntypedStorage";

}  // namespace penstock::tensors
