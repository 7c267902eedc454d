#include "tensors/gguf_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <type_traits>
#include <utility>

#include "base/printable.hpp"
#include "tensors/checks.hpp"

namespace penstock::tensors {

namespace {

constexpr std::uint64_t least_pair_bytes = 8 + 4 + 1;           // length of the key, type, value
constexpr std::uint64_t least_tensor_bytes = 8 + 4 + 4 + 8;     // length of the name, number of dimensions, type, offset
constexpr std::uint64_t string_bytes = 8, array_bytes = 4 + 8;  // minimum sizes: length; type and length

template <class T>
constexpr std::uint64_t least_bytes = sizeof(T);
template <>
constexpr std::uint64_t least_bytes<bool> = 1;
template <>
constexpr std::uint64_t least_bytes<std::string> = string_bytes;
template <>
constexpr std::uint64_t least_bytes<gguf_array> = array_bytes;

// Sets the variant to the alternative with this number. Returns false if there is none.
template <class Variant, std::size_t Number = 0>
bool make_alternative(Variant& to, std::size_t number) {
  if constexpr (Number < std::variant_size_v<Variant>) {
    if (number != Number) return make_alternative<Variant, Number + 1>(to, number);
    to.template emplace<Number>();
    return true;
  }
  return false;
}

class gguf_reader {
 public:
  gguf_reader(std::string_view text, std::uint64_t file_bytes) : text_(text), file_bytes_(file_bytes) {}

  bool read_all(gguf_text& to) {
    std::uint64_t tensors = 0, pairs = 0;
    if (!read_version(to.version) || !read(tensors) || !read(pairs)) return false;
    if (!are_possible(pairs, least_pair_bytes, "keys") || !are_possible(tensors, least_tensor_bytes, "tensors")) return false;
    for (; pairs > 0; --pairs) {
      if (!read_pair(to.metadata.emplace_back())) return false;
    }
    for (; tensors > 0; --tensors) {
      if (!read_tensor(to.tensors.emplace_back())) return false;
    }
    to.end = at_;
    return true;
  }
  [[nodiscard]] const status& problem() const { return problem_; }
  [[nodiscard]] bool ran_out() const { return ran_out_; }

 private:
  bool fail(std::string_view what) {
    problem_ = {errc::invalid_argument, fmt::format("at byte {}: {}", at_, what)};
    return false;
  }
  bool fail_in(const std::string& what) {
    problem_ = problem_.with_context(what);
    return false;
  }

  // --- bytes

  [[nodiscard]] std::uint64_t most_left() const { return std::min(file_bytes_, most_gguf_header_bytes) - at_; }

  // Checks that this many bytes follow in the text or, if not there, in the file.
  bool are_there(std::uint64_t bytes) {
    if (bytes > most_left()) {
      return fail(file_bytes_ <= most_gguf_header_bytes
                      ? fmt::format("{} more bytes are needed, but the file ends at {}: the file is truncated", bytes, file_bytes_)
                      : fmt::format("not a GGUF file: its header would be longer than {} bytes", most_gguf_header_bytes));
    }
    if (bytes <= text_.size() - at_) return true;
    ran_out_ = true;
    return fail(fmt::format("the header does not end within the first {} bytes", text_.size()));
  }
  // Checks that count items of at least this many bytes each can fit.
  bool are_possible(std::uint64_t count, std::uint64_t least_bytes_of_each, std::string_view things) {
    if (count <= most_left() / least_bytes_of_each) return true;
    return fail(fmt::format("{} {} do not fit into a file of {} bytes, whose header is at most {} bytes", count, things, file_bytes_,
                            most_gguf_header_bytes));
  }

  // --- values

