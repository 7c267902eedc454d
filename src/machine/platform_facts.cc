#include "machine/platform_facts.hpp"

#include <sys/utsname.h>

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include "sys/cgroup.hpp"

namespace penstock::machine {

namespace {

bool holds(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

std::string lower(std::string text) {
  std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); });
  return text;
}

// "0-1,4"
std::vector<std::string> numbers_of(const std::string& ranges) {
  std::vector<std::string> all;
  for (const auto& range : words_of(ranges, ',')) {
    const auto ends = words_of(range, '-');
    if (ends.empty()) continue;
    const auto first = std::strtoul(ends.front().c_str(), nullptr, 10);
    const auto last = std::strtoul(ends.back().c_str(), nullptr, 10);
    for (auto each = first; each <= last && all.size() < 1024; ++each) all.push_back(std::to_string(each));
  }
  return all;
}

// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build": the first word that consists of digits and dots.
std::string driver_version_of(const std::string& line) {
  for (const auto& word : words_of(line)) {
    if (word.find('.') != std::string::npos && word.find_first_not_of("0123456789.") == std::string::npos) return word;
  }
  return {};
}

gpu_facts describe_gpu(const tree& from, const pci_facts& device) {
  gpu_facts found{device.basics.address, {}, {}, false, sys::choose_nic(device.basics.address, from.outside("/sys")), {}};
  const auto told = from.read(fmt::format("/proc/driver/nvidia/gpus/{}/information", device.basics.address)).value_or("");
  found.name = value_of(told, "Model");
  const auto minor = value_of(told, "Device Minor");
  if (minor.empty()) return found;
  found.node = "/dev/nvidia" + minor;
  found.node_exists = from.exists(found.node);
  return found;
}

// Returns lines such as "Reads : n=12 ok=11 err=1 ..." in which the number after err= is not 0.
std::vector<std::string> errors_in(const std::string& statistics) {
  std::vector<std::string> found;
  for (const auto& line : lines_of(statistics)) {
    const auto at = line.find("err=");
    if (at == std::string::npos || std::strtoul(line.c_str() + at + 4, nullptr, 10) == 0) continue;
    const auto name = trimmed(line.substr(0, line.find(':')));
    found.push_back(fmt::format("{} {}", std::strtoul(line.c_str() + at + 4, nullptr, 10), name));
  }
  return found;
}

// Returns the number after the first of these names that is found at the beginning of a line.
std::optional<std::uint64_t> number_behind(const std::string& statistics, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto text = value_of(statistics, name);
    if (!text.empty() && text.front() >= '0' && text.front() <= '9') return std::strtoull(text.c_str(), nullptr, 10);
  }
  return std::nullopt;
}

// Reads the kernel's build configuration, or looks for a symbol that only kernels with P2PDMA have; symbol addresses may be hidden and are
// not needed.
p2pdma_kernel gather_p2pdma(const tree& from, const platform_facts& known) {
  for (const auto& device : known.devices) {
    if (from.exists(fmt::format("/sys/bus/pci/devices/{}/p2pmem", device.basics.address))) return p2pdma_kernel::built;
  }
  const auto said = [](bool built) { return built ? p2pdma_kernel::built : p2pdma_kernel::missing; };
  if (const auto built_with = from.read("/boot/config-" + known.release)) return said(holds(*built_with, "\nCONFIG_PCI_P2PDMA=y"));
  if (const auto symbols = from.read("/proc/kallsyms", std::size_t{64} << 20); symbols && !symbols->empty()) {
    return said(holds(*symbols, "p2pdma_pgmap_ops"));
  }
  return p2pdma_kernel::unknown;
}

std::optional<bool> gather_kaslr(const tree& from, const platform_facts& known) {
  const auto words = words_of(known.command_line);
  if (std::ranges::find(words, "nokaslr") != words.end()) return false;
  const auto built_with = from.read("/boot/config-" + known.release);
  if (!built_with) return std::nullopt;
  return holds(*built_with, "\nCONFIG_RANDOMIZE_BASE=y");
}

std::vector<nic_port_facts> gather_ports(const tree& from) {
  std::vector<nic_port_facts> all;
  for (const auto& port : sys::list_rdma_ports(from.outside("/sys"))) {
    const auto folder = fmt::format("/sys/class/infiniband/{}/ports/{}", port.device, port.port);
    all.push_back({port, from.line(folder + "/link_layer"), from.line(folder + "/rate")});
  }
  return all;
}

std::string describe_container(const tree& from) {
  if (from.exists("/.dockerenv")) return "Docker";
  if (from.exists("/run/.containerenv")) return "Podman";
  const auto environment = from.read("/proc/self/environ").value_or("");
  for (const auto& each : words_of(environment, '\0')) {
    if (each.starts_with("KUBERNETES_SERVICE_HOST=")) return "Kubernetes";
    if (each.starts_with("container=")) return each.substr(each.find('=') + 1);
  }
  const auto groups = from.read("/proc/1/cgroup").value_or("");
  for (const char* name : {"kubepods", "docker", "containerd", "libpod", "lxc"}) {
    if (holds(groups, name)) return name;
  }
  return {};
}

std::string seccomp_mode(const std::string& process) {
  const auto mode = value_of(process, "Seccomp");
  return mode == "0" ? "off" : mode == "1" ? "strict" : mode == "2" ? "filter" : "unknown";
}

