// Ranges of files whose pages in the page cache stay mapped and registered with a driver, for reads that come again and again. The CPU
// never touches such a mapping, so a file that becomes shorter does no harm; but its pages then hold old bytes, as they do where another
// page has taken their place in the page cache. So whoever copies from them looks before and after whether the file is what it was.
// Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "device/device.hpp"
#include "penstock/status.hpp"
#include "source/source.hpp"
#include "sys/fork_guard.hpp"
#include "sys/kernel.hpp"

namespace penstock::path {

// A driver, by a session of its own. What one session pins is pinned for all of its driver.
struct pinning_session {
  device::session* session = nullptr;
  bool emulated = false;
};

// What a file was when it was looked at. Network file systems tell it as old as they tell everything else.
struct file_version {
  std::uint64_t device = 0;
  std::uint64_t inode = 0;
  std::uint64_t size_bytes = 0;
  std::int64_t modified_ns = 0;
  std::int64_t changed_ns = 0;
  friend bool operator==(const file_version&, const file_version&) = default;
};

class pinned_pages {
 public:
  // The pages of one mapping. Lives as long as somebody reads from it or has it pinned; then it is unregistered and unmapped.
  class pages {
   public:
    pages(pinned_pages& owner, const file_version& version, std::uint64_t offset, std::uint64_t length) noexcept
        : owner_(owner), version_(version), offset_(offset), length_(length) {}
    pages(const pages&) = delete;
    pages& operator=(const pages&) = delete;
    ~pages();
    [[nodiscard]] bool hold(const file_version& version, std::uint64_t offset, std::uint64_t length) const noexcept {
      return version == version_ && offset >= offset_ && length <= length_ && offset - offset_ <= length_ - length;
    }
    // Where the device finds the byte at an offset of the file.
    [[nodiscard]] const std::byte* at(std::uint64_t offset) const noexcept { return base_ + (offset - offset_) + skip_; }
    // Registers them with that driver, if that has not been done. Errors: of pinning.
    status register_for(const pinning_session& by);
    // Ok as long as the file is what it was when it was mapped. Asks the file system.
    status check(source::source& file) const;
    [[nodiscard]] std::uint64_t length() const noexcept { return length_; }
    // Whether a user has asked for them; otherwise they are kept for later reads, and nobody misses them.
    [[nodiscard]] bool is_pinned() const noexcept { return is_pinned_.load(std::memory_order_relaxed); }
    // When they were last read from, by the steady clock; they count as read from when they were made.
    [[nodiscard]] std::chrono::steady_clock::time_point last_use() const noexcept { return last_use_.load(std::memory_order_relaxed); }
    void note_use() noexcept { last_use_.store(std::chrono::steady_clock::now(), std::memory_order_relaxed); }

   private:
    friend class pinned_pages;
    status map(int descriptor);

    pinned_pages& owner_;
    const file_version version_;
    const std::uint64_t offset_;
    const std::uint64_t length_;
    std::byte* base_ = nullptr;
    std::uint64_t skip_ = 0;  // of the first page
    std::size_t mapped_bytes_ = 0;
    std::atomic<bool> is_pinned_{false};
    std::atomic<std::chrono::steady_clock::time_point> last_use_{std::chrono::steady_clock::now()};
    std::mutex lock_;                               // guards what follows, and is held while a driver registers
    std::array<device::session*, 2> registered_{};  // with the driver of GPUs, and with that of the host device
  };

  // What one caller has pinned, or what the engine keeps for later reads. Its owner is the only one who holds it for long.
  class entry {
   public:
    [[nodiscard]] std::uint64_t registered_bytes() const noexcept;
    // Null once they were given up.
    [[nodiscard]] std::shared_ptr<pages> held() const noexcept;
    // Bytes of the file.
    [[nodiscard]] std::uint64_t length() const noexcept { return length_; }
    // Why it was given up; ok as long as it is not.
    [[nodiscard]] status problem() const;

