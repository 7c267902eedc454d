// Devices and their memory: penstock.Device, penstock.DeviceBuffer, copy() and describe().
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <penstock/penstock.hpp>
#include <string>

#include "completions.hpp"

namespace penstock::python {

namespace nb = nanobind;

// penstock.DeviceBuffer, or a slice of one. The memory is freed with the last Python reference to any of them; requests hold one.
struct device_memory {
  std::shared_ptr<device_buffer> whole;
  std::byte* data;
  std::uint64_t size;
  std::string device;
  unsigned process;  // the process that allocated it: a forked child has the object but not the memory
  device_memory(device_buffer taken, std::string name)
      : whole(std::make_shared<device_buffer>(std::move(taken))),
        data(static_cast<std::byte*>(whole->data())),
        size(whole->size()),
        device(std::move(name)),
        process(this_process()) {}
  // A slice of another one: length bytes from offset, which must be within it.
  device_memory(const device_memory& of, std::uint64_t offset, std::uint64_t length)
      : whole(of.whole), data(of.data + offset), size(length), device(of.device), process(of.process) {}
  device_memory(device_memory&&) noexcept = default;
  device_memory& operator=(device_memory&&) = delete;
  ~device_memory();
};

// Returns the process-wide engine. Raises penstock.Error.
engine shared_engine();

// Returns the name for any spelling of a device, using penstock._core.devices: "host", "host:0" or "cuda:1". argument: the argument's name
// in errors. Raises TypeError and penstock.InvalidArgument.
std::string device_name(nb::handle device, const char* argument = "device");
// The same. Raises NotFound if the device does not exist.
std::string known_device(nb::handle device, const char* argument = "device");

void add_devices(nb::module_& module);

}  // namespace penstock::python
