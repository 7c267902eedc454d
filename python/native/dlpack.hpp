// DLPack: memory as other libraries take it, and show it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace penstock::python {

namespace nb = nanobind;

// dlpack.h, version 0.8 and 1.0: what is needed of it.
struct dl_device {
  std::int32_t type;
  std::int32_t id;
};
inline constexpr std::int32_t dl_cpu = 1;
inline constexpr std::int32_t dl_cuda = 2;
// Codes of types.
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

// Describes an object's memory, which the object keeps, without waiting for any stream: shape and strides are valid as long as nothing else
// is done. 0; or else an exception of Python is set. With the GIL.
using dl_tensor_of_object = int (*)(void* object, dl_tensor* out);
// That of a type's __dlpack_c_exchange_api__ (DLPack 1.3). Null where the type has none, or one of another major version.
dl_tensor_of_object dl_exchange_of(nb::handle type);
// Elements lie side by side in the order of C.
[[nodiscard]] bool lies_in_c_order(const dl_tensor& tensor) noexcept;
// Nothing: a length is negative, or 63 bits do not count them.
[[nodiscard]] std::optional<std::int64_t> bytes_of(const dl_tensor& tensor) noexcept;

// A capsule of one dimension of bytes, which keeps owner alive until whoever takes it lets go. versioned: as of version 1.0, which says
// that the bytes may be written to. With the GIL.
nb::object dlpack_capsule(nb::handle owner, void* data, std::uint64_t bytes, dl_device where, bool versioned);

}  // namespace penstock::python
