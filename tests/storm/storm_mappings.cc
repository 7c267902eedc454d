#include "storm/storm_mappings.hpp"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::testing {
namespace {

constexpr std::uint64_t told_from_bytes = std::uint64_t{1} << 20;

struct mapping {
  std::string name;  // empty: of no file
  std::uint64_t resident_bytes = 0;
};

// Of "7f00-7f10 rw-p 00000000 00:01 1234   /memfd:x (deleted)": five words and the name.
mapping mapping_of(const std::string& line) {
  std::istringstream words(line);
  std::string range, rights, offset, device, inode;
  words >> range >> rights >> offset >> device >> inode >> std::ws;
  mapping made;
  std::getline(words, made.name);
  return made;
}

// glibc maps its arenas with MAP_NORESERVE.
std::string kind_of(const mapping& which, std::string_view flags) {
  const auto has = [&](std::string_view flag) { return flags.find(flag) != std::string_view::npos; };
  if (which.name == "[heap]") return "malloc";
  if (!which.name.empty()) return which.name;
  return has(" hg") ? "slabs" : has(" nr") ? "malloc" : "other";
}

}  // namespace

resident_kinds resident_kinds_in(std::istream& smaps) {
  constexpr std::string_view resident = "Rss:";
  constexpr std::string_view flags = "VmFlags:";  // the last line of each
  resident_kinds found;
  mapping at;
  for (std::string line; std::getline(smaps, line);) {
    if (line.starts_with(resident)) {
      at.resident_bytes = std::strtoull(line.c_str() + resident.size(), nullptr, 10) * 1024;
    } else if (line.starts_with(flags)) {
      if (at.resident_bytes > 0) found[kind_of(at, std::string_view(line).substr(flags.size()))] += at.resident_bytes;
    } else if (!line.empty() && std::isupper(static_cast<unsigned char>(line.front())) == 0) {  // no further line about the last one
      at = mapping_of(line);
    }
  }
  return found;
}

resident_kinds resident_kinds_now() {
  std::ifstream smaps("/proc/self/smaps");
  return resident_kinds_in(smaps);
}

bool slabs_are_told() {
  constexpr std::size_t bytes = std::size_t{64} << 10;
  const auto before = resident_kinds_now()["slabs"];
  void* const mapped = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) return false;
  ::madvise(mapped, bytes, MADV_HUGEPAGE);
  std::memset(mapped, 1, bytes);
  const bool told = resident_kinds_now()["slabs"] >= before + bytes;
  ::munmap(mapped, bytes);
  return told;
}

std::string changes_of_kinds(const resident_kinds& before, const resident_kinds& now) {
  resident_kinds all(before);
  all.insert(now.begin(), now.end());
  std::vector<std::pair<double, std::string>> changes;
  for (const auto& [kind, unused] : all) {
    const auto bytes_in = [&, name = &kind](const resident_kinds& of) {
      const auto found = of.find(*name);
      return found == of.end() ? 0.0 : static_cast<double>(found->second);
    };
    changes.emplace_back(bytes_in(now) - bytes_in(before), kind);
  }
  std::erase_if(changes, [](const auto& each) { return std::abs(each.first) < static_cast<double>(told_from_bytes); });
  std::ranges::sort(changes, [](const auto& one, const auto& other) { return std::abs(one.first) > std::abs(other.first); });
  std::string told;
  for (const auto& [bytes, kind] : changes)
    told += fmt::format("{}{} {:+.1f} MiB", told.empty() ? "" : ", ", kind, bytes / static_cast<double>(told_from_bytes));
  return told;
}

}  // namespace penstock::testing
