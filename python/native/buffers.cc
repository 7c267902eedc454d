#include "buffers.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>

#include <algorithm>
#include <string>
#include <utility>

#include "arguments.hpp"
#include "device.hpp"
#include "errors.hpp"

namespace penstock::python {

namespace {

using namespace nb::literals;

// penstock.Pointer: memory that no object of Python owns, or that owner does.
struct raw_pointer {
  std::uint64_t address = 0;
  std::uint64_t nbytes = 0;
  nb::object owner;
  bool readonly = false;
};

// Nothing where there is no such attribute. RuntimeError counts as that too: PyTorch's tensors raise it for __cuda_array_interface__
// where they require a gradient.
std::optional<nb::object> attribute(nb::handle object, nb::handle name) {
  PyObject* found = PyObject_GetAttr(object.ptr(), name.ptr());
  if (found != nullptr) return nb::steal(found);
  if (!PyErr_ExceptionMatches(PyExc_AttributeError) && !PyErr_ExceptionMatches(PyExc_RuntimeError)) throw nb::python_error();
  PyErr_Clear();
  return std::nullopt;
}

std::optional<nb::object> attribute(nb::handle object, const char* name) { return attribute(object, nb::str(name)); }

// Names in and of __cuda_array_interface__, made once: making them for each request takes a quarter of a microsecond. Never freed.
struct array_names {
  nb::handle interface = PyUnicode_InternFromString("__cuda_array_interface__");
  nb::handle mask = PyUnicode_InternFromString("mask");
  nb::handle data = PyUnicode_InternFromString("data");
  nb::handle typestr = PyUnicode_InternFromString("typestr");
  nb::handle shape = PyUnicode_InternFromString("shape");
  nb::handle strides = PyUnicode_InternFromString("strides");
  static const array_names& get() {
    static const array_names made;
    return made;
  }
};

[[noreturn]] void refuse(nb::handle object, const char* why) { raise_bad_memory("the memory of this " + type_of(object) + " " + why); }

constexpr auto is_readonly = "is read-only and cannot be read into";
constexpr auto is_not_contiguous = "is not contiguous";
constexpr auto is_masked = "is masked";

// Whether elements of item_size lie side by side, in C's or in Fortran's order. strides: null where C's order is meant.
class contiguity {
 public:
  explicit contiguity(std::int64_t item_size) : c_step_(item_size), fortran_step_(item_size) {}
  [[nodiscard]] static bool holds(const std::int64_t* shape, const std::int64_t* strides, std::size_t count, std::int64_t item_size) {
    bool c = true;
    bool fortran = true;
    contiguity steps(item_size);
    for (std::size_t i = 0; i < count; ++i) {
      if (shape[i] == 0) return true;
      fortran = fortran && (shape[i] == 1 || strides[i] == steps.fortran_step_);
      steps.fortran_step_ *= shape[i];
      const std::size_t last = count - 1 - i;
      c = c && (shape[last] == 1 || strides[last] == steps.c_step_);
      steps.c_step_ *= shape[last];
    }
    return c || fortran;
  }

