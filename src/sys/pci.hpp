// PCI devices, from sysfs. Thread-safe; reads small files, and may take milliseconds.
#pragma once

#include <string>
#include <vector>

#include "penstock/machine.hpp"

namespace penstock::sys {

// The device at an address in any common spelling ("0000:3b:00.0", "00000000:3B:00.0"). Where there is none, or sysfs is not mounted,
// everything but the address keeps its default. root: where /sys/bus/pci/devices is, for tests.
pci_device describe_pci_device(const std::string& address, const std::string& root = "/sys/bus/pci/devices");
// Addresses of all PCI devices, sorted.
std::vector<std::string> list_pci_addresses(const std::string& root = "/sys/bus/pci/devices");

}  // namespace penstock::sys
