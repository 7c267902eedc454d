#include "cli/files/copy_objects.hpp"

#include <algorithm>
#include <mutex>
#include <vector>

#include "cli/common/at_once.hpp"
#include "cli/common/interrupt.hpp"

namespace penstock::cli {

void copy_objects(const engine& owner, std::span<const object_copy> all, const folder_tree& to, const copy_options& how,
                  const std::function<void(const object_copy&, const result<copied_file>&)>& told) {
  constexpr std::size_t most_at_once = 64;
  std::mutex lock;
  const auto copy = [&](const object_copy& each) {
    auto folder = to.enter(each.to.folder);
    const auto copied = folder ? copy_object(owner, each.from, each.to.path, how, folder->get()) : result<copied_file>(folder.error());
    const std::lock_guard guard(lock);
    told(each, copied);
  };
  std::vector<const object_copy*> small, large;
  for (const object_copy& each : all) (each.from.size.value_or(small_object) < small_object ? small : large).push_back(&each);
  std::uint64_t largest = 0;  // bytes of the largest small object; each is kept in memory as a whole
  for (const object_copy* each : small) largest = std::max(largest, each->from.size.value_or(0));
  run_at_once(small.size(), steps_at_once(largest, most_at_once), [&](std::size_t i) { copy(*small[i]); });
  for (const object_copy* const each : large) {
    if (interrupted()) return;
    copy(*each);
  }
}

}  // namespace penstock::cli
