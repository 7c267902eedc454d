// Ranges of files whose pages in the page cache stay mapped and registered with a driver, for repeated reads. The CPU never accesses such a
// mapping, so truncating the file is harmless. The pages may become outdated, however, after a truncation or when other pages replace them
// in the page cache. Therefore a reader checks before and after the copy that the file has not changed. Thread-safe.
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

// A driver, identified by one of its sessions. Memory that one session pins is pinned for all sessions of its driver.
struct pinning_session {
  device::session* session = nullptr;
  bool emulated = false;
};

// The state of a file at one point in time. Network file systems report it with the same delay as all other metadata.
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
  // The pages of one mapping. Unregistered and unmapped when the last reader or pin releases them.
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
    // Returns the device address of the byte at the given file offset.
    [[nodiscard]] const std::byte* at(std::uint64_t offset) const noexcept { return base_ + (offset - offset_) + skip_; }
    // Registers the pages with that driver, if they are not registered yet. Errors: those of pinning.
    status register_for(const pinning_session& by);
    // Returns ok if the file is unchanged since it was mapped. Queries the file system.
    status check(source::source& file) const;
    [[nodiscard]] std::uint64_t length() const noexcept { return length_; }
    // Returns true if a user pinned them; otherwise they are kept for later reads and can be dropped.
    [[nodiscard]] bool is_pinned() const noexcept { return is_pinned_.load(std::memory_order_relaxed); }
    // Returns when they were last read, on the steady clock. Creating them counts as a read.
    [[nodiscard]] std::chrono::steady_clock::time_point last_use() const noexcept { return last_use_.load(std::memory_order_relaxed); }
    // Unregisters the pages; the next read registers them again. No read may be in progress.
    void unregister() noexcept;
    void note_use() noexcept { last_use_.store(std::chrono::steady_clock::now(), std::memory_order_relaxed); }

   private:
    friend class pinned_pages;
    status map(int descriptor);

    pinned_pages& owner_;
    const file_version version_;
    const std::uint64_t offset_;
    const std::uint64_t length_;
    std::byte* base_ = nullptr;
    std::uint64_t skip_ = 0;  // offset into the first page
    std::size_t mapped_bytes_ = 0;
    std::atomic<bool> is_pinned_{false};
    std::atomic<std::chrono::steady_clock::time_point> last_use_{std::chrono::steady_clock::now()};
    std::mutex lock_;                               // guards the members below; held while a driver registers
    std::array<device::session*, 2> registered_{};  // the sessions that registered it: of the GPU driver and of the host device
  };

  // Pages that one caller has pinned, or that the engine keeps for later reads. Only its owner keeps a reference for long.
  class entry {
   public:
    [[nodiscard]] std::uint64_t registered_bytes() const noexcept;
    // Returns null after the pages were dropped.
    [[nodiscard]] std::shared_ptr<pages> held() const noexcept;
    // Returns the length in bytes.
    [[nodiscard]] std::uint64_t length() const noexcept { return length_; }
    // Returns why the pages were dropped, or ok if they were not.
    [[nodiscard]] status problem() const;

   private:
    friend class pinned_pages;
    [[nodiscard]] bool is_of(const source::source& file) const noexcept;

    mutable std::mutex lock_;  // guards held_ and problem_
    std::shared_ptr<pages> held_;
    status problem_;
    bool is_kept_ = false;  // no user requested it
    std::uint64_t device_ = 0;
    std::uint64_t inode_ = 0;
    std::uint64_t offset_ = 0;
    std::uint64_t length_ = 0;
  };

  struct part {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
  };

  // kernel and fork must outlive this object.
  pinned_pages(sys::kernel& kernel, const sys::fork_guard& fork) noexcept : kernel_(kernel), fork_(fork) {}
  pinned_pages(const pinned_pages&) = delete;
  pinned_pages& operator=(const pinned_pages&) = delete;

  // Maps the part of a range that the file contains, and registers it with those drivers. Other drivers register it on their first read.
  // most_bytes: the limit for all pinned pages. Blocks. Errors: invalid_argument (the file has no bytes there), unsupported, out_of_memory
  // (more than most_bytes), would_block (the file keeps changing), those of mapping and pinning.
  result<std::shared_ptr<entry>> pin(source::source& file, std::uint64_t offset, std::uint64_t length, std::uint64_t most_bytes,
                                     std::span<const pinning_session> by);
  // Releases an entry's pin. Called by its owner.
  void release(const std::shared_ptr<entry>& done) noexcept;

  // Creates pages for one read of a range that the file contains, registered with one driver. Unlike pin(), this does not wait for a clock
  // tick. lasting: the file has not changed for seconds and its next change will be detected, so the pages may be kept. Errors: those of
  // mapping and pinning.
  struct made_pages {
    std::shared_ptr<pages> held;
    bool lasting = false;
  };
  result<made_pages> make(source::source& file, std::uint64_t offset, std::uint64_t length, const pinning_session& by);
  // Makes the pages available to other reads until release(), like those that users have pinned. Throws bad_alloc.
  std::shared_ptr<entry> keep(std::shared_ptr<pages> held);

  // Returns true if nothing is pinned. The calls below are then unnecessary.
  [[nodiscard]] bool empty() const noexcept { return count_.load(std::memory_order_acquire) == 0; }
  // Returns the first pinned part of a range, or an empty part at its end if there is none. Drops pages whose file has changed. Queries the
  // file system.
  part find(source::source& file, std::uint64_t offset, std::uint64_t length);
  // Returns pages that cover all of a range, or null.
  std::shared_ptr<pages> find_whole(source::source& file, std::uint64_t offset, std::uint64_t length);
  // Drop the entries with these pages, or all entries.
  void drop(const pages& gone, const status& why) noexcept;
  void drop_all(const status& why) noexcept;
  // Unregisters all pages until their next read. No read may be in progress.
  void unregister_all() noexcept;
  // Returns why a pin on this file that is not yet released was dropped, or ok if there is no such pin.
  [[nodiscard]] status problem_of(source::source& file) const;
  // Returns true if users have pinned any part of the file.
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
  std::atomic<std::size_t> count_{0};            // number of entries that have pages
  mutable std::mutex lock_;                      // guards entries_
  std::vector<std::shared_ptr<entry>> entries_;  // not yet released
};

}  // namespace penstock::path
