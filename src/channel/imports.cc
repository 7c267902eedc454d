#include "channel/imports.hpp"

#include <algorithm>
#include <utility>

#include "base/no_memory.hpp"

namespace penstock::channel {

pipe_imports::import::~import() {
  (void)or_no_memory([this] { return by_.close_shared(base_); });
}

result<pipe_imports::held> pipe_imports::open(device::session& by, const std::string& handle, std::uint64_t generation,
                                              std::int64_t process) {
  held gone;  // unmapped when the lock is open
  const std::lock_guard guard(lock_);
  const std::pair key(&by, handle);
  const auto found = entries_.find(key);
  if (found != entries_.end() && found->second.generation == generation) {
    found->second.used = ++uses_;
    return found->second.memory;
  }
  if (found != entries_.end()) entries_.erase(found);  // before the next of that handle is mapped
  const auto come = std::find_if(offered_.begin(), offered_.end(),
                                 [&](const auto& each) { return each.handle == handle && each.generation == generation; });
  auto opened = by.open_shared(handle, process, come == offered_.end() ? -1 : come->by.get());
  if (!opened) return opened.error();
  if (come != offered_.end()) offered_.erase(come);
  auto memory = std::make_shared<const import>(by, *opened);
  entries_.emplace(key, entry{generation, memory, ++uses_});
  if (entries_.size() > most) {
    const auto oldest = std::min_element(entries_.begin(), entries_.end(),
                                         [](const auto& one, const auto& other) { return one.second.used < other.second.used; });
    gone = std::move(oldest->second.memory);
    entries_.erase(oldest);
  }
  return memory;
}

void pipe_imports::offer(const std::string& handle, std::uint64_t generation, sys::owned_descriptor by) {
  const std::lock_guard guard(lock_);
  offered_.push_back({handle, generation, std::move(by)});
  if (offered_.size() > most_offered) offered_.pop_front();
}

void pipe_imports::clear() noexcept {
  std::map<std::pair<device::session*, std::string>, entry> gone;
  const std::lock_guard guard(lock_);
  gone.swap(entries_);
  offered_.clear();
}

}  // namespace penstock::channel
