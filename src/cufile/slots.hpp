// A table of objects that C callers refer to by an opaque pointer (the name). A name contains a slot and a generation, so a name that was
// released or never issued finds nothing, even if its slot is in use again. Thread-safe; find() takes no lock, so that 256 threads can use
// one handle.
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
    std::atomic<std::uint64_t> name{0};  // 0: free; with leaving_bit: being removed
    std::atomic<std::uint32_t> users{0};
    std::unique_ptr<T> object;
  };

 public:
  // Keeps the object alive. Do not hold one while waiting for the same object to be removed.
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

  // Returns null if all slots are in use. Throws bad_alloc; in that case nothing is added.
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

  // Returns an empty user for a name that was not issued or was released.
  user find(const void* pointer) noexcept {
    const std::uint64_t name = reinterpret_cast<std::uint64_t>(pointer);
    slot* found = slot_of(name);
    if (found == nullptr || !may_be_name(name)) return {};
    found->users.fetch_add(1, std::memory_order_seq_cst);
    if (found->name.load(std::memory_order_seq_cst) == name) return user(found);
    leave(*found);
    return {};
  }

  // Hides the object from find(), calls stop(object) while other threads may still use it, waits until none do, and destroys it. If another
  // thread is already removing the object, waits until it is destroyed. Returns true on the thread that removed it, and false immediately
  // for a name that was not issued. stop must not throw.
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
    free_.push_back(name & slot_mask);  // add_chunk() has reserved room
    return true;
  }
  bool remove(const void* pointer) noexcept {
    return remove(pointer, [](T&) {});
  }

  // Removes all objects that exist now, as remove() does. Stops all of them before it waits for the first. On return, objects that other
  // threads were removing are also destroyed.
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
  // Process-wide, so that a name from an old table (before a fork) never matches one in the next. Never 0, so that no name is null.
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

  std::mutex lock_;  // guards the members below
  std::uint64_t used_ = 0;
  std::vector<std::uint64_t> free_;
  std::array<std::atomic<slot*>, most_slots / chunk_slots> chunks_{};
};

}  // namespace penstock::cufile
