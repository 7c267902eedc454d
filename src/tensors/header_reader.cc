#include "tensors/header_reader.hpp"

#include <fmt/format.h>

#include <utility>

#include "base/json_reader.hpp"
#include "tensors/checks.hpp"

namespace penstock::tensors {

namespace {

class header_reader {
 public:
  explicit header_reader(std::string_view text) : text_(text), json_(text, "the header") {}

  bool read_all(header_text& to) {
    if (!text_.starts_with('{')) return json_.fail("a header must start with '{'");
    return json_.object([&](std::string_view key) { return read_member(key, to); }) && json_.end();
  }

  [[nodiscard]] const status& problem() const { return json_.problem(); }

 private:
  bool read_member(std::string_view key, header_text& to) {
    if (key == metadata_key) return read_metadata(to.metadata);
    to.tensors.emplace_back();
    tensor_facts& tensor = to.tensors.back();
    tensor.name = key;
    return read_tensor(tensor) || json_.fail_in(tensor_called(tensor.name));
  }

  bool read_metadata(std::optional<tensor_metadata>& to) {
    if (seen_metadata_) return json_.fail("\"__metadata__\" appears twice");
    seen_metadata_ = true;
    if (json_.taken_null()) return true;  // null is treated as absent
    to.emplace();
    return json_.object([&](std::string_view key) {
      std::string name(key);
      std::string_view value;
      if (json_.next() != '"') return json_.fail(fmt::format("the metadata value of {} is not a string", tensors::quoted(name)));
      if (!json_.string(value)) return false;
      to->emplace_back(std::move(name), value);
      return true;
    });
  }

  bool read_tensor(tensor_facts& to) {
    bool has_type = false, has_shape = false, has_offsets = false;
    const auto once = [&](bool& has, std::string_view field) {
      if (has) return json_.fail(fmt::format("\"{}\" appears twice", field));
      return has = true;
    };
    const bool done = json_.object([&](std::string_view field) {
      if (field == "dtype") return once(has_type, field) && read_type(to.type);
      if (field == "shape") return once(has_shape, field) && read_shape(to.shape);
      if (field == "data_offsets") return once(has_offsets, field) && read_offsets(to);
      return json_.fail(fmt::format("unknown tensor field {}", tensors::quoted(field)));
    });
    if (!done) return false;
    if (!has_type) return json_.fail("\"dtype\" is missing");
    if (!has_shape) return json_.fail("\"shape\" is missing");
    return has_offsets || json_.fail("\"data_offsets\" is missing");
  }

  bool read_type(tensor_type& to) {
    std::string_view name;
    if (!json_.string(name)) return false;
    const auto type = parse_tensor_type(name);
    if (!type) return json_.fail(type.error().message());
    to = *type;
    return true;
  }

  bool read_shape(std::vector<std::uint64_t>& to) {
    if (!json_.numbers(numbers_)) return false;
    to = numbers_;  // allocates exactly the needed size
    return true;
  }

  bool read_offsets(tensor_facts& to) {
    if (!json_.numbers(numbers_)) return false;
    if (numbers_.size() != 2) return json_.fail(fmt::format("\"data_offsets\" must contain two numbers, not {}", numbers_.size()));
    if (numbers_[0] > numbers_[1]) return json_.fail(fmt::format("\"data_offsets\" start at {} but end at {}", numbers_[0], numbers_[1]));
    to.offset = numbers_[0];
    to.bytes = numbers_[1] - numbers_[0];
    return true;
  }

  std::string_view text_;
  json_reader json_;
  std::vector<std::uint64_t> numbers_;  // the last array
  bool seen_metadata_ = false;
};

}  // namespace

result<header_text> read_header_text(std::string_view text) {
  header_text read;
  header_reader reader(text);
  if (!reader.read_all(read)) return reader.problem();
  return read;
}

}  // namespace penstock::tensors
