#include "source/read_ahead.hpp"

#include <algorithm>
#include <cassert>
#include <mutex>

#include "base/no_memory.hpp"
#include "staging/worker.hpp"

namespace penstock::source {

namespace {

// If this many bytes of a window were used, it was worth filling.
constexpr std::uint64_t worthwhile_bytes = std::uint64_t{16} << 20;
constexpr unsigned most_required = 64;
constexpr unsigned usually_required = 2;

constexpr std::uint64_t slab_start(std::uint64_t offset) { return offset / read_ahead::slab_bytes * read_ahead::slab_bytes; }

}  // namespace

read_ahead::read_ahead(source& from, staging::lanes& by, std::uint64_t size, std::size_t slabs) noexcept
    : from_(from), lanes_(by), size_(size), most_(std::min(slabs, most_slabs)) {
  for (auto& each : entries_) {
    for (auto& item : each.pieces) {
      item.owner = this;
      item.of = &each;
    }
  }
  taking_work_.owner = this;
}

read_ahead::~read_ahead() { assert(owned_ == 0 && under_way_.load() == 0); }

status read_ahead::problem() const {
  if (changed_.load()) return {errc::io, "the file has changed since it was opened"};
  if (most_ < 2) return {errc::out_of_memory, "the pinned memory budget is too small"};
  return {};
}

// --- one call

bool read_ahead::begin(const call& what) noexcept {
  rack back;
  const std::lock_guard guard(lock_);
  if (stopped_ || serving_) return false;
  (void)note(what);
  if (count_ == 0) return false;
  if (changed_.load(std::memory_order_relaxed)) {
    drop(back);
    return false;
  }
  if (covers(what)) {
    strangers_ = 0;
    ++served_;
    return serving_ = true;
  }
  if (what.offset == next_) {
    drop(back);  // too long for the current slabs; more will be available afterwards
  } else if (++strangers_ >= most_strangers) {
    hold_off();
    drop(back);
  }
  return false;
}

read_ahead::bytes read_ahead::part(std::uint64_t offset, std::uint64_t length, deadline_clock::time_point deadline) {
  auto* const in = entry_at(offset);
  if (in == nullptr) return {};
  bytes found{in->slab.data() + offset % slab_bytes, 0, {}};
  const std::uint64_t end = std::min(offset + length, in->end);
  // If the link is waiting for lanes, allow more of them to feed it.
  const auto& first = in->pieces[offset % slab_bytes / piece_bytes];
  lanes_.feed(&via_.load()->feeder(), first.now.load(std::memory_order_relaxed) != piece::state::full);
  for (std::uint64_t at = offset; at < end;) {
    auto& item = in->pieces[at % slab_bytes / piece_bytes];
    if (item.now.load(std::memory_order_acquire) != piece::state::full && (at > offset || !await(item, deadline, found.problem))) break;
    at = std::min(end, item.offset + item.length);
    found.length = at - offset;
  }
  return found;
}

// Waits until the piece is full (returns true) or cannot be filled (returns false). If no lane has started on it, the waiting thread fills
// it.
bool read_ahead::await(piece& item, deadline_clock::time_point deadline, status& problem) {
  constexpr unsigned looks_between = 32;
  constexpr unsigned most_looks = 4096;  // about a millisecond; after that, lanes are busy or the file system is slow
  for (unsigned looks = 0;; ++looks) {
    const auto seen = item.now.load(std::memory_order_acquire);
    if (seen == piece::state::full) return true;
    if (seen == piece::state::missing || seen == piece::state::idle) return false;
    if (looks % looks_between == 0 || looks > most_looks) {
      if (seen == piece::state::queued && lanes_.withdraw(list_, item)) {
        fill(item);
        continue;
      }
      if (deadline != deadline_clock::time_point::max() && deadline_clock::now() >= deadline) {
        problem = {errc::timed_out, "the deadline has passed"};
        return false;
      }
    }
    looks < most_looks ? staging::relax() : staging::nap();
  }
}

void read_ahead::end(const call& what, bool served) noexcept {
  rack back;
  staging::work_chain queued;
  {
    const std::lock_guard guard(lock_);
    serving_ = false;
    if (!served) {
      hold_off();
      drop(back);
    } else {
      used_bytes_ += end_of(what) - what.offset;
      if (used_bytes_ >= worthwhile_bytes) required_ = usually_required;
      move_to(end_of(what), queued, back);
    }
    if (std::exchange(drop_asked_, false) || count_ == 0) drop(back);
  }
  lanes_.push_or_run(list_, queued);
}

void read_ahead::passed(const call& what) noexcept {
  rack back;
  staging::work_chain queued;
  {
    const std::lock_guard guard(lock_);
    const auto at = what.offset + what.length;
    const auto mine = std::find_if(cursors_.begin(), cursors_.end(), [&](const cursor& each) { return each.named > 0 && each.end == at; });
    if (stopped_ || serving_ || count_ > 0 || changed_.load(std::memory_order_relaxed)) return;
    if (mine == cursors_.end() || mine->run + 1 < required_) return;
    if (spares_.count > 0 && &via_.load()->pool() != &what.via->pool()) drop(back);
    if (!taking_) via_ = what.via;
    if (spares_.count >= needed(what.length) && mine->run >= required_) {
      start(at, queued);
    } else if (refused_ && !taking_) {
      hold_off();
      drop(back);
    } else {
      allowed_ = std::max(allowed_, std::min(most_, needed(what.length) + 2));
      take_more(queued);
    }
  }
  lanes_.push_or_run(list_, queued);
}

bool read_ahead::may_begin(const call& what) noexcept {
  if (most_ < 2 || what.length > most_call_bytes || needed(what.length) > most_ || changed_.load(std::memory_order_relaxed)) return false;
  const auto at = what.offset + what.length;
  if (at >= size_) return false;
  const std::lock_guard guard(lock_);
  if (stopped_ || serving_ || count_ > 0) return false;
  return std::any_of(cursors_.begin(), cursors_.end(),
                     [&](const cursor& each) { return each.named > 0 && each.end == at && each.run + 1 >= required_; });
}

// --- releasing slabs

void read_ahead::give_back() noexcept {
  rack back;
  const std::lock_guard guard(lock_);
  serving_ ? static_cast<void>(drop_asked_ = true) : drop(back);
}

bool read_ahead::give_back_unless_used() noexcept {
  rack back;
  const std::lock_guard guard(lock_);
  if (std::exchange(served_seen_, served_) == served_ && !serving_) drop(back);
  return owned_ > 0;
}

void read_ahead::stop() noexcept {
  {
    rack back;
    const std::lock_guard guard(lock_);
    assert(!serving_);
    stopped_ = true;
    drop(back);
    if (taking_ && lanes_.withdraw(list_, taking_work_)) under_way_.fetch_sub(1, std::memory_order_relaxed);
  }
  while (under_way_.load(std::memory_order_acquire) > 0) staging::nap();
}

// --- called with lock_ held

std::uint64_t read_ahead::end_of(const call& what) const noexcept {
  return std::min(what.offset + what.length, std::max(size_, what.offset));
}

// Returns the cursor that the call continues; otherwise reuses the oldest one.
read_ahead::cursor& read_ahead::note(const call& what) noexcept {
  auto found =
      std::find_if(cursors_.begin(), cursors_.end(), [&](const cursor& each) { return each.named > 0 && each.end == what.offset; });
  if (found != cursors_.end()) {
    ++found->run;
  } else {
    found = std::min_element(cursors_.begin(), cursors_.end(), [](const cursor& a, const cursor& b) { return a.named < b.named; });
    found->run = 0;
  }
  found->end = what.offset + what.length;
  found->named = ++calls_;
  return *found;
}

// The call may skip up to its own length: an intermediate call may have arrived while another was being served, and was not seen here.
bool read_ahead::covers(const call& what) const noexcept {
  return what.length <= most_call_bytes && what.offset >= next_ && what.offset - next_ <= what.length && what.offset < armed_end_ &&
         end_of(what) <= armed_end_ && &what.via->pool() == &via_.load()->pool();
}

// Delays the next window until enough calls have arrived in order; the less this window was used, the more calls are required.
void read_ahead::hold_off() noexcept {
  if (used_bytes_ < worthwhile_bytes) required_ = std::min(2 * required_, most_required);
  for (auto& each : cursors_) each.run = 0;
}

void read_ahead::start(std::uint64_t at, staging::work_chain& queued) noexcept {
  next_ = armed_end_ = at;
  used_bytes_ = 0;
  strangers_ = 0;
  broken_.store(false);
  add_spares(queued);
}

// Adds an entry for the source's next bytes, of which there must be some, to the end of the window. The entry has a slab, and only the
// window holds it.
void read_ahead::arm(entry& next, staging::work_chain& queued) noexcept {
  next.from = armed_end_;
  next.end = armed_end_ = std::min(slab_start(armed_end_) + slab_bytes, size_);
  next.dropped.store(false, std::memory_order_relaxed);
  std::uint64_t at = slab_start(next.from);
  for (auto& item : next.pieces) {
    item.offset = std::max(at, next.from);
    at += piece_bytes;
    const std::uint64_t end = std::min(at, next.end);
    item.length = end > item.offset ? end - item.offset : 0;
    item.now.store(item.length > 0 ? piece::state::queued : piece::state::idle, std::memory_order_relaxed);
    if (item.length == 0) continue;
    ++next.holders;
    under_way_.fetch_add(1, std::memory_order_relaxed);
    queued.add(item);
  }
  order_[(head_ + count_++) % most_slabs] = &next;
}

void read_ahead::add_spares(staging::work_chain& queued) noexcept {
  for (auto& each : entries_) {
    if (spares_.count == 0 || armed_end_ >= size_) return;
    if (each.holders > 0) continue;
    each.slab = spares_.take();
    each.holders = 1;
    arm(each, queued);
  }
}

// Reuses slabs whose bytes are all before `at` for the bytes after the window.
void read_ahead::move_to(std::uint64_t at, staging::work_chain& queued, rack& back) noexcept {
  next_ = at;
  const bool wanted = via_.load()->pool().is_wanted();
  while (count_ > 0 && nth(0).end <= at) {
    auto& read = nth(0);
    head_ = (head_ + 1) % most_slabs;
    --count_;
    if (!wanted && read.holders == 1 && armed_end_ < size_ && !broken_.load(std::memory_order_relaxed)) {
      arm(read, queued);
    } else {
      release(read, back);
    }
    allowed_ = wanted ? owned_ : std::min(allowed_ + 1, most_);
  }
  add_spares(queued);
  take_more(queued);
}

bool read_ahead::wants_slabs() const noexcept { return owned_ < allowed_ && !stopped_ && (count_ == 0 || armed_end_ < size_); }

void read_ahead::take_more(staging::work_chain& queued) noexcept {
  if (taking_ || refused_ || !wants_slabs()) return;
  taking_ = true;
  under_way_.fetch_add(1, std::memory_order_relaxed);
  queued.add(taking_work_);
}

void read_ahead::drop(rack& back) noexcept {
  for (; count_ > 0; --count_) {
    release(nth(0), back);
    head_ = (head_ + 1) % most_slabs;
  }
  owned_ -= spares_.count;
  while (spares_.count > 0) back.add(spares_.take());
  allowed_ = 0;
  refused_ = false;
}

// Removes an entry from the window. Its slab is released now, or when lanes have finished the pieces that they are filling.
void read_ahead::release(entry& gone, rack& back) noexcept {
  gone.dropped.store(true, std::memory_order_relaxed);
  for (auto& item : gone.pieces) {
    if (item.now.load(std::memory_order_relaxed) != piece::state::queued || !lanes_.withdraw(list_, item)) continue;
    item.now.store(piece::state::idle, std::memory_order_relaxed);
    --gone.holders;
    under_way_.fetch_sub(1, std::memory_order_relaxed);
  }
  if (--gone.holders > 0) return;
  back.add(std::move(gone.slab));
  --owned_;
}

// --- called without lock_

read_ahead::entry* read_ahead::entry_at(std::uint64_t offset) noexcept {
  for (std::size_t i = 0; i < count_; ++i) {
    if (offset >= nth(i).from && offset < nth(i).end) return &nth(i);
  }
  return nullptr;
}

bool read_ahead::taking_work::run() {
  auto& of = *owner;
  of.take_slabs();
  of.under_way_.fetch_sub(1, std::memory_order_release);
  return true;
}

// Runs on a lane, because pinning 6 MiB takes a millisecond.
void read_ahead::take_slabs() noexcept {
  for (bool more = true; more;) {
    staging::lent_slab taken;
    staging::link* via = nullptr;
    {
      const std::lock_guard guard(lock_);
      via = via_.load();
      more = wants_slabs();
      if (!more) taking_ = false;
      if (more) ++owned_;
    }
    if (!more) return;
    auto& pool = via->pool();
    const auto got = or_no_memory([&] { return pool.try_take(slab_bytes, via->session(), staging::slab_user::ahead); });
    if (got && *got) taken = staging::lent_slab(pool, *got);
    const std::lock_guard guard(lock_);
    if (taken && owned_ <= allowed_) {
      spares_.add(std::move(taken));
      continue;
    }
    --owned_;
    refused_ = !taken;
    taking_ = more = false;
  }
}

bool read_ahead::piece::run() {
  owner->fill(*this);
  return true;
}

void read_ahead::fill(piece& item) noexcept {
  auto& of = *item.of;
  item.now.store(piece::state::filling, std::memory_order_relaxed);
  const bool wanted = !of.dropped.load(std::memory_order_relaxed) && !broken_.load(std::memory_order_relaxed);
  const bool got = wanted && fetch(item);
  if (wanted && !got && !of.dropped.load(std::memory_order_relaxed)) broken_.store(true, std::memory_order_relaxed);
  staging::lent_slab gone;
  {
    const std::lock_guard guard(lock_);
    item.now.store(got ? piece::state::full : piece::state::missing, std::memory_order_release);
    if (--of.holders == 0) {
      gone = std::move(of.slab);
      --owned_;
    }
  }
  gone.give_back();
  under_way_.fetch_sub(1, std::memory_order_release);
}

// Reads from the page cache only. Checks once per slab that the source has not changed since it was opened.
bool read_ahead::fetch(const piece& item) noexcept {
  return or_without_memory(
      [&] {
        if ((item.offset == item.of->from && from_.changed()) || changed_.load(std::memory_order_relaxed)) {
          changed_.store(true);
          return false;
        }
        const auto resident = from_.resident_bytes(item.offset, item.length);
        if (!resident || *resident < item.length) return false;
        // Fill with normal stores. Streaming stores help if a device reads the bytes at once, but by the time these bytes are read they
        // have left the lane's core caches (16 MiB calls: 49 GB/s at 0.21 CPU s/GB; with streaming stores 36 GB/s at 0.29. H200, 16 cores).
        const auto got = from_.fill(item.of->slab.data() + item.offset % slab_bytes, item.length, item.offset);
        filled_bytes_.fetch_add(got.bytes_done, std::memory_order_relaxed);
        return got.ok() && got.bytes_done == item.length;
      },
      [] { return false; });
}

}  // namespace penstock::source
