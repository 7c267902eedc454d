#include "device.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <penstock/detail/digest.hpp>
#include <penstock/detail/shared_memory.hpp>
#include <string>
#include <utility>

#include "arguments.hpp"
#include "buffers.hpp"
#include "dlpack.hpp"
#include "errors.hpp"
#include "gil.hpp"

namespace penstock::python {

using namespace nb::literals;

engine shared_engine() {
  auto shared = engine::shared();
  if (!shared) raise(shared.error());
  return std::move(*shared);
}

// Freeing GPU memory may wait for work that uses it.
device_memory::~device_memory() {
  if (whole == nullptr || whole.use_count() > 1) return;
  const without_gil unlocked;
  whole.reset();
}

namespace {

std::string ask_resolver(const char* function, nb::handle device, const char* argument) {
  return nb::cast<std::string>(nb::module_::import_("penstock._core.devices").attr(function)(device, argument));
}

}  // namespace

std::string device_name(nb::handle device, const char* argument) { return ask_resolver("device_name", device, argument); }
std::string known_device(nb::handle device, const char* argument) { return ask_resolver("known_device", device, argument); }

namespace {

bool is_cuda(const std::string& device) { return device.starts_with("cuda:"); }

std::vector<device_info> all_devices() {
  const auto engine = shared_engine();
  const without_gil unlocked;
  return engine.devices();
}

// Host memory is allocated on the host device.
device_info device_named(nb::handle spelled) {
  auto name = device_name(spelled, "name");
  if (name == "host") name = "host:0";
  const auto devices = all_devices();
  for (const auto& each : devices) {
    if (each.name == name) return each;
  }
  const auto engine = shared_engine();
  // The list omits unusable devices; only an allocation reports why a device is unusable, for example because descriptors have run out.
  const auto tried = [&] {
    const without_gil unlocked;
    return engine.allocate(name, 1).error();
  }();
  if (!tried.ok() && tried.code() != errc::not_found && tried.code() != errc::invalid_argument) raise(tried);
  raise({errc::not_found, std::string(tried.message())});
}

device_memory allocate(const device_info& self, std::int64_t nbytes) {
  if (nbytes <= 0) raise_invalid("a DeviceBuffer must have at least one byte, not " + std::to_string(nbytes));
  auto made = [&] {
    const auto engine = shared_engine();
    const without_gil unlocked;
    return engine.allocate(self.name, static_cast<std::size_t>(nbytes));
  }();
  if (!made) raise(made.error());
  return {std::move(*made), self.name};
}

void copy_bytes(void* target, const void* source, std::uint64_t bytes) {
  const auto copied = [&] {
    const auto engine = shared_engine();
    const without_gil unlocked;
    return engine.copy(target, source, bytes);
  }();
  raise_unless_ok(copied);
}

void copy_objects(nb::handle target, nb::handle source, memory_order order) {
  const held_memory from(source, memory_use::source, order, {"source"});
  const held_memory to(target, memory_use::target, order, {"target"});
  if (from.size() > to.size()) {
    raise_invalid("copy: the source has " + std::to_string(from.size()) + " bytes, but the target has " + std::to_string(to.size()));
  }
  copy_bytes(to.data(), from.data(), from.size());
}

nb::object to_host(nb::handle self) {
  const held_memory memory(self, memory_use::source);
  nb::object bytes = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(memory.size())));
  if (!bytes.is_valid()) throw nb::python_error();
  copy_bytes(PyBytes_AsString(bytes.ptr()), memory.data(), memory.size());
  return bytes;
}

nb::dict cuda_array_interface(const device_memory& self) {
  if (!is_cuda(self.device)) {
    throw nb::attribute_error(("memory on " + self.device + " has no __cuda_array_interface__").c_str());
  }
  nb::dict facts;
  facts["shape"] = nb::make_tuple(self.size);
  facts["typestr"] = "|u1";
  facts["data"] = nb::make_tuple(reinterpret_cast<std::uint64_t>(self.data), false);
  facts["strides"] = nb::none();
  facts["version"] = 3;
  return facts;
}

void expect_this_process(const device_memory& self) {
  if (self.process != this_process()) raise({errc::forked, "this memory on " + self.device + " belongs to the parent process"});
}

device_memory slice_of(const device_memory& self, nb::handle part) {
  if (PySlice_Check(part.ptr()) == 0) throw nb::type_error(("a DeviceBuffer must be indexed with a slice, not " + type_of(part)).c_str());
  Py_ssize_t start = 0, stop = 0, step = 0;
  if (PySlice_Unpack(part.ptr(), &start, &stop, &step) != 0) throw nb::python_error();
  if (step != 1) raise_invalid("a DeviceBuffer slice must have step 1, not " + std::to_string(step));
  const auto length = PySlice_AdjustIndices(static_cast<Py_ssize_t>(self.size), &start, &stop, step);
  return {self, static_cast<std::uint64_t>(start), static_cast<std::uint64_t>(length)};
}

