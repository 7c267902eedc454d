#include "source/turnstile.hpp"

#include <algorithm>
#include <bit>
#include <chrono>
#include <utility>

namespace penstock::source {

namespace {

constexpr std::uint64_t largest_piece = 4 * staging::mib;
constexpr unsigned works_at_a_time = 16;  // then the lane runs other work

}  // namespace

turnstile::turnstile(staging::lanes& by, share& of, std::function<unsigned()> at_once, std::uint64_t least_piece_bytes,
                     std::function<unsigned()> soon)
    : lanes_(by),
      share_(of),
      at_once_(std::move(at_once)),
      least_piece_bytes_(least_piece_bytes),
      soon_(soon ? std::move(soon) : at_once_) {
  from_far = true;
}

std::uint64_t turnstile::most_piece_bytes(unsigned at_once) const noexcept {
  return std::bit_floor(std::clamp<std::uint64_t>(share_.limit_bytes / 2 / std::max(1U, at_once), least_piece_bytes_, largest_piece));
}

std::uint64_t turnstile::piece_bytes(std::uint64_t request_bytes, unsigned lanes) const noexcept {
  const auto at_once = std::max(1U, soon_());
  const auto parts = lanes == 0 ? at_once : std::min(at_once, lanes);
  const auto most = most_piece_bytes(parts);
  if (under_way() + queue_.size() >= at_once) return most;
  return std::clamp<std::uint64_t>(std::bit_ceil(request_bytes / parts + 1), least_piece_bytes_, most);
}

void turnstile::push(staging::work_list& list, const staging::work_chain& works) noexcept {
  if (works.count == 0) return;
  queue_.push(list, *works.first, *works.last, works.count);
  call();
}

bool turnstile::help(staging::work_list& list) {
  auto* const item = queue_.take_from(list);
  if (item == nullptr) return false;
  (void)item->run();
  return true;
}

void turnstile::began(std::uint64_t bytes) noexcept {
  const std::lock_guard guard(lock_);
  ++under_way_;
  bytes_ += bytes;
  share_.used_bytes.fetch_add(bytes);
}

void turnstile::ended(std::uint64_t bytes) noexcept {
  {
    const std::lock_guard guard(lock_);
    --under_way_;
    bytes_ -= bytes;
    share_.used_bytes.fetch_sub(bytes);
  }
  call();
}

// Requires lock_. True only if there is room for a whole piece.
bool turnstile::is_open() const noexcept {
  const auto at_once = std::max(1U, at_once_());
  const auto left = share_.limit_bytes + bytes_ - std::min(share_.limit_bytes + bytes_, share_.used_bytes.load());
  return under_way_ == 0 || (under_way_ < at_once && bytes_ + most_piece_bytes(at_once) <= left / 2);
}

// Requires lock_.
bool turnstile::opens() noexcept {
  const bool open = is_open();
  const bool lacks_memory = !open && queue_.size() > 0 && under_way_ < at_once_();
  if (share_.waits == nullptr || lacks_memory == (lacks_memory_since_ns_ != 0)) return open;
  const auto now = std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  if (!lacks_memory) share_.waits->waited(lacks_memory_since_ns_, now);
  lacks_memory_since_ns_ = lacks_memory ? now : 0;
  return open;
}

void turnstile::call() noexcept {
  {
    const std::lock_guard guard(lock_);
    if (called_ != nullptr || queue_.size() == 0 || !opens()) return;
    called_ = shared_from_this();
  }
  // Without lane threads, the thread that waits for a request runs the work.
  if (!lanes_.push(list_, *this).ok()) lanes_.push_urgent(list_, *this);
}

bool turnstile::run() {
  for (unsigned i = 0;; ++i) {
    std::shared_ptr<turnstile> last;  // released without holding the lock, because it may be the last reference
    staging::work* next = nullptr;
    {
      const std::lock_guard guard(lock_);
      if (i < works_at_a_time && opens()) next = queue_.take();
      if (next == nullptr) last = std::move(called_);
    }
    if (next == nullptr) {
      last->call();
      return true;
    }
    (void)next->run();
  }
}

}  // namespace penstock::source
