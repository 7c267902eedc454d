#include "tensors/checkpoint_contents.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/checked.hpp"
#include "base/printable.hpp"
#include "tensors/checks.hpp"
#include "tensors/pickle_reader.hpp"

namespace penstock::tensors {

namespace {

// A limit for dicts that contain each other several times: a one-page pickle can describe more members than there are atoms in the
// universe.
constexpr std::size_t most_members = std::size_t{1} << 20;
constexpr std::size_t most_name_bytes = std::size_t{256} << 20;  // likewise: one long key can be part of many members' names

status malformed(std::string message) { return {errc::invalid_argument, std::move(message)}; }

std::string plain_name(std::string_view name) {
  std::string text(name);
  std::ranges::replace(text, '\n', '.');
  return printable_text(std::move(text));
}

// Ignores the strides of dimensions of length 1.
bool is_dense(const std::vector<std::uint64_t>& shape, const std::vector<std::uint64_t>& strides) {
  const auto wanted = dense_strides(shape);
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] != 1 && strides[i] != wanted[i]) return false;
  }
  return true;
}

// Returns the number of elements from the first to the end of the last. Returns nothing on overflow.
std::optional<std::uint64_t> reach_of(const std::vector<std::uint64_t>& shape, const std::vector<std::uint64_t>& strides) {
  std::uint64_t reach = 1;
  for (std::size_t i = 0; i < shape.size(); ++i) {
    std::uint64_t step = 0;
    if (__builtin_mul_overflow(shape[i] - 1, strides[i], &step) || __builtin_add_overflow(reach, step, &reach)) return std::nullopt;
  }
  return reach;
}

class contents_reader {
 public:
  contents_reader(const pickle_content& pickle, std::span<const zip_member> members, std::string_view folder)
      : pickle_(pickle), folder_(folder) {
    for (const zip_member& each : members) members_.emplace(each.name, &each);
  }

  status read() {
    std::vector<std::string> keys;
    if (status error = visit(pickle_.root, keys); !error.ok()) return error;
    read_metadata();
    return {};
  }
  torch_checkpoint take() { return std::move(made_); }

 private:
  status visit(pickle_value value, std::vector<std::string>& keys) {
    if (++visited_ > most_members) return malformed(fmt::format("its dicts contain more than {} entries", most_members));
    const pickle_node& node = pickle_.nodes[value];
    if (node.kind == pickle_kind::tensor) return add_tensor(pickle_.tensors[node.extra], keys);
    if (node.kind != pickle_kind::dict || pickle_.items_of(value).empty()) {
      for (const std::string& key : keys) {
        if (!has_room(key.size())) return too_long();
      }
      made_.others.push_back({keys, kind_of(value)});
      return {};
    }
    if (keys.size() >= static_cast<std::size_t>(most_checkpoint_depth))
      return malformed(fmt::format("its dicts are nested deeper than {}", most_checkpoint_depth));
    const auto& items = pickle_.items_of(value);
    for (std::size_t i = 0; i < items.size(); i += 2) {
      if (!has_room(pickle_.nodes[items[i]].text.size())) return too_long();
      keys.push_back(key_of(items[i]));
      if (status error = visit(items[i + 1], keys); !error.ok()) return error;
      keys.pop_back();
    }
    return {};
  }

  // Counts the names' bytes before they are copied.
  bool has_room(std::size_t bytes) {
    name_bytes_ += bytes;
    return name_bytes_ <= most_name_bytes;
  }
  static status too_long() { return malformed(fmt::format("its names are longer than {} bytes in total", most_name_bytes)); }

  // Keys are text, or numbers in optimizer states.
  [[nodiscard]] std::string key_of(pickle_value value) const {
    const pickle_node& node = pickle_.nodes[value];
    if (node.kind == pickle_kind::text) return std::string(node.text);
    if (node.kind == pickle_kind::integer) return fmt::format("{}", node.number);
    return fmt::format("({})", kind_of(value));
  }
  [[nodiscard]] std::string kind_of(pickle_value value) const {
    const pickle_node& node = pickle_.nodes[value];
    switch (node.kind) {
      case pickle_kind::none:
        return "None";
      case pickle_kind::boolean:
        return "bool";
      case pickle_kind::integer:
        return "int";
      case pickle_kind::real:
        return "float";
      case pickle_kind::text:
        return "str";
      case pickle_kind::list:
        return fmt::format("list of {} values", pickle_.items_of(value).size());
      case pickle_kind::tuple:
        return fmt::format("tuple of {} values", pickle_.items_of(value).size());
      case pickle_kind::dict:
        return "dict";
      case pickle_kind::name:
        return plain_name(node.text);
      case pickle_kind::storage:
        return "storage";
      case pickle_kind::tensor:
        return "tensor";
    }
    return "value";
  }

  status add_tensor(const pickled_tensor& from, const std::vector<std::string>& keys) {
    checkpoint_tensor made;
    for (const std::string& key : keys) {
      if (!has_room(key.size())) return too_long();
    }
    made.keys = keys;
    made.shape = from.shape;
    made.strides = from.strides;
    if (status error = place(from, made); !error.ok()) return error.with_context(tensor_called(made.name()));
    made_.tensors.push_back(std::move(made));
    return {};
  }

