#include "dlpack.hpp"

#include <memory>

#include "gil.hpp"

namespace penstock::python {

namespace {

// The two structs of dlpack.h that a capsule can contain.
struct managed_tensor {
  static constexpr auto name = "dltensor";
  dl_tensor tensor;
  void* context;
  void (*deleter)(managed_tensor*);
};

struct versioned_tensor {
  static constexpr auto name = "dltensor_versioned";
  std::uint32_t major;
  std::uint32_t minor;
  void* context;
  void (*deleter)(versioned_tensor*);
  std::uint64_t flags;  // 0: neither read-only nor a copy
  dl_tensor tensor;
};

template <class Managed>
struct exported {
  Managed managed{};
  std::int64_t shape = 0;
  std::int64_t stride = 1;
  PyObject* owner = nullptr;
};

// Any thread. Leaks the owner if the interpreter has exited.
template <class Managed>
void let_go(Managed* managed) {
  const std::unique_ptr<exported<Managed>> gone(static_cast<exported<Managed>*>(managed->context));
  if (interpreter_is_finalizing()) return;
  const auto gil = PyGILState_Ensure();
  Py_DECREF(gone->owner);
  PyGILState_Release(gil);
}

// For a capsule that was never consumed.
template <class Managed>
void end(PyObject* capsule) {
  if (PyCapsule_IsValid(capsule, Managed::name) == 0) return;
  let_go(static_cast<Managed*>(PyCapsule_GetPointer(capsule, Managed::name)));
}

template <class Managed>
nb::object make(nb::handle owner, void* data, std::uint64_t bytes, dl_device where) {
  auto made = std::make_unique<exported<Managed>>();
  made->shape = static_cast<std::int64_t>(bytes);
  made->managed.tensor = {data, where, 1, {1, 8, 1}, &made->shape, &made->stride, 0};  // 8-bit unsigned integers
  made->managed.context = made.get();
  made->managed.deleter = &let_go<Managed>;
  if constexpr (requires { made->managed.major; }) made->managed.major = 1;
  nb::object capsule = nb::steal(PyCapsule_New(&made->managed, Managed::name, &end<Managed>));
  if (!capsule.is_valid()) throw nb::python_error();
  made.release()->owner = nb::borrow(owner).release().ptr();
  return capsule;
}

// The function table of DLPack 1.3. Valid until the process exits.
struct exchange_table {
  std::uint32_t major;
  std::uint32_t minor;
  const exchange_table* previous;  // for an older major version, if any
  void* allocate;
  void* managed_of_object;
  void* object_of_managed;
  dl_tensor_of_object tensor_of_object;  // may be null
  void* current_stream;
};

}  // namespace

dl_tensor_of_object dl_exchange_of(nb::handle type) {
  const nb::object capsule = nb::getattr(type, "__dlpack_c_exchange_api__", nb::none());
  constexpr auto name = "dlpack_exchange_api";
  if (PyCapsule_IsValid(capsule.ptr(), name) == 0) return nullptr;
  const auto* table = static_cast<const exchange_table*>(PyCapsule_GetPointer(capsule.ptr(), name));
  while (table != nullptr && table->major != 1) table = table->previous;
  return table == nullptr ? nullptr : table->tensor_of_object;
}

bool lies_in_c_order(const dl_tensor& tensor) noexcept {
  if (tensor.strides == nullptr) return true;
  std::int64_t step = 1;
  for (auto i = tensor.dimensions; i-- > 0; step *= tensor.shape[i]) {
    if (tensor.shape[i] != 1 && tensor.strides[i] != step) return false;
  }
  return true;
}

std::optional<std::int64_t> bytes_of(const dl_tensor& tensor) noexcept {
  std::int64_t bytes = (tensor.type.bits * tensor.type.lanes + 7) / 8;
  for (std::int32_t i = 0; i < tensor.dimensions; ++i) {
    if (tensor.shape[i] < 0 || __builtin_mul_overflow(bytes, tensor.shape[i], &bytes)) return std::nullopt;
  }
  return bytes;
}

nb::object dlpack_capsule(nb::handle owner, void* data, std::uint64_t bytes, dl_device where, bool versioned) {
  return versioned ? make<versioned_tensor>(owner, data, bytes, where) : make<managed_tensor>(owner, data, bytes, where);
}

}  // namespace penstock::python
