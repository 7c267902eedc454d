// The driver "host": devices in host memory, with streams and events on threads, for machines without a GPU and for tests. It is stricter
// than a GPU where a mistake would otherwise go unnoticed: accessing its memory directly faults, and a copy past an allocation fails. The
// destructor first finishes all queued work, so release streams blocked by wait_value() before calling it.
#include <fmt/format.h>

#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/stream_copy.hpp"
#include "device/device.hpp"
#include "device/host_memory.hpp"
#include "device/host_pins.hpp"
#include "device/host_stream.hpp"

namespace penstock::device {
namespace {

// The memory that a stream's work accesses, at device and host addresses.
class host_space {
 public:
  host_memory memory;
  host_pins pins;

  // Records which device owns the allocation that starts at an address.
  void note_owner(const void* base, int ordinal) {
    if (ordinal == 0) return;
    const std::lock_guard guard(lock_);
    owners_[base] = ordinal;
  }
  void forget_owner(const void* base) {
    const std::lock_guard guard(lock_);
    owners_.erase(base);
  }
  int owner_of(const void* base) {
    const std::lock_guard guard(lock_);
    const auto found = owners_.find(base);
    return found == owners_.end() ? 0 : found->second;
  }

  // Returns the CPU address of a range: translated for device memory, unchanged for host memory. Errors: bad_memory.
  result<std::byte*> locate(const void* address, std::uint64_t length) const {
    if (memory.contains(address)) return memory.bytes_of(address, length);
    return static_cast<std::byte*>(const_cast<void*>(address));
  }

  status move(void* target, const void* source, std::uint64_t length) const;

