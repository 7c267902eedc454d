#include "machine/loader.hpp"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>

namespace penstock::machine {

namespace {

template <class Number>
std::optional<Number> number_at(std::string_view bytes, std::size_t at) {
  if (at > bytes.size() || bytes.size() - at < sizeof(Number)) return std::nullopt;
  Number value{};
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

std::optional<std::string> text_at(std::string_view bytes, std::size_t at) {
  if (at >= bytes.size()) return std::nullopt;
  const auto end = bytes.find('\0', at);
  if (end == std::string_view::npos) return std::nullopt;
  return std::string(bytes.substr(at, end - at));
}

bool has_slash(const std::string& name) { return name.find('/') != std::string::npos; }

}  // namespace

// The format of glibc's sysdeps/generic/dl-cache.h: a header of 48 bytes, then entries of 24 bytes; string offsets count from the header.
// An older cache may precede it in the same file.
std::vector<std::pair<std::string, std::string>> read_loader_cache(std::string_view bytes) {
  constexpr std::string_view magic = "glibc-ld.so.cache1.1";
  constexpr std::size_t head_bytes = 48;
  constexpr std::size_t entry_bytes = 24;
  constexpr std::uint32_t architecture = 0xff00;  // a 32-bit library if these bits are zero
  std::vector<std::pair<std::string, std::string>> found;
  const auto start = bytes.find(magic);
  if (start == std::string_view::npos) return found;
  bytes.remove_prefix(start);
  const auto count = number_at<std::uint32_t>(bytes, magic.size()).value_or(0);
  for (std::size_t i = 0; i < count; ++i) {
    const auto at = head_bytes + i * entry_bytes;
    const auto flags = number_at<std::uint32_t>(bytes, at);
    const auto name = number_at<std::uint32_t>(bytes, at + 4);
    const auto path = number_at<std::uint32_t>(bytes, at + 8);
    if (!flags || !name || !path) break;
    if ((*flags & architecture) == 0) continue;
    auto name_text = text_at(bytes, *name);
    auto path_text = text_at(bytes, *path);
    if (name_text && path_text) found.emplace_back(std::move(*name_text), std::move(*path_text));
  }
  return found;
}

loader::loader(const tree& from)
    : from_(from),
      environment_(from.read("/proc/self/environ").value_or("")),
      cache_(read_loader_cache(from.read("/etc/ld.so.cache").value_or(""))) {}

std::string loader::variable(std::string_view name) const {
  for (const auto& each : words_of(environment_, '\0')) {
    if (each.size() > name.size() && each.starts_with(name) && each[name.size()] == '=') return each.substr(name.size() + 1);
  }
  return {};
}

std::vector<std::string> loader::preloaded(std::string_view part) const {
  auto list = variable("LD_PRELOAD");
  std::ranges::replace(list, ' ', ':');
  std::vector<std::string> found;
  for (const auto& each : words_of(list, ':')) {
    if (std::filesystem::path(each).filename().string().find(part) != std::string::npos) found.push_back(each);
  }
  return found;
}

std::optional<found_library> loader::find(const std::string& name) const {
  for (const auto& each : preloaded(name.substr(0, name.find(".so")))) {
    if (const auto real = has_slash(each) ? from_.real(each) : std::string(); !real.empty()) return found_library{real, "LD_PRELOAD"};
  }
  for (const auto& folder : words_of(variable("LD_LIBRARY_PATH"), ':')) {
    if (const auto real = from_.real(folder + "/" + name); !real.empty()) return found_library{real, "LD_LIBRARY_PATH"};
  }
  for (const auto& [soname, path] : cache_) {
    if (soname != name) continue;
    if (const auto real = from_.real(path); !real.empty()) return found_library{real, "/etc/ld.so.cache"};
  }
  for (const char* folder : {"/lib64", "/usr/lib64", "/lib", "/usr/lib"}) {
    if (const auto real = from_.real(std::string(folder) + "/" + name); !real.empty())
      return found_library{real, "the linker's own folders"};
  }
  return std::nullopt;
}

}  // namespace penstock::machine
