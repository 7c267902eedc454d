#include "channel/ring.hpp"

#include <algorithm>
#include <cstring>

namespace penstock::channel {

namespace {

status broken() { return {errc::io, "the peer has corrupted the memory that both ends share"}; }

status would_block() { return {errc::would_block, "the ring"}; }

}  // namespace

// Each end publishes its own state before it reads the other's (seq_cst), so at least one of them sees the other's update.

std::size_t ring_writer::room() const noexcept {
  const auto used = written_ - state_->read.load();
  return used > memory_.size() ? memory_.size() + 1 : memory_.size() - used;
}

ring_pair::ring_pair(sys::shared_region memory, bool first) noexcept
    : memory_(std::move(memory)),
      first_(first),
      out(state(first ? 0 : 1), ring(first ? 0 : 1)),
      in(state(first ? 1 : 0), ring(first ? 1 : 0)) {}

ring_state& ring_pair::state(std::size_t index) const noexcept { return reinterpret_cast<ring_state*>(memory_.data())[index]; }

std::span<std::byte> ring_pair::ring(std::size_t index) const noexcept {
  return {memory_.data() + head_bytes + index * ring_bytes, ring_bytes};
}

std::atomic<std::uint32_t>& ring_pair::word(std::size_t index, std::uint32_t slot) const noexcept {
  return reinterpret_cast<std::atomic<std::uint32_t>*>(memory_.data() + permits_at)[index * permit::count + slot];
}

result<std::size_t> ring_writer::write(std::span<const iovec> parts) {
  auto left = room();
  if (left == 0) {
    state_->writer_waits.store(1);
    left = room();
    if (left == 0) return would_block();
  }
  if (left > memory_.size()) return broken();
  std::size_t done = 0;
  for (const auto& part : parts) {
    const auto* from = static_cast<const std::byte*>(part.iov_base);
    for (std::size_t rest = std::min(part.iov_len, left - done); rest > 0;) {
      const auto at = (written_ + done) % memory_.size();
      const auto count = std::min(rest, memory_.size() - at);
      std::memcpy(memory_.data() + at, from, count);
      from += count;
      done += count;
      rest -= count;
    }
  }
  written_ += done;
  state_->written.store(written_);
  return done;
}

// Returns true only once each time the reader goes to sleep: it need not be woken again before it has checked the ring.
bool ring_writer::must_call() noexcept { return state_->reader_watches.load() == 0 && state_->reader_watches.exchange(1) == 0; }

result<std::size_t> ring_reader::read(const iovec& into) {
  const auto before = read_.load(std::memory_order_relaxed);
  const auto there = state_->written.load() - before;
  if (there == 0) return would_block();
  if (there > memory_.size()) return broken();
  const std::size_t most = std::min<std::size_t>(into.iov_len, there);
  auto* const to = static_cast<std::byte*>(into.iov_base);
  const auto at = before % memory_.size();
  const auto count = std::min(most, memory_.size() - at);
  std::memcpy(to, memory_.data() + at, count);
  std::memcpy(to + count, memory_.data(), most - count);
  read_.store(before + most, std::memory_order_relaxed);
  state_->read.store(before + most);
  return most;
}

// Does not wake the writer after every byte: once the ring is half empty, the writer has room for a while.
bool ring_reader::must_call() noexcept {
  if (state_->writer_waits.load() == 0) return false;
  const auto used = state_->written.load() - read_.load(std::memory_order_relaxed);
  return used <= memory_.size() / 2 && state_->writer_waits.exchange(0) != 0;
}

bool ring_reader::something() const noexcept { return state_->written.load() != read_.load(std::memory_order_relaxed); }

void ring_reader::watch() noexcept { state_->reader_watches.store(1); }

bool ring_reader::sleep() noexcept {
  state_->reader_watches.store(0);
  return !something();
}

}  // namespace penstock::channel
