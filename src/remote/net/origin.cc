#include "remote/net/origin.hpp"

#include <algorithm>
#include <utility>

namespace penstock::source::remote {

namespace {

// Each request costs money and time: S3 takes as long to start a response as a connection takes to transfer 2 MiB.
constexpr std::uint64_t least_piece = staging::mib;
constexpr unsigned waiting_fills = 16;  // so that no connection has to wait for its next request
constexpr std::int64_t look_interval_ns = 5'000'000;

}  // namespace

origin::origin(url address, const network_settings& with)
    : at_(std::move(address)),
      address_((at_.tls ? "https://" : "http://") + at_.authority()),
      host_(at_.authority()),
      tokens_(most_tokens),
      pace_(with.most_connections) {
  idle_.reserve(std::max(with.most_connections, pace::least) + most_dials);
}

origin::~origin() = default;

unsigned origin::fills_wanted() const noexcept { return pace_.wanted() + waiting_fills; }

void origin::start_fills() noexcept {
  std::shared_ptr<turnstile> known;
  {
    const std::lock_guard guard(turns_lock_);
    known = turns_.lock();
  }
  if (known != nullptr) known->call();
}

void origin::responded(std::chrono::nanoseconds latency) noexcept {
  constexpr std::int64_t smoothing = 8;
  const auto known = latency_ns_.load(std::memory_order_relaxed);
  latency_ns_.store(known == 0 ? latency.count() : known + (latency.count() - known) / smoothing, std::memory_order_relaxed);
  responses_.fetch_add(1, std::memory_order_relaxed);
}

bool origin::is_look_due(std::chrono::steady_clock::time_point now) noexcept {
  const std::int64_t now_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(now.time_since_epoch()).count();
  auto due = look_due_ns_.load(std::memory_order_relaxed);
  return now_ns >= due && look_due_ns_.compare_exchange_strong(due, now_ns + look_interval_ns, std::memory_order_relaxed);
}

pace::progress origin::progress() const noexcept {
  return {arrived_.load(std::memory_order_relaxed), responses_.load(std::memory_order_relaxed), carried_,
          std::chrono::nanoseconds(latency_ns_.load(std::memory_order_relaxed))};
}

std::shared_ptr<turnstile> origin::turns(staging::lanes& by, turnstile::share& of, const std::shared_ptr<origin>& self) {
  const std::lock_guard guard(turns_lock_);
  auto known = turns_.lock();
  if (known == nullptr) {
    known = std::make_shared<turnstile>(
        by, of, [self] { return self->fills_wanted(); }, least_piece,
        [self] { return std::max(self->fills_wanted(), self->pace_.expected() + waiting_fills); });
    turns_ = known;
  }
  return known;
}

}  // namespace penstock::source::remote
