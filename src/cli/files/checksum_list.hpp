// Lists of checksums in the formats of sha256sum and xxhsum. Free functions; thread-safe.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/files/digest.hpp"

namespace penstock::cli {

struct listed_checksum {
  digest_kind kind = digest_kind::sha256;
  std::string value;  // lower case
  std::string file;
};

// Returns "VALUE  FILE". If the file name contains line feeds, carriage returns or backslashes, these are escaped as \n, \r and \\, and the
// line starts with a backslash.
std::string checksum_line(const listed_checksum& one);
// Returns the name as sha256sum -c prints it: escaped, with a leading backslash, if it contains a line feed or a carriage return.
std::string name_in_one_line(const std::string& file);
// Parses such a line, "VALUE *FILE", or "SHA256 (FILE) = VALUE". kind: the kind of checksum; nullopt: inferred from the name or the length
// of the value. Returns nullopt if the line is not a checksum.
std::optional<listed_checksum> parse_checksum_line(std::string_view line, std::optional<digest_kind> kind);

struct checksum_list {
  std::vector<listed_checksum> entries;
  unsigned improper_lines = 0;
};
// Skips blank lines and lines that begin with #.
checksum_list parse_checksum_list(std::string text, std::optional<digest_kind> kind);

}  // namespace penstock::cli
