#include "remote/net/origin.hpp"

#include <algorithm>
#include <utility>

namespace penstock::source::remote {

namespace {

// Each request costs money and time: S3 takes as long to start a response as a connection takes to transfer 2 MiB.
constexpr std::uint64_t least_piece = staging::mib;

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

unsigned origin::fills_wanted() const noexcept { return pace_.wanted() + 16; }

std::shared_ptr<turnstile> origin::turns(staging::lanes& by, turnstile::share& of, std::shared_ptr<origin> self) {
  const std::lock_guard guard(turns_lock_);
  auto known = turns_.lock();
  if (known == nullptr) {
    known = std::make_shared<turnstile>(
        by, of, [self = std::move(self)] { return self->fills_wanted(); }, least_piece);
    turns_ = known;
  }
  return known;
}

}  // namespace penstock::source::remote
