#include "core/stream/stream_memory.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/no_memory.hpp"

namespace penstock::core {

result<std::byte*> stream_memory::enter(kind which, std::size_t at_once, device::session& session) {
  {
    const std::lock_guard guard(lock_);
    ++of(which).users;  // from here on, nothing returns to the pool
    of(which).at_once += at_once;
  }
  auto problem = or_no_memory([&] { return slabs_for(which, session); });
  auto block = problem.ok() ? or_no_memory([&] { return block_for(which, session); }) : result<std::byte*>(problem);
  if (!block) {
    leave(which, at_once, nullptr);
    return block;
  }
  return block;
}

status stream_memory::slabs_for(kind which, device::session& session) {
  for (;;) {
    std::size_t have = 0;
    {
      const std::lock_guard guard(lock_);
      of(which).slabs.reserve(most_slabs(which));
      of(which).free_slabs.reserve(most_slabs(which));
      of(which).tenancies.reserve(most_slabs(which));
      have = of(which).slabs.size();
      if (have >= std::min(most_slabs(which), of(which).wanted())) return {};
    }
    auto more = take_from_pool(slab_bytes(which), session, have == 0);
    if (!more) return have > 0 ? status() : more.error();
    if (!*more) return {};
    {
      const std::lock_guard guard(lock_);
      if (of(which).slabs.size() < most_slabs(which)) {
        of(which).slabs.push_back(*more);
        of(which).tenancies.emplace_back();
        of(which).free_slabs.push_back(more->data);
        more = staging::slab{};
      }
    }
    if (*more) pool_.give_back(*more);  // other threads were faster
    wake(which);
  }
}

result<std::byte*> stream_memory::block_for(kind which, device::session& session) {
  auto& mine = of(which);
  for (;;) {
    {
      const std::lock_guard guard(lock_);
      if (!mine.free_blocks.empty()) {
        auto* found = mine.free_blocks.back();
        mine.free_blocks.pop_back();
        return found;
      }
    }
    auto more = take_from_pool(staging::small_slab_bytes, session, true);
    if (!more) return more.error();
    const std::lock_guard guard(lock_);
    const auto lacking = or_no_memory([&]() -> status {
      mine.block_slabs.reserve(mine.block_slabs.size() + 1);
      mine.free_blocks.reserve((mine.block_slabs.size() + 1) * blocks_per_slab(which) * (more->size / staging::small_slab_bytes));
      return {};
    });
    if (!lacking.ok()) {
      pool_.give_back(*more);
      return lacking;
    }
    mine.block_slabs.push_back(*more);
    for (std::size_t at = 0; at + block_bytes(which) <= more->size; at += block_bytes(which)) mine.free_blocks.push_back(more->data + at);
  }
}

result<staging::slab> stream_memory::take_from_pool(std::size_t bytes, device::session& session, bool wait) {
  std::int64_t waits_since = 0;
  for (unsigned waits = 0; waits < most_waits; ++waits) {
    auto taken = pool_.try_take(bytes, session, staging::slab_user::keeper);
    if (!taken || *taken || !wait) {
      pool_.end_wait(waits_since);
      return taken;
    }
    if (waits == 0) waits_since = pool_.begin_wait(staging::slab_user::keeper);
    pool_.wait_for_return(std::chrono::milliseconds(1));
  }
  pool_.end_wait(waits_since);
  constexpr auto problem = "no pinned memory is free for another stream-ordered request";
  auto why = pool_.last_refusal();
  return why.ok() ? status(errc::out_of_memory, problem) : why.with_context(problem);
}

void stream_memory::leave(kind which, std::size_t at_once, std::byte* block) {
  std::vector<staging::slab> slabs;
  std::vector<staging::slab> block_slabs;
  {
    const std::lock_guard guard(lock_);
    auto& mine = of(which);
    if (block != nullptr) mine.free_blocks.push_back(block);
    mine.at_once -= at_once;
    if (--mine.users == 0) {
      slabs.swap(mine.slabs);
      block_slabs.swap(mine.block_slabs);
      mine.tenancies.clear();
      mine.free_slabs.clear();
      mine.free_blocks.clear();
    }
  }
  for (const auto& each : slabs) pool_.give_back(each);
  for (const auto& each : block_slabs) pool_.give_back(each);
}

void stream_memory::lose(kind which, const std::byte* memory) {
  const auto holds = [&](const staging::slab& each) { return memory >= each.data && memory < each.data + each.size; };
  staging::slab lost;
  {
    const std::lock_guard guard(lock_);
    auto& mine = of(which);
    for (auto* slabs : {&mine.slabs, &mine.block_slabs}) {
      const auto found = std::find_if(slabs->begin(), slabs->end(), holds);
      if (found == slabs->end()) continue;
      lost = *found;  // its other blocks stay in use, because abandoned memory stays mapped
      if (slabs == &mine.slabs) mine.tenancies.erase(mine.tenancies.begin() + (found - slabs->begin()));
      slabs->erase(found);
    }
    std::erase_if(mine.free_blocks, [&](const std::byte* each) { return each >= lost.data && each < lost.data + lost.size; });
  }
  if (lost) pool_.abandon(lost);
}

std::byte* stream_memory::take_slab(kind which, slab_waiter& waiting, bool ahead) {
  const std::lock_guard guard(lock_);
  auto& mine = of(which);
  auto& others = ahead ? mine.waiting_ahead : mine.waiting;
  if (!others.empty() || mine.free_slabs.size() <= (ahead ? mine.reserve() : 0)) {
    others.push_back(waiting);
    return nullptr;
  }
  auto* found = mine.free_slabs.back();
  mine.free_slabs.pop_back();
  return found;
}

void stream_memory::hurry(kind which, slab_waiter& waiting) {
  const std::lock_guard guard(lock_);
  auto& mine = of(which);
  if (!mine.waiting_ahead.take_if([&](const slab_waiter& each) { return &each == &waiting; }).empty()) mine.waiting.push_back(waiting);
}

void stream_memory::put_slab(kind which, std::byte* slab) {
  const std::lock_guard guard(lock_);
  of(which).put(slab);
}

void stream_memory::forget(kind which, const slab_waiter& waiting) {
  const std::lock_guard guard(lock_);
  auto& mine = of(which);
  const auto is_it = [&](const slab_waiter& each) { return &each == &waiting; };
  (void)mine.waiting.take_if(is_it);
  (void)mine.waiting_ahead.take_if(is_it);
  if (!mine.heirs.take_if(is_it).empty()) mine.put(waiting.promised_);
  for (auto& each : mine.tenancies) {
    (void)each.heirs.take_if(is_it);
    if (each.last == &waiting) each.stream = 0;
  }
}

// --- promised slabs

bool stream_memory::promise_slabs(kind which, std::uint64_t stream, std::span<promise> wanted) {
  const std::lock_guard guard(lock_);
  auto& mine = of(which);
  const std::size_t spare = mine.waiting.empty() ? mine.free_slabs.size() - std::min(mine.free_slabs.size(), mine.reserve()) : 0;
  const std::size_t inherited = wanted.size() - std::min(wanted.size(), spare);
  const auto left = mine.to_inherit(stream, inherited);
  if (left.size() < inherited) return false;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    auto& [heir, slab, is_free] = wanted[i];
    is_free = i >= inherited;  // slabs of later waves are in use for longer
    tenancy* lease = nullptr;
    if (is_free) {
      slab = mine.free_slabs.back();
      mine.free_slabs.pop_back();
      lease = mine.tenancy_of(slab);
    } else {
      lease = left[i];
      slab = mine.slabs[static_cast<std::size_t>(lease - mine.tenancies.data())].data;
      lease->heirs.push_back(*heir);
    }
    lease->stream = stream;
    lease->last = heir;
    lease->promised = ++mine.promises;
  }
  return true;
}

