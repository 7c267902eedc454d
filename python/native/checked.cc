#include "checked.hpp"

#include <structmember.h>

#include <cstddef>
#include <string_view>

namespace penstock::python {

namespace {

struct checked {
  PyObject ob_base;
  vectorcallfunc call;
  PyObject* function;  // nanobind's
};

// types.MethodType, kept because files may still be closed at interpreter shutdown, when nothing can be imported.
PyObject* method_of_python = nullptr;

checked* of(PyObject* self) { return reinterpret_cast<checked*>(self); }

// Replaces nanobind's error with the one from penstock._core.arguments, if that finds what is wrong with the arguments.
void say_what_is_wrong(PyObject* function, PyObject* const* args, std::size_t count, PyObject* names) {
  nb::python_error problem;
  try {
    const std::string_view text = problem.what();
    if (text.find("incompatible function arguments") != text.npos) {
      nb::list given;
      for (std::size_t i = 0; i < count; ++i) given.append(nb::handle(args[i]));
      nb::dict named;
      for (const nb::handle name : names == nullptr ? nb::object(nb::tuple()) : nb::borrow(names)) named[name] = nb::handle(args[count++]);
      const nb::object found = nb::module_::import_("penstock._core.arguments").attr("error_of")(nb::handle(function), given, named);
      if (!found.is_none()) {
        PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(found.ptr())), found.ptr());
        return;
      }
    }
  } catch (nb::python_error&) {  // keep nanobind's error
  }
  problem.restore();
}

PyObject* call(PyObject* self, PyObject* const* args, std::size_t counted, PyObject* names) noexcept {
  PyObject* const function = of(self)->function;
  PyObject* const result = PyObject_Vectorcall(function, args, counted, names);
  if (result != nullptr || !PyErr_ExceptionMatches(PyExc_TypeError)) return result;
  say_what_is_wrong(function, args, static_cast<std::size_t>(PyVectorcall_NARGS(counted)), names);
  return nullptr;
}

PyObject* bind(PyObject* self, PyObject* object, PyObject* /*type*/) noexcept {
  if (object == nullptr) {
    Py_INCREF(self);
    return self;
  }
  return PyObject_CallFunctionObjArgs(method_of_python, self, object, nullptr);
}

// Takes the name and documentation from the function.
PyObject* get_attribute(PyObject* self, PyObject* name) noexcept {
  for (const char* shared : {"__doc__", "__name__", "__qualname__", "__module__", "__nb_signature__"}) {
    if (PyUnicode_CompareWithASCIIString(name, shared) == 0) return PyObject_GetAttr(of(self)->function, name);
  }
  return PyObject_GenericGetAttr(self, name);
}

// For help(), which bypasses get_attribute().
PyObject* get_documentation(PyObject* self, void* /*closure*/) noexcept { return PyObject_GetAttrString(of(self)->function, "__doc__"); }

int traverse(PyObject* self, visitproc visit, void* arg) {
  Py_VISIT(Py_TYPE(self));
  Py_VISIT(of(self)->function);
  return 0;
}

int clear(PyObject* self) {
  Py_CLEAR(of(self)->function);
  return 0;
}

void deallocate(PyObject* self) {
  PyObject_GC_UnTrack(self);
  PyTypeObject* const type = Py_TYPE(self);
  clear(self);
  PyObject_GC_Del(self);
  Py_DECREF(type);
}

PyMemberDef members[] = {{"__vectorcalloffset__", T_PYSSIZET, offsetof(checked, call), READONLY, nullptr}, {nullptr, 0, 0, 0, nullptr}};
PyGetSetDef attributes[] = {{"__doc__", get_documentation, nullptr, nullptr, nullptr}, {nullptr, nullptr, nullptr, nullptr, nullptr}};
constexpr unsigned flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;

// Like a C function, a function in a class does not become a method.
PyType_Slot function_slots[] = {{Py_tp_members, members},
                                {Py_tp_getset, attributes},
                                {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                                {Py_tp_getattro, reinterpret_cast<void*>(get_attribute)},
                                {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                                {Py_tp_clear, reinterpret_cast<void*>(clear)},
                                {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                                {0, nullptr}};
PyType_Spec function_spec = {"penstock._native._function", sizeof(checked), 0, flags, function_slots};
PyType_Slot method_slots[] = {{Py_tp_members, members},
                              {Py_tp_getset, attributes},
                              {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
                              {Py_tp_descr_get, reinterpret_cast<void*>(bind)},
                              {Py_tp_getattro, reinterpret_cast<void*>(get_attribute)},
                              {Py_tp_traverse, reinterpret_cast<void*>(traverse)},
                              {Py_tp_clear, reinterpret_cast<void*>(clear)},
                              {Py_tp_dealloc, reinterpret_cast<void*>(deallocate)},
                              {0, nullptr}};
PyType_Spec method_spec = {"penstock._native._method", sizeof(checked), 0, flags | Py_TPFLAGS_METHOD_DESCRIPTOR, method_slots};

nb::object type_from(PyType_Spec& spec) {
  nb::object type = nb::steal(PyType_FromSpec(&spec));
  if (!type.is_valid()) throw nb::python_error();
  return type;
}

nb::object checked_of(nb::handle type, nb::handle function) {
  auto* const made = PyObject_GC_New(checked, reinterpret_cast<PyTypeObject*>(type.ptr()));
  if (made == nullptr) throw nb::python_error();
  made->call = call;
  made->function = nb::borrow(function).release().ptr();
  PyObject_GC_Track(made);
  return nb::steal(reinterpret_cast<PyObject*>(made));
}

bool is_function(nb::handle object) { return PyType_Check(object.ptr()) == 0 && nb::hasattr(object, "__nb_signature__"); }
bool is_special(nb::handle name) { return std::string_view(nb::str(name).c_str()).starts_with("__"); }

// Returns a copy, because the loop over it modifies the original.
nb::object items_of(nb::handle owner) {
  nb::object items = nb::steal(PySequence_List(nb::object(owner.attr("__dict__").attr("items")()).ptr()));
  if (!items.is_valid()) throw nb::python_error();
  return items;
}

}  // namespace

void check_arguments(nb::module_& module) {
  method_of_python = nb::object(nb::module_::import_("types").attr("MethodType")).release().ptr();
  const auto function_type = type_from(function_spec);
  const auto method_type = type_from(method_spec);
  for (const nb::handle entry : items_of(module)) {
    if (is_special(entry[0])) continue;
    const nb::object value = entry[1];
    if (is_function(value)) nb::setattr(module, nb::handle(nb::object(entry[0])), checked_of(function_type, value));
    if (PyType_Check(value.ptr()) == 0) continue;
    for (const nb::handle member : items_of(value)) {
      const nb::object method = member[1];
      if (!is_special(member[0]) && is_function(method))
        nb::setattr(value, nb::handle(nb::object(member[0])), checked_of(method_type, method));
    }
  }
}

}  // namespace penstock::python
