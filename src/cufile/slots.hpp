// A table of objects that C callers name by an opaque pointer. A name holds a slot and a generation: one that was released, or was never
// issued, finds nothing, whatever has taken its slot since. Thread-safe; finding takes no lock, so that 256 threads may use one handle.
#pragma once

#include <array>
#include <atomic>
#include <cassert>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::cufile {

template <class T>
class slots {
  struct slot {
    std::atomic<std::uint64_t> name{0};  // 0: free; with leaving_bit: on the way out
    std::atomic<std::uint32_t> users{0};
    std::unique_ptr<T> object;
  };

 public:
  // Keeps the object from being destroyed. Not to be held while waiting for the same object's release.
  class user {
   public:
    user() noexcept = default;
    explicit user(slot* held) noexcept : held_(held) {}
    user(user&& other) noexcept : held_(std::exchange(other.held_, nullptr)) {}
    user& operator=(user&& other) noexcept {
      std::swap(held_, other.held_);
      return *this;
    }
    ~user() {
      if (held_ != nullptr) leave(*held_);
    }
    explicit operator bool() const noexcept { return held_ != nullptr; }
    T* operator->() const noexcept { return held_->object.get(); }
    T& operator*() const noexcept { return *held_->object; }

   private:
    slot* held_ = nullptr;
  };

  slots() = default;
  slots(const slots&) = delete;
  slots& operator=(const slots&) = delete;
  ~slots() {
    for (auto& each : chunks_) delete[] each.load();
  }

  // Null when all slots are taken. Throws bad_alloc, and nothing is added.
  void* add(std::unique_ptr<T> object) {
    const std::lock_guard guard(lock_);
    std::uint64_t index = used_;
    if (!free_.empty()) {
      index = free_.back();
      free_.pop_back();
    } else {
      if (used_ == most_slots) return nullptr;
      if (used_ % chunk_slots == 0) add_chunk();
      ++used_;
    }
    slot& taken = at(index);
    taken.object = std::move(object);
    const std::uint64_t name = next_generation() << slot_bits | index;
    taken.name.store(name, std::memory_order_seq_cst);
    return as_pointer(name);
  }

  // Empty for a name that is not, or no longer, issued.
  user find(const void* pointer) noexcept {
    const std::uint64_t name = reinterpret_cast<std::uint64_t>(pointer);
    slot* found = slot_of(name);
    if (found == nullptr || !may_be_name(name)) return {};
    found->users.fetch_add(1, std::memory_order_seq_cst);
    if (found->name.load(std::memory_order_seq_cst) == name) return user(found);
    leave(*found);
    return {};
  }

  // Takes the object out, so that nobody finds it any more; calls stop(object), while others may still be using it; waits until nobody
  // does; and destroys it. Who asks for an object that another thread is removing waits until it is destroyed, too. True for the thread
  // that removed it; false at once for a name that is not issued. stop must not throw.
  template <class Stop>
  bool remove(const void* pointer, Stop stop) noexcept {
    const std::uint64_t name = reinterpret_cast<std::uint64_t>(pointer);
    slot* found = slot_of(name);
    if (found == nullptr || !may_be_name(name)) return false;
    std::uint64_t seen = name;
    if (!found->name.compare_exchange_strong(seen, name | leaving_bit, std::memory_order_seq_cst)) {
      if (seen == (name | leaving_bit)) found->name.wait(seen);
      return false;
    }
    stop(*found->object);
    for (auto users = found->users.load(); users != 0; users = found->users.load()) found->users.wait(users);
    found->object.reset();
    found->name.store(0);
    found->name.notify_all();
    const std::lock_guard guard(lock_);
    free_.push_back(name & slot_mask);  // add_chunk() has made room
    return true;
  }
  bool remove(const void* pointer) noexcept {
    return remove(pointer, [](T&) {});
  }

  // Removes all objects that are there at this moment, as remove() does, each told to stop before the first is waited for. On return those
  // that other threads were removing are destroyed too.
  template <class Stop>
  void remove_all(Stop stop) noexcept {
    const std::uint64_t count = used();
    for (std::uint64_t i = 0; i < count; ++i) {
      if (auto object = find(name_at(i))) stop(*object);
    }
    for (std::uint64_t i = 0; i < count; ++i) remove(name_at(i), stop);
  }

 private:
  static constexpr unsigned slot_bits = 20;
  static constexpr std::uint64_t most_slots = std::uint64_t{1} << slot_bits;
  static constexpr std::uint64_t slot_mask = most_slots - 1;
  static constexpr std::uint64_t chunk_slots = 1024;
  static constexpr std::uint64_t leaving_bit = std::uint64_t{1} << 63;

  static bool may_be_name(std::uint64_t name) noexcept { return name != 0 && (name & leaving_bit) == 0; }
  static void leave(slot& used) noexcept {
    if (used.users.fetch_sub(1, std::memory_order_seq_cst) == 1 && (used.name.load(std::memory_order_seq_cst) & leaving_bit) != 0) {
      used.users.notify_all();
    }
  }
  // Process-wide, so that a name of a table that is gone (before a fork) does not fit the next one. Never 0, so that no name is null.
  static std::uint64_t next_generation() noexcept {
    static std::atomic<std::uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  static void* as_pointer(std::uint64_t name) noexcept { return reinterpret_cast<void*>(name); }
  void add_chunk() {
    free_.reserve(used_ + chunk_slots);
    chunks_[used_ / chunk_slots].store(new slot[chunk_slots], std::memory_order_release);
  }
  slot& at(std::uint64_t index) noexcept { return chunks_[index / chunk_slots].load(std::memory_order_acquire)[index % chunk_slots]; }
  void* name_at(std::uint64_t index) noexcept { return as_pointer(at(index).name.load() & ~leaving_bit); }
  std::uint64_t used() {
    const std::lock_guard guard(lock_);
    return used_;
  }
  slot* slot_of(std::uint64_t name) noexcept {
    const std::uint64_t index = name & slot_mask;
    auto* chunk = chunks_[index / chunk_slots].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : &chunk[index % chunk_slots];
  }

  std::mutex lock_;  // guards what follows
  std::uint64_t used_ = 0;
  std::vector<std::uint64_t> free_;
  std::array<std::atomic<slot*>, most_slots / chunk_slots> chunks_{};
};

}  // namespace penstock::cufile