  template <class T>
  bool read(T& to) {
    if constexpr (std::is_same_v<T, std::string>) {
      return read_string(to);
    } else if constexpr (std::is_same_v<T, gguf_array>) {
      return read_array(to);
    } else if constexpr (std::is_same_v<T, bool>) {
      std::uint8_t byte = 0;
      if (!read(byte)) return false;
      to = byte != 0;
      return true;
    } else {
      return read_number(to);
    }
  }
  template <class T>
  bool read_number(T& to) {
    if (!are_there(sizeof(T))) return false;
    using bits = std::conditional_t<
        sizeof(T) == 8, std::uint64_t,
        std::conditional_t<sizeof(T) == 4, std::uint32_t, std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint8_t>>>;
    std::uint64_t value = 0;
    for (std::size_t i = sizeof(T); i-- > 0;) value = value << 8 | static_cast<unsigned char>(text_[at_ + i]);
    to = std::bit_cast<T>(static_cast<bits>(value));
    at_ += sizeof(T);
    return true;
  }
  bool read_string(std::string& to) {
    std::uint64_t length = 0;
    if (!read(length) || !are_there(length)) return false;
    to = text_.substr(at_, length);
    at_ += length;
    return true;
  }
  bool read_type(std::uint32_t& type) {
    if (!read(type)) return false;
    return type < gguf_value_type_count || fail(fmt::format("unknown metadata type {}", type));
  }
  bool read_value(gguf_value& to) {
    std::uint32_t type = 0;
    return read_type(type) && make_alternative(to, type) && std::visit([&](auto& value) { return read(value); }, to);
  }
  bool read_array(gguf_array& to) {
    if (depth_ == most_gguf_array_depth) return fail(fmt::format("arrays are nested deeper than {}", most_gguf_array_depth));
    ++depth_;
    std::uint32_t type = 0;
    std::uint64_t count = 0;
    const bool done = read_type(type) && read(count) && make_alternative(to.items, type) &&
                      std::visit([&](auto& items) { return read_items(items, count); }, to.items);
    --depth_;
    return done;
  }
  template <class T>
  bool read_items(std::vector<T>& to, std::uint64_t count) {
    if (!are_possible(count, least_bytes<T>, "items") || !are_there(count * least_bytes<T>)) return false;
    to.reserve(count);  // the bytes are known to be available
    for (std::uint64_t i = 0; i < count; ++i) {
      T item{};
      if (!read(item)) return false;
      to.push_back(std::move(item));
    }
    return true;
  }

  // --- the parts of a header

  bool read_version(std::uint32_t& to) {
    if (!text_.starts_with(gguf_magic)) return fail("a GGUF file must start with \"GGUF\"");
    at_ = gguf_magic.size();
    if (!read(to)) return false;
    if (to == 2 || to == 3) return true;
    if (to == 1) return fail("GGUF version 1 has been obsolete since 2023: only versions 2 and 3 are supported");
    // A small number written by a big-endian machine.
    if ((to & 0xffff) == 0 && to != 0) return fail("this is a big-endian GGUF file: only little-endian files are supported");
    return fail(fmt::format("GGUF version {} is not supported: only versions 2 and 3 are", to));
  }
  bool read_pair(std::pair<std::string, gguf_value>& to) {
    if (!read(to.first)) return fail_in("a metadata key");
    if (to.first.size() > most_gguf_key_bytes) return fail(fmt::format("a key of {} bytes is too long", to.first.size()));
    if (!is_utf8(to.first)) return fail(fmt::format("the key {} is not UTF-8", tensors::quoted(to.first)));
    return read_value(to.second) || fail_in(fmt::format("the key {}", tensors::quoted(to.first)));
  }
  bool read_tensor(gguf_tensor& to) {
    if (!read(to.name)) return fail_in("a tensor's name");
    if (!is_utf8(to.name)) return fail(fmt::format("the name of {} is not UTF-8", tensor_called(to.name)));
    return (read_dimensions(to.dimensions) && read(to.type) && read(to.offset)) || fail_in(tensor_called(to.name));
  }
  bool read_dimensions(std::vector<std::uint64_t>& to) {
    std::uint32_t count = 0;
    if (!read(count)) return false;
    if (count > most_gguf_dimensions) return fail(fmt::format("{} dimensions exceed the limit of {}", count, most_gguf_dimensions));
    return read_items(to, count);
  }

  std::string_view text_;
  std::uint64_t file_bytes_;
  std::uint64_t at_ = 0;
  int depth_ = 0;
  bool ran_out_ = false;
  status problem_;
};

}  // namespace

result<gguf_text> read_gguf_text(std::string_view beginning, std::uint64_t file_bytes, bool& ran_out) {
  gguf_text read;
  gguf_reader reader(beginning.substr(0, file_bytes), file_bytes);
  const bool done = reader.read_all(read);
  ran_out = reader.ran_out();
  if (!done) return reader.problem();
  return read;
}

}  // namespace penstock::tensors
