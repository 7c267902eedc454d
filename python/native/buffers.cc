#include "buffers.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "arguments.hpp"
#include "device.hpp"
#include "dlpack.hpp"
#include "errors.hpp"

namespace penstock::python {

namespace {

using namespace nb::literals;

// penstock.Pointer: memory without a Python owner, or memory kept alive by owner.
struct raw_pointer {
  std::uint64_t address = 0;
  std::uint64_t nbytes = 0;
  nb::object owner;
  bool readonly = false;
};

// Returns nothing if the attribute does not exist. Treats RuntimeError in the same way, because PyTorch's tensors raise it for
// __cuda_array_interface__ if they require a gradient.
std::optional<nb::object> attribute(nb::handle object, nb::handle name) {
  PyObject* found = PyObject_GetAttr(object.ptr(), name.ptr());
  if (found != nullptr) return nb::steal(found);
  if (!PyErr_ExceptionMatches(PyExc_AttributeError) && !PyErr_ExceptionMatches(PyExc_RuntimeError)) throw nb::python_error();
  PyErr_Clear();
  return std::nullopt;
}

std::optional<nb::object> attribute(nb::handle object, const char* name) { return attribute(object, nb::str(name)); }

// Interned attribute names; creating them for each request would take a quarter of a microsecond. Never freed.
struct attribute_names {
  // __cuda_array_interface__ and its keys
  nb::handle interface = PyUnicode_InternFromString("__cuda_array_interface__");
  nb::handle mask = PyUnicode_InternFromString("mask");
  nb::handle data = PyUnicode_InternFromString("data");  // CuPy's arrays also have this
  nb::handle typestr = PyUnicode_InternFromString("typestr");
  nb::handle shape = PyUnicode_InternFromString("shape");
  nb::handle strides = PyUnicode_InternFromString("strides");
  // attributes of PyTorch's tensors
  nb::handle data_ptr = PyUnicode_InternFromString("data_ptr");
  nb::handle nbytes = PyUnicode_InternFromString("nbytes");  // CuPy's arrays also have this
  nb::handle is_contiguous = PyUnicode_InternFromString("is_contiguous");
  nb::handle dtype = PyUnicode_InternFromString("dtype");
  nb::handle is_complex = PyUnicode_InternFromString("is_complex");
  nb::handle is_conj = PyUnicode_InternFromString("is_conj");
  nb::handle is_neg = PyUnicode_InternFromString("is_neg");
  nb::handle untyped_storage = PyUnicode_InternFromString("untyped_storage");
  // attributes of CuPy's arrays
  nb::handle ptr = PyUnicode_InternFromString("ptr");
  nb::handle flags = PyUnicode_InternFromString("flags");
  nb::handle flag_of_c = PyUnicode_InternFromString("c_contiguous");
  nb::handle c_contiguous = PyUnicode_InternFromString("_c_contiguous");
  static const attribute_names& get() {
    static const attribute_names made;
    return made;
  }
};

// The library that defines the type of an object, or one of its base classes.
enum class library : std::uint8_t { other, pytorch, cupy };

struct known_type {
  library from = library::other;
  dl_tensor_of_object tensor_of = nullptr;  // only for PyTorch's own tensors: a subclass may keep its memory elsewhere
};

known_type known_type_of(nb::handle type) {
  for (const nb::handle each : nb::object(type.attr("__mro__"))) {
    const nb::object module = nb::getattr(each, "__module__", nb::none());
    const nb::object name = nb::getattr(each, "__name__", nb::none());
    if (!PyUnicode_Check(module.ptr()) || !PyUnicode_Check(name.ptr())) continue;
    const std::string_view from = nb::borrow<nb::str>(module).c_str();
    const std::string_view called = nb::borrow<nb::str>(name).c_str();
    if (called == "Tensor" && from == "torch") return {library::pytorch, each.is(type) ? dl_exchange_of(type) : nullptr};
    if (called == "ndarray" && from == "cupy") return {library::cupy};
  }
  return {};
}

// The first types seen. They stay referenced until Python exits, so that no new type at the same address is mistaken for one of them.
struct seen_type {
  nb::handle type;
  known_type is;
};
std::array<seen_type, 8> seen_types;

// Without this, one of the program's classes, its module and everything in it would outlive the interpreter.
void forget_types() {
  for (auto& each : seen_types) nb::object gone = nb::steal(std::exchange(each, {}).type);
}

known_type known_type_of_object(nb::handle object) {
  const nb::handle type = object.type();
  for (auto& each : seen_types) {
    if (each.type.is(type)) return each.is;
    if (each.type.is_valid()) continue;
    const auto found = known_type_of(type);
    each = {nb::borrow(type).release(), found};
    return found;
  }
  return known_type_of(type);
}

// Calls object.name() without creating a bound method.
nb::object call_method(nb::handle object, nb::handle name) {
  PyObject* const self = object.ptr();
  nb::object result = nb::steal(PyObject_VectorcallMethod(name.ptr(), &self, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  if (!result.is_valid()) throw nb::python_error();
  return result;
}

bool is_true_of(nb::handle object, nb::handle name) { return call_method(object, name).is(nb::handle(Py_True)); }

// For PyTorch's tensors. Checking the dtype takes half the time of querying each tensor whether it is conjugated. Caches the last dtype
// seen.
bool may_be_complex(nb::handle tensor) {
  static nb::handle real;
  const auto& names = attribute_names::get();
  const auto type = attribute(tensor, names.dtype);
  if (!type) return true;
  if (real.is(*type)) return false;
  const auto complex = attribute(*type, names.is_complex);
  if (!complex || !complex->is(nb::handle(Py_False))) return true;
  nb::object before = nb::steal(real);
  real = nb::borrow(*type).release();
  return false;
}

// Lazy negatives are the imaginary parts of lazy conjugates, so only floats can be lazy negatives. Skips the query, which takes a quarter
// of a microsecond, for other types.
bool may_be_negative(const dl_tensor& tensor) { return tensor.type.code == dl_float || tensor.type.code == dl_bfloat; }

constexpr auto is_readonly = "is read-only and cannot be read into";
constexpr auto is_not_contiguous = "is not contiguous";
constexpr auto is_masked = "is masked";
constexpr auto has_no_address = "has no address, so it has no values to read or write";
constexpr auto has_objects = "contains Python objects, whose addresses are meaningless in a file";

std::vector<std::int64_t> integers(nb::handle sequence, const char* name) {
  std::vector<std::int64_t> values;
  for (const nb::handle each : sequence) values.push_back(signed_integer(each, name));
  return values;
}

// The orders in which the elements, of item_size bytes each, are contiguous.
struct contiguity {
  bool c = true;
  bool fortran = true;
  contiguity(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides, std::int64_t item_size) {
    std::int64_t c_step = item_size;
    std::int64_t fortran_step = item_size;
    const std::size_t count = shape.size();
    if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return;
    for (std::size_t i = 0; i < count; ++i) {
      fortran = fortran && (shape[i] == 1 || strides[i] == fortran_step);
      fortran_step *= shape[i];
      const std::size_t last = count - 1 - i;
      c = c && (shape[last] == 1 || strides[last] == c_step);
      c_step *= shape[last];
    }
  }
};

// Returns true if a struct module format has an "O" outside its field names.
bool names_objects(const char* format) {
  bool in_name = false;
  for (; format != nullptr && *format != '\0'; ++format) {
    if (*format == ':') in_name = !in_name;
    if (*format == 'O' && !in_name) return true;
  }
  return false;
}

bool is_addressable_device(std::int64_t type) {
  constexpr std::int64_t cuda_host = 3, cuda_managed = 13;
  return type == dl_cpu || type == dl_cuda || type == cuda_host || type == cuda_managed;
}

std::byte* pointer_of(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace

bool lies_in_its_storage(nb::handle tensor, std::uint64_t address, std::uint64_t bytes) {
  const auto& names = attribute_names::get();
  PyObject* const self = tensor.ptr();
  const nb::object storage =
      nb::steal(PyObject_VectorcallMethod(names.untyped_storage.ptr(), &self, 1 | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr));
  if (!storage.is_valid()) {
    const bool is_missing = PyErr_ExceptionMatches(PyExc_AttributeError) != 0;
    PyErr_Clear();
    return is_missing;
  }
  try {
    const auto begin = unsigned_integer(call_method(storage, names.data_ptr), "data_ptr()");
    const auto size = unsigned_integer(call_method(storage, names.nbytes), "nbytes()");
    return begin != 0 && address >= begin && size >= bytes && address - begin <= size - bytes;
  } catch (const nb::python_error&) {
    return false;
  }
}

memory_order parse_order(nb::handle order) {
  if (!PyUnicode_Check(order.ptr())) throw nb::type_error(("order must be 'C' or 'A', not " + type_of(order)).c_str());
  if (PyUnicode_CompareWithASCIIString(order.ptr(), "C") == 0) return memory_order::c;
  if (PyUnicode_CompareWithASCIIString(order.ptr(), "A") == 0) return memory_order::any;
  raise_invalid(nb::str("order must be 'C' or 'A', not {!r}").format(order).c_str());
}

std::string argument_name::text() const {
  std::string text = name;
  if (!key.empty()) text.append("['").append(key).append("']");
  return index ? text + "[" + std::to_string(*index) + "]" : text;
}

// --- requirements for the memory

void held_memory::demand::refuse(const std::string& why) const {
  raise_bad_memory(name.text() + ": the memory of this " + type_of(object) + " " + why);
}

void held_memory::demand::check_tensor() const {
  nb::object problem = nb::none();
  try {
    problem = nb::module_::import_("penstock._core.torch_memory").attr("problem_of")(object);
  } catch (const nb::python_error&) {  // a tensor of another library with PyTorch's method names
  }
  if (!problem.is_none()) raise_bad_memory(name.text() + ": this " + type_of(object) + " " + nb::cast<nb::str>(problem).c_str());
}

void held_memory::demand::refuse_lazy(const char* kind, const char* method) const {
  const auto called = name.text();
  refuse(std::string("contains values that differ from the tensor's, because it is a lazy ") + kind + " view: " +
         (use == memory_use::source ? "pass " + called + "." + method + "()"
                                    : "read into a plain tensor, then copy it with " + called + ".copy_()"));
}

void held_memory::demand::refuse_order() const {
  const auto called = name.text();
  refuse("is in Fortran order (column-major), and so would be the file: pass " + called + ".T, which is the same memory in C order" +
         (name.has_order ? "; or order=\"A\" to move the bytes in memory order" : "") +
         (use == memory_use::source ? "; or numpy.ascontiguousarray(" + called + ")" : ""));
}

void held_memory::demand::check_contiguity(const std::vector<std::int64_t>& shape, const std::vector<std::int64_t>& strides,
                                           std::int64_t item_size) const {
  if (shape.size() != strides.size()) refuse(is_not_contiguous);
  const contiguity lies(shape, strides, item_size);
  if (lies.c || (lies.fortran && order == memory_order::any)) return;
  if (lies.fortran) refuse_order();
  refuse(is_not_contiguous);
}

// Rejects items that are or contain references to objects: bytes from a file would be mistaken for addresses.
void held_memory::demand::check_items(Py_ssize_t item_size) const {
  static const nb::handle dtype_name = PyUnicode_InternFromString("dtype");
  static const nb::handle hasobject_name = PyUnicode_InternFromString("hasobject");
  if (item_size < static_cast<Py_ssize_t>(sizeof(PyObject*))) return;
  if (const auto dtype = attribute(object, dtype_name)) {
    if (const auto has = attribute(*dtype, hasobject_name)) {
      if (PyObject_IsTrue(has->ptr()) != 0) refuse(has_objects);
      return;
    }
  }
  // Not requested at first, because NumPy has no format for its time types.
  Py_buffer probe{};
  if (PyObject_GetBuffer(object.ptr(), &probe, PyBUF_ANY_CONTIGUOUS | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return;
  }
  const bool found = names_objects(probe.format);
  PyBuffer_Release(&probe);
  if (found) refuse(has_objects);
}

std::uint64_t held_memory::demand::byte_count(const std::int64_t* shape, std::size_t count, std::int64_t item_size) const {
  if (std::any_of(shape, shape + count, [](std::int64_t each) { return each < 0; })) refuse("has a negative length");
  if (std::find(shape, shape + count, 0) != shape + count) return 0;
  std::int64_t bytes = item_size;
  for (std::size_t i = 0; i < count; ++i) {
    if (__builtin_mul_overflow(bytes, shape[i], &bytes)) refuse("is larger than 2**63 - 1 bytes");
  }
  return static_cast<std::uint64_t>(bytes);
}

// Returns 4 for "<f4".
std::int64_t held_memory::demand::item_size_of(nb::handle typestr) const {
  if (!PyUnicode_Check(typestr.ptr())) refuse("has a typestr that is not a str");
  const std::string text = nb::str(typestr).c_str();
  std::int64_t bytes = 0;
  for (std::size_t i = 2; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) bytes = bytes * 10 + (text[i] - '0');
  if (bytes <= 0) refuse("has a type string without a size: " + text);
  if (text[1] == 'O') refuse(has_objects);
  return bytes;
}

// Returns the two objects in a tuple or list.
std::pair<nb::object, nb::object> held_memory::demand::pair_of(nb::handle sequence, const char* what) const {
  const nb::object items = nb::steal(PySequence_Tuple(sequence.ptr()));
  if (!items.is_valid()) throw nb::python_error();
  if (nb::len(items) != 2) refuse(std::string("has a ") + what + " that is not a pair");
  return {nb::object(items[0]), nb::object(items[1])};
}

// --- the kinds of memory

held_memory::held_memory(nb::handle object, memory_use use, memory_order order, argument_name name) {
  const demand wanted{object, use, order, name};
  if (take_native(wanted) || take_known(wanted) || take_buffer(wanted) || take_cuda_array(wanted) || take_data_pointer(wanted) ||
      take_dlpack(wanted)) {
    ++count_;
    return;
  }
  throw nb::type_error((name.text() + ": memory is required, not " + type_of(object) +
                        ": pass an object with the buffer protocol, __cuda_array_interface__ or __dlpack__, a penstock.DeviceBuffer or a "
                        "penstock.Pointer")
                           .c_str());
}

held_memory::~held_memory() {
  --count_;
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
}

bool held_memory::take_buffer(const demand& wanted) {
  const nb::handle object = wanted.object;
  if (!PyObject_CheckBuffer(object.ptr())) return false;
  const int write = wanted.use == memory_use::target ? PyBUF_WRITABLE : 0;
  const int order = wanted.order == memory_order::any ? PyBUF_ANY_CONTIGUOUS : PyBUF_C_CONTIGUOUS;
  if (PyObject_GetBuffer(object.ptr(), &view_, order | write) == 0) {
    try {
      wanted.check_items(view_.itemsize);
    } catch (...) {
      PyBuffer_Release(&view_);
      throw;
    }
    data_ = static_cast<std::byte*>(view_.buf);
    size_ = static_cast<std::uint64_t>(view_.len);
    return true;
  }
  nb::python_error problem;
  // Find the reason by requesting fewer features.
  const auto gives = [&](int less) {
    Py_buffer probe{};
    if (PyObject_GetBuffer(object.ptr(), &probe, less) != 0) {
      PyErr_Clear();
      return false;
    }
    const auto item_size = probe.itemsize;
    PyBuffer_Release(&probe);
    wanted.check_items(item_size);
    return true;
  };
  if (gives(order)) wanted.refuse(is_readonly);
  if (gives(PyBUF_ANY_CONTIGUOUS)) wanted.refuse_order();
  if (gives(PyBUF_FULL_RO) || gives(PyBUF_STRIDED_RO)) wanted.refuse(is_not_contiguous);
  if (attribute(object, "__cuda_array_interface__") || attribute(object, "__dlpack__")) return false;
  wanted.refuse("cannot be accessed: " + std::string(problem.what()));
}

bool held_memory::take_native(const demand& wanted) {
  static const nb::handle pointer_type = nb::type<raw_pointer>();
  static const nb::handle device_type = nb::type<device_memory>();
  const nb::handle object = wanted.object;
  if (PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(pointer_type.ptr()))) {
    const auto& pointer = *nb::inst_ptr<raw_pointer>(object);
    if (pointer.readonly && wanted.use == memory_use::target) wanted.refuse(is_readonly);
    data_ = pointer_of(pointer.address);
    size_ = pointer.nbytes;
  } else if (PyObject_TypeCheck(object.ptr(), reinterpret_cast<PyTypeObject*>(device_type.ptr()))) {
    const auto& held = *nb::inst_ptr<device_memory>(object);
    if (held.process != this_process()) raise({errc::forked, "this memory on " + held.device + " belongs to the parent process"});
    data_ = held.data;
    size_ = held.size;
    device_ = held.device;
  } else {
    return false;
  }
  owner_ = nb::borrow(object);
  return true;
}

// Leaves unusual objects, including non-contiguous ones, to the functions that report what is wrong.
bool held_memory::take_known(const demand& wanted) {
  const auto known = known_type_of_object(wanted.object);
  switch (known.from) {
    case library::pytorch:
      return (known.tensor_of != nullptr && take_described(wanted.object, known.tensor_of)) || take_tensor(wanted);
    case library::cupy:
      return take_cupy(wanted);
    case library::other:
      break;
  }
  return false;
}

// Describes a tensor with one call instead of five. Leaves unusual tensors to take_tensor(); lazy conjugates are complex, so they are left
// too.
bool held_memory::take_described(nb::handle tensor, dl_tensor_of_object describe) {
  dl_tensor told{};
  if (describe(tensor.ptr(), &told) != 0) {
    PyErr_Clear();
    return false;
  }
  const auto bytes = bytes_of(told);
  if (!bytes || *bytes == 0 || told.type.code == dl_complex) return false;
  if (told.data == nullptr || !is_addressable_device(told.device.type) || !lies_in_c_order(told)) return false;
  auto* const data = static_cast<std::byte*>(told.data) + told.byte_offset;
  const auto size = static_cast<std::uint64_t>(*bytes);
  if (may_be_negative(told) && is_true_of(tensor, attribute_names::get().is_neg)) return false;
  if (!lies_in_its_storage(tensor, reinterpret_cast<std::uint64_t>(data), size)) return false;
  data_ = data;
  size_ = size;
  owner_ = nb::borrow(tensor);
  return true;
}

// Raises for tensors without memory, and for lazy views: PyTorch's interfaces return the raw memory, before the pending operation.
bool held_memory::take_tensor(const demand& wanted) {
  const nb::handle tensor = wanted.object;
  const auto& names = attribute_names::get();
  bool is_conjugate = false;
  bool is_negative = false;
  bool is_contiguous = false;
  std::uint64_t address = 0;
  std::uint64_t bytes = 0;
  try {
    is_conjugate = may_be_complex(tensor) && is_true_of(tensor, names.is_conj);
    is_negative = is_true_of(tensor, names.is_neg);
    bytes = unsigned_integer(nb::getattr(tensor, names.nbytes), "nbytes");
    is_contiguous = is_true_of(tensor, names.is_contiguous);
    address = unsigned_integer(call_method(tensor, names.data_ptr), "data_ptr()");
  } catch (const nb::python_error&) {
    wanted.check_tensor();
    wanted.refuse(has_no_address);
  }
  if (bytes != 0 && (address == 0 || !lies_in_its_storage(tensor, address, bytes))) {
    wanted.check_tensor();
    if (address == 0 || is_contiguous) wanted.refuse(has_no_address);
  }
  if (is_conjugate) wanted.refuse_lazy("conjugate", "resolve_conj");
  if (is_negative) wanted.refuse_lazy("negative", "resolve_neg");
  if (!is_contiguous) return false;
  data_ = pointer_of(address);
  size_ = bytes;
  owner_ = nb::borrow(tensor);
  return true;
}

bool held_memory::take_cupy(const demand& wanted) {
  const nb::handle array = wanted.object;
  const auto& names = attribute_names::get();
  // The attribute flags creates an object, which takes ten times as long.
  auto in_order = attribute(array, names.c_contiguous);
  if (!in_order) in_order = nb::getattr(nb::getattr(array, names.flags), names.flag_of_c);
  if (!in_order->is(nb::handle(Py_True))) return false;
  data_ = pointer_of(unsigned_integer(nb::getattr(nb::getattr(array, names.data), names.ptr), "data.ptr"));
  size_ = unsigned_integer(nb::getattr(array, names.nbytes), "nbytes");
  owner_ = nb::borrow(array);
  return true;
}

bool held_memory::take_cuda_array(const demand& wanted) {
  const nb::handle object = wanted.object;
  const auto& names = attribute_names::get();
  const auto found = attribute(object, names.interface);
  if (!found) return false;
  if (!PyDict_Check(found->ptr())) wanted.refuse("has a __cuda_array_interface__ that is not a dict");
  const auto interface = nb::borrow<nb::dict>(*found);
  const auto entry = [&](nb::handle name) { return interface.contains(name) ? nb::object(interface[name]) : nb::none(); };
  for (const auto name : {names.data, names.typestr, names.shape}) {
    if (entry(name).is_none()) wanted.refuse(std::string("has a __cuda_array_interface__ without ") + nb::str(name).c_str());
  }
  if (!entry(names.mask).is_none()) wanted.refuse(is_masked);
  const auto [address, readonly] = wanted.pair_of(interface[names.data], "data");
  if (PyObject_IsTrue(readonly.ptr()) != 0 && wanted.use == memory_use::target) wanted.refuse(is_readonly);
  const auto item_size = wanted.item_size_of(interface[names.typestr]);
  const auto shape = integers(interface[names.shape], "a length in its shape");
  const auto bytes = wanted.byte_count(shape.data(), shape.size(), item_size);
  if (const auto strides = entry(names.strides); !strides.is_none()) {
    wanted.check_contiguity(shape, integers(strides, "a stride"), item_size);
  }
  data_ = pointer_of(unsigned_integer(address, "the address of data"));
  if (data_ == nullptr && bytes != 0) wanted.refuse(has_no_address);
  size_ = bytes;
  owner_ = nb::borrow(object);
  return true;
}

// nbytes is a property of PyTorch's tensors, but a method of its storages.
bool held_memory::take_data_pointer(const demand& wanted) {
  const nb::handle object = wanted.object;
  const auto pointer = attribute(object, "data_ptr");
  if (!pointer) return false;
  auto bytes = attribute(object, "nbytes");
  if (!bytes) return false;
  if (PyCallable_Check(bytes->ptr()) != 0) bytes = (*bytes)();
  if (const auto contiguous = attribute(object, "is_contiguous"); contiguous && PyObject_IsTrue((*contiguous)().ptr()) == 0) {
    const auto shape = attribute(object, "shape");
    const auto strides = attribute(object, "stride");
    if (!shape || !strides) wanted.refuse(is_not_contiguous);
    wanted.check_contiguity(integers(*shape, "a length in its shape"), integers((*strides)(), "a stride"), 1);
  }
  const auto address = unsigned_integer((*pointer)(), "data_ptr()");
  size_ = unsigned_integer(*bytes, "nbytes");
  if (address == 0 && size_ != 0) wanted.refuse(has_no_address);  // for example a storage on PyTorch's meta device
  data_ = pointer_of(address);
  owner_ = nb::borrow(object);
  return true;
}

bool held_memory::take_dlpack(const demand& wanted) {
  const nb::handle object = wanted.object;
  const auto exporter = attribute(object, "__dlpack__");
  const auto device = attribute(object, "__dlpack_device__");
  if (!exporter || !device) return false;
  const auto where = signed_integer(wanted.pair_of((*device)(), "__dlpack_device__").first, "the device type of __dlpack_device__");
  if (!is_addressable_device(where)) wanted.refuse("is on a device that Penstock does not support");
  // Without a requested version, an exporter rejects read-only memory. -1: do not wait for any stream, as with the other interfaces.
  nb::object capsule = where == dl_cpu ? (*exporter)() : (*exporter)("stream"_a = -1);
  const auto* tensor = static_cast<const dl_tensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (tensor == nullptr) throw nb::python_error();
  const auto count = static_cast<std::size_t>(tensor->dimensions);
  const std::int64_t item_size = (tensor->type.bits * tensor->type.lanes + 7) / 8;
  const auto bytes = wanted.byte_count(tensor->shape, count, item_size);
  constexpr std::uint8_t handles = 3;
  if (tensor->type.code == handles) wanted.refuse(has_objects);
  if (tensor->strides != nullptr) {
    wanted.check_contiguity({tensor->shape, tensor->shape + count}, {tensor->strides, tensor->strides + count}, 1);
  }
  if (tensor->data == nullptr && bytes != 0) wanted.refuse(has_no_address);

  data_ = static_cast<std::byte*>(tensor->data) + tensor->byte_offset;
  size_ = bytes;
  owner_ = std::move(capsule);  // the capsule stays unconsumed: its destructor frees the tensor
  return true;
}

held_memory::part held_memory::slice(std::int64_t offset, std::optional<std::int64_t> size) const {
  const auto start = static_cast<std::uint64_t>(offset);
  if (offset < 0 || start > size_) {
    raise_invalid("buffer_offset is " + std::to_string(offset) + ", but the buffer has " + std::to_string(size_) + " bytes");
  }
  if (!size) return {data_ + start, size_ - start};
  const auto length = static_cast<std::uint64_t>(*size);
  if (*size < 0 || length > size_ - start) {
    raise_invalid("size is " + std::to_string(*size) + ", but the buffer has " + std::to_string(size_ - start) + " bytes from offset " +
                  std::to_string(offset));
  }
  return {data_ + start, length};
}

namespace {

int traverse_pointer(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  if (!nb::inst_ready(self)) return 0;
  Py_VISIT(nb::inst_ptr<raw_pointer>(self)->owner.ptr());
  return 0;
}

int clear_pointer(PyObject* self) {
  nb::inst_ptr<raw_pointer>(self)->owner.reset();
  return 0;
}

PyType_Slot pointer_slots[] = {
    {Py_tp_traverse, reinterpret_cast<void*>(traverse_pointer)}, {Py_tp_clear, reinterpret_cast<void*>(clear_pointer)}, {0, nullptr}};

}  // namespace

void add_buffers(nb::module_& module) {
  nb::module_::import_("atexit").attr("register")(nb::cpp_function(&forget_types));
  nb::class_<raw_pointer>(
      module, "Pointer", nb::type_slots(pointer_slots),
      "Host or device memory at an address.\n\n"
      "owner, if given, is kept alive as long as the Pointer and every request that uses it. readonly memory can be written\n"
      "from, but not read into. The address is not checked.")
      .def(
          "__init__",
          [](raw_pointer* self, nb::handle address, nb::handle nbytes, nb::object owner, nb::handle readonly) {
            if (PyBool_Check(readonly.ptr()) == 0) throw nb::type_error(("readonly must be a bool, not " + type_of(readonly)).c_str());
            const auto start = unsigned_integer(address, "address");
            new (self) raw_pointer{start, unsigned_integer(nbytes, "nbytes"), std::move(owner), readonly.is(nb::handle(Py_True))};
          },
          "address"_a.none(), "nbytes"_a.none(), "owner"_a = nb::none(), "readonly"_a = false,
          nb::sig("def __init__(self, address: int, nbytes: int, owner: object | None = None, readonly: bool = False) -> None"))
      .def_ro("address", &raw_pointer::address, "The start address.")
      .def_ro("nbytes", &raw_pointer::nbytes, "The length in bytes.")
      .def_ro("owner", &raw_pointer::owner, "The object that keeps the memory alive, or None.")
      .def_ro("readonly", &raw_pointer::readonly, "True if the memory can be written from but not read into.")
      .def("__repr__", [](const raw_pointer& self) {
        return nb::str("penstock.Pointer({:#x}, {}{})").format(self.address, self.nbytes, self.readonly ? ", readonly=True" : "");
      });
  module.def(
      "resolve",
      [](nb::handle object, bool writable) {
        const held_memory memory(object, writable ? memory_use::target : memory_use::source, memory_order::any, {"obj"});
        return std::pair(reinterpret_cast<std::uint64_t>(memory.data()), memory.size());
      },
      "obj"_a, "writable"_a = false,
      "Returns the address and length in bytes of an object's memory, by the rules for buffers. Does not keep the object\n"
      "alive.");
  module.def(
      "_held_memories", [] { return held_memory::count(); }, "Returns the number of buffers held by requests. For tests.");
}

}  // namespace penstock::python