// Returns the CPU's address for memory on the host device.
void* cpu_address(const device_memory& self) {
  expect_this_process(self);
  if (self.size == 0) return self.data;
  const auto found = shared_engine().cpu_address(self.data, self.size);
  if (!found) raise(found.error());
  return *found;
}

int get_buffer(PyObject* object, Py_buffer* view, int flags) noexcept {
  view->obj = nullptr;
  try {
    const auto& self = *nb::inst_ptr<device_memory>(object);
    if (is_cuda(self.device)) {
      PyErr_SetString(PyExc_BufferError, ("the CPU cannot access memory on " + self.device + ": use to_host() to copy it").c_str());
      return -1;
    }
    return PyBuffer_FillInfo(view, object, cpu_address(self), static_cast<Py_ssize_t>(self.size), 0, flags);
  } catch (nb::python_error& problem) {
    problem.restore();
  } catch (const std::exception& problem) {
    PyErr_SetString(PyExc_BufferError, problem.what());
  }
  return -1;
}

PyType_Slot buffer_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

dl_device dlpack_place(const device_memory& self) {
  if (!is_cuda(self.device)) return {dl_cpu, 0};
  return {dl_cuda, static_cast<std::int32_t>(std::stoi(self.device.substr(self.device.find(':') + 1)))};
}

// Returns the two integers in a tuple.
std::pair<std::int64_t, std::int64_t> two_integers(nb::handle pair, const char* name) {
  if (!nb::isinstance<nb::tuple>(pair) || nb::len(pair) != 2) {
    throw nb::type_error((std::string(name) + " must be a tuple of two int or None, not " + type_of(pair)).c_str());
  }
  return {signed_integer(pair[0], name), signed_integer(pair[1], name)};
}

nb::object dlpack(nb::handle self, nb::handle /*stream*/, nb::handle max_version, nb::handle dl_device, nb::handle copy) {
  const auto& memory = *nb::inst_ptr<device_memory>(self);
  expect_this_process(memory);
  const auto where = dlpack_place(memory);
  if (!dl_device.is_none() && two_integers(dl_device, "dl_device") != std::pair<std::int64_t, std::int64_t>(where.type, where.id)) {
    raise_bad_memory("dl_device: the memory is on " + memory.device + " and is not copied to a different device");
  }
  if (!copy.is_none() && PyObject_IsTrue(copy.ptr()) != 0) raise_bad_memory("copy: a DeviceBuffer is exported in place, never as a copy");
  const bool versioned = !max_version.is_none() && two_integers(max_version, "max_version").first >= 1;
  auto* const data = where.type == dl_cpu ? cpu_address(memory) : memory.data;
  return dlpack_capsule(self, data, memory.size, where, versioned);
}

// Returns the handle, offset, length and descriptor with which another process maps this memory.
nb::tuple share_memory(nb::handle object) {
  const held_memory memory(object, memory_use::source, memory_order::any, argument_name{"memory"});
  const auto shared = [&] {
    const auto engine = shared_engine();
    const without_gil unlocked;
    return detail::share_memory(engine, memory.data());
  }();
  if (!shared) raise(shared.error());
  return nb::make_tuple(nb::bytes(shared->handle.data(), shared->handle.size()), shared->offset, shared->length, shared->descriptor);
}

device_memory open_shared_memory(const std::string& device, const nb::bytes& handle, std::uint64_t offset, std::uint64_t nbytes,
                                 int descriptor, std::int64_t process) {
  if (nbytes == 0) raise_invalid("a DeviceBuffer must have at least one byte, not 0");
  const detail::shared_allocation what{{handle.c_str(), handle.size()}, offset, nbytes, descriptor};
  auto opened = [&] {
    const auto engine = shared_engine();
    const without_gil unlocked;
    return detail::open_shared_memory(engine, device, what, nbytes, process);
  }();
  if (!opened) raise(opened.error());
  return {std::move(*opened), device};
}

std::vector<detail::digest_part> digest_parts(const nb::list& given) {
  std::vector<detail::digest_part> parts;
  parts.reserve(nb::len(given));
  for (const nb::handle each : given) {
    if (!nb::isinstance<nb::tuple>(each) || nb::len(each) != 3) {
      throw nb::type_error(("parts must contain tuples of three int, not " + type_of(each)).c_str());
    }
    parts.push_back({reinterpret_cast<const void*>(unsigned_integer(each[0], "an address")), unsigned_integer(each[1], "a size"),
                     unsigned_integer(each[2], "a row")});
  }
  return parts;
}

