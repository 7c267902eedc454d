// DLPack: memory as other libraries take it, and show it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>

namespace penstock::python {

namespace nb = nanobind;

// dlpack.h, version 0.8 and 1.0: what is needed of it.
struct dl_device {
  std::int32_t type;
  std::int32_t id;
};
inline constexpr std::int32_t dl_cpu = 1;
inline constexpr std::int32_t dl_cuda = 2;

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

// A capsule of one dimension of bytes, which keeps owner alive until whoever takes it lets go. versioned: as of version 1.0, which says
// that the bytes may be written to. With the GIL.
nb::object dlpack_capsule(nb::handle owner, void* data, std::uint64_t bytes, dl_device where, bool versioned);

}  // namespace penstock::python
