#include "path/host_blocks.hpp"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

namespace penstock::path {

namespace {

struct kept_block {
  std::unique_ptr<std::byte[]> memory;
  std::uint64_t bytes = 0;
};

}  // namespace

struct host_blocks::spares {
  std::mutex lock;  // guards the members below
  std::vector<kept_block> kept;
  std::size_t in_use = 0;
};

host_blocks::host_blocks() : spares_(std::make_shared<spares>()) {}

host_blocks::block host_blocks::take(std::uint64_t bytes) {
  const std::lock_guard guard(spares_->lock);
  auto& kept = spares_->kept;
  kept_block found;
  if (!kept.empty()) {
    // If no kept block is large enough, the new one replaces one of them.
    const auto fits = std::ranges::find_if(kept, [&](const kept_block& each) { return each.bytes >= bytes; });
    if (fits != kept.end()) std::swap(*fits, kept.back());
    found = std::move(kept.back());
    kept.pop_back();
  }
  if (found.bytes < bytes) {
    found = {};
    found = {std::make_unique_for_overwrite<std::byte[]>(bytes), bytes};
  }
  kept.reserve(kept.size() + spares_->in_use + 1);  // so that returning a block does not allocate
  ++spares_->in_use;
  return {found.memory.release(), {spares_, found.bytes}};
}

void host_blocks::returner::operator()(std::byte* memory) const noexcept {
  kept_block gone{std::unique_ptr<std::byte[]>(memory), bytes};
  std::vector<kept_block> all;
  const std::lock_guard guard(home->lock);
  if (--home->in_use == 0) {
    all = std::exchange(home->kept, {});
  } else {
    home->kept.push_back(std::move(gone));
  }
}

}  // namespace penstock::path
