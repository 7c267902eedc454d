#include "core/stream/stream_memory.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/no_memory.hpp"

namespace penstock::core {

result<std::byte*> stream_memory::enter(kind which, device::session& session) {
  {
    const std::lock_guard guard(lock_);
    ++of(which).users;  // from now on nothing is given back
  }
  auto problem = or_no_memory([&] { return slabs_for(which, session); });
  auto block = problem.ok() ? or_no_memory([&] { return block_for(which, session); }) : result<std::byte*>(problem);
  if (!block) {
    leave(which, nullptr);
    return block;
  }
  std::memset(*block, 0, block_bytes(which));
  return block;
}

status stream_memory::slabs_for(kind which, device::session& session) {
  for (;;) {
    std::size_t have = 0;
    {
      const std::lock_guard guard(lock_);
      of(which).slabs.reserve(most_slabs(which));
      of(which).free_slabs.reserve(most_slabs(which));
      have = of(which).slabs.size();
      if (have >= std::min(most_slabs(which), 2 * of(which).users)) return {};
    }
    auto more = take_from_pool(slab_bytes(which), session, have == 0);
    if (!more) return have > 0 ? status() : more.error();
    if (!*more) return {};
    {
      const std::lock_guard guard(lock_);
      if (of(which).slabs.size() < most_slabs(which)) {
        of(which).slabs.push_back(*more);
        of(which).free_slabs.push_back(more->data);
        more = staging::slab{};
      }
    }
    if (*more) pool_.give_back(*more);  // others were quicker
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

void stream_memory::leave(kind which, std::byte* block) {
  std::vector<staging::slab> slabs;
  std::vector<staging::slab> block_slabs;
  {
    const std::lock_guard guard(lock_);
    auto& mine = of(which);
    if (block != nullptr) mine.free_blocks.push_back(block);
    if (--mine.users == 0) {
      slabs.swap(mine.slabs);
      block_slabs.swap(mine.block_slabs);
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
      lost = *found;  // other blocks in it stay in use: what is abandoned stays mapped
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
  of(which).free_slabs.push_back(slab);
}

void stream_memory::forget(kind which, const slab_waiter& waiting) {
  const std::lock_guard guard(lock_);
  const auto is_it = [&](const slab_waiter& each) { return &each == &waiting; };
  (void)of(which).waiting.take_if(is_it);
  (void)of(which).waiting_ahead.take_if(is_it);
}

stream_memory::share::waiters* stream_memory::share::to_wake() noexcept {
  if (!waiting.empty()) return free_slabs.empty() ? nullptr : &waiting;
  return waiting_ahead.empty() || free_slabs.size() <= reserve() ? nullptr : &waiting_ahead;
}

void stream_memory::wake(kind which) {
  for (;;) {
    slab_waiter* next = nullptr;
    std::byte* slab = nullptr;
    {
      const std::lock_guard guard(lock_);
      auto* const from = of(which).to_wake();
      if (from == nullptr) return;
      next = from->pop_front();
      slab = of(which).free_slabs.back();
      of(which).free_slabs.pop_back();
      ++of(which).users;  // nothing is given back while the slab is on its way
      next->retain();
    }
    next->resume(slab);
    next->release();
    leave(which, nullptr);
  }
}

}  // namespace penstock::core
