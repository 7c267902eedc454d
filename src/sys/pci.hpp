// Lists and describes PCI devices from sysfs. Thread-safe. Reads small files, which can take milliseconds.
#pragma once

#include <string>
#include <vector>

#include "penstock/machine.hpp"

namespace penstock::sys {

// Describes the device at an address in any common format ("0000:3b:00.0", "00000000:3B:00.0"). If there is no such device, or sysfs is not
// mounted, all fields but the address keep their defaults. root: the folder that contains the devices, for tests.
pci_device describe_pci_device(const std::string& address, const std::string& root = "/sys/bus/pci/devices");
// Returns the addresses of all PCI devices, sorted.
std::vector<std::string> list_pci_addresses(const std::string& root = "/sys/bus/pci/devices");

}  // namespace penstock::sys
