#include "plain_tensors.hpp"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <penstock/penstock.hpp>
#include <utility>
#include <vector>

#include "arguments.hpp"
#include "buffers.hpp"
#include "dlpack.hpp"
#include "errors.hpp"
#include "packed.hpp"

namespace penstock::python {

namespace {

using namespace nb::literals;

// --- one tensor

struct dl_type {
  std::uint8_t code;
  std::uint8_t bits;
};

// Returns nothing if PyTorch lacks the type or describes it differently. Complex tensors are excluded because they may be conjugate views,
// whose bytes differ from their values.
std::optional<dl_type> dl_type_of(tensor_type type) {
  constexpr std::uint8_t of_signed = 0, of_unsigned = 1, of_float = 2, of_bfloat = 4, of_bool = 6, of_e4m3 = 10, of_e4m3fnuz = 11,
                         of_e5m2 = 12, of_e5m2fnuz = 13, of_e8m0 = 14;
  switch (type) {
    case tensor_type::boolean:
      return dl_type{of_bool, 8};
    case tensor_type::u8:
      return dl_type{of_unsigned, 8};
    case tensor_type::i8:
      return dl_type{of_signed, 8};
    case tensor_type::f8_e5m2:
      return dl_type{of_e5m2, 8};
    case tensor_type::f8_e4m3:
      return dl_type{of_e4m3, 8};
    case tensor_type::f8_e8m0:
      return dl_type{of_e8m0, 8};
    case tensor_type::f8_e4m3fnuz:
      return dl_type{of_e4m3fnuz, 8};
    case tensor_type::f8_e5m2fnuz:
      return dl_type{of_e5m2fnuz, 8};
    case tensor_type::i16:
      return dl_type{of_signed, 16};
    case tensor_type::u16:
      return dl_type{of_unsigned, 16};
    case tensor_type::f16:
      return dl_type{of_float, 16};
    case tensor_type::bf16:
      return dl_type{of_bfloat, 16};
    case tensor_type::i32:
      return dl_type{of_signed, 32};
    case tensor_type::u32:
      return dl_type{of_unsigned, 32};
    case tensor_type::f32:
      return dl_type{of_float, 32};
    case tensor_type::f64:
      return dl_type{of_float, 64};
    case tensor_type::i64:
      return dl_type{of_signed, 64};
    case tensor_type::u64:
      return dl_type{of_unsigned, 64};
    default:
      return std::nullopt;
  }
}

bool is_contiguous(const dl_tensor& seen) {
  std::int64_t expected = 1;
  for (std::int32_t i = seen.dimensions; i-- > 0;) {
    if (seen.strides != nullptr && seen.shape[i] != 1 && seen.strides[i] != expected) return false;
    expected *= seen.shape[i];
  }
  return true;
}

bool fits(const tensor_facts& wanted, const dl_tensor& seen) {
  const auto type = dl_type_of(wanted.type);
  return type && seen.type.code == type->code && seen.type.bits == type->bits && seen.type.lanes == 1 &&
         std::equal(wanted.shape.begin(), wanted.shape.end(), seen.shape, seen.shape + seen.dimensions,
                    std::cmp_equal<std::uint64_t, std::int64_t>) &&
         (wanted.bytes == 0 || (seen.data != nullptr && is_contiguous(seen)));
}

// --- all tensors

class search {
 public:
  search(nb::dict targets, nb::tuple classes) : targets_(std::move(targets)), classes_(std::move(classes)) {}

  // Returns false if a tensor is missing or not plain.
  bool add(const tensor_header& header) {
    if (describe_ == nullptr) describe_ = dl_exchange_of(classes_[0]);
    if (describe_ == nullptr) return false;
    auto& mine = files_.emplace_back(&header);
    mine.targets.reserve(header.tensors().size());
    return std::ranges::all_of(header.tensors(), [&](const tensor_facts& each) { return add(each, mine); });
  }

  // Returns true if no two tensors share memory.
  bool are_apart() {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> spans;
    for (const auto& of : files_) {
      for (std::size_t i = 0; i < of.targets.size(); ++i) {
        if (const auto bytes = of.header->tensors()[i].bytes; bytes > 0)
          spans.emplace_back(of.targets[i].address, of.targets[i].address + bytes);
      }
    }
    std::ranges::sort(spans);
    if (!spans.empty()) begin_ = spans.front().first, end_ = spans.back().second;
    return std::ranges::adjacent_find(spans, [](const auto& one, const auto& next) { return next.first < one.second; }) == spans.end();
  }

