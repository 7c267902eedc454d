#include "machine/storage_facts.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <set>

#include <fmt/format.h>

namespace penstock::machine {

namespace {

namespace fs = std::filesystem;

// Returns true for the kernel's virtual file systems and for images that contain no user data.
bool holds_no_data(const std::string& type) {
  static const std::set<std::string, std::less<>> kinds = {
      "autofs",   "binfmt_misc", "bpf",        "cgroup",     "cgroup2",   "configfs",    "debugfs",        "devpts",
      "devtmpfs", "efivarfs",    "fusectl",    "hugetlbfs",  "mqueue",    "nsfs",        "proc",           "pstore",
      "ramfs",    "rootfs",      "rpc_pipefs", "securityfs", "selinuxfs", "squashfs",    "sysfs",          "tracefs",
      "erofs",    "iso9660",     "nfsd",       "fuse.lxcfs", "resctrl",   "fuse.portal", "fuse.gvfsd-fuse"};
  return kinds.contains(type);
}

// Returns true for system folders and for single files mounted into a container.
bool is_for_the_system(const std::string& point, const std::string& type) {
  for (const char* folder :
       {"/proc", "/sys", "/run", "/boot", "/snap", "/etc", "/usr/lib", "/usr/bin", "/var/lib/docker", "/var/lib/containerd"}) {
    if (point == folder || point.starts_with(std::string(folder) + "/")) return true;
  }
  return type == "tmpfs" && point.starts_with("/dev") && point != "/dev/shm";
}

// "\040" is an escaped blank.
std::string unescaped(const std::string& text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool octal = text[i] == '\\' && i + 3 < text.size() && text.find_first_not_of("01234567", i + 1) >= i + 4;
    if (!octal) {
      out += text[i];
      continue;
    }
    out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
    i += 3;
  }
  return out;
}

struct mount_line {
  std::string device, point, options, type, source, super_options;
};

// proc_pid_mountinfo(5): ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG]... - TYPE SOURCE OPTIONS
std::optional<mount_line> parse_mount(const std::string& line) {
  const auto words = words_of(line);
  const auto dash = std::ranges::find(words, "-");
  if (dash - words.begin() < 6 || words.end() - dash < 3) return std::nullopt;
  const bool has_more = words.end() - dash > 3;
  return mount_line{words[2], unescaped(words[4]), words[5], dash[1], unescaped(dash[2]), has_more ? dash[3] : std::string()};
}

std::string file_name(const std::string& path) { return fs::path(path).filename().string(); }

// "[none] mq-deadline"
std::string chosen_in(const std::string& list) {
  const auto from = list.find('[');
  const auto to = list.find(']');
  return from == std::string::npos || to == std::string::npos || to < from ? list : list.substr(from + 1, to - from - 1);
}

drive_facts describe_drive(const tree& from, const std::string& name) {
  const auto folder = "/sys/block/" + name;
  drive_facts found;
  found.name = name;
  found.is_nvme = name.starts_with("nvme");
  found.model = from.line(folder + "/device/model");
  found.transport = from.line(folder + "/device/transport");
  if (found.transport.empty() && found.is_nvme) found.transport = "pcie";
  found.scheduler = chosen_in(from.line(folder + "/queue/scheduler"));
  found.rotates = from.line(folder + "/queue/rotational") == "1";
  found.max_kib = from.number(folder + "/queue/max_sectors_kb");
  found.can_kib = from.number(folder + "/queue/max_hw_sectors_kb");
  found.depth = from.number(folder + "/queue/nr_requests");
  return found;
}

// Descends from a block device, given by its sysfs folder, to the drives below it.
void go_down(const tree& from, const std::string& folder, mount_facts& mount, int depth) {
  constexpr int deepest = 8;
  const auto name = file_name(folder);
  if (name.empty() || depth > deepest) return;
  if (from.exists(folder + "/partition")) return go_down(from, fs::path(folder).parent_path().string(), mount, depth + 1);
  if (from.exists(folder + "/dm")) mount.mapped = true;
  if (const auto level = from.line(folder + "/md/level"); !level.empty()) mount.raid = level;
  const auto below = from.list(folder + "/slaves");
  for (const auto& each : below) go_down(from, from.real(folder + "/slaves/" + each), mount, depth + 1);
  if (below.empty() && std::ranges::find(mount.drives, name) == mount.drives.end()) mount.drives.push_back(name);
}

// The mount options show the mode if it was set explicitly; the kernel's list for ext4 always shows it.
std::string journal_mode_of(const tree& from, const mount_facts& mount) {
  if (auto shown = mount.option("data"); !shown.empty()) return shown;
  return value_of(from.read(fmt::format("/proc/fs/ext4/{}/options", file_name(mount.source))).value_or(""), "data", '=');
}

}  // namespace

bool mount_facts::has_option(std::string_view name) const { return std::ranges::count(words_of(options, ','), name) > 0; }

std::string mount_facts::option(std::string_view name) const {
  for (const auto& each : words_of(options, ',')) {
    if (each.size() > name.size() && each.starts_with(name) && each[name.size()] == '=') return each.substr(name.size() + 1);
  }
  return {};
}

storage_facts gather_storage(const tree& from) {
  storage_facts found;
  for (const auto& line : lines_of(from.read("/proc/self/mountinfo").value_or(""))) {
    const auto parsed = parse_mount(line);
    if (!parsed || holds_no_data(parsed->type) || is_for_the_system(parsed->point, parsed->type)) continue;
    mount_facts mount;
    mount.point = parsed->point;
    mount.type = parsed->type;
    mount.source = parsed->source;
    mount.options = parsed->options + "," + parsed->super_options;
    // btrfs uses its own device numbers for mounts; its mount source is the device.
    auto folder = from.real("/sys/dev/block/" + parsed->device);
    if (folder.empty() && mount.source.starts_with("/dev/")) folder = from.real("/sys/class/block/" + file_name(mount.source));
    if (!folder.empty()) go_down(from, folder, mount, 0);
    if (mount.type == "ext4") mount.journal_mode = journal_mode_of(from, mount);
    for (const auto& name : mount.drives) found.drives.try_emplace(name, describe_drive(from, name));
    // A later mount on the same point hides the earlier one.
    std::erase_if(found.mounts, [&](const mount_facts& each) { return each.point == mount.point; });
    found.mounts.push_back(std::move(mount));
  }
  found.lustre = gather_lustre(from);
  // The kernel's own module does not have a version.
  found.rdma_driver_version = from.line("/sys/module/mlx5_core/version");
  return found;
}

const mount_facts* mount_of(const storage_facts& known, const std::string& path) {
  const mount_facts* best = nullptr;
  for (const auto& each : known.mounts) {
    const bool holds = each.point == "/" || path == each.point || path.starts_with(each.point + "/");
    if (holds && (best == nullptr || each.point.size() >= best->point.size())) best = &each;
  }
  return best;
}

}  // namespace penstock::machine