// "Max locked memory         8388608              8388608              bytes"
limit_facts limit_of(const std::string& limits, const std::string& name) {
  limit_facts found;
  for (const auto& line : lines_of(limits)) {
    if (!line.starts_with(name)) continue;
    const auto words = words_of(line.substr(name.size()));
    if (words.empty()) return found;
    found.known = true;
    if (words.front() != "unlimited") found.soft = std::strtoull(words.front().c_str(), nullptr, 10);
  }
  return found;
}

void gather_process(const tree& from, platform_facts& found) {
  constexpr unsigned ipc_lock = 14;  // CAP_IPC_LOCK
  const auto process = from.read("/proc/self/status").value_or("");
  const auto users = words_of(value_of(process, "Uid"), '\t');
  found.is_root = users.size() > 1 && users[1] == "0";
  found.may_lock_all = (std::strtoull(value_of(process, "CapEff").c_str(), nullptr, 16) >> ipc_lock & 1U) != 0;
  found.seccomp = seccomp_mode(process);
  const auto limits = from.read("/proc/self/limits").value_or("");
  found.locked_memory = limit_of(limits, "Max locked memory");
  found.open_files = limit_of(limits, "Max open files");
  const auto groups = sys::cgroup_limits_of([&](const std::string& path) { return from.read(path); });
  found.quota_cores = groups.cores;
  found.memory_limit_bytes = groups.memory_bytes;
}

void gather_cores(const tree& from, platform_facts& found) {
  const auto online = static_cast<unsigned>(numbers_of(from.line("/sys/devices/system/cpu/online")).size());
  if (online > 0) found.cores = std::min(online, found.quota_cores.value_or(online));
}

void gather_nvidia(const tree& from, platform_facts& found) {
  const auto version = from.line("/proc/driver/nvidia/version");
  found.driver_version = driver_version_of(version);
  const auto parameters = lower(from.read("/proc/driver/nvidia/params").value_or(""));
  found.open_driver = holds(version, "Open Kernel Module");
  found.combines_writes = !holds(parameters, "rmforcedisableiomapwc=1") && !holds(parameters, "rmforcedisableiomapwc=0x1");
  found.static_bar1 = holds(parameters, "rmforcestaticbar1=1") || holds(parameters, "rmforcestaticbar1=0x1");
  for (const auto& device : found.devices) {
    if (device.basics.kind == pci_kind::gpu && device.vendor == nvidia_vendor) found.gpus.push_back(describe_gpu(from, device));
  }
  found.nvidia_fs = gather_nvidia_fs(from);
}

}  // namespace

// The file has existed since Linux 6.1.
std::string architecture_of(const tree& from) {
  auto told = from.line("/proc/sys/kernel/arch");
  if (utsname self{}; told.empty() && from.is_this_machine() && ::uname(&self) == 0) told = self.machine;
  return told;
}

bool nvidia_fs_state::serves(std::string_view driver) const { return std::ranges::find(drivers, driver) != drivers.end(); }

bool platform_facts::has_active_port() const {
  return std::ranges::any_of(ports, [](const auto& each) { return each.port.active(); });
}

const pci_facts* platform_facts::device_at(std::string_view address) const {
  const auto found = std::ranges::find_if(devices, [&](const pci_facts& each) { return each.basics.address == address; });
  return found == devices.end() ? nullptr : &*found;
}

nvidia_fs_state gather_nvidia_fs(const tree& from) {
  const std::string folder = "/proc/driver/nvidia-fs";
  nvidia_fs_state found;
  if (!from.exists(folder)) return found;
  found.version = value_of(from.read(folder + "/version").value_or(""), "version");
  if (found.version.empty()) found.version = "of an unknown version";
  for (const auto& line : lines_of(from.read(folder + "/modules").value_or(""))) {
    if (const auto name = trimmed(line.substr(0, line.find(':'))); !name.empty()) found.drivers.push_back(name);
  }
  const auto statistics = from.read(folder + "/stats").value_or("");
  found.errors = errors_in(statistics);
  found.shadow_mib = number_behind(statistics, {"Active Shadow-Buffer (MiB)", "Active Shadow-Buffer (MB)"});
  found.processes = number_behind(statistics, {"Active Process"});
  const auto nodes = from.list("/dev");
  found.has_nodes = std::ranges::any_of(nodes, [](const auto& name) { return name.starts_with("nvidia-fs"); });
  return found;
}

platform_facts gather_platform(const tree& from) {
  platform_facts found;
  if (from.is_this_machine()) found.features = sys::probe_kernel();
  found.release = from.line("/proc/sys/kernel/osrelease");
  found.architecture = architecture_of(from);
  found.command_line = from.line("/proc/cmdline");
  found.is_wsl = holds(lower(found.release), "microsoft");
  found.numa_nodes = numbers_of(from.line("/sys/devices/system/node/online"));
  found.iommus = from.list("/sys/class/iommu");
  found.devices = gather_pci(from);
  gather_nvidia(from, found);
  found.nvme_multipath = from.line("/sys/module/nvme_core/parameters/multipath") == "Y";
  if (!found.gpus.empty()) found.p2pdma = gather_p2pdma(from, found);
  found.kaslr = gather_kaslr(from, found);
  found.ports = gather_ports(from);
  found.peermem = sys::rdma_door_to_gpus(from.outside("/sys"));
  found.io_uring_disabled = from.number("/proc/sys/kernel/io_uring_disabled");
  found.container = describe_container(from);
  found.has_udev = from.exists("/run/udev/data");
  gather_process(from, found);
  gather_cores(from, found);
  return found;
}

}  // namespace penstock::machine