 private:
  std::int64_t c_step_;
  std::int64_t fortran_step_;
};

std::vector<std::int64_t> integers(nb::handle sequence, const char* name) {
  std::vector<std::int64_t> values;
  for (const nb::handle each : sequence) values.push_back(signed_integer(each, name));
  return values;
}

// Two objects, of a tuple or a list.
std::pair<nb::object, nb::object> pair_of(nb::handle object, nb::handle sequence, const char* name) {
  const nb::object items = nb::steal(PySequence_Tuple(sequence.ptr()));
  if (!items.is_valid()) throw nb::python_error();
  if (nb::len(items) != 2) refuse(object, (std::string("has a ") + name + " that is no pair").c_str());
  return {nb::object(items[0]), nb::object(items[1])};
}

// "<f4": 4
std::int64_t item_size_of(nb::handle object, nb::handle typestr) {
  if (!PyUnicode_Check(typestr.ptr())) refuse(object, "has a typestr that is no str");
  const std::string text = nb::str(typestr).c_str();
  std::int64_t bytes = 0;
  for (std::size_t i = 2; i < text.size() && text[i] >= '0' && text[i] <= '9'; ++i) bytes = bytes * 10 + (text[i] - '0');
  if (bytes <= 0) refuse(object, ("has a type string that names no size: " + text).c_str());
  return bytes;
}

// dlpack.h, version 0.8 and 1.0: what is needed of it.
struct dl_tensor {
  void* data;
  struct {
    std::int32_t type;
    std::int32_t id;
  } device;
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

bool is_addressable_device(std::int32_t type) {
  constexpr std::int32_t cpu = 1, cuda = 2, cuda_host = 3, cuda_managed = 13;
  return type == cpu || type == cuda || type == cuda_host || type == cuda_managed;
}

std::uint64_t byte_count(nb::handle object, const std::int64_t* shape, std::size_t count, std::int64_t item_size) {
  if (std::any_of(shape, shape + count, [](std::int64_t each) { return each < 0; })) refuse(object, "has a negative length");
  if (std::find(shape, shape + count, 0) != shape + count) return 0;
  std::int64_t bytes = item_size;
  for (std::size_t i = 0; i < count; ++i) {
    if (__builtin_mul_overflow(bytes, shape[i], &bytes)) refuse(object, "has more bytes than 63 bits count");
  }
  return static_cast<std::uint64_t>(bytes);
}

std::byte* pointer_of(std::uint64_t address) { return reinterpret_cast<std::byte*>(address); }

}  // namespace

held_memory::held_memory(nb::handle object, memory_use use) {
  if (take_buffer(object, use) || take_native(object, use) || take_cuda_array(object, use) || take_data_pointer(object) ||
      take_dlpack(object)) {
    ++count_;
    return;
  }
  throw nb::type_error(("memory is needed, not " + type_of(object) +
                        ": an object with the buffer protocol, __cuda_array_interface__ or __dlpack__, a penstock.DeviceBuffer or a "
                        "penstock.Pointer")
                           .c_str());
}

held_memory::~held_memory() {
  --count_;
  if (view_.obj != nullptr) PyBuffer_Release(&view_);
}

bool held_memory::take_buffer(nb::handle object, memory_use use) {
  if (!PyObject_CheckBuffer(object.ptr())) return false;
  const int write = use == memory_use::target ? PyBUF_WRITABLE : 0;
  if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_ANY_CONTIGUOUS | write) == 0) {
    data_ = static_cast<std::byte*>(view_.buf);
    size_ = static_cast<std::uint64_t>(view_.len);
    return true;
  }
  nb::python_error problem;
  Py_buffer probe{};
  // Why: asked again for less.
  if (PyObject_GetBuffer(object.ptr(), &probe, PyBUF_ANY_CONTIGUOUS) == 0) {
    PyBuffer_Release(&probe);
    refuse(object, is_readonly);
  }
  PyErr_Clear();
  if (PyObject_GetBuffer(object.ptr(), &probe, PyBUF_FULL_RO) == 0) {
    PyBuffer_Release(&probe);
    refuse(object, is_not_contiguous);
  }
  PyErr_Clear();
  if (attribute(object, "__cuda_array_interface__") || attribute(object, "__dlpack__")) return false;
  refuse(object, ("is not offered: " + std::string(problem.what())).c_str());
}

bool held_memory::take_native(nb::handle object, memory_use use) {
  if (nb::isinstance<raw_pointer>(object)) {
    const auto& pointer = *nb::inst_ptr<raw_pointer>(object);
    if (pointer.readonly && use == memory_use::target) refuse(object, is_readonly);
    data_ = pointer_of(pointer.address);
    size_ = pointer.nbytes;
  } else if (nb::isinstance<device_memory>(object)) {
    const auto& held = *nb::inst_ptr<device_memory>(object);
    if (held.process != this_process()) raise({errc::forked, "this memory of " + held.device + " is the parent process's"});
    data_ = static_cast<std::byte*>(held.memory.data());
    size_ = held.memory.size();
  } else {
    return false;
  }
  owner_ = nb::borrow(object);
  return true;
}

bool held_memory::take_cuda_array(nb::handle object, memory_use use) {
  const auto& names = array_names::get();
  const auto found = attribute(object, names.interface);
  if (!found) return false;
  if (!PyDict_Check(found->ptr())) refuse(object, "has a __cuda_array_interface__ that is no dict");
  const auto interface = nb::borrow<nb::dict>(*found);
  const auto entry = [&](nb::handle name) { return interface.contains(name) ? nb::object(interface[name]) : nb::none(); };
  for (const auto name : {names.data, names.typestr, names.shape}) {
    if (entry(name).is_none()) refuse(object, (std::string("has a __cuda_array_interface__ without ") + nb::str(name).c_str()).c_str());
  }
  if (!entry(names.mask).is_none()) refuse(object, is_masked);
  const auto [address, readonly] = pair_of(object, interface[names.data], "data");
  if (PyObject_IsTrue(readonly.ptr()) != 0 && use == memory_use::target) refuse(object, is_readonly);
  const auto item_size = item_size_of(object, interface[names.typestr]);
  const auto shape = integers(interface[names.shape], "a length of its shape");
  const auto bytes = byte_count(object, shape.data(), shape.size(), item_size);
  if (const auto strides = entry(names.strides); !strides.is_none()) {
    const auto steps = integers(strides, "a stride");
    if (steps.size() != shape.size() || !contiguity::holds(shape.data(), steps.data(), shape.size(), item_size)) {
      refuse(object, is_not_contiguous);
    }
  }
  data_ = pointer_of(unsigned_integer(address, "the address of data"));
  size_ = bytes;
  owner_ = nb::borrow(object);
  return true;
}

