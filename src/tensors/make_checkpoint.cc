#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "base/checked.hpp"
#include "base/no_memory.hpp"
#include "base/printable.hpp"
#include "penstock/torch_checkpoint.hpp"
#include "tensors/checks.hpp"
#include "tensors/pickle_reader.hpp"
#include "tensors/pickle_writer.hpp"

namespace penstock {

namespace {

using record = torch_checkpoint_image::record;
using tensors::tensor_called;

// The folder name that torch.save uses when writing to a buffer; torch.load accepts any name.
constexpr std::string_view folder = "archive/";
constexpr std::string_view identity_name = "archive/.data/serialization_id";
constexpr std::size_t identity_bytes = 40;

// Constants from PKWARE's APPNOTE. Values at or above these are stored in the zip64 fields.
constexpr std::uint64_t wide_from32 = 0xffffffff, wide_from16 = 0xffff;
constexpr std::uint64_t local_header_bytes = 30, extra_bytes = 4, wide_sizes_bytes = 20;
constexpr unsigned plain_version = 20, wide_version = 45;
constexpr unsigned first_date = 0x21;  // 1980-01-01, so that a checkpoint's bytes do not depend on the clock

status unfit_checkpoint(std::string message) { return {errc::invalid_argument, std::move(message)}; }

class little_endian_text {
 public:
  little_endian_text& mark(std::string_view two) {
    text_.append("PK").append(two);
    return *this;
  }
  little_endian_text& put16(std::uint64_t value) { return put(value, 2); }
  little_endian_text& put32(std::uint64_t value) { return put(value, 4); }
  little_endian_text& put64(std::uint64_t value) { return put(value, 8); }
  little_endian_text& append(std::string_view text) {
    text_ += text;
    return *this;
  }
  [[nodiscard]] std::size_t size() const { return text_.size(); }
  std::string take() { return std::move(text_); }

