#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/no_memory.hpp"
#include "base/printable.hpp"
#include "penstock/engine.hpp"
#include "penstock/torch_checkpoint.hpp"
#include "tensors/zip_names.hpp"

namespace penstock {
namespace {

// Constants from PKWARE's APPNOTE.
constexpr std::uint32_t end_mark = 0x06054b50, end64_mark = 0x06064b50, locator_mark = 0x07064b50, entry_mark = 0x02014b50,
                        local_mark = 0x04034b50;
constexpr std::uint64_t end_bytes = 22, locator_bytes = 20, end64_bytes = 56, entry_bytes = 46, local_bytes = 30, most_comment = 65535;
constexpr std::uint64_t most_directory_bytes = std::uint64_t{1} << 30;
constexpr std::uint64_t full32 = 0xffffffff;  // the value is in a 64-bit field elsewhere

status damaged(std::string_view what) { return {errc::invalid_argument, fmt::format("not a complete zip file: {}", what)}; }

std::uint64_t number(std::string_view text, std::size_t at, std::size_t bytes) {
  std::uint64_t value = 0;
  for (std::size_t i = bytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(text[at + i]);
  return value;
}

result<std::string> read_exactly(const file& from, std::uint64_t offset, std::uint64_t bytes) {
  std::string text(bytes, '\0');
  const io_result done = from.read(text.data(), bytes, static_cast<std::int64_t>(offset));
  if (!done.ok()) return done.error;
  if (done.bytes_done < bytes) return damaged("unexpected end of file");
  return text;
}

struct directory_place {
  std::uint64_t offset = 0, bytes = 0, members = 0;
};

// The locator before the end record, if present, contains the offset of the zip64 end record, which has 64-bit numbers.
result<directory_place> place64(const file& from, std::string_view tail, std::size_t end_at, const directory_place& place) {
  if (end_at < locator_bytes || number(tail, end_at - locator_bytes, 4) != locator_mark) return place;
  const std::uint64_t offset = number(tail, end_at - locator_bytes + 8, 8);
  const auto size = from.size();
  if (!size) return size.error();
  if (offset > *size || *size - offset < end64_bytes) return damaged("its end record is out of bounds");
  const auto record = read_exactly(from, offset, end64_bytes);
  if (!record) return record.error();
  if (number(*record, 0, 4) != end64_mark) return damaged("its end record is invalid");
  return directory_place{number(*record, 48, 8), number(*record, 40, 8), number(*record, 32, 8)};
}

result<directory_place> find_directory(const file& from, std::uint64_t size) {
  const std::uint64_t tail_bytes = std::min(size, end_bytes + most_comment + locator_bytes);
  const auto read = read_exactly(from, size - tail_bytes, tail_bytes);
  if (!read) return read.error();
  const std::string_view tail = *read;
  for (std::size_t at = tail.size() < end_bytes ? 0 : tail.size() - end_bytes + 1; at-- > 0;) {
    if (number(tail, at, 4) != end_mark || number(tail, at + 20, 2) != tail.size() - at - end_bytes) continue;
    if (number(tail, at + 8, 2) != number(tail, at + 10, 2)) return damaged("this is one part of a split archive: join the parts first");
    return place64(from, tail, at, {number(tail, at + 16, 4), number(tail, at + 12, 4), number(tail, at + 10, 2)});
  }
  return damaged("the list of members is missing");
}

// Fields with all bits set are stored in extra field 1, in this order.
bool take_wide_numbers(std::string_view extra, zip_member& member) {
  while (extra.size() >= 4) {
    const std::uint64_t kind = number(extra, 0, 2), length = number(extra, 2, 2);
    if (extra.size() - 4 < length) return false;
    std::string_view field = extra.substr(4, length);
    extra.remove_prefix(4 + length);
    if (kind != 1) continue;
    for (std::uint64_t* wide : {&member.bytes, &member.packed_bytes, &member.offset}) {
      if (*wide != full32) continue;
      if (field.size() < 8) return false;
      *wide = number(field, 0, 8);
      field.remove_prefix(8);
    }
  }
  return true;
}

// A member's data follows the member's own header, and only that header contains its own length.
status find_bytes(const file& from, std::uint64_t size, zip_member& member) {
  if (member.offset > size || size - member.offset < local_bytes)
    return damaged(fmt::format("{} is out of bounds", printable_text(member.name)));
  const auto header = read_exactly(from, member.offset, local_bytes);
  if (!header) return header.error();
  if (number(*header, 0, 4) != local_mark) return damaged(fmt::format("{} has no header at its offset", printable_text(member.name)));
  member.offset += local_bytes + number(*header, 26, 2) + number(*header, 28, 2);
  if (member.offset > size || size - member.offset < member.packed_bytes)
    return damaged(fmt::format("{} is truncated", printable_text(member.name)));
  return {};
}

// Removes one entry from the directory and returns it.
std::optional<zip_member> take_entry(std::string_view& directory) {
  if (directory.size() < entry_bytes || number(directory, 0, 4) != entry_mark) return std::nullopt;
  const std::uint64_t name = number(directory, 28, 2), extra = number(directory, 30, 2), comment = number(directory, 32, 2);
  if (directory.size() - entry_bytes < name + extra + comment) return std::nullopt;
  zip_member member;
  member.name = directory.substr(entry_bytes, name);
  const bool is_encrypted = (number(directory, 8, 2) & 1) != 0;
  member.stored = number(directory, 10, 2) == 0 && !is_encrypted;
  member.packed_bytes = number(directory, 20, 4);
  member.bytes = number(directory, 24, 4);
  member.offset = number(directory, 42, 4);
  if (!take_wide_numbers(directory.substr(entry_bytes + name, extra), member)) return std::nullopt;
  directory.remove_prefix(entry_bytes + name + extra + comment);
  return member;
}

enum class member_places { found, unknown };

result<std::vector<zip_member>> read_directory(const file& from, member_places places) {
  const auto size = from.size();
  if (!size) return size.error();
  const auto place = find_directory(from, *size);
  if (!place) return place.error();
  if (place->bytes > most_directory_bytes || place->offset > *size || *size - place->offset < place->bytes) {
    return damaged("the list of members is out of bounds");
  }
  const auto text = read_exactly(from, place->offset, place->bytes);
  if (!text) return text.error();
  std::vector<zip_member> members;
  std::string_view directory = *text;
  while (members.size() < place->members) {
    auto member = take_entry(directory);
    if (!member) return damaged(fmt::format("the directory is truncated after {} of {} members", members.size(), place->members));
    if (places == member_places::found) {
      if (status error = find_bytes(from, *size, *member); !error.ok()) return error;
    }
    members.push_back(*std::move(member));
  }
  if (directory.size() >= 4 && number(directory, 0, 4) == entry_mark)
    return damaged(fmt::format("the directory has more members than the {} that its end record states", place->members));
  return members;
}

}  // namespace

bool is_zip(const file& from) {
  char first[4] = {};
  const io_result done = from.read(first, sizeof first, 0);
  return done.ok() && done.bytes_done == 4 && first[0] == 'P' && first[1] == 'K' && (first[2] == 3 || first[2] == 5);
}

result<std::vector<zip_member>> read_zip_directory(const file& from) {
  return or_no_memory([&]() -> result<std::vector<zip_member>> {
    auto members = read_directory(from, member_places::found);
    if (!members && members.error().code() == errc::invalid_argument) return members.error().with_context(from.path());
    return members;
  });
}

result<std::vector<std::string>> tensors::zip_member_names(const file& from) {
  std::vector<std::string> names;
  const auto members = read_directory(from, member_places::unknown);
  if (members) {
    for (const zip_member& each : *members) names.push_back(each.name);
    return names;
  }
  if (members.error().code() != errc::invalid_argument) return members.error();
  const auto header = read_exactly(from, 0, local_bytes);
  if (header && number(*header, 0, 4) == local_mark) {
    if (auto name = read_exactly(from, local_bytes, number(*header, 26, 2)); name) names.push_back(*std::move(name));
  }
  return names;
}

}  // namespace penstock