nb::tuple digest_of(const nb::list& given) {
  const auto parts = digest_parts(given);
  const auto sums = [&] {
    const without_gil unlocked;
    return detail::digest_of(parts);
  }();
  return nb::make_tuple(sums[0], sums[1], sums[2], sums[3]);
}

void add_to_digest(const nb::list& given, std::uint64_t sums, std::uint64_t stream) {
  const auto parts = digest_parts(given);
  const auto added = [&] {
    const auto engine = shared_engine();
    const without_gil unlocked;
    return detail::add_to_digest(engine, parts, reinterpret_cast<std::uint64_t*>(sums), reinterpret_cast<void*>(stream));
  }();
  if (!added.ok()) raise(added);
}

const char* kind_word(memory_kind kind) {
  constexpr const char* words[] = {"host", "pinned", "device"};
  return words[static_cast<std::size_t>(kind)];
}

nb::dict describe(nb::handle object) {
  std::optional<held_memory> memory;
  std::uint64_t address = 0;
  if (PyLong_Check(object.ptr())) {
    address = unsigned_integer(object, "an address");
  } else {
    address =
        reinterpret_cast<std::uint64_t>(memory.emplace(object, memory_use::source, memory_order::any, argument_name{"memory"}).data());
  }
  const auto facts = shared_engine().describe(reinterpret_cast<const void*>(address));
  if (!facts) raise(facts.error());
  nb::dict told;
  told["kind"] = kind_word(facts->kind);
  told["device"] = facts->device.empty() ? nb::none() : nb::object(nb::str(facts->device.c_str()));
  const auto base = reinterpret_cast<std::uint64_t>(facts->base);
  told["base"] = base == 0 ? nb::none() : nb::cast(base);
  told["nbytes"] = base == 0 ? nb::none() : nb::cast(facts->size);
  return told;
}

// Returns "GPU-5c3a...", as printed by nvidia-smi; empty if unknown.
std::string uuid_text(const device_info& self) {
  constexpr auto digits = "0123456789abcdef";
  std::string text;
  bool known = false;
  for (std::size_t i = 0; i < self.uuid.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits[self.uuid[i] >> 4];
    text += digits[self.uuid[i] & 15];
    known = known || self.uuid[i] != 0;
  }
  return known ? "GPU-" + text : "";
}

}  // namespace

