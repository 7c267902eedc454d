#include "remote/cache/cached_object.hpp"

#include <algorithm>
#include <array>
#include <atomic>
#include <cassert>
#include <chrono>
#include <cstring>
#include <new>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "remote/net/fetch.hpp"

namespace penstock::source::remote {

namespace {

using namespace std::chrono_literals;

// A waiting part polls again after a fraction of the time that it has already waited, within these limits.
constexpr auto least_pause = 2ms;
constexpr auto most_pause = 20ms;
// A stopped process holds its blocks indefinitely. After this time, fetch them without the cache.
constexpr auto most_wait_for_another = 30s;

struct file_range {
  std::uint64_t from = 0;
  std::uint64_t to = 0;
  [[nodiscard]] std::uint64_t length() const noexcept { return to - from; }
};

}  // namespace

// Consecutive blocks from which one fill needs bytes. Runs as work on the cache's threads, and is a fill of the underlying object.
class cached_object::part final : public cache_work, public far_fill {
 public:
  part(filling& of, const block_run& blocks) noexcept : of_(of), blocks_(blocks) {}
  part(const part&) = delete;
  part& operator=(const part&) = delete;

  // Runs on one of the cache's threads.
  void run() noexcept override;
  // Stops the part because its fill is no longer wanted. The caller must not hold the filling's lock; the filling still owns the part.
  void stop() noexcept;
  // The byte range that the fill wants from the part.
  [[nodiscard]] file_range wanted() const noexcept;
  [[nodiscard]] const io_result& outcome() const noexcept { return outcome_; }

 private:
  enum class stage : std::uint8_t {
    looking,   // looks up its blocks, or waits for another process to store them
    asking,    // the underlying object is being asked for the bytes
    fetching,  // the underlying object has accepted the fill, so cancel() may be called
    ended,
  };
  void go_to(stage next) noexcept;
  [[nodiscard]] file_range whole() const noexcept;
  [[nodiscard]] bool keep_first(std::uint64_t count) noexcept;
  void look() noexcept;
  void read() noexcept;
  void claim() noexcept;
  void wait() noexcept;
  void fetch() noexcept;
  void take() noexcept;
  void keep(std::uint64_t bytes) noexcept;
  void end(io_result outcome) noexcept;
  void ended(io_result outcome) noexcept override;

  filling& of_;
  block_run blocks_;
  std::atomic<stage> stage_{stage::looking};
  std::uint64_t room_ = 0;                 // cache space reserved for the fetched bytes; 0: the blocks are not claimed
  std::unique_ptr<std::byte[]> beside_{};  // a buffer, if the blocks contain more than the wanted bytes
  std::optional<cache_threads::clock::time_point> waits_since_{};
  io_result come_;  // the outcome from the underlying object
  io_result outcome_;
};

// A fill in progress.
struct cached_object::filling {
  filling(cached_object& of, far_fill& what, std::uint64_t length) noexcept
      : owner(of), fill(what), wanted{what.offset(), what.offset() + length} {}

  cached_object& owner;
  far_fill& fill;
  const file_range wanted;
  std::atomic<bool> unwanted{false};
  filling* after = nullptr;  // guarded by the object's lock
  filling* before = nullptr;
  std::mutex lock;  // guards the members below
  std::vector<std::unique_ptr<part>> parts;
  std::size_t left = 0;      // parts that have not completed
  std::atomic<int> uses{1};  // one for all parts, one for each other user