 private:
  little_endian_text& put(std::uint64_t value, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) text_.push_back(static_cast<char>(value >> (8 * i) & 0xff));
    return *this;
  }
  std::string text_;
};

bool is_wide(std::uint64_t number) { return number >= wide_from32; }
unsigned version_of(bool wide) { return wide ? wide_version : plain_version; }

// --- layout

// Returns the size of a member's header, without padding.
std::uint64_t header_bytes(const record& of) { return local_header_bytes + of.name.size() + (is_wide(of.bytes) ? wide_sizes_bytes : 0); }

// Returns the padding between header and data: none, or at least the size of an extra field's header.
std::uint64_t padding_behind(std::uint64_t header_end) {
  const std::uint64_t padding = (torch_storage_alignment - header_end % torch_storage_alignment) % torch_storage_alignment;
  return padding > 0 && padding < extra_bytes ? padding + torch_storage_alignment : padding;
}

status place(std::vector<record>& records) {
  std::uint64_t end = 0;
  for (record& each : records) {
    each.header_offset = end;
    const std::uint64_t header_end = end + header_bytes(each);
    each.offset = header_end + padding_behind(header_end);
    const auto next = range_end(each.offset, each.bytes);
    if (!next || *next > max_file_offset / 2)
      return unfit_checkpoint(fmt::format("{} would extend past the largest file offset", tensors::quoted(each.name)));
    end = *next;
  }
  return {};
}

record text_record(std::string_view name, std::string content) {
  record made;
  made.name = std::string(folder) + std::string(name);
  made.bytes = content.size();
  made.content = std::move(content);
  return made;
}

record tensor_record(std::size_t number, std::uint64_t bytes) {
  record made;
  made.name = fmt::format("{}data/{}", folder, number);
  made.bytes = bytes;
  made.is_tensor = true;
  return made;
}

// --- contents

std::string local_header(const record& of, std::uint32_t checksum) {
  const bool wide = is_wide(of.bytes);
  const std::uint64_t extra = of.offset - of.header_offset - local_header_bytes - of.name.size();
  const std::uint64_t padding = extra - (wide ? wide_sizes_bytes : 0), size = std::min(of.bytes, wide_from32);
  little_endian_text made;
  made.mark("\3\4").put16(version_of(wide)).put16(0).put16(0).put16(0).put16(first_date);
  made.put32(checksum).put32(size).put32(size).put16(of.name.size()).put16(extra).append(of.name);
  if (wide) made.put16(1).put16(wide_sizes_bytes - extra_bytes).put64(of.bytes).put64(of.bytes);
  // Padding in an unused extra field, as torch.save writes it.
  if (padding > 0) made.append("FB").put16(padding - extra_bytes).append(std::string(padding - extra_bytes, 'Z'));
  return made.take();
}

void put_entry(const record& of, std::uint32_t checksum, little_endian_text& to) {
  little_endian_text extra;
  for (const std::uint64_t each : {of.bytes, of.bytes, of.header_offset}) {
    if (is_wide(each)) extra.put64(each);
  }
  const bool wide = extra.size() > 0;
  const std::uint64_t size = std::min(of.bytes, wide_from32), extra_size = wide ? extra_bytes + extra.size() : 0;
  to.mark("\1\2").put16(version_of(wide)).put16(version_of(wide)).put16(0).put16(0).put16(0).put16(first_date);
  to.put32(checksum).put32(size).put32(size).put16(of.name.size()).put16(extra_size).put16(0).put16(0).put16(0).put32(0);
  to.put32(std::min(of.header_offset, wide_from32)).append(of.name);
  if (wide) to.put16(1).put16(extra.size()).append(extra.take());
}

std::string directory_of(const std::vector<record>& records, const std::vector<std::uint32_t>& checksums) {
  const std::uint64_t begin = records.back().offset + records.back().bytes, count = records.size();
  little_endian_text made;
  for (std::size_t i = 0; i < count; ++i) put_entry(records[i], checksums[i], made);
  const std::uint64_t bytes = made.size();
  if (count >= wide_from16 || is_wide(begin) || is_wide(bytes)) {
    made.mark("\6\6")
        .put64(44)
        .put16(wide_version)
        .put16(wide_version)
        .put32(0)
        .put32(0)
        .put64(count)
        .put64(count)
        .put64(bytes)
        .put64(begin);
    made.mark("\6\7").put32(0).put64(begin + bytes).put32(1);
  }
  const std::uint64_t few = std::min(count, wide_from16);
  made.mark("\5\6")
      .put16(0)
      .put16(0)
      .put16(few)
      .put16(few)
      .put32(std::min(bytes, wide_from32))
      .put32(std::min(begin, wide_from32))
      .put16(0);
  return made.take();
}

std::span<const std::byte> bytes_of(const std::string& text) { return std::as_bytes(std::span(text)); }

// 40 digits derived from the content. PyTorch uses them as an id for the checkpoint and does not verify them.
std::string identity_of(const std::vector<record>& records, const std::vector<std::uint32_t>& checksums) {
  std::uint64_t names = 0xcbf29ce484222325, contents = names;
  const auto mix = [](std::uint64_t& into, std::uint64_t value) { into = (into ^ value) * 0x100000001b3; };
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (records[i].name == identity_name) continue;
    for (const char c : records[i].name) mix(names, static_cast<unsigned char>(c));
    mix(contents, checksums[i]);
    mix(contents, records[i].bytes);
  }
  return fmt::format("{:020}{:020}", names, contents);
}

