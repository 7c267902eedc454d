#include "cli/begin/bundle.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <ctime>
#include <span>

#include "cli/begin/secrets.hpp"
#include "cli/begin/tar_bytes.hpp"
#include "cli/common/json.hpp"
#include "cli/common/plain_file.hpp"
#include "cli/common/sizes.hpp"
#include "machine/examine.hpp"
#include "machine/loader.hpp"
#include "machine/open_below.hpp"
#include "penstock/penstock.hpp"

namespace penstock::cli {
namespace {

constexpr std::size_t most_of_entry = std::size_t{128} << 10;
constexpr std::size_t most_of_all = std::size_t{4} << 20;
constexpr std::size_t longest_line = 160;  // a longer file gets its own entry instead of a line in read.txt

// Files to read in addition to those that the findings are based on.
constexpr std::array further_files{
    "/proc/meminfo",
    "/proc/modules",
    "/proc/version",
    "/proc/self/limits",
    "/proc/self/status",
    "/proc/driver/nvidia/params",
    "/proc/driver/nvidia/version",
    "/proc/driver/nvidia-fs/modules",
    "/proc/driver/nvidia-fs/peer_affinity",
    "/proc/driver/nvidia-fs/stats",
    "/proc/driver/nvidia-fs/version",
    "/etc/os-release",
    "/etc/modprobe.d/lustre.conf",
    "/etc/modprobe.d/nvidia.conf",
    "/etc/modprobe.d/nvme.conf",
    "/sys/module/nvidia_fs/version",
    "/sys/module/nvme_core/parameters/multipath",
};

// --- parts of files

bool is_text(std::string_view text) { return text.find('\0') == std::string_view::npos; }

std::string lines_with(const std::string& text, std::initializer_list<std::string_view> words) {
  std::string out;
  for (const auto& line : machine::lines_of(text)) {
    if (std::ranges::any_of(words, [&](std::string_view word) { return line.find(word) != std::string::npos; })) out += line + "\n";
  }
  return out;
}

// Returns the first processor only, because all processors of a machine are alike.
std::string first_processor(const std::string& text) { return text.substr(0, text.find("\n\n") + 1); }

// Returns only the lines about NFS mounts, without their per-operation statistics.
std::string network_mounts(const std::string& text) { return lines_with(text, {"fstype nfs", "opts:", "xprt:", "bytes:", "events:"}); }

// Returns the useful part of a file; empty if there is none.
std::string excerpt_of(const std::string& path, const std::string& text) {
  if (path == "/proc/self/environ" || path == "/proc/kallsyms" || !is_text(text)) return {};
  if (path == "/proc/cpuinfo") return first_processor(text);
  if (path == "/proc/self/mountstats") return network_mounts(text);
  if (path.starts_with("/boot/config-")) return lines_with(text, {"P2PDMA", "IOMMU", "RANDOMIZE_BASE", "IO_URING", "NVME", "ZONE_DEVICE"});
  return text;
}

std::string beginning_of(std::string text) {
  if (text.size() <= most_of_entry) return text;
  text.resize(most_of_entry);
  return text + "\n(cut here)\n";
}

// Opens a log. Refuses links and pipes: other users could place them at the path of a log in the working directory or in /tmp, and so
// control what is sent. Errors: the reason why the file is not a log owned by this user or root; not_found if it does not exist.
result<owned_fd> open_log(const machine::tree& from, const std::string& path) {
  owned_fd opened(machine::open_below(from.outside(""), path, O_RDONLY | O_NONBLOCK | O_NOFOLLOW));
  if (opened.get() < 0 && errno == ELOOP) return status(errc::unsupported, "is a symbolic link, which is not followed");
  if (opened.get() < 0) return status::from_errno(errno, "open");
  struct stat info {};
  if (::fstat(opened.get(), &info) != 0) return status::from_errno(errno, "fstat");
  if (!S_ISREG(info.st_mode)) return status(errc::unsupported, "is not a regular file");
  if (info.st_uid != ::geteuid() && info.st_uid != 0) return status(errc::unsupported, "is owned by another user");
  return opened;
}

// Returns the end of a log, starting at the beginning of a line.
result<std::string> end_of_log(const machine::tree& from, const std::string& path) {
  auto opened = open_log(from, path);
  if (!opened) return opened.error();
  const off_t size = ::lseek(opened->get(), 0, SEEK_END);
  if (size < 0) return status::from_errno(errno, "seek to its end");
  const auto length = std::min(static_cast<std::size_t>(size), most_of_entry);
  std::string text(length, '\0');
  const auto offset = static_cast<std::uint64_t>(size) - length;
  if (status error = read_plainly(opened->get(), path, offset, std::as_writable_bytes(std::span(text))); !error.ok()) return error;
  return offset == 0 ? text : text.substr(std::min(text.find('\n'), length - 1) + 1);
}

// --- the entries

std::string text_of(const machine_report& known) {
  std::string out;
  for (const auto& [name, found] : versions(known)) out += fmt::format("{}: {}\n", name, found.empty() ? "none" : found);
  for (const auto& each : known.findings.all()) {
    const auto subject = each.subject.empty() ? std::string() : each.subject + ": ";
    out += fmt::format("{} {} {}{}\n", to_string(each.verdict), each.id, subject, each.reason);
    if (!each.remedy.empty()) out += fmt::format("  -> {}\n", each.remedy);
  }
  return out;
}

bool is_switch(const nlohmann::json& value) { return value.is_boolean() || value.is_null() || (value.is_structured() && value.empty()); }

// Removes secrets before the strings are quoted, because values quoted twice would not be recognized.
nlohmann::json without_secret_texts(nlohmann::json document) {
  if (document.is_string()) return without_secrets(document.get<std::string>());
  if (!document.is_structured()) return document;
  for (auto& [name, each] : document.items()) {
    if (document.is_object() && names_secret(name) && !is_switch(each)) {
      each = std::string(removed_mark);
    } else {
      each = without_secret_texts(std::move(each));
    }
  }
  return document;
}

std::string on_one_line(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '\n' ? std::string("\\n") : std::string(1, c);
  return out;
}

// Returns only the variables of Penstock and of the interfaces that it implements. Removes the whole value of a secret, because it can have
// any format.
std::string environment_of(const machine::tree& from) {
  std::string out;
  for (const auto& each : machine::words_of(from.read("/proc/self/environ").value_or(""), '\0')) {
    const auto sign = std::min(each.find('='), each.size());
    const auto name = each.substr(0, sign);
    const bool is_ours = name.starts_with("PENSTOCK_") || name.starts_with("CUFILE_") || name.starts_with("KVIKIO_");
    if (!is_ours || sign == each.size()) continue;
    const auto value = each.substr(sign + 1);
    out += fmt::format("{}={}\n", name, names_secret(name) ? std::string(removed_mark) : on_one_line(without_secrets(value)));
  }
  return out;
}

std::string optional_number(const std::optional<std::uint64_t>& value) { return value ? std::to_string(*value) : "unknown"; }

std::string storage_of(const machine_report& known) {
  std::string out;
  for (const auto& [name, drive] : known.storage.drives) {
    out += fmt::format("drive {}: {}, {}, {}, scheduler {}, max_sectors_kb {} of {}, nr_requests {}\n", name, drive.model,
                       drive.transport.empty() ? "not NVMe" : drive.transport, drive.rotates ? "rotational" : "non-rotational",
                       drive.scheduler, optional_number(drive.max_kib), optional_number(drive.can_kib), optional_number(drive.depth));
  }
  for (const auto& mount : known.storage.mounts) {
    out += fmt::format("mount {}: {} from {} ({}){}{}\n", mount.point, mount.type, mount.source, mount.options,
                       mount.raid.empty() ? "" : ", " + mount.raid, mount.mapped ? ", through the device mapper" : "");
    for (const auto& drive : mount.drives) out += fmt::format("  on {}\n", drive);
  }
  return out;
}

std::string pci_of(const machine_report& known) {
  std::string out;
  for (const auto& device : known.platform.devices) {
    out += fmt::format("{} vendor {:04x} device {:04x} driver {} node {} window {} iommu {} now {} can {}\n", device.basics.address,
                       device.vendor, device.model, device.driver.empty() ? "none" : device.driver, device.basics.numa_node,
                       machine::bytes_text(device.basics.window_bytes), device.iommu_type.empty() ? "unknown" : device.iommu_type,
                       to_string(device.now), to_string(device.most));
    for (const auto& bridge : device.bridges) out += fmt::format("  below {}{}\n", bridge.address, bridge.is_switch ? " (switch)" : "");
  }
  return out;
}

class bundle_maker {
 public:
  void add(const std::string& name, const std::string& what, const std::string& content) {
    if (!content.empty()) put(name, what, beginning_of(without_secrets(content)));
  }
  // Adds the whole document or nothing, because programs cannot parse a truncated document.
  void add_json(const std::string& name, const std::string& what, nlohmann::json document) {
    document = without_secret_texts(std::move(document));
    put(name, what, without_controls(document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace)) + "\n");
  }
  void add_unread(const std::string& why) { made_.unread.push_back(why); }
  bundle take() { return std::move(made_); }

