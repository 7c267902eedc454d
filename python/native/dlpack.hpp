// DLPack: importing and exporting memory.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace penstock::python {

namespace nb = nanobind;

// The parts of dlpack.h, versions 0.8 and 1.0, that are needed here.
struct dl_device {
  std::int32_t type;
  std::int32_t id;
};
inline constexpr std::int32_t dl_cpu = 1;
inline constexpr std::int32_t dl_cuda = 2;
// Type codes.
inline constexpr std::uint8_t dl_float = 2;
inline constexpr std::uint8_t dl_bfloat = 4;
inline constexpr std::uint8_t dl_complex = 5;

struct dl_tensor {
  void* data;
  dl_device device;
  std::int32_t dimensions;
  struct {
    std::uint8_t code;
    std::uint8_t bits;
    std::uint16_t lanes;
  } type;
  std::int64_t* shape;
  std::int64_t* strides;
  std::uint64_t byte_offset;
};

// Describes an object's memory, which the object keeps owning, without waiting for any stream. Shape and strides stay valid until the
// object is next used. Returns 0, or sets a Python exception. Needs the GIL.
using dl_tensor_of_object = int (*)(void* object, dl_tensor* out);
// Returns this function from a type's __dlpack_c_exchange_api__ (DLPack 1.3). Null if the type does not have one, or has a different major
// version.
dl_tensor_of_object dl_exchange_of(nb::handle type);
// Returns true if the elements are contiguous in C order.
[[nodiscard]] bool lies_in_c_order(const dl_tensor& tensor) noexcept;
// Returns nothing if a length is negative or the size does not fit into 63 bits.
[[nodiscard]] std::optional<std::int64_t> bytes_of(const dl_tensor& tensor) noexcept;

// Creates a capsule with one dimension of bytes. It keeps owner alive until its consumer releases it. versioned: for DLPack 1.0, which
// declares the bytes writable. Needs the GIL.
nb::object dlpack_capsule(nb::handle owner, void* data, std::uint64_t bytes, dl_device where, bool versioned);

}  // namespace penstock::python
