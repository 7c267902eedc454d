// Hand-written zip files, for tests of the reader.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace penstock::test_files {

inline std::string little_endian(std::uint64_t value, std::size_t bytes) {
  std::string text;
  for (std::size_t i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i) & 0xff));
  return text;
}

// Returns a zip file of stored members. wide: with 64-bit numbers wherever possible.
inline std::string zip_of(const std::vector<std::pair<std::string, std::string>>& members, bool wide, const std::string& comment = "") {
  std::string file, directory;
  for (const auto& [name, content] : members) {
    const std::uint64_t offset = file.size(), size = content.size();
    const std::string sizes = wide ? little_endian(~0ULL, 8) : little_endian(size, 4) + little_endian(size, 4);
    const std::string local_extra = "\x42\x46\x03" + std::string(1, '\0') + "pad";  // torch.save pads to a multiple of 64 this way
    file += "PK\x03\x04" + std::string(10, '\0') + std::string(4, '\0') + sizes + little_endian(name.size(), 2) +
            little_endian(local_extra.size(), 2) + name + local_extra + content;
    const std::string extra =
        wide ? little_endian(1, 2) + little_endian(24, 2) + little_endian(size, 8) + little_endian(size, 8) + little_endian(offset, 8) : "";
    directory += "PK\x01\x02" + std::string(12, '\0') + std::string(4, '\0') + sizes + little_endian(name.size(), 2) +
                 little_endian(extra.size(), 2) + std::string(12 - 2, '\0') + (wide ? little_endian(~0ULL, 4) : little_endian(offset, 4)) +
                 name + extra;
  }
  const std::uint64_t at = file.size(), end64_at = at + directory.size();
  file += directory;
  if (wide) {
    file += "PK\x06\x06" + little_endian(44, 8) + std::string(12, '\0') + little_endian(members.size(), 8) +
            little_endian(members.size(), 8) + little_endian(directory.size(), 8) + little_endian(at, 8);
    file += "PK\x06\x07" + std::string(4, '\0') + little_endian(end64_at, 8) + little_endian(1, 4);
  }
  const std::uint64_t count = wide ? 0xffff : members.size();
  file += "PK\x05\x06" + std::string(4, '\0') + little_endian(count, 2) + little_endian(count, 2) +
          little_endian(wide ? 0xffffffff : directory.size(), 4) + little_endian(wide ? 0xffffffff : at, 4) +
          little_endian(comment.size(), 2) + comment;
  return file;
}

}  // namespace penstock::test_files
