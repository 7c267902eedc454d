#include "staging/slab_pool.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <numeric>
#include <utility>

#include "base/no_memory.hpp"

namespace penstock::staging {

namespace {

std::int64_t clock_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

bool counts_smallest(slab_user user) noexcept { return user == slab_user::far || user == slab_user::background; }

}  // namespace

bool pinned_budget::reserve(std::size_t bytes) noexcept {
  auto used = used_bytes.load();
  do {
    if (used + bytes > limit_bytes) return false;
  } while (!used_bytes.compare_exchange_weak(used, used + bytes));
  auto peak = peak_bytes.load();
  while (peak < used + bytes && !peak_bytes.compare_exchange_weak(peak, used + bytes)) {
  }
  return true;
}

slab_pool::slab_pool(sys::kernel& kernel, pinned_budget& budget, std::size_t most_for_cpu, std::size_t most_for_disk)
    : kernel_(kernel),
      budget_(budget),
      most_bytes_{most_for_cpu,
                  most_for_disk,
                  budget.limit_bytes / 4,
                  share_ahead(budget.limit_bytes),
                  share_far(budget.limit_bytes),
                  share_background(budget.limit_bytes)},
      chunks_(max_chunks) {}

void slab_pool::widen(std::size_t for_cpu, std::size_t for_disk) noexcept {
  const std::lock_guard guard(lock_);
  most_bytes_[static_cast<std::size_t>(slab_user::cpu)] += for_cpu;
  most_bytes_[static_cast<std::size_t>(slab_user::disk)] += for_disk;
}

void slab_pool::add_link() noexcept {
  const std::lock_guard guard(lock_);
  if (links_++ > 0) eager_bytes_ += eager_bytes_of_link_;
}

slab_pool::~slab_pool() {
  assert(slabs_out() == 0);
  for (std::size_t i = 0; i < chunk_count_; ++i) {
    auto& chunk = chunks_[i];
    if (chunk.pinned_by == nullptr || chunk.base.load() == nullptr) continue;
    budget_.release(chunk.length);
    (void)or_no_memory([&] { return chunk.pinned_by->unpin(chunk.base.load()); });
    (void)or_no_memory([&] { return kernel_.unmap(chunk.base.load(), chunk.length); });
  }
}

std::size_t slab_pool::class_of(std::size_t bytes) noexcept {
  std::size_t found = 0;
  while (slab_classes[found].slab_bytes < bytes) ++found;
  return found;
}

result<slab> slab_pool::try_take(std::size_t bytes, device::session& session, slab_user user, slab_pinner* elsewhere) {
  assert(bytes <= large_slab_bytes);
  if (user == slab_user::ahead && is_wanted()) return slab{};
  bool used_up = false;
  auto taken = take_or_grow(class_of(bytes), session, user, elsewhere, used_up);
  if (used_up && user != slab_user::ahead && taken && !*taken) note_wanted();
  return taken;
}

bool slab_pool::is_wanted() const noexcept {
  constexpr std::int64_t of_late_ns = 100'000'000;
  const auto when = wanted_ns_.load(std::memory_order_relaxed);
  return when != 0 && clock_ns() - when < of_late_ns;
}

void slab_pool::note_wanted() noexcept {
  {
    const std::lock_guard guard(lock_);
    if (slabs_out_[static_cast<std::size_t>(slab_user::ahead)] == 0) return;
  }
  wanted_ns_.store(clock_ns(), std::memory_order_relaxed);
  if (ask_ != nullptr) ask_(ask_context_);
}

result<slab> slab_pool::take_or_grow(std::size_t wanted, device::session& session, slab_user user, slab_pinner* elsewhere, bool& used_up) {
  std::uint64_t trims_before = 0;
  std::size_t grows = wanted;
  bool asks = false;
  {
    const std::lock_guard guard(lock_);
    trims_before = trims_;
    if (slab found = take_from(wanted, user)) return found;
    if (slab found = take_instead(wanted, user)) return found;
    if (growing_ >= (elsewhere != nullptr ? most_pinning : 1) || at_limit(wanted, user)) return slab{};
    if (!may_grow(wanted, user)) return pop(wanted, user);
    used_up = free_number() == max_chunks;
    if (used_up) return pop(wanted, user);
    grows = affordable(wanted);
    asks = elsewhere != nullptr && slabs_out_[static_cast<std::size_t>(user)] > 0 && refusal_.ok() && grows == wanted && has_numbers();
    if (!asks) ++growing_;
  }
  if (asks) {
    elsewhere->ask(*this, slab_classes[wanted].slab_bytes, session);
    return slab{};
  }
  const status grown = or_no_memory([&] { return grow(grows, session, elsewhere != nullptr); });
  used_up = !grown.ok();
  const std::lock_guard guard(lock_);
  --growing_;
  refusal_ = grown;
  returned_.notify_all();
  if (slab found = pop(wanted, user)) return found;
  // Nothing is free and nothing will be returned, so waiting would never end. The next attempt may pin what has been trimmed since then.
  if (!grown.ok() && trimming_ == 0 && trims_ == trims_before && all_out() == 0) return grown;
  return slab{};
}

void slab_pool::pin_more(std::size_t bytes, device::session& session) {
  const auto wanted = class_of(bytes);
  {
    const std::lock_guard guard(lock_);
    if (!free_[wanted].empty() || growing_ >= most_pinning || affordable(wanted) != wanted || !has_numbers()) return;
    ++growing_;
  }
  status grown = or_no_memory([&] { return grow(wanted, session, true); });
  const std::lock_guard guard(lock_);
  --growing_;
  refusal_ = std::move(grown);
  returned_.notify_all();
}

// Takes a slab of the wanted size, or a larger one if that size has run out.
slab slab_pool::pop(std::size_t wanted_class, slab_user user) {
  for (std::size_t of_class = wanted_class; of_class < class_count; ++of_class) {
    if (slab found = take_from(of_class, user)) return found;
  }
  return {};
}

// Takes a larger slab instead of waiting milliseconds until a chunk is pinned: the first chunk of the wanted size, or one that another
// thread is already pinning. Exceptions:
// - the smallest size, unless another thread is pinning: its first chunk takes less than a millisecond, and it has hundreds of users,
//   which would then keep large slabs for small needs;
// - users that keep slabs for long.
// Uses only half of a share. The rest is for many slabs of the wanted size once there are some.
slab slab_pool::take_instead(std::size_t wanted_class, slab_user user) {
  const bool is_first = wanted_class != 0 && slabs_of_class_[wanted_class] == 0;
  const bool returns_soon = user == slab_user::cpu || user == slab_user::disk;
  if (!returns_soon || !(growing_ > 0 || is_first)) return {};
  const auto index = static_cast<std::size_t>(user);
  for (std::size_t of_class = wanted_class + 1; of_class < class_count; ++of_class) {
    if (bytes_out_[index] + slab_classes[of_class].slab_bytes > most_bytes_[index] / 2) return {};
    if (slab found = take_from(of_class, user)) return found;
  }
  return {};
}

slab slab_pool::take_from(std::size_t of_class, slab_user user) {
  auto& from = free_[of_class];
  if (from.empty() || at_limit(of_class, user)) return {};
  slab found = from.back();
  from.pop_back();
  found.user = user;
  count(found, true);
  return found;
}

bool slab_pool::at_limit(std::size_t of_class, slab_user user) const noexcept {
  const auto index = static_cast<std::size_t>(user);
  return (of_class != 0 || counts_smallest(user)) && bytes_out_[index] > 0 &&
         bytes_out_[index] + slab_classes[of_class].slab_bytes > most_bytes_[index];
}

// Slabs of the smallest size are few, and their users transfer few bytes.
bool slab_pool::may_grow(std::size_t of_class, slab_user user) const noexcept {
  if (of_class == 0 || user != slab_user::cpu) return true;
  const auto out = bytes_out_[static_cast<std::size_t>(user)];
  if (out < eager_bytes_ && eager_bytes_ - out >= slab_classes[of_class].slab_bytes) return true;
  if (returns_ >= returns_between_chunks) return true;
  return std::chrono::nanoseconds(clock_ns() - returned_ns_) > quickly;
}

void slab_pool::count(const slab& used, bool taken) noexcept {
  auto& slabs = slabs_out_[static_cast<std::size_t>(used.user)];
  taken ? ++slabs : --slabs;
  if (used.size == small_slab_bytes && !counts_smallest(used.user)) return;
  auto& bytes = bytes_out_[static_cast<std::size_t>(used.user)];
  bytes = taken ? bytes + used.size : bytes - used.size;
}

// Returns the wanted size, or the largest if a chunk of the wanted size would use budget that the first chunk of the largest size needs.
// Large slabs can serve every size, but small ones cannot. Call with the lock held.
std::size_t slab_pool::affordable(std::size_t wanted) const noexcept {
  constexpr std::size_t largest = class_count - 1;
  if (has_largest_) return wanted;
  const std::size_t both = (growing_ + 1) * slab_classes[wanted].chunk_bytes + slab_classes[largest].chunk_bytes;
  return budget_.used_bytes.load() + both > budget_.limit_bytes ? largest : wanted;
}

// Returns a quarter of what there is, but at least one slab and one huge page. Call with the lock held.
std::size_t slab_pool::little_chunk(std::size_t of_class) const noexcept {
  const auto [slab_bytes, chunk_bytes] = slab_classes[of_class];
  const std::size_t quarter = slabs_of_class_[of_class] * slab_bytes / 4;
  return std::bit_floor(std::clamp(quarter, std::max(slab_bytes, 2 * mib), chunk_bytes));
}

status slab_pool::grow(std::size_t of_class, device::session& session, bool little) {
  const std::size_t slab_bytes = slab_classes[of_class].slab_bytes;
  std::size_t length = slab_classes[of_class].chunk_bytes;
  {
    const std::lock_guard guard(lock_);
    if (little) length = little_chunk(of_class);
    free_[of_class].reserve(slabs_of_class_[of_class] + most_pinning * slab_classes[of_class].chunk_bytes / slab_bytes);
  }
  if (!budget_.reserve(length)) return {errc::out_of_memory, "the pinned memory budget is exhausted"};
  auto mapped = or_no_memory([&] { return kernel_.map_memory(length, -1); });
  if (!mapped) {
    budget_.release(length);
    return mapped.error();
  }
  auto* base = static_cast<std::byte*>(*mapped);
  if (auto pinned = or_no_memory([&] { return session.pin(base, length, false); }); !pinned.ok()) {
    (void)or_no_memory([&] { return kernel_.unmap(base, length); });
    budget_.release(length);
    return pinned.with_context("pinning staging memory");
  }
  const std::lock_guard guard(lock_);
  const auto index = free_number();
  chunk_count_ = std::max<std::size_t>(chunk_count_, index + 1);
  chunks_[index].length = length;
  chunks_[index].of_class = of_class;
  slabs_of_class_[of_class] += length / slab_bytes;
  if (of_class == class_count - 1) has_largest_ = true;
  returns_ = 0;
  returned_ns_ = clock_ns();
  chunks_[index].pinned_by = &session;
  chunks_[index].base.store(base, std::memory_order_release);
  add_slabs(index);
  return {};
}

std::uint32_t slab_pool::free_number() const noexcept {
  std::uint32_t index = 0;
  while (index < chunk_count_ && chunks_[index].base.load(std::memory_order_relaxed) != nullptr) ++index;
  return index;
}

void slab_pool::add_slabs(std::uint32_t index) noexcept {
  const auto& chunk = chunks_[index];
  const std::size_t slab_bytes = slab_classes[chunk.of_class].slab_bytes;
  std::byte* const base = chunk.base.load(std::memory_order_relaxed);
  for (std::size_t at = 0; at < chunk.length; at += slab_bytes)
    free_[chunk.of_class].push_back({base + at, slab_bytes, index, slab_user::cpu});
}

bool slab_pool::is_idle(std::uint32_t index) const noexcept {
  const auto& chunk = chunks_[index];
  if (chunk.base.load(std::memory_order_relaxed) == nullptr || chunk.pinned_by == nullptr) return false;
  const auto idle = std::ranges::count(free_[chunk.of_class], index, &slab::chunk);
  return static_cast<std::size_t>(idle) == chunk.length / slab_classes[chunk.of_class].slab_bytes;
}

std::size_t slab_pool::trim() {
  std::size_t trimmed = 0;
  for (std::uint32_t index = 0; index < max_chunks; ++index) trimmed += trim(index);
  return trimmed;
}

// Unpins without the lock, because requests need it at the same time.
std::size_t slab_pool::trim(std::uint32_t index) {
  auto& chunk = chunks_[index];
  {
    const std::lock_guard guard(lock_);
    if (index >= chunk_count_ || !is_idle(index)) return 0;
    std::erase_if(free_[chunk.of_class], [&](const slab& each) { return each.chunk == index; });
    ++trimming_;
  }
  std::byte* const base = chunk.base.load();
  const bool unpinned = or_no_memory([&] { return chunk.pinned_by->unpin(base); }).ok();
  if (unpinned) (void)or_no_memory([&] { return kernel_.unmap(base, chunk.length); });
  const std::lock_guard guard(lock_);
  --trimming_;
  ++trims_;
  returned_.notify_all();
  if (!unpinned) {
    add_slabs(index);
    return 0;
  }
  slabs_of_class_[chunk.of_class] -= chunk.length / slab_classes[chunk.of_class].slab_bytes;
  has_largest_ = slabs_of_class_[class_count - 1] > 0;
  chunk.generation.fetch_add(1, std::memory_order_release);
  chunk.base.store(nullptr, std::memory_order_release);
  budget_.release(chunk.length);
  return chunk.length;
}

std::int64_t slab_pool::begin_wait(slab_user user) const noexcept {
  const bool used_up = budget_.used_bytes.load(std::memory_order_relaxed) + slab_classes.back().chunk_bytes > budget_.limit_bytes;
  return told_ != nullptr && (used_up || (share_is_cut_ && user == slab_user::cpu)) ? clock_ns() : 0;
}

void slab_pool::end_wait(std::int64_t& began_ns) noexcept {
  if (const auto began = std::exchange(began_ns, 0); began != 0) told_->waited(began, clock_ns());
}

void slab_pool::give_back(slab used) {
  const std::lock_guard guard(lock_);
  free_[class_of(used.size)].push_back(used);
  count(used, false);
  if (used.size != small_slab_bytes) {
    ++returns_;
    returned_ns_ = clock_ns();
  }
  if (waiting_ > 0) returned_.notify_one();
}

void slab_pool::abandon(slab lost) {
  const std::lock_guard guard(lock_);
  count(lost, false);
  auto& chunk = chunks_[lost.chunk];
  // The lost chunk must not keep the pool from using new memory.
  if (std::exchange(chunk.pinned_by, nullptr) != nullptr) budget_.release(chunk.length);
}

void slab_pool::wait_for_return(std::chrono::microseconds timeout) {
  std::unique_lock guard(lock_);
  ++waiting_;
  returned_.wait_for(guard, timeout);
  --waiting_;
}

std::size_t slab_pool::slabs_out() const {
  const std::lock_guard guard(lock_);
  return all_out();
}

std::size_t slab_pool::all_out() const noexcept { return std::accumulate(slabs_out_.begin(), slabs_out_.end(), std::size_t{0}); }

}  // namespace penstock::staging
