#include "sys/mounts.hpp"

#include <sys/sysmacros.h>

#include <charconv>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>

#include "base/no_memory.hpp"

namespace penstock::sys {
namespace {

std::optional<std::uint64_t> number_after(std::string_view text, std::string_view name) noexcept {
  const auto at = text.find(name);
  if (at == std::string_view::npos || at == 0 || (text[at - 1] != ',' && text[at - 1] != ' ')) return std::nullopt;
  std::uint64_t value = 0;
  const auto* const first = text.data() + at + name.size();
  if (std::from_chars(first, text.data() + text.size(), value).ec != std::errc{}) return std::nullopt;
  return value;
}

// Each line begins with the mount ID, the parent's mount ID and "major:minor".
bool is_of(std::string_view line, std::uint64_t device) noexcept {
  for (int i = 0; i < 2; ++i) line.remove_prefix(std::min(line.find(' '), line.size() - 1) + 1);
  unsigned numbers[2] = {};
  const auto* const last = line.data() + line.size();
  const auto first = std::from_chars(line.data(), last, numbers[0]);
  if (first.ec != std::errc{} || first.ptr == last || *first.ptr != ':') return false;
  return std::from_chars(first.ptr + 1, last, numbers[1]).ec == std::errc{} && makedev(numbers[0], numbers[1]) == device;
}

}  // namespace

// Magic numbers from linux/magic.h and from file systems outside the Linux kernel.
bool is_from_server(std::uint64_t filesystem_magic) noexcept {
  switch (filesystem_magic) {
    case 0x65735546:  // FUSE, virtiofs
    case 0x6969:      // NFS
    case 0x517b:      // SMB
    case 0xff534d42:  // CIFS
    case 0xfe534d42:  // SMB2
    case 0x00c36400:  // CephFS
    case 0x0bd00bd0:  // Lustre
    case 0x47504653:  // GPFS
    case 0x19830326:  // BeeGFS
    case 0x20030528:  // OrangeFS
    case 0xaad7aaea:  // PanFS
    case 0x01021997:  // 9p
    case 0x5346414f:  // OpenAFS
    case 0x6b414653:  // AFS
    case 0x73757245:  // Coda
    case 0x786f4256:  // VirtualBox shared folders
      return true;
    default:
      return false;
  }
}

std::uint64_t most_read_at_once(std::uint64_t device, std::string_view mountinfo) noexcept {
  while (!mountinfo.empty()) {
    const auto line = mountinfo.substr(0, mountinfo.find('\n'));
    mountinfo.remove_prefix(std::min(line.size() + 1, mountinfo.size()));
    const auto options = line.find(" - ");
    if (options == std::string_view::npos || !is_of(line, device)) continue;
    for (const std::string_view name : {"rsize=", "max_read="}) {
      if (const auto found = number_after(line.substr(options), name)) return *found;
    }
  }
  return 0;
}

std::uint64_t most_read_at_once(std::uint64_t device) noexcept {
  std::uint64_t found = 0;
  (void)or_no_memory([&]() -> status {
    std::ifstream file("/proc/self/mountinfo");
    std::stringstream text;
    text << file.rdbuf();
    found = most_read_at_once(device, text.str());
    return {};
  });
  return found;
}

}  // namespace penstock::sys