void add_devices(nb::module_& module) {
  nb::class_<device_info>(module, "Device", "A device whose memory files can be read into: a GPU, or the host device \"host:0\".")
      .def_ro("name", &device_info::name, "\"cuda:0\" or \"host:0\".")
      .def_ro("description", &device_info::description, "The manufacturer's name for the device.")
      .def_ro("pci_bus_id", &device_info::pci_bus_id, "\"0000:3b:00.0\"; empty for the host device.")
      .def_ro("memory_bytes", &device_info::memory_bytes, "The device's memory in bytes.")
      .def_ro("numa_node", &device_info::numa_node, "The NUMA node that the device is attached to; -1 if unknown.")
      .def_ro("window_bytes", &device_info::window_bytes, "The device's largest PCI memory window (BAR1) in bytes; 0 if unknown.")
      .def_ro("shares_host_memory", &device_info::shares_host_memory,
              "True if the device shares the host's memory (DGX Spark, Jetson), so programs and the page cache use part of\n"
              "memory_bytes.")
      .def_prop_ro("uuid", &uuid_text, "\"GPU-...\", as printed by nvidia-smi; empty if unknown.")
      .def("empty", &allocate, "nbytes"_a, "Allocates nbytes of uninitialized device memory. Raises penstock.Error.")
      .def("__repr__", [](const device_info& self) { return "<penstock.Device " + self.name + " " + self.description + ">"; });

  nb::class_<device_memory>(
      module, "DeviceBuffer", nb::is_weak_referenceable(), nb::type_slots(buffer_slots),
      "Memory on one device, from Device.empty(), or a slice of it. Freed with the last reference to any part of it; requests\n"
      "in flight hold one. CuPy and PyTorch accept it through __cuda_array_interface__ and DLPack. Memory on the host device\n"
      "also has the buffer protocol, so NumPy accepts it. The CPU cannot access GPU memory.")
      .def_prop_ro(
          "ptr", [](const device_memory& self) { return reinterpret_cast<std::uint64_t>(self.data); }, "Its address.")
      .def_prop_ro(
          "nbytes", [](const device_memory& self) { return self.size; }, "Its length in bytes.")
      .def_ro("device", &device_memory::device, "The device's name.")
      .def("to_host", &to_host, "Returns a copy of the bytes in host memory. Blocks. Raises penstock.Error.")
      .def(
          "copy_from", [](nb::handle self, nb::handle source, nb::handle order) { copy_objects(self, source, parse_order(order)); },
          "source"_a, nb::kw_only(), "order"_a = "C",
          "Copies all bytes of source, which may be any memory, to its start. Blocks. Raises ValueError where they do not fit.")
      .def(
          "copy_to", [](nb::handle self, nb::handle target, nb::handle order) { copy_objects(target, self, parse_order(order)); },
          "target"_a, nb::kw_only(), "order"_a = "C",
          "Copies all bytes of this buffer to the start of target, which may be any memory. Blocks. Raises ValueError if they do\n"
          "not fit.")
      .def_prop_ro("__cuda_array_interface__", &cuda_array_interface, "The memory as an array of bytes. Only for memory on CUDA devices.")
      .def("__len__", [](const device_memory& self) { return self.size; })
      .def("__getitem__", &slice_of, "part"_a.none(),
           "buffer[start:stop] returns a DeviceBuffer for that part, which keeps the memory alive. Raises ValueError for a step.")
      .def(
          "__dlpack_device__",
          [](const device_memory& self) {
            const auto where = dlpack_place(self);
            return nb::make_tuple(where.type, where.id);
          },
          "Returns the device in DLPack's form: (1, 0), the CPU, for the host device; (2, N) for GPU N.")
      .def("__dlpack__", &dlpack, nb::kw_only(), "stream"_a = nb::none(), "max_version"_a = nb::none(), "dl_device"_a = nb::none(),
           "copy"_a = nb::none(),
           "For from_dlpack() in NumPy, CuPy and PyTorch: a one-dimensional array of bytes that shares the memory. Does not wait\n"
           "for any stream. Raises BufferError if a copy or a different device is requested.")
      .def("__repr__", [](const device_memory& self) {
        return nb::str("<penstock.DeviceBuffer of {} bytes on {} at {:#x}>")
            .format(self.size, self.device, reinterpret_cast<std::uint64_t>(self.data));
      });

  module.def("devices", &all_devices,
             "Returns all devices, the GPUs first and then the host device. Does not create a context on any of them.");
  module.def(
      "device", &device_named, "name"_a.none(),
      "Returns a device by name: \"host:0\" (also \"host\" and \"cpu\"), \"cuda:1\" (also 1) or \"cuda\" for CUDA's current one; or by\n"
      "a torch.device or CuPy Device. Raises FileNotFoundError if there is no such device; the message says why and lists the\n"
      "devices.");
  module.def(
      "copy", [](nb::handle target, nb::handle source, nb::handle order) { copy_objects(target, source, parse_order(order)); }, "target"_a,
      "source"_a, nb::kw_only(), "order"_a = "C",
      "Copies all bytes of source to the start of target; either may be host or device memory. Blocks. An array in Fortran\n"
      "order is rejected unless order is 'A', which copies the bytes in memory order. Raises penstock.Error.");
  module.def("share_memory", &share_memory, "memory"_a,
             "Returns what open_shared_memory() in another process needs to map device memory: handle, offset, length and a descriptor,\n"
             "which the caller closes; -1 if none is needed. Raises penstock.Error.");
  module.def("open_shared_memory", &open_shared_memory, "device"_a, "handle"_a, "offset"_a, "nbytes"_a, "descriptor"_a, "process"_a,
             "Maps device memory of another process, whose PID here is process, as a DeviceBuffer. Writes change that process's memory.\n"
             "Raises penstock.Error.");
  module.def(
      "digest_of", &digest_of, "parts"_a,
      "Returns the four sums of the digest (weights_cache/_digest.py) of host memory. parts: tuples of address, nbytes and first row.");
  module.def("add_to_digest", &add_to_digest, "parts"_a, "sums"_a, "stream"_a,
             "Queues an operation on a stream: adds the digest of device memory to the four 64-bit integers at address sums on the same\n"
             "device. The first call loads a kernel, even if parts is empty, and may wait for the device. Raises penstock.Error.");
  module.def(
      "describe", &describe, "memory"_a,
      "Describes the memory of a buffer or address: {\"kind\": \"host\" | \"pinned\" | \"device\", \"device\": its name or None, \"base\"\n"
      "and \"nbytes\": of the allocation, or None}.");
}

}  // namespace penstock::python
