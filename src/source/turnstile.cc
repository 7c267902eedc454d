#include "source/turnstile.hpp"

#include <algorithm>
#include <bit>
#include <utility>

#include "staging/slab_pool.hpp"

namespace penstock::source {

namespace {

constexpr std::uint64_t largest_piece = 4 * staging::mib;
constexpr unsigned works_at_a_time = 16;  // then a lane does what else there is

}  // namespace

turnstile::turnstile(staging::lanes& by, share& of, unsigned at_once) noexcept
    : lanes_(by),
      share_(of),
      at_once_(std::max(1U, at_once)),
      most_piece_bytes_(
          std::bit_floor(std::clamp<std::uint64_t>(of.limit_bytes / 2 / at_once_, staging::small_slab_bytes, largest_piece))) {}

std::uint64_t turnstile::piece_bytes(std::uint64_t request_bytes) const noexcept {
  return std::clamp<std::uint64_t>(std::bit_ceil(request_bytes / at_once_ + 1), staging::small_slab_bytes, most_piece_bytes_);
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

void turnstile::began() noexcept {
  const std::lock_guard guard(lock_);
  ++under_way_;
  share_.used_bytes.fetch_add(most_piece_bytes_);
}

void turnstile::ended() noexcept {
  {
    const std::lock_guard guard(lock_);
    --under_way_;
    share_.used_bytes.fetch_sub(most_piece_bytes_);
  }
  call();
}

// With the lock. Each fill counts as a whole piece.
bool turnstile::is_open() const noexcept {
  const auto mine = under_way_ * most_piece_bytes_;
  const auto left = share_.limit_bytes + mine - std::min(share_.limit_bytes + mine, share_.used_bytes.load());
  return under_way_ == 0 || (under_way_ < at_once_ && mine + most_piece_bytes_ <= left / 2);
}

void turnstile::call() noexcept {
  {
    const std::lock_guard guard(lock_);
    if (called_ != nullptr || queue_.size() == 0 || !is_open()) return;
    called_ = shared_from_this();
  }
  // Without threads whoever waits for a request runs it.
  if (!lanes_.push(list_, *this).ok()) lanes_.push_urgent(list_, *this);
}

bool turnstile::run() {
  for (unsigned i = 0;; ++i) {
    std::shared_ptr<turnstile> last;  // goes without the lock, since this may go with it
    staging::work* next = nullptr;
    {
      const std::lock_guard guard(lock_);
      if (i < works_at_a_time && is_open()) next = queue_.take();
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