stream_memory::tenancy* stream_memory::share::tenancy_of(const std::byte* slab) noexcept {
  const auto found = std::ranges::find(slabs, slab, &staging::slab::data);
  return found == slabs.end() ? nullptr : &tenancies[static_cast<std::size_t>(found - slabs.begin())];
}

// Chooses the slabs that will be free first. The last user of each must already be on the stream. Otherwise a thread that queues
// concurrently could enqueue that user's copy after the heir's copy, and both would wait forever. A stream that has more than a quarter of
// all slabs gives up one if another stream has fewer.
std::vector<stream_memory::tenancy*> stream_memory::share::to_inherit(std::uint64_t stream, std::size_t needed) {
  std::vector<tenancy*> found;
  if (needed == 0 || stream == 0) return found;
  std::size_t held = 0;
  for (auto& each : tenancies) {
    if (each.stream != stream) continue;
    ++held;
    if (each.last->is_on_stream()) found.push_back(&each);
  }
  const auto first = found.begin() + static_cast<std::ptrdiff_t>(std::min(needed + 1, found.size()));
  std::ranges::partial_sort(found, first, {}, &tenancy::promised);
  const std::size_t fair = slabs.size() / 4;
  if (held < std::max(fair, needed)) {
    poor_stream = stream;
  } else if (poor_stream != 0 && poor_stream != stream && held > fair && found.size() > needed) {
    poor_stream = 0;
    found.erase(found.begin());
  }
  if (found.size() > needed) found.resize(needed);
  return found;
}

void stream_memory::share::put(std::byte* slab) {
  auto* const of_it = tenancy_of(slab);
  if (of_it != nullptr && !of_it->heirs.empty()) {
    auto* const heir = of_it->heirs.pop_front();
    heir->promised_ = slab;
    heirs.push_back(*heir);
    return;
  }
  if (of_it != nullptr) of_it->stream = 0;
  free_slabs.push_back(slab);
}

// --- waking waiters

stream_memory::waiters* stream_memory::share::to_wake() noexcept {
  if (!waiting.empty()) return free_slabs.empty() ? nullptr : &waiting;
  return waiting_ahead.empty() || free_slabs.size() <= reserve() ? nullptr : &waiting_ahead;
}

slab_waiter* stream_memory::share::next_to_wake(std::byte*& slab) noexcept {
  if (auto* const heir = heirs.pop_front()) {
    slab = heir->promised_;
    return heir;
  }
  auto* const from = to_wake();
  if (from == nullptr) return nullptr;
  slab = free_slabs.back();
  free_slabs.pop_back();
  return from->pop_front();
}

void stream_memory::wake(kind which) {
  for (;;) {
    slab_waiter* next = nullptr;
    std::byte* slab = nullptr;
    {
      const std::lock_guard guard(lock_);
      next = of(which).next_to_wake(slab);
      if (next == nullptr) return;
      ++of(which).users;  // nothing returns to the pool while the slab is being delivered
      next->retain();
    }
    next->resume(slab);
    next->release();
    leave(which, 0, nullptr);
  }
}

}  // namespace penstock::core
