// Devices and their memory: penstock.Device, penstock.DeviceBuffer, copy() and describe().
#pragma once

#include <nanobind/nanobind.h>

#include <penstock/penstock.hpp>
#include <string>

#include "completions.hpp"

namespace penstock::python {

namespace nb = nanobind;

// penstock.DeviceBuffer. Freed with the last reference of Python's; requests hold one.
struct device_memory {
  device_buffer memory;
  std::string device;
  unsigned process;  // that allocated it: a forked child has the object, not the memory
  device_memory(device_buffer taken, std::string name) : memory(std::move(taken)), device(std::move(name)), process(this_process()) {}
  device_memory(device_memory&&) noexcept = default;
  device_memory& operator=(device_memory&&) = delete;
  ~device_memory();
};

// The engine that the process shares. Raises penstock.Error.
engine shared_engine();

void add_devices(nb::module_& module);

}  // namespace penstock::python
