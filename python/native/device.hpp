// Devices and their memory: penstock.Device, penstock.DeviceBuffer, copy() and describe().
#pragma once

#include <nanobind/nanobind.h>

#include <penstock/penstock.hpp>
#include <string>

namespace penstock::python {

namespace nb = nanobind;

// penstock.DeviceBuffer. Freed with the last reference of Python's; requests hold one.
struct device_memory {
  device_buffer memory;
  std::string device;
  device_memory(device_buffer taken, std::string name) : memory(std::move(taken)), device(std::move(name)) {}
  device_memory(device_memory&&) noexcept = default;
  device_memory& operator=(device_memory&&) = delete;
  ~device_memory();
};

// The engine that the process shares. Raises penstock.Error.
engine shared_engine();

void add_devices(nb::module_& module);

}  // namespace penstock::python