  [[nodiscard]] nb::tuple found() const {
    nb::list files;
    for (const auto& of : files_) {
      nb::list tensors;
      packed_ranges ranges;
      ranges.reserve(of.targets.size());
      for (std::size_t i = 0; i < of.targets.size(); ++i) {
        const auto& facts = of.header->tensors()[i];
        tensors.append(of.targets[i].tensor);
        ranges.add(facts.offset, facts.bytes, of.targets[i].address - begin_);
      }
      files.append(nb::make_tuple(std::move(tensors), packed(ranges)));
    }
    return nb::make_tuple(begin_, end_, std::move(files));
  }

 private:
  struct target {
    nb::object tensor;
    std::uint64_t address;
  };
  struct of_file {
    explicit of_file(const tensor_header* of) : header(of) {}
    const tensor_header* header;
    std::vector<target> targets;
  };

  bool add(const tensor_facts& wanted, of_file& to) {
    const nb::object name = nb::steal(PyUnicode_FromStringAndSize(wanted.name.data(), static_cast<Py_ssize_t>(wanted.name.size())));
    PyObject* const tensor = name.is_valid() ? PyDict_GetItemWithError(targets_.ptr(), name.ptr()) : nullptr;
    if (tensor == nullptr) {
      if (PyErr_Occurred() != nullptr) throw nb::python_error();
      return false;
    }
    dl_tensor seen{};
    if (!is_one(tensor)) return false;
    if (describe_(tensor, &seen) != 0) {
      PyErr_Clear();  // a later, slower check reports what is wrong
      return false;
    }
    if ((seen.device.type != dl_cpu && seen.device.type != dl_cuda) || !fits(wanted, seen)) return false;
    if (!device_) device_ = seen.device;
    if (device_->type != seen.device.type || device_->id != seen.device.id) return false;
    const auto address = reinterpret_cast<std::uint64_t>(seen.data) + seen.byte_offset;
    if (wanted.bytes != 0 && !lies_in_its_storage(tensor, address, wanted.bytes)) return false;
    to.targets.push_back({nb::borrow(tensor), address});
    return true;
  }

  // Returns true for one of the classes itself, not for a subclass.
  [[nodiscard]] bool is_one(PyObject* tensor) const {
    return std::any_of(classes_.begin(), classes_.end(),
                       [&](nb::handle each) { return reinterpret_cast<PyObject*>(Py_TYPE(tensor)) == each.ptr(); });
  }

  nb::dict targets_;
  nb::tuple classes_;
  dl_tensor_of_object describe_ = nullptr;
  std::optional<dl_device> device_;
  std::vector<of_file> files_;
  std::uint64_t begin_ = 0;
  std::uint64_t end_ = 0;
};

nb::object find_plain(nb::list headers, nb::dict targets, nb::tuple classes) {
  if (classes.size() == 0) raise_invalid("no tensor classes were given");
  search among(std::move(targets), std::move(classes));
  for (const nb::handle each : headers) {
    if (!nb::isinstance<tensor_header>(each)) throw nb::type_error(("a header must be a TensorHeader, not " + type_of(each)).c_str());
    if (!among.add(nb::cast<const tensor_header&>(each))) return nb::none();
  }
  return among.are_apart() ? nb::object(among.found()) : nb::none();
}

}  // namespace

void add_plain_tensors(nb::module_& module) {
  module.def("find_plain_tensors", &find_plain, "headers"_a, "targets"_a, "classes"_a,
             "Returns the tensors into which files can be read directly, using DLPack's C functions of the first of the classes:\n"
             "(begin, end, [(tensors, (offsets, nbytes, places)) for each header]). begin and end are the bounds of their addresses,\n"
             "places are relative to begin; 64-bit integers as bytes. Returns None if anything is unusual: a name is missing;\n"
             "another class, type or shape; not contiguous; on two devices; two that share memory; a library without these\n"
             "functions. Views with a pending negation or conjugation cannot be distinguished from others, so complex types are\n"
             "excluded.");
}

}  // namespace penstock::python