  status place(const pickled_tensor& from, checkpoint_tensor& to) const {
    const pickled_storage& storage = pickle_.storages[from.storage];
    const std::string_view type_name = from.type.empty() ? storage.type : from.type;
    const auto type = type_of_name(type_name);
    const auto member = find(storage.key);
    if (!member) return member.error();
    to.storage = (*member)->name;
    to.storage_bytes = (*member)->bytes;
    to.offset = (*member)->offset;
    if (!type) {
      to.problem = {errc::unsupported, fmt::format("its type {} is not supported by safetensors", plain_name(type_name))};
      return {};
    }
    to.type = *type;
    if (from.is_deferred)
      to.problem = {errc::unsupported, "it is a lazy conjugate or negative: call resolve_conj() and resolve_neg(), then save again"};
    return to.type == tensor_type::f4 ? place_pairs(from, storage, to) : place_elements(from, storage, to);
  }
  [[nodiscard]] result<const zip_member*> find(std::string_view key) const {
    const std::string name = fmt::format("{}data/{}", folder_, key);
    const auto [first, last] = members_.equal_range(name);
    if (first == last) return malformed(fmt::format("its storage {} is missing from the archive", tensors::quoted(name)));
    if (std::next(first) != last) return malformed(fmt::format("its storage {} appears twice in the archive", tensors::quoted(name)));
    const zip_member& found = *first->second;
    if (found.stored && found.bytes == found.packed_bytes) return &found;
    return status(errc::unsupported, fmt::format("its storage {} is compressed", tensors::quoted(name)));
  }

  // In PyTorch an element is a byte that contains two numbers; the last dimension of the result counts the numbers.
  static status place_pairs(const pickled_tensor& from, const pickled_storage& storage, checkpoint_tensor& to) {
    to.type = tensor_type::u8;
    if (status error = place_elements(from, storage, to); !error.ok()) return error;
    to.type = tensor_type::f4;
    if (!to.contiguous || to.shape.empty()) {
      to.problem = {errc::unsupported, "it is of type F4 and is a strided view or a single pair: safetensors does not support these"};
      return {};
    }
    to.shape.back() *= 2;  // cannot overflow: the storage has that many bytes
    to.strides = dense_strides(to.shape);
    return {};
  }
  // Before the call, to.offset is the storage's offset.
  static status place_elements(const pickled_tensor& from, const pickled_storage& storage, checkpoint_tensor& to) {
    const std::uint64_t unit = bits_of(to.type) / 8;
    const bool is_untyped = storage.type == untyped_storage;
    std::uint64_t needed = 0;
    if (__builtin_mul_overflow(storage.count, is_untyped ? 1 : unit, &needed) || needed != to.storage_bytes) {
      return malformed(fmt::format("its storage {} has {} bytes, but the pickle expects {} elements of {}", tensors::quoted(to.storage),
                                   to.storage_bytes, storage.count, is_untyped ? "1 byte" : plain_name(storage.type)));
    }
    const auto bytes = tensor_bytes(to.type, from.shape);
    if (!bytes) return bytes.error();
    to.bytes = *bytes;
    to.contiguous = to.bytes == 0 || is_dense(from.shape, from.strides);
    if (to.bytes == 0) return {};
    const std::uint64_t there = to.storage_bytes / unit;
    const auto reach = reach_of(from.shape, from.strides);
    const auto end = reach ? checked_add(from.offset, *reach) : std::nullopt;
    if (!end || *end > there) {
      return malformed(fmt::format("it starts at element {} of its storage {} and extends past the end: the storage has {} elements",
                                   from.offset, tensors::quoted(to.storage), there));
    }
    to.offset += from.offset * unit;
    to.extent = *reach * unit;
    return {};
  }

  // Reads the text stored by make_torch_checkpoint(). Ignores anything else under that name.
  void read_metadata() {
    const auto state = pickle_.states.find(pickle_.root);
    if (state == pickle_.states.end()) return;
    const auto& attributes = pickle_.items_of(state->second);
    for (std::size_t i = 0; i < attributes.size(); i += 2) {
      const pickle_node& key = pickle_.nodes[attributes[i]];
      if (key.kind == pickle_kind::text && key.text == metadata_attribute) take_metadata(attributes[i + 1]);
    }
  }
  void take_metadata(pickle_value value) {
    if (pickle_.nodes[value].kind != pickle_kind::dict) return;
    tensor_metadata found;
    const auto& items = pickle_.items_of(value);
    for (std::size_t i = 0; i < items.size(); i += 2) {
      const pickle_node &key = pickle_.nodes[items[i]], &text = pickle_.nodes[items[i + 1]];
      if (key.kind != pickle_kind::text || text.kind != pickle_kind::text) return;
      if (!has_room(key.text.size() + text.text.size())) return;
      found.emplace_back(key.text, text.text);
    }
    if (check_keys(found).ok()) made_.metadata = std::move(found);
  }

  const pickle_content& pickle_;
  std::string_view folder_;
  std::unordered_multimap<std::string_view, const zip_member*> members_;
  torch_checkpoint made_;
  std::size_t visited_ = 0, name_bytes_ = 0;
};

}  // namespace

result<std::string> checkpoint_folder(std::span<const zip_member> members) {
  std::optional<std::string> folder;
  for (const zip_member& each : members) {
    if (!each.name.ends_with(pickle_name)) continue;
    const std::string_view before = std::string_view(each.name).substr(0, each.name.size() - pickle_name.size());
    // Skip "a/b/data.pkl": that is a checkpoint inside a larger archive.
    if (!before.empty() && before.find('/') != before.size() - 1) continue;
    if (folder) return malformed("it contains several pickles, but a checkpoint has only one");
    folder = before;
  }
  if (!folder) return malformed("not a torch.save checkpoint: the zip file does not contain data.pkl");
  return *std::move(folder);
}

result<torch_checkpoint> contents_of(std::string_view pickle, std::span<const zip_member> members, std::string_view folder) {
  const auto content = read_pickle(pickle);
  if (!content) return content.error();
  contents_reader reader(*content, members, folder);
  if (status error = reader.read(); !error.ok()) return error;
  return reader.take();
}

}  // namespace penstock::tensors
