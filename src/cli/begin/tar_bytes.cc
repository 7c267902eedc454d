#include "cli/begin/tar_bytes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <cstddef>

namespace penstock::cli {
namespace {

constexpr std::size_t tar_block = 512;

void put_field(std::string& header, std::size_t at, std::string_view value) {
  std::ranges::copy(value, header.begin() + static_cast<std::ptrdiff_t>(at));
}

std::string header_of(std::string_view name, std::uint64_t size, std::int64_t modified) {
  constexpr std::size_t checksum_at = 148;
  std::string header(tar_block, '\0');
  put_field(header, 0, name);
  put_field(header, 100, "0000600");  // readable and writable only by its owner
  put_field(header, 108, "0000000");
  put_field(header, 116, "0000000");
  put_field(header, 124, fmt::format("{:011o}", size));
  put_field(header, 136, fmt::format("{:011o}", modified));
  put_field(header, checksum_at, "        ");  // the checksum is computed with this field blank
  put_field(header, 156, "0");                 // a regular file
  put_field(header, 257, std::string_view("ustar\00000", 8));
  unsigned sum = 0;
  for (const char each : header) sum += static_cast<unsigned char>(each);
  put_field(header, checksum_at, fmt::format("{:06o}", sum) + '\0' + ' ');
  return header;
}

}  // namespace

void tar_bytes::add(std::string_view name, std::string_view content) {
  assert(name.size() < 100);
  bytes_ += header_of(name, content.size(), modified_);
  bytes_ += content;
  bytes_.resize((bytes_.size() + tar_block - 1) / tar_block * tar_block, '\0');
}

std::string tar_bytes::ended() const { return bytes_ + std::string(2 * tar_block, '\0'); }

}  // namespace penstock::cli
