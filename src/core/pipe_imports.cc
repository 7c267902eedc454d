#include "core/pipe_imports.hpp"

#include <algorithm>
#include <utility>

#include "base/no_memory.hpp"

namespace penstock::core {

pipe_imports::import::~import() {
  (void)or_no_memory([this] { return by_.close_shared(base_); });
}

result<pipe_imports::held> pipe_imports::open(device::session& by, const std::string& handle, std::uint64_t generation,
                                              std::int64_t process) {
  std::list<entry> gone;  // unmapped when the lock is open
  const std::lock_guard guard(lock_);
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const auto& each) { return each.by == &by && each.handle == handle; });
  if (found != entries_.end() && found->generation == generation) {
    entries_.splice(entries_.begin(), entries_, found);
    return found->memory;
  }
  if (found != entries_.end()) entries_.erase(found);  // before the next of that handle is mapped
  auto opened = by.open_shared(handle, process);
  if (!opened) return opened.error();
  auto memory = std::make_shared<const import>(by, *opened);
  entries_.push_front({&by, handle, generation, memory});
  if (entries_.size() > most) gone.splice(gone.end(), entries_, std::prev(entries_.end()));
  return memory;
}

void pipe_imports::clear() noexcept {
  std::list<entry> gone;
  const std::lock_guard guard(lock_);
  gone.swap(entries_);
}

}  // namespace penstock::core
