// Lists of checksums, as sha256sum and xxhsum write and read them. Free functions; safe from any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/files/digest.hpp"

namespace penstock::cli {

struct listed_checksum {
  digest_kind kind = digest_kind::sha256;
  std::string value;  // in lower case
  std::string file;
};

// "VALUE  FILE"; a backslash in front, and \n, \r and \\ in it, where the name of the file has such characters.
std::string checksum_line(const listed_checksum& one);
// As sha256sum -c names a file: with a backslash in front, and escaped, where its name has a line feed or a carriage return.
std::string name_in_one_line(const std::string& file);
// The same, "VALUE *FILE", or "SHA256 (FILE) = VALUE". kind: what they are; none goes by the name or the length of the value.
// None where the line is no checksum.
std::optional<listed_checksum> parse_checksum_line(std::string_view line, std::optional<digest_kind> kind);

struct checksum_list {
  std::vector<listed_checksum> entries;
  unsigned improper_lines = 0;
};
// Blank lines and those that begin with # are left out.
checksum_list parse_checksum_list(std::string text, std::optional<digest_kind> kind);

}  // namespace penstock::cli