 private:
  void put(const std::string& name, const std::string& what, std::string shown) {
    if (total_ + shown.size() > most_of_all)
      return made_.unread.push_back(fmt::format("{}: omitted, because the bundle already contains {}", name, format_size(total_)));
    total_ += shown.size();
    made_.entries.push_back({name, what, std::move(shown)});
  }
  bundle made_;
  std::size_t total_ = 0;
};

// Adds the files that were read. One-line files share an entry, so that the bundle is easy to review before it is sent.
void add_read_files(const machine::tree& from, const machine::tree_log& log, bundle_maker& out) {
  std::string small;
  constexpr std::size_t longest_name = 70;
  for (const auto& [path, text] : log) {
    if (!text) {
      if (from.exists(path)) out.add_unread(path + ": cannot be read");
      continue;
    }
    const auto shown = excerpt_of(path, *text);
    if (shown.empty()) continue;
    const bool one_line = shown.size() <= longest_line && shown.find('\n') >= shown.size() - 1;
    if (one_line || path.size() > longest_name) {
      small += fmt::format("{}: {}\n", path, machine::trimmed(shown.substr(0, longest_line)));
    } else {
      out.add("copies" + path, "a copy", shown);
    }
  }
  out.add("read.txt", "small files from /proc, /sys and /etc", small);
}

// Finds the log the way NVIDIA's library does: CUFILE_LOGFILE_PATH, then logging.dir of cufile.json, then the working directory.
void add_cufile_log(const machine::tree& from, const machine_report& known, bundle_maker& out) {
  auto path = machine::loader(from).variable("CUFILE_LOGFILE_PATH");
  const auto* folder = known.libraries.settings.find("logging.dir");
  if (path.empty() && folder != nullptr && !folder->value.empty()) path = folder->value + "/cufile.log";
  if (path.empty() && from.is_this_machine()) path = "cufile.log";
  if (path.empty() || (!from.is_this_machine() && !path.starts_with('/'))) return;
  const auto text = end_of_log(from, path);
  if (text) return out.add("cufile.log", "the end of " + path, *text);
  if (text.error().native() != ENOENT) out.add_unread(fmt::format("{}: {}", path, text.error().message()));
}

std::string introduction(const bundle& made) {
  std::string out = fmt::format(
      "penstock check --bundle, Penstock {}\n\n"
      "This bundle contains versions and the names of files, mounts, drives and servers. It contains only these environment variables:\n"
      "PENSTOCK_*, CUFILE_* and KVIKIO_*. Keys, tokens and credentials in URLs are replaced by {},\n"
      "but review the bundle before you send it. It contains no data from your files.\n\n",
      version(), removed_mark);
  for (const auto& each : made.entries) out += fmt::format("{}: {}\n", each.name, each.what);
  for (const auto& each : made.unread) out += fmt::format("not included: {}\n", each);
  return out;
}

std::tm time_now(std::time_t now) {
  std::tm parts{};
  ::gmtime_r(&now, &parts);
  return parts;
}

}  // namespace