  part* add(const block_run& blocks) noexcept {
    return or_without_memory(
        [&] {
          auto made = std::make_unique<part>(*this, blocks);
          const std::lock_guard guard(lock);
          parts.push_back(std::move(made));
          ++left;
          return parts.back().get();
        },
        []() -> part* { return nullptr; });
  }
  // Counts the bytes before the first missing one.
  io_result sum() noexcept {
    std::ranges::sort(parts, {}, [](const auto& each) { return each->wanted().from; });
    io_result all;
    for (const auto& each : parts) {
      all.bytes_done += each->outcome().bytes_done;
      if (each->outcome().ok() && each->outcome().bytes_done == each->wanted().length()) continue;
      all.error = each->outcome().error;
      break;
    }
    return all;
  }
};

// --- part

file_range cached_object::part::whole() const noexcept {
  return {blocks_.first * cache_block_bytes, std::min(blocks_.end() * cache_block_bytes, of_.owner.entry_->head().size)};
}

file_range cached_object::part::wanted() const noexcept {
  const auto all = whole();
  return {std::max(all.from, of_.wanted.from), std::min(all.to, of_.wanted.to)};
}

void cached_object::part::go_to(stage next) noexcept {
  const auto before = stage_.exchange(next);
  assert(before < next);
  assert(next != stage::fetching || before == stage::asking);
}

void cached_object::part::run() noexcept { stage_.load() == stage::looking ? look() : take(); }

// Splits off the rest into another part. Returns false if out of memory.
bool cached_object::part::keep_first(std::uint64_t count) noexcept {
  if (count == blocks_.count) return true;
  auto* const rest = of_.add({blocks_.first + count, blocks_.count - count});
  if (rest == nullptr) return false;
  blocks_.count = count;
  of_.owner.cache_->threads().push(*rest);
  return true;
}

void cached_object::part::look() noexcept {
  if (of_.unwanted.load()) return end({0, unwanted()});
  auto& entry = *of_.owner.entry_;
  if (entry.is_given_up()) return fetch();
  std::array<std::byte, 256> room{};
  const auto states = std::span(room).first(static_cast<std::size_t>(std::min<std::uint64_t>(blocks_.count, room.size())));
  if (auto problem = entry.states_of(blocks_.first, states); !problem.ok()) {
    entry.give_up(problem);
    return fetch();
  }
  const bool is_there = states.front() == block_is_there;
  const auto other = std::ranges::find_if(states, [&](std::byte each) { return (each == block_is_there) != is_there; });
  if (!keep_first(static_cast<std::uint64_t>(other - states.begin()))) return end({0, no_memory()});
  if (is_there) return read();
  entry.is_stored() ? claim() : fetch();
}

void cached_object::part::read() noexcept {
  auto& entry = *of_.owner.entry_;
  const auto range = wanted();
  const std::span into(of_.fill.target() + (range.from - of_.wanted.from), static_cast<std::size_t>(range.length()));
  const auto right = entry.read(into, range.from);
  const auto problem = right && !*right ? entry.forget(blocks_) : right.error();
  if (!problem.ok()) {
    entry.give_up(problem);
    return fetch();
  }
  if (!*right) return entry.is_stored() ? claim() : fetch();
  of_.owner.cache_->count_read(range.length());
  end({range.length(), {}});
}

void cached_object::part::claim() noexcept {
  auto& entry = *of_.owner.entry_;
  const auto taken = entry.claim(blocks_);
  if (!taken) {
    entry.give_up(taken.error());
    return fetch();
  }
  if (*taken) {
    const auto other = **taken;
    const bool begins_later = other.first > blocks_.first;
    const auto count = begins_later ? other.first - blocks_.first : std::min(other.end(), blocks_.end()) - blocks_.first;
    if (!keep_first(std::clamp<std::uint64_t>(count, 1, blocks_.count))) return end({0, no_memory()});
    return begins_later ? claim() : wait();
  }
  // Another process may have stored them between the check and the claim.
  std::array<std::byte, 256> room{};
  const auto states = std::span(room).first(static_cast<std::size_t>(blocks_.count));
  const auto seen = entry.states_of(blocks_.first, states);
  if (seen.ok() && std::ranges::find(states, block_is_there) != states.end()) {
    entry.let_go(blocks_);
    return look();
  }
  room_ = whole().length();
  if (!seen.ok() || !of_.owner.cache_->take_room(room_)) {
    room_ = 0;
    entry.let_go(blocks_);
    return fetch();
  }
  fetch();
}

void cached_object::part::wait() noexcept {
  const auto now = cache_threads::clock::now();
  if (!waits_since_) waits_since_ = now;
  if (now - *waits_since_ > most_wait_for_another) return fetch();
  const auto pause = std::chrono::duration_cast<std::chrono::milliseconds>((now - *waits_since_) / 8);
  of_.owner.cache_->threads().later(*this, std::clamp<std::chrono::milliseconds>(pause, least_pause, most_pause));
}

// Fetches whole blocks if they are to be stored, otherwise only the wanted bytes: directly into the target if the ranges are equal.
void cached_object::part::fetch() noexcept {
  const auto range = room_ > 0 ? whole() : wanted();
  const auto part_wanted = wanted();
  auto* target = of_.fill.target() + (part_wanted.from - of_.wanted.from);
  if (range.length() != part_wanted.length()) {
    beside_.reset(new (std::nothrow) std::byte[range.length()]);
    target = beside_.get();
  }
  go_to(stage::asking);
  auto& held = of_;
  held.uses.fetch_add(1);
  aim(target, range.length(), range.from);
  if (target == nullptr) {
    tell({0, no_memory()});
  } else {
    held.owner.behind_->begin_fill(*this);
    go_to(stage::fetching);
    if (held.unwanted.load()) held.owner.behind_->cancel(*this);
  }
  begun();
  held.owner.release(held);
}

// Runs on one of the underlying object's threads.
void cached_object::part::ended(io_result outcome) noexcept {
  come_ = std::move(outcome);
  of_.owner.cache_->threads().push(*this);
}

void cached_object::part::take() noexcept {
  const auto bytes = come_.bytes_done;
  if (room_ > 0) {
    keep(bytes);
    of_.owner.cache_->wrote(room_);
    of_.owner.entry_->let_go(blocks_);
    of_.owner.cache_->count_fetched(bytes);
  } else {
    of_.owner.cache_->count_passed(bytes);
  }
  const auto range = wanted();
  const auto skipped = range.from - offset();
  const auto done = std::min(range.length(), bytes - std::min(bytes, skipped));
  if (beside_ != nullptr && done > 0) std::memcpy(of_.fill.target() + (range.from - of_.wanted.from), beside_.get() + skipped, done);
  end({done, done == range.length() ? status() : std::move(come_.error)});
}

// Stores all complete blocks that were received.
void cached_object::part::keep(std::uint64_t bytes) noexcept {
  auto& entry = *of_.owner.entry_;
  const auto stored = bytes == length() ? bytes : bytes / cache_block_bytes * cache_block_bytes;
  if (stored == 0 || !entry.is_stored()) return;
  if (auto problem = entry.store(std::span(target(), static_cast<std::size_t>(stored)), blocks_.first); !problem.ok()) {
    entry.stop_storing(problem);
  } else if (entry.is_whole()) {
    entry.begin_sealing();
  }
}

void cached_object::part::stop() noexcept {
  if (stage_.load() == stage::fetching) of_.owner.behind_->cancel(*this);
}

// Completes the part. Nothing accesses it afterwards.
void cached_object::part::end(io_result outcome) noexcept {
  auto& of = of_;
  go_to(stage::ended);
  outcome_ = std::move(outcome);
  beside_.reset();
  {
    const std::lock_guard guard(of.lock);
    if (--of.left > 0) return;
  }
  of.owner.release(of);
}

// --- object

cached_object::cached_object(std::unique_ptr<source> behind, std::shared_ptr<node_cache> by, std::shared_ptr<cache_entry> of)
    : source(behind->name()), behind_(std::move(behind)), cache_(std::move(by)), entry_(std::move(of)) {
  facts_ = behind_->facts();
  direct_problem_ = behind_->direct_problem();
}

cached_object::~cached_object() { (void)close(); }

void cached_object::begin_fill(far_fill& what) noexcept {
  const auto size = entry_->head().size;
  if (what.offset() >= size || what.length() == 0) return what.tell({});
  const auto length = std::min(what.length(), size - what.offset());
  auto* const made = prepare_to_throw() ? new (std::nothrow) filling(*this, what, length) : nullptr;
  if (made == nullptr) return what.tell({0, no_memory()});
  {
    const std::lock_guard guard(lock_);
    made->after = first_;
    if (first_ != nullptr) first_->before = made;
    first_ = made;
    ++under_way_;
  }
  // A block from which only some bytes are wanted becomes a separate part, which needs a buffer. Up to 256 other blocks form one part.
  constexpr std::uint64_t most_blocks = 256;
  const auto last = (made->wanted.to - 1) / cache_block_bytes;
  std::vector<part*> parts;
  const auto added = or_no_memory([&]() -> status {
    for (auto at = made->wanted.from / cache_block_bytes; at <= last;) {
      const bool begins_inside = at * cache_block_bytes < made->wanted.from;
      const bool ends_inside = made->wanted.to < std::min((last + 1) * cache_block_bytes, size);
      const auto end = begins_inside || (ends_inside && at == last) ? at + 1 : std::min(at + most_blocks, last + (ends_inside ? 0 : 1));
      auto* const one = made->add({at, end - at});
      if (one == nullptr) return no_memory();
      parts.push_back(one);
      at = end;
    }
    return {};
  });
  if (!added.ok()) {
    {
      const std::lock_guard guard(made->lock);
      made->parts.clear();
    }
    return release(*made);
  }
  for (auto* const each : parts) cache_->threads().push(*each);
}

// Drops a use. The last one completes the fill.
void cached_object::release(filling& what) noexcept {
  if (what.uses.fetch_sub(1) != 1) return;
  {
    const std::lock_guard guard(lock_);
    (what.before == nullptr ? first_ : what.before->after) = what.after;
    if (what.after != nullptr) what.after->before = what.before;
  }
  what.fill.tell(what.parts.empty() ? io_result{0, no_memory()} : what.sum());
  delete &what;
  const std::lock_guard guard(lock_);
  if (--under_way_ == 0) quiet_.notify_all();
}

void cached_object::cancel(far_fill& what) noexcept { stop(&what); }

// what: may have completed and been destroyed.
void cached_object::stop(const far_fill* what) noexcept {
  filling* stopped = nullptr;
  {
    const std::lock_guard guard(lock_);
    for (auto* each = first_; each != nullptr && stopped == nullptr; each = each->after) {
      if (&each->fill == what) stopped = each;
    }
    if (stopped == nullptr) return;
    auto uses = stopped->uses.load();
    while (uses > 0 && !stopped->uses.compare_exchange_weak(uses, uses + 1)) {
    }
    if (uses == 0) return;  // its completion is being reported
    stopped->unwanted.store(true);
  }
  for (std::size_t i = 0;; ++i) {
    part* one = nullptr;
    {
      const std::lock_guard guard(stopped->lock);
      if (i >= stopped->parts.size()) break;
      one = stopped->parts[i].get();
    }
    one->stop();
  }
  cache_->threads().hurry();
  release(*stopped);
}

std::string cached_object::told() const {
  if (entry_->is_given_up())
    return fmt::format("read without the node cache in {}: {}; {}", cache_->folder(), entry_->problem().message(), behind_->told());
  const auto counts = cache_->counts();
  const auto others = entry_->is_stored() ? std::string("the rest are cached as they are read")
                                          : fmt::format("no more are cached: {}", entry_->problem().message());
  return fmt::format(
      "{} of {} bytes are in the node cache in {}; {} (this engine has read {} bytes from there, "
      "{} from servers, and {} from servers without caching them, because of a lack of space or delays by other processes); {}",
      entry_->bytes_there(), entry_->head().size, cache_->folder(), others, counts.read_bytes, counts.fetched_bytes, counts.passed_bytes,
      behind_->told());
}

// A forked child has no threads.
status cached_object::close() {
  if (cache_->forked()) return {};
  for (;;) {
    const far_fill* left = nullptr;
    {
      const std::lock_guard guard(lock_);
      for (auto* each = first_; each != nullptr && left == nullptr; each = each->after) {
        if (!each->unwanted.load()) left = &each->fill;
      }
    }
    if (left == nullptr) break;
    stop(left);
  }
  {
    std::unique_lock guard(lock_);
    quiet_.wait(guard, [this] { return under_way_ == 0; });
  }
  return behind_->close();
}

}  // namespace penstock::source::remote
