#include "kv/index_log.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <random>
#include <utility>

namespace penstock::kv {

namespace {

constexpr const char* index_name = "index";
constexpr const char* new_index_name = "index.new";
constexpr std::size_t index_chunk_bytes = std::size_t{1} << 18;

std::uint64_t random_id() {
  std::random_device source;
  return std::uint64_t{source()} << 32 | source();
}

}  // namespace

index_header new_header(std::uint64_t capacity_bytes) { return {random_id(), capacity_bytes}; }

new_records records_of(const catalogue& of, std::uint64_t id) {
  new_records records(id);
  value_facts all;
  all.sequence = of.last_sequence();
  records.add({record_kind::boot, of.boot(), all});
  for (const auto& each : of.in_order_of_use()) records.add({record_kind::value, each.key(), each.facts()});
  value_facts synced;
  synced.sequence = of.synced_sequence();
  records.add({record_kind::synced, {}, synced});
  return records;
}

std::size_t new_records::whole_within(std::size_t bytes) const noexcept {
  return static_cast<std::size_t>(std::upper_bound(ends_.begin(), ends_.end(), bytes) - ends_.begin());
}

result<index_log> index_log::open(const folder& in, bool write) {
  auto file = in.open_file(index_name, write);
  if (!file) return file.error();
  const std::string path = in.path_of(index_name);
  std::array<std::byte, header_bytes> bytes{};
  auto read = read_at(*file, bytes, 0, path);
  if (!read) return read.error();
  auto header = parse_header(std::span(bytes).first(*read));
  if (!header) return header.error().with_context(path);
  index_log made(*std::move(file), path, *header);
  auto inode = inode_of(made.file_, path);
  if (!inode) return inode.error();
  made.inode_ = *inode;
  return made;
}

result<index_log> index_log::create(const folder& in, const index_header& header, const new_records& records) {
  in.remove(new_index_name);
  const std::string path = in.path_of(index_name);
  auto file = in.make_file(new_index_name);
  if (!file) return file.error();
  index_log made(*std::move(file), path, header);
  auto inode = inode_of(made.file_, path);
  made.inode_ = inode.value_or(0);
  status error = inode.error();
  if (error.ok()) error = write_at(made.file_, encode(header), 0, path).error;
  if (error.ok()) error = made.append_records(records).error;
  if (error.ok()) error = made.sync();
  if (error.ok()) error = in.replace(new_index_name, index_name);
  if (error.ok()) return made;
  in.remove(new_index_name);
  return error;
}

result<bool> index_log::read_new(const std::function<bool(const record&)>& apply) {
  chunk_.resize(index_chunk_bytes);
  while (true) {
    auto read = read_at(file_, chunk_, end_, path_);
    if (!read) return read.error();
    std::span<const std::byte> rest(chunk_.data(), *read);
    if (rest.empty()) return true;
    while (!rest.empty()) {
      const auto parsed = parse_record(rest, header_);
      // A record that extends past the chunk is read again from its start.
      if (parsed.is == parsed_record::state::cut && *read == chunk_.size() && rest.size() < most_record_bytes) break;
      if (parsed.is != parsed_record::state::whole || !apply(parsed.content)) return false;
      rest = rest.subspan(parsed.bytes);
      end_ += parsed.bytes;
    }
  }
}

status index_log::cut() {
  if (::ftruncate(file_.number(), static_cast<off_t>(end_)) == 0) return {};
  return status::from_errno(errno, "truncate " + path_);
}

index_log::appended index_log::append_records(const new_records& records) {
  const auto done = write_at(file_, records.bytes(), end_, path_);
  appended outcome{records.whole_within(done.bytes), done.error};
  end_ += records.end_of_first(outcome.count);
  // If cut() fails too, the next append overwrites the remainder; until then readers reject the incomplete record.
  if (!done.error.ok() && done.bytes > records.end_of_first(outcome.count)) (void)cut();
  return outcome;
}

result<bool> index_log::was_replaced(const folder& in) const {
  auto now = in.inode_of(index_name);
  if (!now) return now.error();
  return *now != inode_;
}

}  // namespace penstock::kv
