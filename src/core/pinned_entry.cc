#include "core/pinned_entry.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace penstock::core {

result<std::shared_ptr<pinned_entry>> pinned_entry::make(file_core& file, std::uint64_t offset, std::uint64_t length) {
  const auto use = file.use(false);
  if (!use) return use.error();
  auto& with = file.runtime();
  with.give_up_pinned_pages_where_short();
  const auto most = with.most_pinned_bytes();
  std::vector<path::pinning_session> by;
  for (auto* link : with.memory().links_in_use()) {
    if (link != nullptr) by.push_back({&link->session(), link->emulated()});
  }
  const auto size = file.source().size();
  if (!size) return size.error().with_context(file.name());
  std::shared_ptr<pinned_entry> made(new pinned_entry(with.shared_from_this()));
  const auto pin = [&]() -> result<std::shared_ptr<path::pinned_pages::entry>> {
    if (auto full = with.has_room_to_pin(std::min(length, *size - std::min(*size, offset))); !full.ok())
      return full.with_context(file.name());
    return with.pinned_pages().pin(file.source(), offset, length, most, by);
  };
  auto pinned = pin();
  if (pinned.error().code() == errc::out_of_memory && with.kept_pages().trim()) pinned = pin();  // kept pages count against the same limit
  if (!pinned) return pinned.error();
  made->held_ = *std::move(pinned);
  return made;
}

// In a forked child, another of the parent's threads may have held the lock.
pinned_entry::~pinned_entry() {
  if (held_ != nullptr && !runtime_->forked()) runtime_->pinned_pages().release(held_);
}

std::uint64_t pinned_entry::size() const noexcept { return runtime_->forked() ? 0 : held_->registered_bytes(); }

status pinned_entry::problem() const {
  if (runtime_->forked()) return {errc::forked, "it belongs to the parent process"};
  return held_->problem();
}

}  // namespace penstock::core
