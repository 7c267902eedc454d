// Judges the facts from gather_platform: GPUs and the paths to them, the kernel, containers and limits.
#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>
#include <system_error>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "machine/examine.hpp"

namespace penstock::machine {

namespace {

constexpr std::uint64_t mib = std::uint64_t{1} << 20;
constexpr std::uint64_t gib = std::uint64_t{1} << 30;

std::string listed(const std::vector<std::string>& words) { return fmt::format("{}", fmt::join(words, ", ")); }

// --- GPUs -----------------------------------------------------------------------------------------------------------------------

void judge_gpu(const platform_facts& known, const gpu_facts& gpu, bool others_have_nodes, findings& out) {
  const pci_facts& device = *known.device_at(gpu.address);
  if (!device.driver.empty() && device.driver != "nvidia") return out.add("gpu.other_driver", gpu.address, {{"driver", device.driver}});
  if (known.driver_version.empty()) return out.add("gpu.no_driver", gpu.address);
  if (gpu.name.empty()) return;  // a container that has access to another GPU
  if (!gpu.node_exists) {
    if (!others_have_nodes)
      out.add("gpu.no_node", gpu.address, {{"name", gpu.name}, {"file", gpu.node.empty() ? "/dev/nvidia0" : gpu.node}});
    return;
  }
  const auto window = device.basics.window_bytes;
  const auto bar1 = window == 0 ? std::string("an unknown size") : bytes_text(window);
  const auto node = device.basics.numa_node < 0 ? std::string("unknown") : std::to_string(device.basics.numa_node);
  const auto capability = gpu.capability.empty() ? "" : ", compute capability " + gpu.capability;
  out.add("gpu.found", gpu.address,
          {{"name", gpu.name}, {"capability", capability}, {"driver", known.driver_version}, {"bar1", bar1}, {"node", node}});
  if (window > 0 && window <= 256 * mib) out.add("gpu.small_bar1", gpu.address, {{"name", gpu.name}, {"bar1", bar1}});
}

void judge_gpus(const platform_facts& known, findings& out) {
  if (known.is_wsl) return out.add("gpu.wsl");
  if (known.gpus.empty()) return out.add("gpu.none");
  const bool some_node = std::ranges::any_of(known.gpus, &gpu_facts::node_exists);
  for (const auto& gpu : known.gpus) judge_gpu(known, gpu, some_node, out);
}

// --- links ----------------------------------------------------------------------------------------------------------------------

std::string what_is(const pci_facts& device) {
  if (device.basics.kind == pci_kind::gpu) return "GPU";
  return device.basics.kind == pci_kind::network ? "network card" : "drive";
}

void judge_link(const pci_facts& device, findings& out) {
  if (!device.now.known() || !device.most.known()) return;  // virtual machines do not report it
  const auto& address = device.basics.address;
  const auto what = what_is(device);
  const auto now = to_string(device.now);
  const auto can = to_string(device.most);
  const bool narrow = device.now.lanes < device.most.lanes;
  const bool slower = device.now.gigatransfers < device.most.gigatransfers;
  if (!narrow && !slower) return out.add("link.full", address, {{"what", what}, {"now", now}});
  if (const auto* port = device.bridges.empty() ? nullptr : &device.bridges.back(); port != nullptr && port->most.known()) {
    const bool held = (narrow && port->most.lanes < device.most.lanes) || (slower && port->most.gigatransfers < device.most.gigatransfers);
    if (held) {
      return out.add("link.slot", address, {{"what", what}, {"can", can}, {"port", port->address}, {"slot", to_string(port->most)}});
    }
  }
  if (narrow) {
    const auto lanes = std::to_string(device.most.lanes);
    return out.add("link.narrow", address, {{"what", what}, {"now", now}, {"can", can}, {"lanes", lanes}, {"address", address}});
  }
  const bool may_idle = device.basics.kind == pci_kind::gpu;
  out.add(may_idle ? "link.idle" : "link.low_generation", address, {{"what", what}, {"now", now}, {"can", can}});
}

bool moves_data(const pci_facts& device) {
  if (device.basics.kind == pci_kind::gpu) return device.vendor == nvidia_vendor;
  return device.is_nvme || device.basics.kind == pci_kind::network;
}

// --- between devices ------------------------------------------------------------------------------------------------------------

void judge_acs(const platform_facts& known, findings& out) {
  std::map<std::string, std::pair<acs_state, std::vector<std::string>>> switches;  // with the devices below each of them
  bool above_gpu = false;
  for (const auto& device : known.devices) {
    if (!moves_data(device)) continue;
    for (const auto& bridge : device.bridges) {
      if (!bridge.is_switch) continue;
      above_gpu = above_gpu || device.basics.kind == pci_kind::gpu;
      auto& entry = switches[bridge.address];
      entry.first = bridge.acs;
      entry.second.push_back(device.basics.address);
    }
  }
  if (!above_gpu) return out.add("acs.no_switch");
  bool any_on = false;
  bool any_hidden = false;
  for (const auto& [address, entry] : switches) {
    any_hidden = any_hidden || entry.first == acs_state::hidden;
    if (entry.first != acs_state::on) continue;
    any_on = true;
    out.add("acs.on", address, {{"below", listed(entry.second)}, {"port", address}});
  }
  if (any_hidden) {
    out.add("acs.hidden");
  } else if (!any_on) {
    out.add("acs.off");
  }
}

// Returns the words on the kernel's command line that concern the IOMMU.
std::string iommu_words(const std::string& command_line) {
  std::vector<std::string> found;
  for (const auto& word : words_of(command_line)) {
    if (word.find("iommu") != std::string::npos) found.push_back(word);
  }
  return found.empty() ? "nothing on the command line" : listed(found);
}

void judge_iommu(const platform_facts& known, findings& out) {
  const pci_facts& gpu = *known.device_at(known.gpus.front().address);
  if (known.iommus.empty() && !gpu.has_iommu_group) return out.add("iommu.off");
  const auto words = iommu_words(known.command_line);
  const auto how = gpu.iommu_type.empty() ? words : fmt::format("group type {}; {}", gpu.iommu_type, words);
  if (known.architecture == "aarch64") return out.add("iommu.needed");
  const bool asked = words.find("iommu=pt") != std::string::npos || words.find("iommu.passthrough=1") != std::string::npos;
  if (gpu.iommu_type == "identity" || (gpu.iommu_type.empty() && asked)) return out.add("iommu.passthrough", {}, {{"how", how}});
  out.add(gpu.iommu_type.empty() ? "iommu.unknown" : "iommu.on", {}, {{"how", how}});
}

// Returns false if the GPU may be assigned to a virtual machine.
bool is_ours(const pci_facts& gpu) { return gpu.driver.empty() || gpu.driver == "nvidia"; }

void judge_numa_of(const platform_facts& known, const pci_facts& gpu, findings& out) {
  const int node = gpu.basics.numa_node;
  if (node < 0) return out.add("numa.unknown", gpu.basics.address);
  std::vector<std::string> near;
  std::vector<std::string> nodes;
  for (const auto& device : known.devices) {
    if (!device.is_nvme || device.basics.numa_node < 0) continue;
    if (device.basics.numa_node == node) near.push_back(device.basics.address);
    const auto other = std::to_string(device.basics.numa_node);
    if (std::ranges::find(nodes, other) == nodes.end()) nodes.push_back(other);
  }
  if (nodes.empty()) return;
  out.add(near.empty() ? "numa.drive_far" : "numa.drive_near", gpu.basics.address,
          {{"drives", listed(near)}, {"node", std::to_string(node)}, {"nodes", fmt::format("{}", fmt::join(nodes, " or "))}});
}

void judge_numa(const platform_facts& known, findings& out) {
  if (known.numa_nodes.size() <= 1) return out.add("numa.one");
  for (const auto& gpu : known.gpus) {
    if (const auto& device = *known.device_at(gpu.address); is_ours(device)) judge_numa_of(known, device, out);
  }
}

// --- the kernel -----------------------------------------------------------------------------------------------------------------

std::string why(int error) { return std::generic_category().message(error); }

void judge_io_uring(const platform_facts& known, findings& out) {
  const int error = known.features.io_uring;
  const auto setting = known.io_uring_disabled.value_or(0);
  const bool says_no = setting == 2 || (setting == 1 && !known.is_root);
  if (error > 0 ? setting > 0 : says_no && error < 0) return out.add("io_uring.disabled", {}, {{"value", std::to_string(setting)}});
  if (error < 0) return;
  if (error == 0) return out.add("io_uring.works");
  const bool missing = error == ENOSYS && known.seccomp != "filter";
  out.add(missing ? "io_uring.missing" : "io_uring.denied", {}, {{"why", why(error)}});
}

void judge_kernel(const platform_facts& known, findings& out) {
  const auto& features = known.features;
  if (features.cachestat == 0) out.add("cachestat.works");
  if (features.cachestat > 0) {
    const bool missing = features.cachestat == ENOSYS && known.seccomp != "filter";
    out.add(missing ? "cachestat.missing" : "cachestat.denied", {}, {{"why", why(features.cachestat)}});
  }
  judge_io_uring(known, out);
  if (features.memfd >= 0) out.add(features.memfd == 0 ? "memfd.works" : "memfd.denied", {}, {{"why", why(features.memfd)}});
  if (features.vm_readv >= 0) out.add(features.vm_readv == 0 ? "vm_readv.works" : "vm_readv.denied", {}, {{"why", why(features.vm_readv)}});
  if (features.cachestat < 0 && features.memfd < 0) out.add("kernel.unasked");
}

// --- peer-to-peer ---------------------------------------------------------------------------------------------------------------

// Called if the driver is set up for static BAR1. Checks the other requirements.
void judge_static_bar1(const platform_facts& known, findings& out) {
  if (known.nvme_multipath) return out.add("p2pdma.multipath");
  if (!known.open_driver) return out.add("p2pdma.closed_driver");
  out.add("p2pdma.ready");
  if (known.combines_writes) out.add("p2pdma.write_combining");
  if (known.kaslr == true && known.architecture == "x86_64") out.add("p2pdma.kaslr");
}

void judge_p2pdma(const platform_facts& known, findings& out) {
  if (known.p2pdma == p2pdma_kernel::unknown) return out.add("p2pdma.unknown", {}, {{"release", known.release}});
  if (known.p2pdma == p2pdma_kernel::missing) {
    if (!known.nvidia_fs.loaded()) out.add("p2pdma.kernel");
    return;
  }
  if (known.static_bar1) return judge_static_bar1(known, out);
  out.add(known.nvidia_fs.loaded() ? "p2pdma.unused" : "p2pdma.driver");
}

void judge_nvidia_fs(const platform_facts& known, findings& out) {
  const auto& module = known.nvidia_fs;
  if (!module.loaded()) {
    if (!known.gpu_direct()) out.add("nvidia_fs.missing");
    return;
  }
  out.add("nvidia_fs.loaded", {},
          {{"version", module.version}, {"drivers", module.drivers.empty() ? "no driver" : listed(module.drivers)}});
  if (module.shadow_mib) {
    const auto processes = module.processes ? std::to_string(*module.processes) : std::string("an unknown number of");
    out.add("nvidia_fs.buffers", {}, {{"mib", std::to_string(*module.shadow_mib)}, {"processes", processes}});
  }
  if (!module.has_nodes) out.add("nvidia_fs.no_nodes");
  if (!module.errors.empty()) out.add("nvidia_fs.errors", {}, {{"errors", listed(module.errors)}});
}

// Reports what prevents the dma_buf path on this machine, independently of a file; nothing if drives can access the GPU in another way.
void judge_dma_buf(const platform_facts& known, findings& out) {
  const int error = known.features.dma_buf;
  if (error < 0 || (known.gpu_direct() && !known.lends_dma_bufs())) return;
  const bool is_answer = error == EINVAL || error == EOPNOTSUPP;
  if (error > 0) return out.add(is_answer ? "dma_buf.kernel" : "dma_buf.unanswered", {}, {{"why", why(error)}});
  out.add(known.open_driver ? "dma_buf.ready" : "dma_buf.closed_driver");
}

// --- containers and limits ------------------------------------------------------------------------------------------------------

void judge_container(const platform_facts& known, findings& out) {
  if (known.container.empty()) {
    out.add("container.none");
  } else {
    out.add("container.found", {}, {{"what", known.container}, {"seccomp", known.seccomp}});
  }
  if (!known.has_udev && !known.gpus.empty()) out.add("container.no_udev");
}

void judge_limits(const platform_facts& known, findings& out) {
  constexpr unsigned cores_of_a_link = 16;  // three quarters of them copy
  constexpr std::uint64_t pinned_bytes = 276 * mib;
  constexpr std::uint64_t descriptors = 1024;
  if (known.quota_cores) {
    const bool few = *known.quota_cores < cores_of_a_link && !known.gpus.empty();
    out.add(few ? "cpu.quota" : "cpu.free", {}, {{"cores", std::to_string(*known.quota_cores)}});
  }
  if (known.memory_limit_bytes) {
    out.add(*known.memory_limit_bytes < 4 * gib ? "memory.limit" : "memory.free", {}, {{"bytes", bytes_text(*known.memory_limit_bytes)}});
  }
  if (const auto& limit = known.locked_memory; limit.known) {
    const bool low = limit.soft && *limit.soft < pinned_bytes && !known.may_lock_all;
    const auto text = known.may_lock_all ? "not limited (CAP_IPC_LOCK)" : limit.soft ? bytes_text(*limit.soft) : "not limited";
    out.add(low ? "memlock.low" : "memlock.enough", {}, {{"bytes", text}});
  }
  if (const auto& limit = known.open_files; limit.known) {
    const bool low = limit.soft && *limit.soft < descriptors;
    out.add(low ? "nofile.low" : "nofile.enough", {}, {{"count", limit.soft ? std::to_string(*limit.soft) : "not limited"}});
  }
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::string_view units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) value /= 1024, ++unit;
  const auto text = fmt::format("{:.1f}", value);
  return fmt::format("{} {}", text.ends_with(".0") ? text.substr(0, text.size() - 2) : text, units[unit]);
}

findings judge_platform(const platform_facts& known) {
  findings out;
  judge_gpus(known, out);
  for (const auto& device : known.devices) {
    if (moves_data(device)) judge_link(device, out);
  }
  if (!known.gpus.empty()) {
    judge_acs(known, out);
    judge_iommu(known, out);
  }
  out.append(judge_network(known));
  judge_numa(known, out);
  judge_kernel(known, out);
  if (!known.gpus.empty() && !known.driver_version.empty()) {
    judge_p2pdma(known, out);
    judge_nvidia_fs(known, out);
    judge_dma_buf(known, out);
    if (!known.ports.empty()) out.add(known.peermem.empty() ? "peermem.missing" : "peermem.works", {}, {{"how", known.peermem}});
  }
  judge_container(known, out);
  judge_limits(known, out);
  return out;
}

}  // namespace penstock::machine
