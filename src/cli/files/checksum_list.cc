#include "cli/files/checksum_list.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <sstream>

namespace penstock::cli {
namespace {

bool is_hexadecimal(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) { return std::isxdigit(c) != 0; });
}

std::string small_letters(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

std::string escaped(std::string_view name) {
  std::string out;
  for (const char each : name) {
    if (each == '\n') out += "\\n";
    if (each == '\r') out += "\\r";
    if (each == '\\') out += "\\\\";
    if (each != '\n' && each != '\r' && each != '\\') out += each;
  }
  return out;
}

std::optional<std::string> unescaped(std::string_view name) {
  std::string out;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] != '\\') {
      out += name[i];
      continue;
    }
    if (++i == name.size()) return std::nullopt;
    if (name[i] != 'n' && name[i] != 'r' && name[i] != '\\') return std::nullopt;
    out += name[i] == 'n' ? '\n' : name[i] == 'r' ? '\r' : '\\';
  }
  return out;
}

// "SHA256 (FILE) = VALUE"
std::optional<listed_checksum> parse_tagged(std::string_view line) {
  const std::size_t open = line.find(" (");
  const std::size_t close = line.rfind(") = ");
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return std::nullopt;
  const auto kind = digest_named(line.substr(0, open));
  if (!kind) return std::nullopt;
  return listed_checksum{*kind, std::string(line.substr(close + 4)), std::string(line.substr(open + 2, close - open - 2))};
}

std::optional<listed_checksum> parse_plain(std::string_view line, std::optional<digest_kind> kind) {
  const std::size_t space = line.find(' ');
  if (space == std::string_view::npos || space + 2 >= line.size()) return std::nullopt;
  if (line[space + 1] != ' ' && line[space + 1] != '*') return std::nullopt;
  const auto found = kind ? kind : digest_of_length(space);
  if (!found) return std::nullopt;
  return listed_checksum{*found, std::string(line.substr(0, space)), std::string(line.substr(space + 2))};
}

}  // namespace

std::string checksum_line(const listed_checksum& one) {
  const std::string name = escaped(one.file);
  return fmt::format("{}{}  {}", name == one.file ? "" : "\\", one.value, name);
}

std::string name_in_one_line(const std::string& file) {
  const std::string name = escaped(file);
  return name == file || file.find_first_of("\n\r") == std::string::npos ? file : "\\" + name;
}

std::optional<listed_checksum> parse_checksum_line(std::string_view line, std::optional<digest_kind> kind) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
  const bool has_escapes = line.starts_with('\\');
  if (has_escapes) line.remove_prefix(1);
  auto found = parse_tagged(line);
  if (!found) found = parse_plain(line, kind);
  if (!found || found->file.empty() || !is_hexadecimal(found->value)) return std::nullopt;
  if (digest_of_length(found->value.size()) != found->kind || (kind && *kind != found->kind)) return std::nullopt;
  found->value = small_letters(found->value);
  if (!has_escapes) return found;
  auto name = unescaped(found->file);
  if (!name) return std::nullopt;
  found->file = *std::move(name);
  return found;
}

checksum_list parse_checksum_list(std::string text, std::optional<digest_kind> kind) {
  std::istringstream lines(std::move(text));
  checksum_list list;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty() || line == "\r" || line.front() == '#') continue;
    if (auto found = parse_checksum_line(line, kind)) {
      list.entries.push_back(*std::move(found));
    } else {
      ++list.improper_lines;
    }
  }
  return list;
}

}  // namespace penstock::cli
