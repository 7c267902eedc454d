// Objects of Python that are memory: what a request reads into or writes from.
//
// Taken are, in this order: penstock.Pointer and penstock.DeviceBuffer, the buffer protocol (bytes, bytearray, memoryview, NumPy),
// __cuda_array_interface__ (CuPy, Numba, RMM, PyTorch on a GPU), data_ptr() and nbytes (PyTorch's tensors and storages), and DLPack.
// Of PyTorch's own tensors, where they have DLPack's functions in C (1.3), these are asked before anything else.
// An object that offers several of them names the same memory by each. CuPy's arrays and PyTorch's tensors make a dict for
// __cuda_array_interface__ anew each time, which takes microseconds: they are asked by the names that cost nothing first.
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

// c: the order of C, in which files hold arrays. any: also Fortran's, and the bytes go as they lie in memory.
enum class memory_order : std::uint8_t { c, any };
// "C" or "A", as the argument order. Raises TypeError and penstock.InvalidArgument.
memory_order parse_order(nb::handle order);

// How errors call an argument: "buffer", "requests[3]", or "items['key'][3]".
struct argument_name {
  const char* name = "buffer";
  std::optional<std::size_t> index{};
  bool has_order = true;  // the function has the argument order too
  std::string_view key{};
  [[nodiscard]] std::string text() const;
};

// Where memory lies, also once it is gone.
struct memory_place {
  std::string device;             // of a DeviceBuffer; of other memory empty: the engine tells by the address
  const void* address = nullptr;  // null: none
};

// The memory of one object, kept alive and in its place. Made, and destroyed, with the GIL; data() and size() need none.
class held_memory {
 public:
  // Raises penstock.BufferError for memory that is read-only (as a target), not contiguous, masked, of Python's objects, or in Fortran's
  // order where that is not allowed; and TypeError for what is no memory. Both name the argument.
  held_memory(nb::handle object, memory_use use, memory_order order = memory_order::c, argument_name name = {});
  held_memory(const held_memory&) = delete;
  held_memory& operator=(const held_memory&) = delete;
  ~held_memory();
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::uint64_t size() const noexcept { return size_; }
  [[nodiscard]] memory_place place() const { return {device_, data_}; }
  // The part of it that a request names. size: nothing for the rest. Raises penstock.InvalidArgument where it reaches outside.
  struct part {
    std::byte* data;
    std::uint64_t size;
  };
  [[nodiscard]] part slice(std::int64_t offset, std::optional<std::int64_t> size) const;
  // The object that alone keeps the memory, for the taking; null where a view is to be given back.
  [[nodiscard]] nb::object* only_owner() noexcept { return view_.obj == nullptr ? &owner_ : nullptr; }
  // How many there are in this process. With the GIL.
  static int count() noexcept { return count_; }

 private:
  // What is asked of the memory, for those that follow.
  struct demand {
    nb::handle object;
    memory_use use;
    memory_order order;
    argument_name name;
    [[noreturn]] void refuse(const std::string& why) const;
    // Raises for a tensor of PyTorch without memory, in the words of penstock._torch_memory.
    void check_tensor() const;
    // A view of PyTorch's that computes its values from the bytes when it is read.
    [[noreturn]] void refuse_lazy(const char* kind, const char* method) const;
    // Whether elements lie side by side in an order that will do. strides: as item_size counts.
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

// Whether bytes at an address are those of the storage of a tensor of PyTorch: a program may have freed or cut it since it made the tensor.
// True if the tensor has no way to ask. With the GIL.
bool lies_in_its_storage(nb::handle tensor, std::uint64_t address, std::uint64_t bytes);

// penstock.Pointer, and the function resolve().
void add_buffers(nb::module_& module);

}  // namespace penstock::python
