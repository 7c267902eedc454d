#include "channel/imports.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/no_memory.hpp"

namespace penstock::channel {

pipe_imports::import::~import() {
  if (base_ != nullptr) (void)or_no_memory([this] { return by_.close_shared(base_); });
}

status pipe_imports::import::open(const std::string& handle, std::int64_t process, int descriptor) {
  auto opened = by_.open_shared(handle, process, descriptor);
  if (!opened) return opened.error();
  base_ = static_cast<std::byte*>(*opened);
  return {};
}

result<pipe_imports::held> pipe_imports::open(device::session& by, const std::string& handle, std::uint64_t generation,
                                              std::int64_t process) {
  const key of(&by, handle);
  std::unique_lock guard(lock_);
  mapped_.wait(guard, [&] { return being_mapped_.count(of) == 0; });
  const bool was_ahead = ahead_.erase(of) > 0;
  const auto found = entries_.find(of);
  if (found == entries_.end() || found->second.generation != generation) return map(guard, of, generation, process);
  if (was_ahead) drop_offered(of, generation);
  found->second.used = ++uses_;
  return found->second.memory;
}

void pipe_imports::map_ahead(device::session& by, const std::string& handle, std::uint64_t generation, std::int64_t process,
                             const std::weak_ptr<const void>& posting) {
  const key of(&by, handle);
  std::vector<held> gone;  // unmapped after the lock is released
  std::unique_lock guard(lock_);
  if (cleared_ || posting.expired() || is_known(of)) return;
  if (ahead_.size() >= most_ahead) gone = take_out_without_posting();
  if (ahead_.size() >= most_ahead) return;
  ahead_.emplace(of, posting);
  (void)map(guard, of, generation, process);
}

bool pipe_imports::knows(device::session& by, const std::string& handle) {
  const key of(&by, handle);
  const std::lock_guard guard(lock_);
  return is_known(of);
}

bool pipe_imports::is_known(const key& of) const { return entries_.count(of) > 0 || being_mapped_.count(of) > 0 || ahead_.count(of) > 0; }

// Maps without the lock, so that messages whose memory is already mapped do not wait.
result<pipe_imports::held> pipe_imports::map(std::unique_lock<std::mutex>& guard, const key& of, std::uint64_t generation,
                                             std::int64_t process) {
  const auto by = find_offered(of, generation);
  being_mapped_.insert(of);
  auto gone = take_out(of);
  guard.unlock();
  gone.reset();  // before that handle is mapped again
  auto mapped = or_no_memory([&]() -> result<held> {
    const auto made = std::make_shared<import>(*of.first);
    if (auto problem = made->open(of.second, process, by == nullptr ? -1 : by->get()); !problem.ok()) return problem;
    return held(made);
  });
  guard.lock();
  being_mapped_.erase(of);
  mapped_.notify_all();
  if (mapped && !cleared_) gone = keep(of, generation, *mapped);
  if (mapped && ahead_.count(of) == 0) drop_offered(of, generation);
  guard.unlock();
  return mapped;
}

pipe_imports::descriptor pipe_imports::find_offered(const key& of, std::uint64_t generation) const {
  const auto found = std::find_if(offered_.begin(), offered_.end(),
                                  [&](const auto& each) { return each.handle == of.second && each.generation == generation; });
  return found == offered_.end() ? nullptr : found->by;
}

void pipe_imports::drop_offered(const key& of, std::uint64_t generation) {
  offered_.remove_if([&](const auto& each) { return each.handle == of.second && each.generation == generation; });
}

// Returns null if the handle has no mapping.
pipe_imports::held pipe_imports::take_out(const key& of) {
  auto taken = entries_.extract(of);
  return taken.empty() ? nullptr : std::move(taken.mapped().memory);
}

// Stores a mapping and returns the one that it displaced. The caller unmaps that after releasing the lock. If memory runs out, only the
// message holds the new mapping.
pipe_imports::held pipe_imports::keep(const key& of, std::uint64_t generation, const held& memory) {
  const bool is_kept = or_without_memory(
      [&] {
        return entries_.emplace(of, entry{generation, memory, ++uses_}).second;
      },
      [] { return false; });
  if (!is_kept || entries_.size() <= most) return nullptr;
  const auto oldest = std::min_element(entries_.begin(), entries_.end(),
                                       [](const auto& one, const auto& other) { return one.second.used < other.second.used; });
  ahead_.erase(oldest->first);
  auto memory_of_oldest = std::move(oldest->second.memory);
  entries_.erase(oldest);
  return memory_of_oldest;
}

// Removes mappings (or attempts) made ahead that no message can open any more. The caller unmaps them after releasing the lock.
std::vector<pipe_imports::held> pipe_imports::take_out_without_posting() {
  std::vector<held> taken;
  taken.reserve(ahead_.size());
  for (auto at = ahead_.begin(); at != ahead_.end();) {
    const bool stays = !at->second.expired() || being_mapped_.count(at->first) > 0;
    if (!stays) taken.push_back(take_out(at->first));
    at = stays ? std::next(at) : ahead_.erase(at);
  }
  return taken;
}

void pipe_imports::offer(const std::string& handle, std::uint64_t generation, sys::owned_descriptor by) {
  auto kept = std::make_shared<const sys::owned_descriptor>(std::move(by));
  const std::lock_guard guard(lock_);
  if (cleared_) return;
  offered_.push_back({handle, generation, std::move(kept)});
  if (offered_.size() > most_offered) offered_.pop_front();
}

void pipe_imports::clear() noexcept {
  std::map<key, entry> gone;
  const std::lock_guard guard(lock_);
  cleared_ = true;
  gone.swap(entries_);
  ahead_.clear();
  offered_.clear();
}

}  // namespace penstock::channel
