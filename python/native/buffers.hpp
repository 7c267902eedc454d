// Objects of Python that are memory: what a request reads into or writes from.
//
// Taken are, in this order: the buffer protocol (bytes, bytearray, memoryview, NumPy), penstock.Pointer and penstock.DeviceBuffer,
// __cuda_array_interface__ (CuPy, Numba, RMM, PyTorch on a GPU), data_ptr() and nbytes (PyTorch's tensors and storages), and DLPack.
// An object that offers several of them names the same memory by each.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>

namespace penstock::python {

namespace nb = nanobind;

enum class memory_use : std::uint8_t { source, target };

// The memory of one object, kept alive and in its place. Made, and destroyed, with the GIL; data() and size() need none.
class held_memory {
 public:
  // Raises penstock.BufferError for memory that is read-only (as a target), not contiguous or masked, and TypeError for what is no memory.
  held_memory(nb::handle object, memory_use use);
  held_memory(const held_memory&) = delete;
  held_memory& operator=(const held_memory&) = delete;
  ~held_memory();
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  // The part of it that a request names. size: nothing for the rest. Raises penstock.InvalidArgument where it reaches outside.
  struct part {
    std::byte* data;
    std::uint64_t size;
  };
  [[nodiscard]] part slice(std::int64_t offset, std::optional<std::int64_t> size) const;
  // How many there are in this process. With the GIL.
  static int count() noexcept { return count_; }

 private:
  bool take_buffer(nb::handle object, memory_use use);
  bool take_native(nb::handle object, memory_use use);
  bool take_cuda_array(nb::handle object, memory_use use);
  bool take_data_pointer(nb::handle object);
  bool take_dlpack(nb::handle object);

  inline static int count_ = 0;
  Py_buffer view_{};
  nb::object owner_;
  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
};

// penstock.Pointer, and the function resolve().
void add_buffers(nb::module_& module);

}  // namespace penstock::python
