// Python objects used as the memory that a request reads into or writes from.
//
// Accepts, in this order: penstock.Pointer and penstock.DeviceBuffer, the buffer protocol (bytes, bytearray, memoryview, NumPy),
// __cuda_array_interface__ (CuPy, Numba, RMM, PyTorch on a GPU), data_ptr() and nbytes (PyTorch's tensors and storages), and DLPack. For
// PyTorch's own tensors, DLPack's C functions (1.3) are tried first if available. An object with several of these interfaces describes the
// same memory with each. CuPy's arrays and PyTorch's tensors build the __cuda_array_interface__ dict each time, which takes microseconds,
// so their cheaper attributes are tried first.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dlpack.hpp"

namespace penstock::python {

namespace nb = nanobind;

enum class memory_use : std::uint8_t { source, target };

// c: C order, the order of arrays in files. any: also Fortran order; the bytes are moved in memory order.
enum class memory_order : std::uint8_t { c, any };
// Parses the argument order, "C" or "A". Raises TypeError and penstock.InvalidArgument.
memory_order parse_order(nb::handle order);

// The name of an argument in errors: "buffer", "requests[3]", or "items['key'][3]".
struct argument_name {
  const char* name = "buffer";
  std::optional<std::size_t> index{};
  bool has_order = true;  // the function also has an argument named order
  std::string_view key{};
  [[nodiscard]] std::string text() const;
};

// The location of memory; stays valid after the memory is freed.
struct memory_place {
  std::string device;             // for a DeviceBuffer; otherwise empty: the engine classifies the address
  const void* address = nullptr;  // null: none
};

// The memory of one object. Keeps the object alive and its memory in place. Construction and destruction need the GIL; data() and size() do
// not.
class held_memory {
 public:
  // Raises penstock.BufferError for memory that is read-only (as a target), not contiguous, masked, made of Python objects, or in Fortran
  // order if that is not allowed; and TypeError for an object without memory. Both messages include the argument's name.
  held_memory(nb::handle object, memory_use use, memory_order order = memory_order::c, argument_name name = {});
  held_memory(const held_memory&) = delete;
  held_memory& operator=(const held_memory&) = delete;
  ~held_memory();
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] memory_place place() const { return {device_, data_}; }
  // Returns the part that a request uses. size: nullopt means the rest. Raises penstock.InvalidArgument if the part is out of bounds.
  struct part {
    std::byte* data;
    std::uint64_t size;
  };
  [[nodiscard]] part slice(std::int64_t offset, std::optional<std::int64_t> size) const;
  // Returns the object to keep instead of this one, if keeping it is enough; null if a buffer view must be released.
  [[nodiscard]] nb::object* only_owner() noexcept { return view_.obj == nullptr ? &owner_ : nullptr; }
  // Returns the number of live objects in this process. Needs the GIL.
  static int count() noexcept { return count_; }

 private:
  // The requirements for the memory, passed to the functions below.
  struct demand {
    nb::handle object;
    memory_use use;
    memory_order order;
    argument_name name;
    [[noreturn]] void refuse(const std::string& why) const;
    // Raises for a PyTorch tensor without memory, with penstock._core.torch_memory's message.
    void check_tensor() const;
    // Raises for a PyTorch view that computes its values from the bytes when it is read.
    [[noreturn]] void refuse_lazy(const char* kind, const char* method) const;
    // Raises unless the elements are contiguous in an accepted order. strides: in the unit of item_size.
    void check_contiguity(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides, std::int64_t item_size) const;
    [[noreturn]] void refuse_order() const;
    void check_items(Py_ssize_t item_size) const;
    [[nodiscard]] std::uint64_t byte_count(const std::int64_t* shape, std::size_t count, std::int64_t item_size) const;
    [[nodiscard]] std::int64_t item_size_of(nb::handle typestr) const;
    [[nodiscard]] std::pair<nb::object, nb::object> pair_of(nb::handle sequence, const char* what) const;
  };
  bool take_buffer(const demand& wanted);
  bool take_native(const demand& wanted);
  bool take_known(const demand& wanted);
  bool take_described(nb::handle tensor, dl_tensor_of_object describe);
  bool take_tensor(const demand& wanted);
  bool take_cupy(const demand& wanted);
  bool take_cuda_array(const demand& wanted);
  bool take_data_pointer(const demand& wanted);
  bool take_dlpack(const demand& wanted);

  inline static int count_ = 0;
  Py_buffer view_{};
  nb::object owner_;
  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  std::string device_;
};

// Returns whether the bytes are within the PyTorch tensor's storage: the program may have freed or shrunk the storage since it created the
// tensor. Returns true if the tensor cannot be queried. Needs the GIL.
bool lies_in_its_storage(nb::handle tensor, std::uint64_t address, std::uint64_t bytes);

// Adds penstock.Pointer and resolve().
void add_buffers(nb::module_& module);

}  // namespace penstock::python
