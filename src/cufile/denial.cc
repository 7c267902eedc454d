#include "cufile/denial.hpp"

#include <sys/stat.h>
#include <sys/sysmacros.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include <fmt/format.h>

namespace penstock::cufile {

namespace {

namespace fs = std::filesystem;

std::string text_of(const std::string& file) {
  std::ifstream in(file);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

std::string mount_id_of(int descriptor) {
  std::istringstream lines(text_of(fmt::format("/proc/self/fdinfo/{}", descriptor)));
  for (std::string name, value; lines >> name >> value;) {
    if (name == "mnt_id:") return value;
  }
  return {};
}

// Decodes escapes such as "\040" (a space).
std::string unescaped(std::string_view text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto digit = [&](std::size_t at) { return at < text.size() && text[at] >= '0' && text[at] <= '7' ? text[at] - '0' : -1; };
    if (text[i] == '\\' && digit(i + 1) >= 0 && digit(i + 2) >= 0 && digit(i + 3) >= 0) {
      plain += static_cast<char>(digit(i + 1) * 64 + digit(i + 2) * 8 + digit(i + 3));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// Adds the device, its disk, and the first driver above it.
void add_device(dev_t device, file_place& place) {
  std::error_code none;
  auto node = fs::canonical(fmt::format("/sys/dev/block/{}:{}", major(device), minor(device)), none);
  if (none) return;
  const bool is_partition = fs::exists(node / "partition", none);
  place.devices.push_back("/dev/" + node.filename().string());
  if (is_partition) place.devices.push_back("/dev/" + node.parent_path().filename().string());
  for (; node.has_relative_path() && place.driver.empty(); node = node.parent_path()) {
    const auto driver = fs::read_symlink(node / "driver", none);
    if (!none) place.driver = driver.filename().string();
  }
}

bool names(const std::vector<std::string>& list, std::string_view what) {
  return !what.empty() && std::ranges::find(list, what) != list.end();
}

std::string_view without_slash(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  return path;
}

std::string told(std::string_view list, std::string_view what) { return fmt::format("denylist.{} in cufile.json lists {}", list, what); }

}  // namespace

// proc_pid_mountinfo(5): ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAG]... - TYPE SOURCE OPTIONS
std::optional<file_place> find_mount(std::string_view mountinfo, std::string_view mount_id) {
  std::istringstream lines{std::string(mountinfo)};
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string id;
    std::string skipped;
    std::string point;
    words >> id >> skipped >> skipped >> skipped >> point;
    if (id != mount_id) continue;
    while (words >> skipped && skipped != "-") {
    }
    file_place found;
    std::string source;
    words >> found.filesystem >> source;
    found.mount = unescaped(point);
    if (source.starts_with("/dev/")) found.devices.push_back(unescaped(source));
    return found;
  }
  return {};
}

file_place place_of(int descriptor) {
  auto place = find_mount(text_of("/proc/self/mountinfo"), mount_id_of(descriptor)).value_or(file_place{});
  struct stat about {};
  if (::fstat(descriptor, &about) == 0) add_device(S_ISBLK(about.st_mode) ? about.st_rdev : about.st_dev, place);
  return place;
}

std::string denial(const deny_lists& denied, const file_place& place) {
  for (const auto& mount : denied.mounts) {
    if (!place.mount.empty() && without_slash(mount) == place.mount) return told("mounts", mount);
  }
  if (names(denied.filesystems, place.filesystem)) return told("filesystems", place.filesystem);
  for (const auto& device : place.devices) {
    const auto own_name = std::string_view(device).substr(device.rfind('/') + 1);
    if (names(denied.devices, device) || names(denied.devices, own_name)) return told("devices", device);
  }
  if (names(denied.drivers, place.driver)) return told("drivers", place.driver);
  return {};
}

}  // namespace penstock::cufile