status check_tensors(const std::vector<tensor_facts>& all) {
  std::vector<std::string_view> names;
  names.reserve(all.size());
  for (const tensor_facts& each : all) {
    if (!is_utf8(each.name)) return unfit_checkpoint(fmt::format("the name of {} is not UTF-8", tensor_called(each.name)));
    if (!tensors::name_of_type(each.type)) {
      return {errc::unsupported,
              fmt::format("{} is of type {}, which PyTorch does not support", tensor_called(each.name), to_string(each.type))};
    }
    if (each.type == tensor_type::f4 && (each.shape.empty() || each.shape.back() % 2 != 0)) {
      return {errc::unsupported,
              fmt::format("{} is of type F4 and its last dimension is odd: PyTorch stores pairs", tensor_called(each.name))};
    }
    names.emplace_back(each.name);
  }
  const auto twice = tensors::repeated(std::move(names));
  return twice ? unfit_checkpoint(fmt::format("{} appears twice", tensor_called(*twice))) : status();
}

result<torch_checkpoint_image> make_image(std::vector<tensor_facts>& tensors, const tensor_metadata& metadata) {
  std::vector<tensor_facts> all = tensors;
  if (status error = check_tensors(all); !error.ok()) return error;
  if (status error = tensors::check_texts(metadata); !error.ok()) return error;
  for (tensor_facts& each : all) {
    const auto bytes = tensor_bytes(each.type, each.shape);
    if (!bytes) return bytes.error().with_context(tensor_called(each.name));
    each.bytes = *bytes;
  }
  std::string pickle = tensors::write_pickle(all, metadata);
  if (pickle.size() > most_checkpoint_pickle_bytes) {
    return unfit_checkpoint(
        fmt::format("the pickle for {} tensors would be larger than {} bytes", all.size(), most_checkpoint_pickle_bytes));
  }
  std::vector<record> records;
  records.push_back(text_record("data.pkl", std::move(pickle)));
  records.push_back(text_record(".format_version", "1"));
  records.push_back(text_record(".storage_alignment", fmt::format("{}", torch_storage_alignment)));
  records.push_back(text_record("byteorder", "little"));
  for (const tensor_facts& each : all) records.push_back(tensor_record(static_cast<std::size_t>(&each - all.data()), each.bytes));
  records.push_back(text_record("version", "3\n"));
  records.push_back(text_record(".data/serialization_id", std::string(identity_bytes, '0')));
  if (status error = place(records); !error.ok()) return error;
  std::size_t next = 0;
  for (const record& each : records) {
    if (each.is_tensor) all[next++].offset = each.offset;
  }
  tensors = std::move(all);
  return torch_checkpoint_image(std::move(records));
}

result<std::vector<placed_bytes>> parts_of(std::vector<record> records, std::span<const std::uint32_t> given) {
  const auto tensors = static_cast<std::size_t>(std::ranges::count(records, true, &record::is_tensor));
  if (!given.empty() && given.size() != tensors)
    return unfit_checkpoint(fmt::format("{} checksums were given for {} tensors", given.size(), tensors));
  std::vector<std::uint32_t> checksums;
  std::size_t next = 0;
  for (const record& each : records) {
    checksums.push_back(!each.is_tensor ? zip_crc32(bytes_of(each.content)) : given.empty() ? 0 : given[next++]);
  }
  for (std::size_t i = 0; i < records.size(); ++i) {
    if (records[i].name != identity_name) continue;
    records[i].content = identity_of(records, checksums);
    checksums[i] = zip_crc32(bytes_of(records[i].content));
  }
  std::vector<placed_bytes> made;
  for (std::size_t i = 0; i < records.size(); ++i) {
    made.push_back({records[i].header_offset, local_header(records[i], checksums[i]) + records[i].content});
  }
  made.push_back({records.back().offset + records.back().bytes, directory_of(records, checksums)});
  return made;
}

}  // namespace

result<std::vector<placed_bytes>> torch_checkpoint_image::parts(std::span<const std::uint32_t> checksums) const {
  return or_no_memory([&] { return parts_of(records_, checksums); });
}

result<torch_checkpoint_image> make_torch_checkpoint(std::vector<tensor_facts>& tensors, const tensor_metadata& metadata) {
  return or_no_memory([&] { return make_image(tensors, metadata); });
}

}  // namespace penstock