// PyTorch's tensors have nbytes as a property, its storages as a method.
bool held_memory::take_data_pointer(nb::handle object) {
  const auto pointer = attribute(object, "data_ptr");
  if (!pointer) return false;
  auto bytes = attribute(object, "nbytes");
  if (!bytes) return false;
  if (PyCallable_Check(bytes->ptr()) != 0) bytes = (*bytes)();
  if (const auto contiguous = attribute(object, "is_contiguous"); contiguous && PyObject_IsTrue((*contiguous)().ptr()) == 0) {
    refuse(object, is_not_contiguous);
  }
  data_ = pointer_of(unsigned_integer((*pointer)(), "data_ptr()"));
  size_ = unsigned_integer(*bytes, "nbytes");
  owner_ = nb::borrow(object);
  return true;
}

bool held_memory::take_dlpack(nb::handle object) {
  const auto exporter = attribute(object, "__dlpack__");
  const auto device = attribute(object, "__dlpack_device__");
  if (!exporter || !device) return false;
  const auto where = signed_integer(pair_of(object, (*device)(), "__dlpack_device__").first, "the device type of __dlpack_device__");
  if (!is_addressable_device(static_cast<std::int32_t>(where))) refuse(object, "lies on a device that Penstock does not know");
  // Without a version asked for, an exporter refuses memory that is read-only. -1: no stream is to be waited for, as with the other ways.
  constexpr std::int64_t cpu = 1;
  nb::object capsule = where == cpu ? (*exporter)() : (*exporter)("stream"_a = -1);
  const auto* tensor = static_cast<const dl_tensor*>(PyCapsule_GetPointer(capsule.ptr(), "dltensor"));
  if (tensor == nullptr) throw nb::python_error();
  const auto count = static_cast<std::size_t>(tensor->dimensions);
  const std::int64_t item_size = (tensor->type.bits * tensor->type.lanes + 7) / 8;
  const auto bytes = byte_count(object, tensor->shape, count, item_size);
  if (tensor->strides != nullptr) {
    std::vector<std::int64_t> steps(tensor->strides, tensor->strides + count);
    for (auto& step : steps) step *= item_size;
    if (!contiguity::holds(tensor->shape, steps.data(), count, item_size)) refuse(object, is_not_contiguous);
  }

  data_ = static_cast<std::byte*>(tensor->data) + tensor->byte_offset;
  size_ = bytes;
  owner_ = std::move(capsule);  // not consumed: it frees the tensor when it goes
  return true;
}

held_memory::part held_memory::slice(std::int64_t offset, std::optional<std::int64_t> size) const {
  const auto start = static_cast<std::uint64_t>(offset);
  if (offset < 0 || start > size_) {
    raise_invalid("buffer_offset is " + std::to_string(offset) + ", but the buffer holds " + std::to_string(size_) + " bytes");
  }
  if (!size) return {data_ + start, size_ - start};
  const auto length = static_cast<std::uint64_t>(*size);
  if (*size < 0 || length > size_ - start) {
    raise_invalid("size is " + std::to_string(*size) + ", but the buffer holds " + std::to_string(size_ - start) + " bytes from offset " +
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
  nb::class_<raw_pointer>(module, "Pointer", nb::type_slots(pointer_slots),
                          "Memory at an address: of the host or of a device.\n\n"
                          "owner, if given, is kept alive as long as the Pointer and every request on it. readonly memory can be written\n"
                          "from, not read into. Nothing checks that the address is right.")
      .def(
          "__init__",
          [](raw_pointer* self, std::uint64_t address, std::uint64_t nbytes, nb::object owner, bool readonly) {
            new (self) raw_pointer{address, nbytes, std::move(owner), readonly};
          },
          "address"_a, "nbytes"_a, "owner"_a = nb::none(), "readonly"_a = false)
      .def_ro("address", &raw_pointer::address, "Where it begins.")
      .def_ro("nbytes", &raw_pointer::nbytes, "Its length in bytes.")
      .def_ro("owner", &raw_pointer::owner, "What keeps the memory alive, or None.")
      .def_ro("readonly", &raw_pointer::readonly, "Whether it can only be written from.")
      .def("__repr__", [](const raw_pointer& self) {
        return nb::str("penstock.Pointer({:#x}, {}{})").format(self.address, self.nbytes, self.readonly ? ", readonly=True" : "");
      });
  module.def(
      "resolve",
      [](nb::handle object, bool writable) {
        const held_memory memory(object, writable ? memory_use::target : memory_use::source);
        return std::pair(reinterpret_cast<std::uint64_t>(memory.data()), memory.size());
      },
      "obj"_a, "writable"_a = false,
      "The address and length in bytes of an object's memory, by the rules for buffers. Does not keep the object alive.");
  module.def(
      "_held_memories", [] { return held_memory::count(); }, "How many buffers requests hold. For tests.");
}

}  // namespace penstock::python
