#include "core/preparation.hpp"

#include <memory>

#include "base/no_memory.hpp"
#include "core/mount.hpp"

namespace penstock::core {

namespace {

// Pinning a chunk of these slabs takes 2.5 ms, a chunk of large ones 7 ms. A read's first copies fit into these.
constexpr std::size_t early_slab_bytes = 4 * staging::mib;

status pin_one(staging::link& via, std::size_t slab_bytes) {
  const auto taken = via.pool().try_take(slab_bytes, via.session(), staging::slab_user::cpu);
  if (taken && *taken) via.pool().give_back(*taken);
  return taken.error();
}

// Ignores failures: the request that needs the memory reports them.
void prepare_slabs(staging::link& via) {
  (void)or_no_memory([&]() -> status {
    (void)pin_one(via, early_slab_bytes);
    const auto pinned = pin_one(via, staging::large_slab_bytes);
    // Large slabs can serve any size, but small ones cannot, so unused slabs are freed to make room for a large one.
    if (!pinned.ok() && via.pool().trim() > 0) return pin_one(via, staging::large_slab_bytes);
    return pinned;
  });
}

// Owns itself once it is queued.
class warm_up final : public staging::work {
 public:
  enum class part : std::uint8_t { slabs, copies };
  warm_up(staging::link& via, part what) : via_(via), what_(what) {}

  bool run() override {
    const std::unique_ptr<warm_up> self(this);
    what_ == part::copies ? via_.feeder().prepare() : prepare_slabs(via_);
    return true;
  }
  staging::work_list list;

 private:
  staging::link& via_;
  const part what_;
};

}  // namespace

status prepare(file_core& file, std::string_view device) {
  const auto use = file.use(false);
  if (!use) return use.error();
  auto& with = file.runtime();
  auto via = with.memory().link_named(device);
  if (!via) return via.error();
  if (!(*via)->is_first_preparation()) return {};
  for (const auto what : {warm_up::part::slabs, warm_up::part::copies}) {
    auto made = std::make_unique<warm_up>(**via, what);
    if (file.mount().lanes().push(made->list, *made).ok()) (void)made.release();
  }
  return {};
}

void prepare_here(staging::link& via) {
  if (!via.is_first_preparation()) return;
  prepare_slabs(via);
  via.feeder().prepare();
}

}  // namespace penstock::core
