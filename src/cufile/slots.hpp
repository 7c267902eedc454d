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
    std::atomic<std::uint64_t> name{0};  // 0: free, or on the way out
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

  // Null when all slots are taken.
  void* add(std::unique_ptr<T> object) {
    const std::lock_guard guard(lock_);
    std::uint64_t index = 0;
    if (!free_.empty()) {
      index = free_.back();
      free_.pop_back();
    } else if (used_ < most_slots) {
      index = used_++;
      if (index % chunk_slots == 0) chunks_[index / chunk_slots].store(new slot[chunk_slots], std::memory_order_release);
    } else {
      return nullptr;
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
    if (found == nullptr || name == 0) return {};
    found->users.fetch_add(1, std::memory_order_seq_cst);
    if (found->name.load(std::memory_order_seq_cst) == name) return user(found);
    leave(*found);
    return {};
  }

  // Takes the object out, so that nobody finds it any more, and waits until nobody uses it. Null for a name that is not issued.
  std::unique_ptr<T> remove(const void* pointer) {
    std::uint64_t name = reinterpret_cast<std::uint64_t>(pointer);
    slot* found = slot_of(name);
    if (found == nullptr || name == 0 || !found->name.compare_exchange_strong(name, 0, std::memory_order_seq_cst)) return nullptr;
    for (auto users = found->users.load(); users != 0; users = found->users.load()) found->users.wait(users);
    auto object = std::move(found->object);
    const std::lock_guard guard(lock_);
    free_.push_back(reinterpret_cast<std::uint64_t>(pointer) & slot_mask);
    return object;
  }

  // The names of all objects at this moment.
  [[nodiscard]] std::vector<void*> names() {
    const std::lock_guard guard(lock_);
    std::vector<void*> found;
    for (std::uint64_t i = 0; i < used_; ++i) {
      if (const auto name = at(i).name.load(); name != 0) found.push_back(as_pointer(name));
    }
    return found;
  }

 private:
  static constexpr unsigned slot_bits = 20;
  static constexpr std::uint64_t most_slots = std::uint64_t{1} << slot_bits;
  static constexpr std::uint64_t slot_mask = most_slots - 1;
  static constexpr std::uint64_t chunk_slots = 1024;

  static void leave(slot& used) noexcept {
    if (used.users.fetch_sub(1, std::memory_order_seq_cst) == 1 && used.name.load(std::memory_order_seq_cst) == 0) used.users.notify_all();
  }
  // Process-wide, so that a name of a table that is gone (before a fork) does not fit the next one. Never 0, so that no name is null.
  static std::uint64_t next_generation() noexcept {
    static std::atomic<std::uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  static void* as_pointer(std::uint64_t name) noexcept { return reinterpret_cast<void*>(name); }
  slot& at(std::uint64_t index) noexcept { return chunks_[index / chunk_slots].load(std::memory_order_acquire)[index % chunk_slots]; }
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
