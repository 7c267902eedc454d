#include "sys/rdma.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <optional>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "sys/pci.hpp"

namespace penstock::sys {

namespace {

namespace fs = std::filesystem;

// "4: ACTIVE"
std::string state_of(const std::string& port_folder) {
  std::string line;
  std::getline(std::ifstream(port_folder + "/state"), line);
  const auto colon = line.find(": ");
  return colon == std::string::npos ? std::string() : line.substr(colon + 2);
}

// Returns the target of a link relative to the folder of all devices.
std::string path_below_devices(const std::string& link, const std::string& root) {
  std::error_code failed;
  const auto devices = fs::canonical(root + "/devices", failed);
  if (failed) return {};
  const auto real = fs::canonical(link, failed);
  if (failed) return {};
  auto below = real.lexically_relative(devices).string();
  return below.starts_with("pci") ? below : std::string();
}

// Counts the leading folders that two paths share: the root complex, bridges and switches above both devices.
std::size_t shared_folders(const std::string& one, const std::string& other) {
  const fs::path a(one);
  const fs::path b(other);
  const auto [differs, ignored] = std::mismatch(a.begin(), a.end(), b.begin(), b.end());
  return static_cast<std::size_t>(std::distance(a.begin(), differs));
}

std::string part_of(const fs::path& path, std::size_t index) {
  return std::next(path.begin(), static_cast<std::ptrdiff_t>(index))->string();
}

int number_in(const std::string& file) {
  int value = -1;
  return std::ifstream(file) >> value ? value : -1;
}

std::string name_of(const rdma_port& port) { return fmt::format("{} port {}", port.device, port.port); }

std::string states_of(const std::vector<rdma_port>& ports) {
  std::string told;
  for (const auto& each : ports) {
    told += fmt::format("{}{} is {}", told.empty() ? "" : ", ", name_of(each), each.state.empty() ? "in an unknown state" : each.state);
  }
  return told;
}

}  // namespace

std::vector<rdma_port> list_rdma_ports(const std::string& root) {
  std::vector<rdma_port> found;
  const auto all = root + "/class/infiniband";
  for (const auto& device : list_pci_addresses(all)) {
    const auto folder = all + "/" + device;
    rdma_port made{device, 0, {}, path_below_devices(folder + "/device", root), number_in(folder + "/device/numa_node"), false};
    std::error_code ignored;
    made.is_virtual = fs::exists(folder + "/device/physfn", ignored);
    for (const auto& port : list_pci_addresses(folder + "/ports")) {
      if (std::from_chars(port.data(), port.data() + port.size(), made.port).ec != std::errc()) continue;
      made.state = state_of(folder + "/ports/" + port);
      found.push_back(made);
    }
  }
  // Sorts mlx5_2 before mlx5_10.
  const auto order = [](const rdma_port& each) { return std::tuple(each.device.size(), std::string_view(each.device), each.port); };
  std::sort(found.begin(), found.end(), [&](const auto& a, const auto& b) { return order(a) < order(b); });
  return found;
}

std::string no_rdma(const std::string& root) {
  const auto ports = list_rdma_ports(root);
  if (std::any_of(ports.begin(), ports.end(), [](const auto& each) { return each.active(); })) return {};
  return ports.empty() ? "there is no RDMA device" : "no RDMA port is active: " + states_of(ports);
}

nic_choice choose_nic(const std::string& gpu_pci_bus_id, const std::string& root) {
  if (auto none = no_rdma(root); !none.empty()) return {{}, 0, std::move(none)};
  const auto pci = root + "/bus/pci/devices";
  const auto gpu = describe_pci_device(gpu_pci_bus_id, pci);
  const auto gpu_path = path_below_devices(pci + "/" + gpu.address, root);
  const auto worth = [&](const rdma_port& each) {
    const bool near = gpu.numa_node >= 0 && each.numa_node == gpu.numa_node;
    const auto shared = gpu_path.empty() || each.pci_path.empty() ? 0 : shared_folders(gpu_path, each.pci_path);
    return std::tuple(shared, near, !each.is_virtual);
  };
  const auto ports = list_rdma_ports(root);
  const rdma_port* best = nullptr;
  for (const auto& each : ports) {
    if (each.active() && (best == nullptr || worth(each) > worth(*best))) best = &each;
  }
  const auto [shared, near, physical] = worth(*best);
  std::string why = "it is the first one, and the PCI topology is unknown";
  if (shared > 1) {
    why = fmt::format("they share {}", part_of(gpu_path, shared - 1));
  } else if (shared == 1) {
    why = "they share a root complex but no bridge";
  } else if (near) {
    why = fmt::format("both are on NUMA node {}", gpu.numa_node);
  } else if (!gpu_path.empty()) {
    why = "no RDMA device is closer";
  }
  nic_choice chosen{best->device, best->port, fmt::format("{} for the GPU at {}: {}", name_of(*best), gpu.address, why), {}};
  std::string last;  // ports on the same device share its link to the GPU
  for (const auto& each : ports) {
    if (!each.active() || each.device == last || worth(each) != worth(*best) || chosen.rails.size() == nic_choice::most_rails) continue;
    chosen.rails.push_back(fmt::format("{}:{}", each.device, each.port));
    last = each.device;
  }
  return chosen;
}

std::string rdma_door_to_gpus(const std::string& root) {
  std::error_code ignored;
  for (const char* module : {"nvidia_peermem", "nv_peer_mem"}) {
    if (fs::exists(root + "/module/" + module, ignored)) return module;
  }
  std::string driver;
  std::getline(std::ifstream(fs::path(root).parent_path() / "proc/driver/nvidia/version"), driver);
  return driver.find("Open Kernel Module") == std::string::npos ? std::string() : "dma-buf of the open kernel modules";
}

}  // namespace penstock::sys