 private:
  std::mutex lock_;                              // guards owners_
  std::unordered_map<const void*, int> owners_;  // owners other than the first device
};

// Large copies bypass the CPU caches, like a GPU's copies, because reading the target's cache lines first would take memory bandwidth from
// the disk. (On two cores, reading uncached files reaches 94 % of the disk's speed this way, and 88 % otherwise.)
void copy_memory(std::byte* to, const std::byte* from, std::size_t length) noexcept {
  constexpr std::size_t least_streamed = std::size_t{1} << 20;
  if (length >= least_streamed && (from >= to + length || to >= from + length)) {
    stream_copy(to, from, length);
  } else {
    std::memmove(to, from, length);
  }
}

status host_space::move(void* target, const void* source, std::uint64_t length) const {
  if (length == 0) return {};
  const auto to = locate(target, length);
  if (!to) return to.error().with_context("copy to device memory");
  const auto from = locate(source, length);
  if (!from) return from.error().with_context("copy from device memory");
  if (pins.read_only(*to, length)) {
    return {errc::bad_memory, fmt::format("host:0: copy {} bytes to {}: registered read-only", length, target)};
  }
  if (pins.read_only(*from, length)) return host_pins::read_safely(*to, *from, length);
  copy_memory(static_cast<std::byte*>(*to), static_cast<const std::byte*>(*from), length);
  return {};
}

// Polls for a value that a host thread stores without notification: often at first, then rarely enough to leave the core to other threads.
void await_value(std::uint32_t& flag, std::uint32_t value) {
  constexpr int quick_looks = 64;
  for (int looks = 0; static_cast<std::int32_t>(std::atomic_ref(flag).load(std::memory_order_acquire) - value) < 0; ++looks) {
    if (looks < quick_looks) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

class host_session final : public session {
 public:
  host_session(host_space& space, int ordinal, bool shared_memory) : space_(space), ordinal_(ordinal), shares_host_memory_(shared_memory) {}
  [[nodiscard]] int ordinal() const override { return ordinal_; }
  [[nodiscard]] bool shares_host_memory() const override { return shares_host_memory_; }

  result<void*> allocate(std::size_t bytes) override {
    auto made = space_.memory.allocate(bytes);
    if (made) space_.note_owner(*made, ordinal_);
    return made;
  }
  status release(void* memory) override {
    space_.forget_owner(memory);
    return space_.memory.release(memory);
  }
  bool allow_copies_from(session& /*other*/) override { return true; }
  status pin(void* base, std::size_t length, bool read_only) override;
  status unpin(void* base) override { return space_.pins.remove(base); }
  result<stream> make_stream() override;
  status destroy_stream(stream target) override;
  std::uint64_t identity_of(stream target) override {
    const auto found = find_stream(target);
    return found ? (*found)->identity() : 0;
  }
  result<event> make_event() override;
  status destroy_event(event target) override;
  status copy(void* target, const void* source, std::size_t bytes, stream on) override;
  status scatter(const segment* table, std::size_t count, stream on) override;
  status scatter_short(std::span<const segment> table, stream on) override;
  status add_to_digest(std::span<const digest_part> parts, std::uint64_t* sums, stream on) override;
  status record(event target, stream on) override;
  status wait_event(stream on, event until) override;
  status call(stream on, void (*function)(void*), void* argument) override;
  status wait_value(stream on, std::uint32_t* flag, std::uint32_t value) override;
  status write_value(stream on, std::uint32_t* flag, std::uint32_t value) override;
  result<bool> idle(stream target) override;
  result<bool> reached(event target) override;
  status wait(event target) override;
  status synchronize(stream target) override;
  status copy_small(void* target, const void* source, std::size_t bytes, stream on) override;
  result<void*> network_address(void* memory, std::uint64_t bytes) override {
    auto found = space_.memory.bytes_of(memory, bytes);
    if (!found) return found.error();
    return static_cast<void*>(*found);
  }
  result<shared_memory> share(const void* memory) override;
  result<sys::owned_descriptor> export_shared(const void* memory) override { return space_.memory.export_shared(memory); }
  result<void*> open_shared(std::string_view handle, std::int64_t process, int descriptor) override {
    return space_.memory.import_shared(handle, process, descriptor);
  }
  status close_shared(void* memory) override { return space_.memory.release(memory); }
  void rest() override;

 private:
  using stream_pointer = std::shared_ptr<host_stream>;
  using event_pointer = std::shared_ptr<host_event>;
  using stream_map = std::map<stream, stream_pointer>;  // nodes can be moved from one map to another

  result<stream_pointer> find_stream(stream handle);
  result<event_pointer> find_event(event handle);
  status queue(stream on, std::function<status()> work);
  status move(std::span<const segment> table);

  host_space& space_;
  const int ordinal_;
  const bool shares_host_memory_;
  std::mutex lock_;  // guards the tables below
  stream_map streams_;
  stream_map destroyed_;  // destroyed while they still had work
  std::unordered_map<event, event_pointer> events_;
  stream_pointer default_stream_;  // started on first use
};

status host_session::pin(void* base, std::size_t length, bool read_only) {
  if (space_.memory.contains(base)) return {errc::bad_memory, fmt::format("host:0: register {}: device memory", base)};
  return space_.pins.add(base, length, read_only);
}

result<host_session::stream_pointer> host_session::find_stream(stream handle) {
  const std::lock_guard guard(lock_);
  if (handle == nullptr) {
    if (default_stream_ != nullptr) return default_stream_;
    auto started = host_stream::start();
    if (started) default_stream_ = *started;
    return started;
  }
  const auto found = streams_.find(handle);
  if (found == streams_.end()) return status(errc::invalid_argument, fmt::format("host:0: {} is not a stream", handle));
  return found->second;
}

result<host_session::event_pointer> host_session::find_event(event handle) {
  const std::lock_guard guard(lock_);
  const auto found = events_.find(handle);
  if (found == events_.end()) return status(errc::invalid_argument, fmt::format("host:0: {} is not an event", handle));
  return found->second;
}

result<stream> host_session::make_stream() {
  auto started = host_stream::start();
  if (!started) return started.error();
  stream handle = started->get();
  const std::lock_guard guard(lock_);
  streams_.emplace(handle, *std::move(started));
  return handle;
}

void host_session::rest() {
  std::vector<stream_pointer> all;
  {
    const std::lock_guard guard(lock_);
    for (const auto& [handle, each] : streams_) all.push_back(each);
    if (default_stream_ != nullptr) all.push_back(default_stream_);
  }
  for (const auto& each : all) each->rest();
}

// The stream's thread finishes the queued work. It is joined once that cannot block: in a later call to this function, or when the session
// is destroyed. Moves map nodes and allocates nothing.
status host_session::destroy_stream(stream target) {
  stream_map finished;  // destroyed after the lock is released
  const std::lock_guard guard(lock_);
  const auto found = streams_.find(target);
  if (found == streams_.end()) return {errc::invalid_argument, fmt::format("host:0: destroy {}: no stream", target)};
  found->second->close();
  destroyed_.insert(streams_.extract(found));
  for (auto each = destroyed_.begin(); each != destroyed_.end();) {
    const auto seen = each++;
    if (seen->second->ended()) finished.insert(destroyed_.extract(seen));
  }
  return {};
}

result<event> host_session::make_event() {
  auto made = std::make_shared<host_event>();
  event handle = made.get();
  const std::lock_guard guard(lock_);
  events_.emplace(handle, std::move(made));
  return handle;
}

status host_session::destroy_event(event target) {
  const std::lock_guard guard(lock_);
  if (events_.erase(target) == 0) return {errc::invalid_argument, fmt::format("host:0: destroy {}: no event", target)};
  return {};
}

status host_session::queue(stream on, std::function<status()> work) {
  const auto found = find_stream(on);
  return found ? (*found)->push(std::move(work)) : found.error();
}

status host_session::copy(void* target, const void* source, std::size_t bytes, stream on) {
  return queue(on, [this, target, source, bytes] { return space_.move(target, source, bytes); });
}

status host_session::scatter(const segment* table, std::size_t count, stream on) {
  return queue(on, [this, table, count] { return move({table, count}); });
}

status host_session::scatter_short(std::span<const segment> table, stream on) {
  return queue(on, [this, taken = std::vector<segment>(table.begin(), table.end())] { return move(taken); });
}

status host_session::move(std::span<const segment> table) {
  for (const auto& piece : table) {
    if (status moved = space_.move(piece.target, piece.source, piece.bytes); !moved.ok()) return moved.with_context("scatter");
  }
  return {};
}

status host_session::add_to_digest(std::span<const digest_part> parts, std::uint64_t* sums, stream on) {
  return queue(on, [this, table = std::vector<digest_part>(parts.begin(), parts.end()), sums]() mutable -> status {
    for (auto& each : table) {
      const auto found = space_.locate(each.memory, each.bytes);
      if (!found) return found.error().with_context("add to a digest");
      each.memory = *found;
    }
    const auto target = space_.locate(sums, sizeof(detail::digest_sums));
    if (!target) return target.error().with_context("add to a digest");
    auto* next = reinterpret_cast<std::uint64_t*>(*target);
    for (const auto each : detail::digest_of(table)) std::atomic_ref(*next++).fetch_add(each, std::memory_order_relaxed);
    return {};
  });
}

// The recording is fixed now. Later recordings do not count.
status host_session::wait_event(stream on, event until) {
  const auto what = find_event(until);
  if (!what) return what.error();
  const auto recording = (*what)->recordings();
  return queue(on, [event = *what, recording] { return event->wait_for(recording); });
}

status host_session::record(event target, stream on) {
  const auto what = find_event(target);
  if (!what) return what.error();
  const auto found = find_stream(on);
  return found ? (*found)->record(*what) : found.error();
}

status host_session::call(stream on, void (*function)(void*), void* argument) {
  return queue(on, [function, argument] {
    function(argument);
    return status();
  });
}

// A GPU cannot access pageable memory, so the host device must not access it either.
status host_session::wait_value(stream on, std::uint32_t* flag, std::uint32_t value) {
  if (!space_.memory.contains(flag) && !space_.pins.find(flag)) {
    return {errc::bad_memory, fmt::format("host:0: wait for the value at {}: not pinned", static_cast<void*>(flag))};
  }
  return queue(on, [this, flag, value] {
    const auto where = space_.locate(flag, sizeof(*flag));
    if (!where) return where.error();
    await_value(*reinterpret_cast<std::uint32_t*>(*where), value);
    return status();
  });
}

status host_session::write_value(stream on, std::uint32_t* flag, std::uint32_t value) {
  if (!space_.memory.contains(flag) && !space_.pins.find(flag)) {
    return {errc::bad_memory, fmt::format("host:0: write the value at {}: not pinned", static_cast<void*>(flag))};
  }
  return queue(on, [this, flag, value] {
    const auto where = space_.locate(flag, sizeof(*flag));
    if (!where) return where.error();
    std::atomic_ref(*reinterpret_cast<std::uint32_t*>(*where)).store(value, std::memory_order_release);
    return status();
  });
}

result<bool> host_session::idle(stream target) {
  const auto found = find_stream(target);
  if (!found) return found.error();
  return (*found)->idle();
}

result<bool> host_session::reached(event target) {
  const auto found = find_event(target);
  if (!found) return found.error();
  return (*found)->reached();
}

status host_session::wait(event target) {
  const auto found = find_event(target);
  return found ? (*found)->wait() : found.error();
}

status host_session::synchronize(stream target) {
  const auto found = find_stream(target);
  return found ? (*found)->synchronize() : found.error();
}

status host_session::copy_small(void* target, const void* source, std::size_t bytes, stream on) {
  const auto found = find_stream(on);
  if (!found) return found.error();
  const auto done = std::make_shared<host_event>();
  const status queued = (*found)->push([this, target, source, bytes] { return space_.move(target, source, bytes); }, done);
  return queued.ok() ? done->wait() : queued;
}

result<shared_memory> host_session::share(const void* memory) {
  auto shared = space_.memory.share(memory);
  if (!shared) return shared.error();
  return shared_memory{std::move(shared->handle), 0, shared->offset, shared->length, true};
}

class host_driver final : public driver {
 public:
  host_driver(int devices, bool shared_memory) {
    for (int i = 0; i < devices; ++i) sessions_.push_back(std::make_unique<host_session>(space_, i, shared_memory));
  }
  [[nodiscard]] std::string_view kind() const override { return "host"; }
  result<int> count() override { return static_cast<int>(sessions_.size()); }
  result<device_facts> describe(int ordinal) override;
  result<memory_info> classify(const void* memory) override;
  result<std::byte*> cpu_address(const void* memory, std::uint64_t length) override { return space_.memory.bytes_of(memory, length); }
  result<session*> open(int ordinal, void* context) override;

 private:
  host_space space_;
  [[nodiscard]] status check(int ordinal) const;
  std::vector<std::unique_ptr<host_session>> sessions_;  // declared last, so destroyed first: their streams use the space
};

status host_driver::check(int ordinal) const {
  if (ordinal >= 0 && static_cast<std::size_t>(ordinal) < sessions_.size()) return {};
  if (sessions_.size() == 1) return {errc::not_found, fmt::format("host:{}: no such device; the only one is host:0", ordinal)};
  return {errc::not_found, fmt::format("host:{}: no such device; the last is host:{}", ordinal, sessions_.size() - 1)};
}

result<device_facts> host_driver::describe(int ordinal) {
  if (auto wrong = check(ordinal); !wrong.ok()) return wrong;
  const auto capacity = space_.memory.capacity();
  if (!capacity) return capacity.error();
  return device_facts{"host memory", "", *capacity, {}, sessions_.front()->shares_host_memory()};
}

result<memory_info> host_driver::classify(const void* memory) {
  if (space_.memory.contains(memory)) {
    const auto found = space_.memory.find(memory);
    if (!found) return found.error();
    return memory_info{memory_type::device, space_.owner_of(found->base), nullptr, found->base, found->bytes};
  }
  if (const auto pinned = space_.pins.find(memory)) return memory_info{memory_type::pinned, -1, nullptr, pinned->base, pinned->bytes};
  return memory_info{};
}

result<session*> host_driver::open(int ordinal, void* context) {
  if (auto wrong = check(ordinal); !wrong.ok()) return wrong;
  if (context != nullptr) return status(errc::invalid_argument, "host:0 has only the primary context");
  return sessions_[static_cast<std::size_t>(ordinal)].get();
}

}  // namespace

std::shared_ptr<driver> make_host_driver(int devices, bool shared_memory) { return std::make_shared<host_driver>(devices, shared_memory); }

}  // namespace penstock::device
