#include "machine/tree.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <memory>
#include <system_error>

#include "machine/open_below.hpp"

namespace penstock::machine {

namespace fs = std::filesystem;

tree::tree(std::string root) : root_(std::move(root)) {
  std::error_code failed;
  if (const auto real = fs::canonical(root_, failed); !failed) root_ = real.string();
  while (root_.ends_with('/')) root_.pop_back();
}

bool tree::exists(const std::string& path) const {
  const int fd = open_below(root_, path, O_PATH);
  if (fd >= 0) ::close(fd);
  return fd >= 0;
}

std::optional<std::string> tree::read(const std::string& path, std::size_t most) const {
  constexpr std::size_t most_noted = std::size_t{256} << 10;
  auto text = read_file(path, most);
  if (log_ != nullptr) (*log_)[path] = text ? std::optional(text->substr(0, most_noted)) : std::nullopt;
  return text;
}

std::optional<std::string> tree::read_file(const std::string& path, std::size_t most) const {
  // O_NONBLOCK: a FIFO in place of a file does not block the open.
  const int fd = open_below(root_, path, O_RDONLY | O_NONBLOCK);
  if (fd < 0) return std::nullopt;
  std::string text;
  char buffer[16384];
  while (text.size() < most) {
    const ssize_t got = ::read(fd, buffer, std::min(sizeof buffer, most - text.size()));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && text.empty()) {  // some sysfs files open but cannot be read
      ::close(fd);
      return std::nullopt;
    }
    if (got <= 0) break;
    text.append(buffer, static_cast<std::size_t>(got));
  }
  ::close(fd);
  return text;
}

std::string tree::line(const std::string& path) const {
  const auto text = read(path);
  return text ? trimmed(text->substr(0, text->find('\n'))) : std::string();
}

std::optional<std::uint64_t> tree::number(const std::string& path) const {
  const std::string text = line(path);
  std::uint64_t value = 0;
  const auto parsed = std::from_chars(text.data(), text.data() + text.size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != text.data() + text.size()) return std::nullopt;
  return value;
}

std::vector<std::string> tree::list(const std::string& folder) const {
  std::vector<std::string> names;
  const int fd = open_below(root_, folder, O_RDONLY | O_DIRECTORY);
  if (fd < 0) return names;
  const std::unique_ptr<DIR, int (*)(DIR*)> opened(fdopendir(fd), &closedir);
  if (opened == nullptr) ::close(fd);
  while (const dirent* entry = opened == nullptr ? nullptr : readdir(opened.get())) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string tree::real(const std::string& path) const {
  std::error_code failed;
  const auto found = fs::canonical(outside(path), failed).string();
  if (failed || !(found + "/").starts_with(root_ + "/")) return {};
  return found.substr(root_.size());
}

std::string tree::target_name(const std::string& link) const { return fs::path(real(link)).filename().string(); }

std::string trimmed(const std::string& text) {
  constexpr auto blanks = " \t\r\n";
  const auto first = text.find_first_not_of(blanks);
  return first == std::string::npos ? std::string() : text.substr(first, text.find_last_not_of(blanks) - first + 1);
}

std::vector<std::string> lines_of(const std::string& text) { return words_of(text, '\n'); }

std::vector<std::string> words_of(const std::string& text, char separator) {
  std::vector<std::string> words;
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find(separator, at), text.size());
    if (end > at) words.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return words;
}

std::string value_of(const std::string& text, const std::string& name, char separator) {
  for (const auto& line : lines_of(text)) {
    if (!line.starts_with(name)) continue;
    const auto rest = trimmed(line.substr(name.size()));
    if (rest.starts_with(separator)) return trimmed(rest.substr(1));
  }
  return {};
}

}  // namespace penstock::machine
