#include "source/remote/cache_entry.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/no_memory.hpp"

namespace penstock::source::remote {

namespace {

using namespace std::chrono_literals;

constexpr std::size_t states_at_once = std::size_t{64} << 10;
constexpr std::uint64_t sealed_at_once = std::uint64_t{32} << 20;  // what the end of an engine may have to wait for

constexpr auto all_there = [] {
  std::array<std::byte, 512> made{};
  made.fill(block_is_there);
  return made;
}();

sys::byte_range in_map(const block_run& what) noexcept { return {cache_head_bytes + what.first, what.count}; }

bool overlap(const block_run& one, const block_run& other) noexcept { return one.first < other.end() && other.first < one.end(); }

}  // namespace

status cache_entry::states_of(std::uint64_t first, std::span<std::byte> into) noexcept {
  return sys::read_exactly(map_.get(), into, cache_head_bytes + first);
}

status cache_entry::read(std::span<std::byte> into, std::uint64_t offset) noexcept {
  while (!into.empty()) {
    auto got = or_no_memory([&] { return around_.kernel.pread(data_.get(), into.data(), into.size(), offset); });
    if (!got) return got.error();
    if (*got == 0) return {errc::io, "its file has become shorter"};
    into = into.subspan(*got);
    offset += *got;
  }
  return {};
}

status cache_entry::store(std::span<const std::byte> from, std::uint64_t first) noexcept {
  for (auto offset = first * cache_block_bytes; !from.empty();) {
    auto put = or_no_memory([&] { return around_.kernel.pwrite(data_.get(), from.data(), from.size(), offset); });
    if (!put) return put.error();
    if (*put == 0) return {errc::no_space, "its file takes no more"};
    from = from.subspan(*put);
    offset += *put;
    // What lies before this is there, whatever becomes of the rest.
    const auto end = offset == head_.size ? blocks() : offset / cache_block_bytes;
    for (; first < end;) {
      const auto count = std::min<std::uint64_t>(end - first, all_there.size());
      const auto told =
          sys::write_exactly(map_.get(), std::span(all_there).first(static_cast<std::size_t>(count)), in_map({first, 0}).offset);
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
  std::uint64_t missing_at_end = 0;  // of the last block, which may be shorter
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

// A part at a time, so that others get their turn and who ends the engine waits for no more than that. What is not sealed then is by the
// next process that opens it.
void cache_entry::run() noexcept {
  const auto end_of_it = [this] { const auto last = std::move(self_); };
  if (is_given_up() || around_.threads.stopping()) return end_of_it();
  if (on_the_way_ < head_.size) {
    sys::write_back(data_.get(), {on_the_way_, sealed_at_once});
    on_the_way_ += sealed_at_once;
    return around_.threads.push(*this);
  }
  const auto sealed = seal();
  if (sealed.code() == errc::would_block) return around_.threads.later(*this, 5ms);
  if (!sealed.ok()) {  // what the disk did not take may be gone from memory too
    give_up(sealed);
    around_.remove();
  }
  end_of_it();
}

// The head is changed by who has claimed it. would_block: another process has.
status cache_entry::seal() noexcept {
  if (auto synced = sys::sync_file(data_.get()); !synced.ok()) return synced;
  constexpr sys::byte_range whole_head{0, cache_head_bytes};
  const auto other = sys::try_claim(map_.get(), whole_head);
  if (!other) return other.error();
  if (*other) return {errc::would_block, "the head is locked"};
  auto written = or_no_memory([&] {
    auto sealed = head_;
    sealed.is_sealed = true;
    return sys::write_exactly(map_.get(), encode(sealed), 0);
  });
  if (written.ok()) written = sys::sync_file(map_.get());
  sys::let_go(map_.get(), whole_head);
  return written;
}

}  // namespace penstock::source::remote
