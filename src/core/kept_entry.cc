#include "core/kept_entry.hpp"

#include <algorithm>
#include <vector>

#include <fmt/format.h>

namespace penstock::core {

namespace {

constexpr std::uint64_t usual_share = 4;                       // of all memory, that may be kept registered
constexpr std::uint64_t usual_bytes = std::uint64_t{1} << 30;  // where the kernel does not say how much there is

}  // namespace

result<std::shared_ptr<kept_entry>> kept_entry::make(file_core& file, std::uint64_t offset, std::uint64_t length) {
  const auto use = file.use(false);
  if (!use) return use.error();
  auto& with = file.runtime();
  with.give_up_kept_where_short();
  const auto memory = with.memory_left().at(about_now_ns());
  auto most = static_cast<std::uint64_t>(with.options().kept_budget_bytes);
  if (most == 0) most = memory ? memory->total_bytes / usual_share : usual_bytes;
  std::vector<path::pinning_session> by;
  for (auto* link : with.memory().links_in_use()) {
    if (link != nullptr) by.push_back({&link->session(), link->emulated()});
  }
  const auto size = file.source().size();
  if (!size) return size.error().with_context(file.name());
  if (auto full = with.has_room_to_keep(std::min(length, *size - std::min(*size, offset))); !full.ok())
    return full.with_context(file.name());
  std::shared_ptr<kept_entry> made(new kept_entry(with.shared_from_this()));
  auto kept = with.kept().keep(file.source(), offset, length, most, by);
  if (!kept) return kept.error();
  made->held_ = *std::move(kept);
  return made;
}

// In a forked child the lock may have been held by another thread of the parent.
kept_entry::~kept_entry() {
  if (held_ != nullptr && !runtime_->forked()) runtime_->kept().release(held_);
}

std::uint64_t kept_entry::size() const noexcept { return runtime_->forked() ? 0 : held_->registered_bytes(); }

status kept_entry::problem() const {
  if (runtime_->forked()) return {errc::forked, "it belongs to the parent process"};
  return held_->problem();
}

}  // namespace penstock::core
