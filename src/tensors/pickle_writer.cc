#include "tensors/pickle_writer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <map>
#include <string_view>
#include <vector>

#include "tensors/checkpoint_contents.hpp"
#include "tensors/pickle_reader.hpp"

namespace penstock::tensors {

namespace {

class pickle_writer {
 public:
  std::string write(std::span<const tensor_facts> tensors, const tensor_metadata& metadata) {
    out_ = "\x80\x02";
    empty_ordered_dict();
    for (std::size_t first = 0; first < tensors.size(); first += at_once) {
      out_ += '(';
      for (std::size_t i = first; i < std::min(first + at_once, tensors.size()); ++i) {
        text(tensors[i].name);
        tensor(tensors[i], i);
      }
      out_ += 'u';
    }
    if (!metadata.empty()) attributes(metadata);
    out_ += '.';
    return std::move(out_);
  }

 private:
  static constexpr std::size_t at_once = 1000;  // items per batch, to keep a reader's stack small

  void little_endian(std::uint64_t value, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) out_ += static_cast<char>(value >> (8 * i) & 0xff);
  }
  void text(std::string_view value) {
    out_ += 'X';
    little_endian(value.size(), 4);
    out_ += value;
  }
  void number(std::uint64_t value) {
    if (value < 0x100) {
      out_ += 'K';
      little_endian(value, 1);
    } else if (value < 0x10000) {
      out_ += 'M';
      little_endian(value, 2);
    } else if (value < 0x80000000) {
      out_ += 'J';
      little_endian(value, 4);
    } else {
      out_ += "\x8a\x08";  // the sign bit is clear: files are smaller than 2^63 bytes
      little_endian(value, 8);
    }
  }
  // Writes a name the first time, and a reference to it after that.
  void name(std::string_view called) {
    const auto [found, is_new] = remembered_.emplace(called, remembered_.size());
    if (is_new) {
      out_.append("c").append(called).append("\nq");
    } else {
      out_ += 'h';
    }
    assert(found->second < 256 && "there are fewer names than types");
    little_endian(found->second, 1);
  }
  void empty_ordered_dict() {
    name("collections\nOrderedDict");
    out_ += ")R";
  }
  void tuple(const std::vector<std::uint64_t>& values) {
    if (values.empty()) {
      out_ += ')';
      return;
    }
    out_ += '(';
    for (const std::uint64_t each : values) number(each);
    out_ += 't';
  }

  void tensor(const tensor_facts& of, std::size_t place) {
    const auto type = name_of_type(of.type);
    assert(type && "the caller has checked the type");
    name(type->is_dtype ? "torch._utils\n_rebuild_tensor_v3" : "torch._utils\n_rebuild_tensor_v2");
    out_ += '(';
    storage(of, *type, place);
    number(0);
    std::vector<std::uint64_t> shape = of.shape;
    if (of.type == tensor_type::f4) shape.back() /= 2;  // PyTorch counts pairs
    tuple(shape);
    tuple(dense_strides(shape));
    out_ += '\x89';
    empty_ordered_dict();
    if (type->is_dtype) name(type->name);
    out_ += "tR";
  }
  void storage(const tensor_facts& of, const torch_type_name& type, std::size_t place) {
    const std::uint64_t unit = type.is_dtype ? 1 : bits_of(of.type) / 8;
    out_ += '(';
    text("storage");
    name(type.is_dtype ? untyped_storage : type.name);
    text(fmt::format("{}", place));
    text("cpu");
    number(of.bytes / unit);
    out_ += "tQ";
  }
  void attributes(const tensor_metadata& metadata) {
    out_ += '}';
    text(metadata_attribute);
    out_ += "}(";
    for (const auto& [key, value] : metadata) {
      text(key);
      text(value);
    }
    out_ += "usb";
  }

  std::string out_;
  std::map<std::string_view, std::size_t> remembered_;
};

}  // namespace

std::string write_pickle(std::span<const tensor_facts> tensors, const tensor_metadata& metadata) {
  return pickle_writer().write(tensors, metadata);
}

}  // namespace penstock::tensors
