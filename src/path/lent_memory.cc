#include "path/lent_memory.hpp"

#include <algorithm>
#include <cerrno>
#include <span>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "staging/disk_lanes.hpp"
#include "sys/page_size.hpp"

namespace penstock::path {

namespace {

// Large enough for the drive's full speed, with enough pieces per turn to keep it busy.
constexpr std::uint64_t lent_piece_bytes = std::uint64_t{1} << 20;
constexpr std::size_t most_lent_pieces = lent_memory::turn_bytes / lent_piece_bytes;
// The driver may revoke a dma-buf's mapping at any time. Requests in flight then fail with -EAGAIN, and a retry uses a new mapping.
constexpr unsigned most_lent_retries = 1000;
constexpr unsigned most_failed_reaps = 100;  // consecutive; then the ring is considered dead

}  // namespace

struct lent_memory::piece {
  std::uint64_t at = 0;       // from the start of the extent
  std::uint64_t address = 0;  // in the dma-buf
  std::uint32_t length = 0;
  std::uint32_t moved = 0;
  unsigned retries = 0;
  int error = 0;
};

lent_memory::outcome lent_memory::move(const extent& of) {
  const std::lock_guard turn(turn_);
  const auto slot = lend(of);
  if (!slot) return {0, 0, slot.error()};
  auto& lent = loans_[*slot];
  lent.last_use = ++uses_;
  const auto at = static_cast<std::uint64_t>(of.memory - lent.base);
  return transfer(*slot, at, std::min({of.length, turn_bytes, lent.bytes - at}), of);
}

// Returns the slot of a loan that contains the start of the extent.
result<unsigned> lent_memory::lend(const extent& of) {
  if (is_dead_) return status(errc::io, "this drive's ring has failed");
  const auto in = of.session->allocation_of(of.memory);
  if (!in) return in.error();
  const auto slot = find_or_free(of, *in);
  if (!slot || loans_[*slot].file != nullptr) return slot;
  auto made = window_of(of, *in);
  if (!made) return made.error();
  if (auto added = add(*slot, *std::move(made), *of.file, of.file->descriptors().direct); !added.ok()) return added;
  return slot;
}

// Returns the slot in which the memory is already lent to the file, or else an empty slot, which may have held the least recently used
// loan. First takes back loans of freed allocations, because the device cannot free their memory until then.
result<unsigned> lent_memory::find_or_free(const extent& of, const device::allocation& in) {
  const auto holds = [&](const loan& each) {
    return each.file == of.file && each.session == of.session && each.of.number == in.number && of.memory >= each.base &&
           of.memory < each.base + each.bytes;
  };
  if (const auto found = std::ranges::find_if(loans_, holds); found != loans_.end()) return static_cast<unsigned>(found - loans_.begin());
  let_go_where([](const loan& each) {
    const auto there = or_no_memory([&] { return each.session->allocation_of(each.base); });
    if (!there && there.error().code() == errc::out_of_memory) return false;  // unknown
    return !there || there->number != each.of.number;
  });
  const auto oldest = std::ranges::min_element(loans_, {}, [](const loan& each) { return each.file == nullptr ? 0 : each.last_use; });
  const auto slot = static_cast<unsigned>(oldest - loans_.begin());
  let_go(slot);
  return slot;
}

// Only whole host pages can be lent. Every request cuts an allocation at the same places.
result<lent_memory::loan> lent_memory::window_of(const extent& of, const device::allocation& in) const {
  const std::uint64_t page = std::max<std::uint64_t>(sys::page_size(), source::direct_alignment);
  const auto first = (reinterpret_cast<std::uintptr_t>(in.base) + page - 1) / page * page;
  const auto end = (reinterpret_cast<std::uintptr_t>(in.base) + in.size) / page * page;
  const auto begins = reinterpret_cast<std::uintptr_t>(of.memory);
  if (begins < first || begins + source::direct_alignment > end)
    return status(errc::unsupported, "the memory shares a page with memory outside its allocation, so it cannot be exported");
  loan made;
  const auto base = first + (begins - first) / window_bytes_ * window_bytes_;
  made.session = of.session;
  made.of = in;
  made.base = of.memory - (begins - base);
  made.bytes = std::min(window_bytes_, end - base);
  auto exported = of.session->export_dma_buf(made.base, made.bytes);
  if (!exported) return exported.error();
  made.dma_buf = *std::move(exported);
  return made;
}

status lent_memory::add(unsigned slot, loan made, const source::source& file, int descriptor) {
  if (ring_ == nullptr) {
    auto ring = kernel_.make_ring(most_lent_pieces);
    if (!ring) return ring.error();
    ring_ = *std::move(ring);
  }
  if (auto registered = ring_->register_dma_buf(slot, made.dma_buf.get(), descriptor); !registered.ok()) {
    const auto what = kernel_.describe(descriptor);
    const bool is_drive = what && what->type == sys::file_type::block_device;
    return registered.with_context(fmt::format("{} does not accept dma-bufs", is_drive ? "the drive" : "the file system"));
  }
  loans_[slot] = std::move(made);
  loans_[slot].file = &file;
  return {};
}

void lent_memory::let_go(unsigned slot) noexcept {
  if (loans_[slot].file == nullptr) return;
  // If the kernel does not unregister it, it is released with the ring.
  if (ring_ != nullptr) (void)or_no_memory([&] { return ring_->forget_dma_buf(slot); });
  loans_[slot] = {};
}

template <class Which>
void lent_memory::let_go_where(Which which) noexcept {
  for (unsigned slot = 0; slot < most_loans; ++slot) {
    if (loans_[slot].file != nullptr && which(loans_[slot])) let_go(slot);
  }
}

void lent_memory::forget(const source::source& file) {
  const std::lock_guard turn(turn_);
  let_go_where([&](const loan& each) { return each.file == &file; });
}

void lent_memory::forget_memory(const std::byte* address) {
  const std::lock_guard turn(turn_);
  let_go_where([&](const loan& each) { return address >= each.of.base && address < each.of.base + each.of.size; });
}

void lent_memory::trim() {
  const std::lock_guard turn(turn_);
  let_go_where([](const loan&) { return true; });
}

status lent_memory::rest() {
  trim();
  const std::lock_guard turn(turn_);
  if (is_dead_) return staging::failed_ring();
  ring_ = nullptr;
  return {};
}

bool lent_memory::queue(piece& next, std::uint64_t token, unsigned slot, const extent& of) {
  const int fd = of.file->descriptors().direct;
  auto* const address = reinterpret_cast<std::byte*>(next.address);
  const auto offset = of.offset + next.at;
  const auto try_it = [&] {
    return of.is_write ? ring_->queue_write(fd, address, next.length, offset, token, static_cast<int>(slot))
                       : ring_->queue_read(fd, address, next.length, offset, token, static_cast<int>(slot));
  };
  if (try_it() || (ring_->submit().ok() && try_it())) return true;
  next.error = EAGAIN;
  return false;
}

lent_memory::outcome lent_memory::transfer(unsigned slot, std::uint64_t at, std::uint64_t bytes, const extent& of) {
  std::array<piece, most_lent_pieces> pieces;
  std::size_t in_flight = 0;
  const std::size_t count = (bytes + lent_piece_bytes - 1) / lent_piece_bytes;
  for (std::size_t i = 0; i < count; ++i) {
    const auto done = i * lent_piece_bytes;
    pieces[i] = {done, at + done, static_cast<std::uint32_t>(std::min(lent_piece_bytes, bytes - done))};
    in_flight += queue(pieces[i], i, slot, of) ? 1 : 0;
  }
  unsigned failed = 0;
  while (in_flight > 0) {
    std::array<sys::ring_completion, most_lent_pieces> events;
    const auto got = or_no_memory([&] { return ring_->reap(events, true); });
    if (!got && ++failed < most_failed_reaps) continue;
    if (!got) return abandon(), outcome{0, bytes, got.error(), true};
    failed = 0;
    for (const auto& event : std::span(events).first(*got)) {
      auto& each = pieces[event.token];
      if (event.result == -EAGAIN && each.retries++ < most_lent_retries) {
        std::this_thread::yield();
        if (queue(each, event.token, slot, of)) continue;
      }
      if (event.result >= 0) each.moved = static_cast<std::uint32_t>(event.result);
      if (event.result < 0) each.error = -event.result;
      --in_flight;
    }
  }
  outcome told{0, bytes, {}};
  for (const auto& each : std::span(pieces).first(count)) {
    told.bytes += each.moved;
    if (each.error == EAGAIN)
      told.error = status::from_errno(EAGAIN, fmt::format("the device revoked access to its memory {} times", each.retries));
    if (each.error != 0 && each.error != EAGAIN) told.error = status::from_errno(each.error, "fixed request");
    if (each.moved < each.length) break;
  }
  return told;
}

// Requests may be in flight whose completions never arrive. Therefore the ring must not be freed, and the kernel keeps what it uses.
void lent_memory::abandon() noexcept {
  is_dead_ = true;
  (void)ring_.release();
  for (auto& each : loans_) each = {};
}

}  // namespace penstock::path
