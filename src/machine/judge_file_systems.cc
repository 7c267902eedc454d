// Judges the facts from gather_storage according to NVIDIA's guides to GPUDirect Storage and Penstock's own behaviour.
#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "machine/examine.hpp"

namespace penstock::machine {

namespace {

struct surroundings {
  const platform_facts& platform;
  const settings_facts& settings;
  const storage_facts& storage;

  [[nodiscard]] bool p2pdma() const {
    return platform.static_bar1 && platform.p2pdma != p2pdma_kernel::missing && !platform.nvme_multipath;
  }
  [[nodiscard]] bool direct_wanted() const { return !platform.gpus.empty() && platform.gpu_direct(); }
  [[nodiscard]] std::string set(std::string_view key) const {
    const auto* found = settings.find(key);
    return found == nullptr || found->value == "[]" || found->value == "{}" ? std::string() : found->value;
  }
};

std::string number_or_unknown(const std::optional<std::uint64_t>& value) { return value ? std::to_string(*value) : "unknown"; }

// --- drives ---------------------------------------------------------------------------------------------------------------------

void judge_drive(const drive_facts& drive, findings& out) {
  constexpr std::uint64_t large_kib = 512;
  const auto model = drive.model.empty() ? std::string("a drive without a model name") : drive.model;
  const auto max = number_or_unknown(drive.max_kib);
  const auto can = number_or_unknown(drive.can_kib);
  const auto transport = drive.is_nvme ? "NVMe over " + drive.transport : std::string("not NVMe");
  out.add("drive.found", drive.name, {{"model", model}, {"transport", transport}, {"max", max}, {"depth", number_or_unknown(drive.depth)}});
  if (drive.max_kib && drive.can_kib && *drive.max_kib < large_kib && *drive.max_kib < *drive.can_kib) {
    out.add("drive.small_requests", drive.name, {{"model", model}, {"max", max}, {"can", can}, {"drive", drive.name}});
  }
  if (drive.is_nvme && !drive.scheduler.empty() && drive.scheduler != "none") {
    out.add("drive.scheduler", drive.name, {{"model", model}, {"scheduler", drive.scheduler}, {"drive", drive.name}});
  }
  if (drive.rotates && !drive.is_nvme && !drive.model.empty()) out.add("drive.rotates", drive.name, {{"model", model}});
}

// Judges by what Linux 7.4 supports. The engine determines by trial what a file or device accepts.
void judge_lending(const platform_facts& platform, const storage_facts& known, findings& out) {
  if (platform.gpus.empty() || !platform.lends_dma_bufs()) return;
  for (const auto& [name, drive] : known.drives) {
    if (!drive.is_nvme || drive.transport != "pcie") out.add("dma_buf.drive", name);
  }
  for (const auto& mount : known.mounts) out.add("dma_buf.file_system", mount.point, {{"type", mount.type}});
}

// --- local file systems ---------------------------------------------------------------------------------------------------------

std::string drives_of(const mount_facts& mount) {
  if (mount.drives.empty()) return mount.source;
  const auto names = fmt::format("{}", fmt::join(mount.drives, ", "));
  return mount.raid.empty() ? names : fmt::format("{} of {}", mount.raid, names);
}

bool is_plain_nvme(const surroundings& around, const mount_facts& mount) {
  if (mount.drives.empty() || mount.mapped || (!mount.raid.empty() && mount.raid != "raid0")) return false;
  return std::ranges::all_of(mount.drives, [&](const auto& name) { return around.storage.drives.at(name).is_nvme; });
}

constexpr auto raid_key = "block.raid.use_pci_p2pdma";

std::string server_of_nvme(const surroundings& around, const mount_facts& mount) {
  const bool remote =
      std::ranges::any_of(mount.drives, [&](const auto& name) { return around.storage.drives.at(name).transport != "pcie"; });
  if (!remote && mount.raid.empty() && around.p2pdma()) return "P2PDMA";
  if (!remote && around.p2pdma() && around.set(raid_key) == "true") return "P2PDMA";
  return around.platform.nvidia_fs.serves(remote ? "nvme_rdma" : "nvme") ? "nvidia-fs" : std::string();
}

void judge_local(const surroundings& around, const mount_facts& mount, findings& out) {
  const auto drives = drives_of(mount);
  if (!around.direct_wanted()) return out.add("fs.plain", mount.point, {{"type", mount.type}, {"drives", drives}});
  if (!is_plain_nvme(around, mount)) return out.add("fs.not_nvme", mount.point, {{"type", mount.type}, {"drives", drives}});
  if (mount.type == "ext4" && mount.option("data") != "ordered") {
    const auto shown = mount.option("data");
    auto mode = shown.empty() ? std::string("without data= in its options") : "with data=" + shown;
    if (shown.empty() && !mount.journal_mode.empty()) mode += fmt::format(" (in effect: {})", mount.journal_mode);
    return out.add("fs.ext4_journal", mount.point, {{"drives", drives}, {"mode", mode}});
  }
  const auto by = server_of_nvme(around, mount);
  if (by.empty() && !mount.raid.empty() && around.p2pdma()) {
    return out.add("fs.raid_p2pdma", mount.point, {{"type", mount.type}, {"drives", drives}, {"key", raid_key}});
  }
  if (by.empty()) return out.add("fs.nvme_unserved", mount.point, {{"type", mount.type}, {"drives", drives}});
  out.add("fs.direct", mount.point, {{"type", mount.type}, {"drives", drives}, {"by", by}});
}

// --- network file systems -------------------------------------------------------------------------------------------------------

// For clients that must register with nvidia-fs: adds a finding if this one has not; returns how GPUDirect Storage works there.
std::string served_by(const surroundings& around, const mount_facts& mount, std::string_view module, findings& out) {
  const auto& nvidia_fs = around.platform.nvidia_fs;
  if (nvidia_fs.serves(module)) return "through nvidia-fs";
  if (nvidia_fs.loaded() && !around.platform.gpus.empty()) {
    out.add("fs.unserved", mount.point, {{"type", mount.type}, {"module", std::string(module)}});
  }
  return "none";
}

void judge_lustre_mount(const surroundings& around, const mount_facts& mount, findings& out) {
  const auto by = served_by(around, mount, "lnet", out);
  const auto version = around.storage.lustre.version.empty() ? std::string() : " " + around.storage.lustre.version;
  out.add("fs.lustre", mount.point, {{"version", version}, {"source", mount.source}, {"by", by}});
  // "10.0.0.1@o2ib:10.0.0.2@o2ib:/scratch"
  const auto at = mount.source.find('@');
  if (at == std::string::npos) return;
  const auto net = mount.source.substr(at + 1, mount.source.find_first_of(":,", at) - at - 1);
  if (!net.starts_with("o2ib")) out.add("fs.lustre_tcp", mount.point, {{"net", net}});
}

std::vector<const nic_port_facts*> active_ports(const surroundings& around) {
  std::vector<const nic_port_facts*> all;
  for (const auto& each : around.platform.ports) {
    if (each.port.active() && !each.port.is_virtual) all.push_back(&each);
  }
  return all;
}

// Reports its page cache mode, and what NVIDIA's guide requires of the backends (best practices, "WekaFS"), which a client cannot check.
void judge_weka_mount(const surroundings& around, const mount_facts& mount, findings& out) {
  if (mount.has_option("coherent")) {
    out.add("fs.weka_coherent", mount.point);
  } else {
    const bool reads = mount.has_option("readcache");
    out.add("fs.weka_mode", mount.point,
            {{"mode", reads                            ? "readcache"
                      : mount.has_option("writecache") ? "writecache"
                                                       : "writecache, its default"}});
  }
  double gigabits = 0;
  const auto ports = active_ports(around);
  for (const auto* each : ports) gigabits += std::strtod(each->rate.c_str(), nullptr);
  if (gigabits <= 0) return;
  out.add("fs.weka_backends", mount.point,
          {{"count", std::to_string(ports.size())},
           {"rate", fmt::format("{:.0f}", gigabits / 8)},
           {"twice", fmt::format("{:.0f}", gigabits / 4)}});
}

void judge_weka(const surroundings& around, const mount_facts& mount, findings& out) {
  (void)served_by(around, mount, "wekafsio", out);
  auto nics = around.set("fs.weka.rdma_dev_addr_list");
  if (nics.empty()) nics = around.set("fs.weka.mount_table");
  if (nics.empty()) nics = around.set("properties.rdma_dev_addr_list");
  if (nics.empty()) {
    out.add("fs.weka_no_list", mount.point);
  } else {
    out.add("fs.weka", mount.point, {{"nics", nics}});
    if (around.set("fs.weka.rdma_write_support") != "true") out.add("fs.weka_writes", mount.point);
  }
  judge_weka_mount(around, mount, out);
  std::vector<std::string> modes;
  for (const auto& each : around.platform.ports) {
    if (each.port.active() && std::ranges::find(modes, each.link_mode) == modes.end()) modes.push_back(each.link_mode);
  }
  if (modes.size() > 1) out.add("fs.weka_mixed", mount.point, {{"modes", fmt::format("{}", fmt::join(modes, ", "))}});
}

// VAST's client spreads its connections over addresses of the server (remoteports) and of this machine (localports).
void judge_nfs_ways(const surroundings& around, const mount_facts& mount, findings& out) {
  const auto remote = mount.option("remoteports");
  const auto local = mount.option("localports");
  const auto connections = mount.option("nconnect");
  const auto ports = active_ports(around).size();
  const auto shown = connections.empty() ? std::string("1") : connections;
  if (remote.empty()) {
    if (mount.option("proto") == "rdma" && ports > 1) out.add("fs.nfs_one_path", mount.point, {{"count", std::to_string(ports)}});
    return;
  }
  if (std::strtoul(shown.c_str(), nullptr, 10) < 2) {
    return out.add("fs.nfs_few_connections", mount.point, {{"remote", remote}, {"connections", shown}});
  }
  const auto proto = mount.option("proto");
  out.add(
      "fs.nfs_multipath", mount.point,
      {{"proto", proto.empty() ? "tcp" : proto}, {"remote", remote}, {"local", local.empty() ? "none" : local}, {"connections", shown}});
  if (local.empty() && ports > 1) out.add("fs.nfs_local_ports", mount.point, {{"count", std::to_string(ports)}});
}

void judge_nfs(const surroundings& around, const mount_facts& mount, findings& out) {
  judge_nfs_ways(around, mount, out);
  const auto proto = mount.option("proto");
  if (proto != "rdma") return out.add("fs.nfs_tcp", mount.point, {{"proto", proto.empty() ? "tcp" : proto}, {"source", mount.source}});
  const auto by = served_by(around, mount, "rpcrdma", out);
  out.add("fs.nfs_rdma", mount.point, {{"source", mount.source}, {"by", by}});
}

// --- all ------------------------------------------------------------------------------------------------------------------------

bool is_one_of(const std::string& type, std::initializer_list<std::string_view> names) {
  return std::ranges::find(names, type) != names.end();
}

void judge_mount(const surroundings& around, const mount_facts& mount, findings& out) {
  const auto& type = mount.type;
  if (is_one_of(type, {"ext4", "xfs"})) return judge_local(around, mount, out);
  if (is_one_of(type, {"btrfs", "zfs", "ext2", "ext3", "f2fs", "vfat", "exfat"})) {
    const auto since = is_one_of(type, {"btrfs", "zfs"}) ? "since 1.17" : "if at all";
    return out.add("fs.compatible", mount.point, {{"type", type}, {"since", since}});
  }
  if (is_one_of(type, {"tmpfs", "hugetlbfs"})) return out.add("fs.memory", mount.point, {{"type", type}});
  if (type == "overlay") return out.add("fs.overlay", mount.point);
  if (is_one_of(type, {"9p", "virtiofs", "drvfs", "vboxsf"})) return out.add("fs.host_share", mount.point, {{"type", type}});
  if (type == "fuseblk" || type == "fuse" || type.starts_with("fuse.")) return out.add("fs.fuse", mount.point, {{"type", type}});
  if (type == "lustre") return judge_lustre_mount(around, mount, out);
  if (type == "wekafs") return judge_weka(around, mount, out);
  if (is_one_of(type, {"nfs", "nfs4"})) return judge_nfs(around, mount, out);
  if (type == "beegfs") return out.add("fs.beegfs", mount.point, {{"by", served_by(around, mount, "beegfs", out)}});
  if (type == "gpfs") return out.add("fs.gpfs", mount.point, {{"by", served_by(around, mount, "mmfslinux", out)}});
  out.add("fs.other", mount.point, {{"type", type}});
}

// GPUDirect Storage over the network needs MLNX_OFED 5.1; current versions are numbered by year (24.10).
void judge_rdma_driver(const surroundings& around, findings& out) {
  if (around.platform.ports.empty()) return;
  const auto& version = around.storage.rdma_driver_version;
  if (version.empty()) return out.add("ofed.in_kernel");
  const auto major = std::strtoul(version.c_str(), nullptr, 10);
  const auto dot = version.find('.');
  const auto minor = dot == std::string::npos ? 0 : std::strtoul(version.c_str() + dot + 1, nullptr, 10);
  out.add(major < 5 || (major == 5 && minor < 1) ? "ofed.old" : "ofed.version", {}, {{"version", version}});
}

}  // namespace

findings judge_holes(const findings& of_machine, const mount_facts& mount, const file_facts& file) {
  findings out;
  const auto by_p2pdma = [&](const finding& each) {
    return each.id == "fs.direct" && each.subject == mount.point && each.reason.find("P2PDMA") != std::string::npos;
  };
  constexpr std::uint64_t least = std::uint64_t{64} << 10;  // ext4 stores the bytes of small files elsewhere
  if (file.stored_bytes + least > file.size_bytes || std::ranges::none_of(of_machine.all(), by_p2pdma)) return out;
  out.add("file.sparse", file.name, {{"holes", bytes_text(file.size_bytes - file.stored_bytes)}, {"size", bytes_text(file.size_bytes)}});
  return out;
}

findings judge_file_systems(const platform_facts& platform, const settings_facts& settings, const storage_facts& known) {
  const surroundings around{platform, settings, known};
  findings out;
  for (const auto& [name, drive] : known.drives) judge_drive(drive, out);
  for (const auto& mount : known.mounts) judge_mount(around, mount, out);
  judge_lending(platform, known, out);
  out.append(judge_lustre(platform, known.lustre));
  judge_rdma_driver(around, out);
  return out;
}

}  // namespace penstock::machine
