#include "kv/fetch.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <numeric>
#include <ranges>

#include "core/engine_core.hpp"
#include "kv/checksum.hpp"

namespace penstock::kv {

namespace {

// For a value that is repeatedly replaced while it is being read. After this many attempts, it is treated as absent.
constexpr unsigned most_fetch_rounds = 8;

// request_ended() runs on threads that read, so it computes checksums only for values up to this length, in a few milliseconds each.
constexpr std::uint64_t most_checked_bytes = std::uint64_t{32} << 20;

}  // namespace

fetch::fetch(const engine& with, volume& from, std::span<const item> items, bool checksums, std::span<key_result> results,
             const stream_order& on)
    : engine_(with),
      from_(from),
      checksums_(checksums),
      on_(on),
      parts_(parts_of(items, with.core()->memory())),
      results_(results),
      wanted_(parts_.size()) {
  std::iota(wanted_.begin(), wanted_.end(), std::size_t{0});
}

bool fetch::begin() {
  requests_.clear();
  reading_of_.clear();
  bytes_of_.clear();
  const status followed = from_.follow();
  const auto looked_for = std::exchange(wanted_, {});
  for (const std::size_t index : looked_for | std::views::reverse) {  // so that the first key becomes the most recently used
    if (followed.ok()) {
      find(index);
    } else {
      results_[index] = failed_with(followed, parts_[index].key);
    }
  }
  ask_in_file_order();
  return !readings_.empty();
}

// Reads values in file order, regardless of key order, so that adjacent values are read together.
void fetch::ask_in_file_order() {
  const auto offset_of = [](const reading& each) { return each.facts.offset; };
  if (!std::ranges::is_sorted(readings_, {}, offset_of)) std::ranges::sort(readings_, {}, offset_of);
  for (reading& each : readings_) ask(each);
}

void fetch::ask(reading& read) {
  const key_part& part = parts_[read.index];
  const value_facts& facts = read.facts;
  read.first_request = requests_.size();
  read.refusal = check(part, facts);
  if (!read.refusal.ok()) return;
  auto offset = static_cast<std::int64_t>(facts.offset);
  bool is_checked = checksums_ && facts.checksum.has_value();
  for (const memory_piece& piece : part.pieces) {
    const auto bytes = is_checked ? engine_.cpu_address(piece.memory, piece.length) : result<void*>(nullptr);
    is_checked = is_checked && bytes.ok();  // if false, no further addresses are needed
    requests_.push_back({&from_.data(), piece.memory, piece.length, offset});
    reading_of_.push_back(&read);
    bytes_of_.push_back(is_checked ? static_cast<const std::byte*>(*bytes) : nullptr);
    offset += static_cast<std::int64_t>(piece.length);
  }
  read.requests = requests_.size() - read.first_request;
  read.unfinished = read.requests;
}

status fetch::check(const key_part& part, const value_facts& facts) {
  if (facts.length != part.length)
    return {errc::invalid_argument, fmt::format("the value has {} bytes, but the buffer has {}", facts.length, part.length)};
  if (!on_) return {};
  for (const memory_piece& piece : part.pieces) {
    const auto place = place_on_stream(engine_.core()->memory(), piece);
    if (!place) return place.error();
    checksums_ = checksums_ && place->emulated();  // the CPU must not touch a GPU's memory while a stream is blocked
  }
  return {};
}

void fetch::request_ended(std::size_t request) noexcept {
  reading& read = *reading_of_[request];
  if (std::atomic_ref(read.unfinished).fetch_sub(1) > 1) return;
  if (on_ || parts_[read.index].length <= most_checked_bytes) read.checksum = checksum_of(read);
}

// Returns nothing if the value has no checksum, or if the CPU cannot read all of its memory.
std::optional<std::uint64_t> fetch::checksum_of(const reading& read) const noexcept {
  checksum sum;
  for (std::size_t i = read.first_request; i < read.first_request + read.requests; ++i) {
    if (bytes_of_[i] == nullptr) return std::nullopt;
    sum.add({bytes_of_[i], requests_[i].length});
  }
  return sum.value();
}

void fetch::find(std::size_t index) {
  const key_part& part = parts_[index];
  results_[index] = {outcome::absent, 0, {}};
  if (status wrong = check_key(part.key); !wrong.ok()) {
    results_[index] = failed_with(wrong, part.key);
    return;
  }
  readings_.push_back({.index = index});  // first, so that readings_ always contains every read that has started
  const auto found = rounds_ < most_fetch_rounds ? from_.begin_read(part.key, on_) : volume::found_value();
  if (found.entry == nullptr) return readings_.pop_back();
  readings_.back().entry = found.entry;
  readings_.back().facts = found.facts;
}

void fetch::finish(std::span<const io_result> outcomes) {
  ++rounds_;
  const status followed = from_.follow();
  for (const reading& each : readings_) {
    const key_part& part = parts_[each.index];
    auto& told = results_[each.index];
    if (!followed.ok()) {
      told = failed_with(followed, part.key);
    } else if (is_gone(each)) {
      wanted_.push_back(each.index);
    } else {
      told = look_at(each, outcomes);
    }
  }
  let_go();
}

// If this process is the writer, values that are being read stay in place.
bool fetch::is_gone(const reading& read) const {
  if (!from_.read_only()) return false;
  const auto now = from_.find(parts_[read.index].key);
  return !now || now->sequence != read.facts.sequence;
}

key_result fetch::look_at(const reading& read, std::span<const io_result> outcomes) const {
  const key_part& part = parts_[read.index];
  const value_facts& facts = read.facts;
  if (!read.refusal.ok()) return failed_with(read.refusal, part.key);
  if (read.entry->failed()) return failed_with({errc::io, "the put that was queued before this get on its stream failed"}, part.key);
  for (std::size_t i = read.first_request; i < read.first_request + read.requests; ++i) {
    if (!outcomes[i].ok()) return failed_with(outcomes[i].error, part.key);
    if (outcomes[i].bytes_done == requests_[i].length) continue;
    return failed_with({errc::io, fmt::format("the value extends past the end of {}", from_.data().path())}, part.key);
  }
  const auto sum = read.checksum || on_ ? read.checksum : checksum_of(read);
  if (facts.checksum && sum && *sum != *facts.checksum) {
    from_.drop_damaged(part.key, facts.sequence);
    return failed_with({errc::io, fmt::format("the value in {} does not match its checksum and was dropped", from_.data().path())},
                       part.key);
  }
  return {outcome::done, facts.length, {}};
}

void fetch::fail_all(const status& why) {
  for (std::size_t i = 0; i < parts_.size(); ++i) results_[i] = failed_with(why, parts_[i].key);
  wanted_.clear();
  let_go();
}

void fetch::let_go() noexcept {
  for (const reading& each : readings_) from_.end_read(each.entry);
  readings_.clear();
}

}  // namespace penstock::kv
