#include "remote/cache/cache_entry.hpp"

#include <algorithm>
#include <array>
#include <memory>
#include <new>
#include <utility>

#include "base/no_memory.hpp"

namespace penstock::source::remote {

namespace {

using namespace std::chrono_literals;

constexpr std::size_t states_at_once = std::size_t{64} << 10;
constexpr std::uint64_t sealed_at_once = std::uint64_t{32} << 20;  // bounds the wait when an engine is destroyed

constexpr std::size_t sums_at_once = 256;
constexpr auto all_there = [] {
  std::array<std::byte, sums_at_once> made{};
  made.fill(block_is_there);
  return made;
}();

sys::byte_range in_map(const block_run& what) noexcept { return {cache_head_bytes + what.first, what.count}; }

// Returns the i-th block of bytes that start at a block boundary.
template <class Byte>
std::span<Byte> block_of(std::span<Byte> some, std::size_t i) noexcept {
  const auto at = i * static_cast<std::size_t>(cache_block_bytes);
  return some.subspan(at, std::min(static_cast<std::size_t>(cache_block_bytes), some.size() - at));
}

bool overlap(const block_run& one, const block_run& other) noexcept { return one.first < other.end() && other.first < one.end(); }

}  // namespace

status cache_entry::states_of(std::uint64_t first, std::span<std::byte> into) noexcept {
  return sys::read_exactly(map_.get(), into, cache_head_bytes + first);
}

status cache_entry::read_data(std::span<std::byte> into, std::uint64_t offset) noexcept {
  while (!into.empty()) {
    auto got = or_no_memory([&] { return around_.kernel.pread(data_.get(), into.data(), into.size(), offset); });
    if (!got) return got.error();
    if (*got == 0) return {errc::io, "its file was truncated"};
    into = into.subspan(*got);
    offset += *got;
  }
  return {};
}

result<bool> cache_entry::read(std::span<std::byte> into, std::uint64_t offset) noexcept {
  while (!into.empty()) {
    const auto first = offset / cache_block_bytes;
    const auto begin = first * cache_block_bytes;
    const auto end = std::min(offset + into.size(), head_.size);
    const auto whole_end = end == head_.size ? end : end / cache_block_bytes * cache_block_bytes;
    const bool is_run = offset == begin && whole_end > begin;
    const auto most = is_run ? whole_end - begin : std::min(begin + cache_block_bytes, end) - offset;
    const auto part = into.first(static_cast<std::size_t>(is_run ? std::min(most, sums_at_once * cache_block_bytes) : most));
    const auto right = is_run ? holds_run(part, first) : holds_part(part, offset);
    if (!right || !*right) return right;
    into = into.subspan(part.size());
    offset += part.size();
  }
  return true;
}

// Verifies whole blocks; the last one may be the object's last block.
result<bool> cache_entry::holds_run(std::span<std::byte> into, std::uint64_t first) noexcept {
  std::array<std::uint64_t, sums_at_once> sums{};
  const auto count = cache_blocks_of(into.size());
  const auto of_run = std::as_writable_bytes(std::span(sums).first(static_cast<std::size_t>(count)));
  if (auto got = sys::read_exactly(map_.get(), of_run, cache_sum_offset(head_.size, first)); !got.ok()) return got;
  if (auto got = read_data(into, first * cache_block_bytes); !got.ok()) return got;
  for (std::size_t i = 0; i < count; ++i) {
    if (cache_sum_of(block_of(into, i)) != sums[i]) return false;
  }
  return true;
}

// Verifies a part of one block; its checksum needs the whole block.
result<bool> cache_entry::holds_part(std::span<std::byte> into, std::uint64_t offset) noexcept {
  const auto block = offset / cache_block_bytes;
  const auto begin = block * cache_block_bytes;
  const auto bytes = static_cast<std::size_t>(std::min(cache_block_bytes, head_.size - begin));
  const std::unique_ptr<std::byte[]> beside(new (std::nothrow) std::byte[bytes]);
  if (beside == nullptr) return no_memory();
  const auto right = holds_run({beside.get(), bytes}, block);
  if (right && *right) std::copy_n(beside.get() + (offset - begin), into.size(), into.data());
  return right;
}

status cache_entry::forget(const block_run& what) noexcept {
  constexpr std::array<std::byte, 256> absent{};
  const std::lock_guard guard(lock_);
  seen_there_ = std::min(seen_there_, what.first);
  for (auto at = what.first; at < what.end();) {
    const auto part = std::span(absent).first(static_cast<std::size_t>(std::min<std::uint64_t>(what.end() - at, absent.size())));
    if (auto told = sys::write_exactly(map_.get(), part, in_map({at, 0}).offset); !told.ok()) return told;
    at += part.size();
  }
  return {};
}

status cache_entry::store(std::span<const std::byte> from, std::uint64_t first) noexcept {
  const auto all = from;
  const auto begin = first;
  for (auto offset = first * cache_block_bytes; !from.empty();) {
    auto put = or_no_memory([&] { return around_.kernel.pwrite(data_.get(), from.data(), from.size(), offset); });
    if (!put) return put.error();
    if (*put == 0) return {errc::no_space, "nothing more can be written to its file"};
    from = from.subspan(*put);
    offset += *put;
    // All blocks before this offset are complete, whatever happens to the rest.
    const auto end = offset == head_.size ? blocks() : offset / cache_block_bytes;
    for (; first < end;) {
      const auto count = std::min<std::uint64_t>(end - first, sums_at_once);
      std::array<std::uint64_t, sums_at_once> sums{};
      for (std::size_t i = 0; i < count; ++i) sums[i] = cache_sum_of(block_of(all, static_cast<std::size_t>(first - begin) + i));
      const auto of_run = std::as_bytes(std::span(sums).first(static_cast<std::size_t>(count)));
      auto told = sys::write_exactly(map_.get(), of_run, cache_sum_offset(head_.size, first));
      if (told.ok())
        told = sys::write_exactly(map_.get(), std::span(all_there).first(static_cast<std::size_t>(count)), in_map({first, 0}).offset);
      if (!told.ok()) return told;
      first += count;
    }
  }
  return {};
}

bool cache_entry::is_whole() noexcept {
  std::array<std::byte, 4096> states{};
  const std::lock_guard guard(lock_);
  while (seen_there_ < blocks()) {
    const auto part = std::span(states).first(static_cast<std::size_t>(std::min<std::uint64_t>(blocks() - seen_there_, states.size())));
    if (!states_of(seen_there_, part).ok()) return false;
    const auto absent = std::ranges::find_if(part, [](std::byte each) { return each != block_is_there; });
    seen_there_ += static_cast<std::uint64_t>(absent - part.begin());
    if (absent != part.end()) return false;
  }
  return true;
}

std::uint64_t cache_entry::bytes_there() noexcept {
  std::vector<std::byte> states;
  if (!or_no_memory([&]() -> status {
         states.resize(states_at_once);
         return {};
       }).ok())
    return 0;
  std::uint64_t found = 0;
  std::uint64_t missing_at_end = 0;  // bytes missing in the last block, which may be shorter
  for (std::uint64_t at = 0; at < blocks(); at += states.size()) {
    const auto part = std::span(states).first(static_cast<std::size_t>(std::min<std::uint64_t>(blocks() - at, states.size())));
    if (!states_of(at, part).ok()) break;
    found += static_cast<std::uint64_t>(std::ranges::count(part, block_is_there));
    if (at + part.size() == blocks() && part.back() == block_is_there) missing_at_end = blocks() * cache_block_bytes - head_.size;
  }
  return found * cache_block_bytes - missing_at_end;
}

result<std::optional<block_run>> cache_entry::claim(const block_run& what) noexcept {
  return or_no_memory([&]() -> result<std::optional<block_run>> {
    const std::lock_guard guard(lock_);
    std::optional<block_run> taken;
    for (const auto& each : claimed_) {
      if (overlap(each, what) && (!taken || each.first < taken->first)) taken = each;
    }
    if (taken) return taken;
    claimed_.reserve(claimed_.size() + 1);
    const auto other = sys::try_claim(map_.get(), in_map(what));
    if (!other) return other.error();
    if (*other)
      return std::optional(block_run{(*other)->offset - std::min((*other)->offset, std::uint64_t{cache_head_bytes}), (*other)->length});
    claimed_.push_back(what);
    return std::optional<block_run>();
  });
}

void cache_entry::let_go(const block_run& what) noexcept {
  const std::lock_guard guard(lock_);
  sys::let_go(map_.get(), in_map(what));
  std::erase_if(claimed_, [&](const block_run& each) { return each.first == what.first; });
}

void cache_entry::give_up(use left, const status& why) noexcept {
  const std::lock_guard guard(lock_);
  if (use_.load() <= left) return;
  problem_ = why;
  use_.store(left, std::memory_order_release);
}

status cache_entry::problem() const {
  const std::lock_guard guard(lock_);
  return problem_;
}

// --- sealing

void cache_entry::begin_sealing() noexcept {
  if (head_.is_sealed || sealing_begun_.exchange(true)) return;
  self_ = shared_from_this();
  around_.threads.push(*this);
}

// Seals one part at a time, so that other work can run in between and the end of an engine waits for at most one part. The next process
// that opens the entry seals the rest.
void cache_entry::run() noexcept {
  const auto end_of_it = [this] { const auto last = std::move(self_); };
  if (is_given_up()) return end_of_it();
  const bool stopping = around_.threads.stopping();
  if (!is_noted_) {
    const auto noted = write_head(false);
    if (noted.code() == errc::would_block && !stopping) return around_.threads.later(*this, 5ms);
    is_noted_ = noted.ok();
  }
  if (stopping || !is_noted_) return end_of_it();
  if (on_the_way_ < head_.size) {
    sys::write_back(data_.get(), {on_the_way_, sealed_at_once});
    on_the_way_ += sealed_at_once;
    return around_.threads.push(*this);
  }
  const auto sealed = seal();
  if (sealed.code() == errc::would_block) return around_.threads.later(*this, 5ms);
  if (!sealed.ok()) {  // bytes that could not be written to the disk may be lost from memory too
    give_up(sealed);
    around_.remove();
  }
  end_of_it();
}

status cache_entry::seal() noexcept {
  if (auto synced = sys::sync_file(data_.get()); !synced.ok()) return synced;
  auto written = write_head(true);
  return written.ok() ? sys::sync_file(map_.get()) : written;
}

// Writes the head while holding a claim on it. would_block: another process holds the claim. The time of the last change, once recorded, is
// kept: data changed after it must not be trusted.
status cache_entry::write_head(bool sealed) noexcept {
  constexpr sys::byte_range whole_head{0, cache_head_bytes};
  const auto other = sys::try_claim(map_.get(), whole_head);
  if (!other) return other.error();
  if (*other) return {errc::would_block, "the head is locked"};
  const auto written = or_no_memory([&]() -> status {
    cache_head_text text{};
    if (auto read = sys::read_exactly(map_.get(), text, 0); !read.ok()) return read;
    auto now = decode_cache_head(text);
    if (!now) return {errc::io, "the header of its map is corrupt"};
    if (now->data_changed_ns == 0) {
      const auto facts = sys::cache_file_facts_of(data_.get());
      if (!facts) return facts.error();
      now->data_changed_ns = facts->changed_ns;
    }
    now->is_sealed = now->is_sealed || sealed;
    return sys::write_exactly(map_.get(), encode(*now), 0);
  });
  sys::let_go(map_.get(), whole_head);
  return written;
}

}  // namespace penstock::source::remote
