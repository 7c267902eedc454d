#include "sys/pci.hpp"

#include <dirent.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>

#include <fmt/format.h>

namespace penstock::sys {

namespace {

// Returns the name that sysfs uses for a device. Drivers may also use upper case and eight-digit domains.
std::optional<std::string> sysfs_name(const std::string& address) {
  unsigned domain = 0;
  unsigned bus = 0;
  unsigned slot = 0;
  unsigned function = 0;
  int used = 0;
  if (std::sscanf(address.c_str(), "%8x:%2x:%2x.%1x%n", &domain, &bus, &slot, &function, &used) != 4) return std::nullopt;
  if (static_cast<std::size_t>(used) != address.size()) return std::nullopt;
  return fmt::format("{:04x}:{:02x}:{:02x}.{:x}", domain, bus, slot, function);
}

// The base class is the highest of the three bytes in `class` (PCI Code and ID Assignment Specification).
pci_kind kind_of(unsigned class_code) {
  switch (class_code >> 16) {
    case 0x01:
      return pci_kind::storage;
    case 0x02:
      return pci_kind::network;
    case 0x03:  // display
    case 0x12:  // processing accelerator
      return pci_kind::gpu;
    default:
      return pci_kind::other;
  }
}

// Each line of `resource` describes one region: first address, last address, flags. Bit 9 in the flags marks memory (IORESOURCE_MEM).
std::uint64_t largest_window(const std::string& device_folder) {
  constexpr unsigned long long is_memory = 0x200;
  std::ifstream regions(device_folder + "/resource");
  std::uint64_t largest = 0;
  for (std::string line; std::getline(regions, line);) {
    unsigned long long first = 0;
    unsigned long long last = 0;
    unsigned long long flags = 0;
    if (std::sscanf(line.c_str(), "%llx %llx %llx", &first, &last, &flags) != 3) continue;
    if ((flags & is_memory) != 0 && last > first) largest = std::max<std::uint64_t>(largest, last - first + 1);
  }
  return largest;
}

// The link's target is nested in the folders of the bridges above the device: .../pci0000:3a/0000:3a:01.0/0000:3b:00.0
std::vector<std::string> bridges_above(const std::string& device_folder) {
  std::error_code failed;
  const auto real = std::filesystem::canonical(device_folder, failed);
  std::vector<std::string> bridges;
  if (failed) return bridges;
  for (const auto& part : real.parent_path()) {
    if (sysfs_name(part.string())) bridges.push_back(part.string());
  }
  return bridges;
}

}  // namespace

pci_device describe_pci_device(const std::string& address, const std::string& root) {
  pci_device found;
  found.address = address;
  const auto name = sysfs_name(address);
  if (!name) return found;
  found.address = *name;
  const std::string folder = root + "/" + *name;
  if (int node = -1; std::ifstream(folder + "/numa_node") >> node) found.numa_node = node;
  if (unsigned code = 0; std::ifstream(folder + "/class") >> std::hex >> code) found.kind = kind_of(code);
  found.window_bytes = largest_window(folder);
  found.bridges = bridges_above(folder);
  return found;
}

std::vector<std::string> list_pci_addresses(const std::string& root) {
  // Not a directory_iterator with an error_code: libstdc++ terminates the process if it runs out of memory.
  std::vector<std::string> found;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(root.c_str()), &closedir);
  while (const dirent* entry = folder == nullptr ? nullptr : readdir(folder.get())) {
    if (entry->d_name[0] != '.') found.emplace_back(entry->d_name);
  }
  std::sort(found.begin(), found.end());
  return found;
}

}  // namespace penstock::sys