   private:
    friend class pinned_pages;
    [[nodiscard]] bool is_of(const source::source& file) const noexcept;

    mutable std::mutex lock_;  // guards held_ and problem_
    std::shared_ptr<pages> held_;
    status problem_;
    bool is_kept_ = false;  // nobody asked for it
    std::uint64_t device_ = 0;
    std::uint64_t inode_ = 0;
    std::uint64_t offset_ = 0;
    std::uint64_t length_ = 0;
  };

  struct part {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
  };

  // Both outlive it.
  pinned_pages(sys::kernel& kernel, const sys::fork_guard& fork) noexcept : kernel_(kernel), fork_(fork) {}
  pinned_pages(const pinned_pages&) = delete;
  pinned_pages& operator=(const pinned_pages&) = delete;

  // Maps what the file has of a range, and registers it with those drivers; others do at the first read. most_bytes: of all that is pinned.
  // Blocks. Errors: invalid_argument (the file has nothing there), unsupported, out_of_memory (more than most_bytes), would_block (the file
  // keeps changing), those of mapping and pinning.
  result<std::shared_ptr<entry>> pin(source::source& file, std::uint64_t offset, std::uint64_t length, std::uint64_t most_bytes,
                                     std::span<const pinning_session> by);
  // Its owner is done with it.
  void release(const std::shared_ptr<entry>& done) noexcept;

  // Pages for one read, of a range that the file has, registered with one driver. Unlike pin() this waits for no tick of a clock. lasting:
  // nobody has changed the file for seconds, and its next change will be noticed, so they may be kept. Errors: those of mapping and
  // pinning.
  struct made_pages {
    std::shared_ptr<pages> held;
    bool lasting = false;
  };
  result<made_pages> make(source::source& file, std::uint64_t offset, std::uint64_t length, const pinning_session& by);
  // Lets others find them, as they find what users have pinned, until release(). Throws bad_alloc.
  std::shared_ptr<entry> keep(std::shared_ptr<pages> held);

  // Nothing is pinned: nobody need ask what follows.
  [[nodiscard]] bool empty() const noexcept { return count_.load(std::memory_order_acquire) == 0; }
  // The first part of a range that is pinned; of no length, at its end, where none is. What has changed is given up here. Asks the file
  // system.
  part find(source::source& file, std::uint64_t offset, std::uint64_t length);
  // What holds all of a range; null where nothing does.
  std::shared_ptr<pages> find_whole(source::source& file, std::uint64_t offset, std::uint64_t length);
  // Gives up what stands on these pages, or all there is.
  void drop(const pages& gone, const status& why) noexcept;
  void drop_all(const status& why) noexcept;
  // Why what was pinned of a file, and has not been given back, is not any more; ok where that is not so.
  [[nodiscard]] status problem_of(source::source& file) const;
  // Whether users have pinned anything of it.
  [[nodiscard]] bool holds(source::source& file) const;

  [[nodiscard]] std::uint64_t used_bytes() const noexcept { return used_bytes_.load(std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t drops() const noexcept { return drops_.load(std::memory_order_relaxed); }

 private:
  result<file_version> version_of(source::source& file) const;
  result<file_version> settled_version_of(source::source& file) const;
  status map(pages& held, source::source& file, std::span<const pinning_session> by) const;
  std::shared_ptr<pages> shared_with(const file_version& version, std::uint64_t offset, std::uint64_t length) const;
  status reserve(std::uint64_t bytes, std::uint64_t most_bytes, const std::string& name);
  template <class Gone>
  void drop_where(Gone gone, const status& why) noexcept;

  sys::kernel& kernel_;
  const sys::fork_guard& fork_;
  std::atomic<std::uint64_t> used_bytes_{0};
  std::atomic<std::uint64_t> drops_{0};
  std::atomic<std::size_t> count_{0};            // of entries that hold pages
  mutable std::mutex lock_;                      // guards entries_
  std::vector<std::shared_ptr<entry>> entries_;  // that have not been released
};

}  // namespace penstock::path