bundle make_bundle(const machine::tree& from, const machine::tree_log& log, const machine_report& known, const nlohmann::json& files) {
  bundle_maker out;
  out.add("check.txt", "versions and findings", text_of(known));
  out.add_json("check.json", "the same in JSON, with the topology", to_json(known, {true, true, true, false}));
  if (!files.is_null()) out.add_json("files.json", "I/O path of each file given on the command line", files);
  out.add("environment.txt", "variables of Penstock, cuFile and KvikIO", environment_of(from));
  out.add("storage.txt", "drives, mounts and their options", storage_of(known));
  out.add("pci.txt", "GPUs, network cards, drives and the bridges above them", pci_of(known));
  add_cufile_log(from, known, out);
  for (const char* path : further_files) (void)from.read(path, most_of_entry * 2);
  for (const char* path : {"/proc/cpuinfo", "/proc/self/mountstats"}) (void)from.read(path);
  // cuFile's settings were parsed without the tree, so they are not in the log yet.
  if (const auto& settings = known.libraries.settings.file; settings.starts_with('/')) (void)from.read(settings, most_of_entry * 2);
  add_read_files(from, log, out);
  auto made = out.take();
  made.entries.insert(made.entries.begin(), {"README.txt", "this list", introduction(made)});
  return made;
}

std::string bundle_name() {
  std::array<char, 40> text{};
  const auto now = time_now(std::time(nullptr));
  const auto length = std::strftime(text.data(), text.size(), "penstock-check-%Y%m%d-%H%M%S.tar", &now);
  return {text.data(), length};
}

result<std::uint64_t> write_bundle(const bundle& made, const std::string& path) {
  tar_bytes archive(std::time(nullptr));
  for (const auto& each : made.entries) archive.add("penstock-check/" + each.name, each.content);
  const auto bytes = archive.ended();
  owned_fd opened(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, S_IRUSR | S_IWUSR));
  if (opened.get() < 0) return status::from_errno(errno, fmt::format("create {}", path));
  status error = write_plainly(opened.get(), path, 0, std::as_bytes(std::span(bytes)));
  // Some file systems report a lack of space only on fsync.
  if (error.ok() && ::fsync(opened.get()) != 0 && errno != EINVAL) error = status::from_errno(errno, fmt::format("write {}", path));
  if (const auto closed = opened.close(path); error.ok()) error = closed;
  if (error.ok()) return std::uint64_t{bytes.size()};
  ::unlink(path.c_str());
  return error;
}

}  // namespace penstock::cli
