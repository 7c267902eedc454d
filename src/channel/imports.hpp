// A cache of the peer's device memory mapped into this process, so that a later message need not map it again. Thread-safe.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device/device.hpp"

namespace penstock::channel {

class pipe_imports {
 public:
  static constexpr std::size_t most = 8192;
  static constexpr std::size_t most_offered = 256;  // descriptors kept
  static constexpr std::size_t most_ahead = 64;     // allocations mapped ahead and not yet opened

  // The last holder to release it unmaps the memory, which may wait for the device: do not release it while holding a lock.
  class import {
   public:
    explicit import(device::session& by) noexcept : by_(by) {}
    import(const import&) = delete;
    import& operator=(const import&) = delete;
    ~import();
    // Call once. Errors: as for session::open_shared.
    status open(const std::string& handle, std::int64_t process, int descriptor);
    [[nodiscard]] const std::byte* base() const noexcept { return base_; }

   private:
    device::session& by_;
    std::byte* base_ = nullptr;  // null: nothing is mapped
  };
  using held = std::shared_ptr<const import>;

  // Keeps an arrived descriptor until a message has opened its memory: the peer passes it only once.
  void offer(const std::string& handle, std::uint64_t generation, sys::owned_descriptor by);
  // Returns an existing mapping, or maps the memory now; waits while another thread maps it. process: the pid of the process that shared
  // it, in this process's namespace. Errors: as for session::open_shared.
  result<held> open(device::session& by, const std::string& handle, std::uint64_t generation, std::int64_t process);
  // Maps memory that a message will open later. Calls the driver. Does nothing if the handle is known, after clear(), or if its posting no
  // longer exists. At most most_ahead mappings may be unopened; at that limit, those whose postings no longer exist are released. Does not
  // report failures, because open() will encounter them again.
  void map_ahead(device::session& by, const std::string& handle, std::uint64_t generation, std::int64_t process,
                 const std::weak_ptr<const void>& posting);
  // Returns true if the memory is mapped or being mapped, or if mapping it ahead failed. Does not call the driver.
  [[nodiscard]] bool knows(device::session& by, const std::string& handle);
  // Releases everything. Nothing is stored after this.
  void clear() noexcept;

 private:
  using key = std::pair<device::session*, std::string>;
  struct entry {
    std::uint64_t generation;
    held memory;
    std::uint64_t used;  // time of last use
  };
  using descriptor = std::shared_ptr<const sys::owned_descriptor>;  // shared with a thread that maps the memory
  struct offered {
    std::string handle;
    std::uint64_t generation;
    descriptor by;
  };
  // Call with guard holding the lock. map() releases it for the driver call and returns without it.
  result<held> map(std::unique_lock<std::mutex>& guard, const key& of, std::uint64_t generation, std::int64_t process);
  // --- with the lock held
  [[nodiscard]] bool is_known(const key& of) const;
  [[nodiscard]] descriptor find_offered(const key& of, std::uint64_t generation) const;
  void drop_offered(const key& of, std::uint64_t generation);
  held take_out(const key& of);
  held keep(const key& of, std::uint64_t generation, const held& memory);
  std::vector<held> take_out_without_posting();

  std::mutex lock_;                 // guards the members below
  std::condition_variable mapped_;  // a mapping attempt has ended
  std::set<key> being_mapped_;      // by a thread that has released the lock
  std::map<key, entry> entries_;
  // Mappings made ahead for these postings, successful or not, that no message has opened yet.
  std::map<key, std::weak_ptr<const void>> ahead_;
  std::uint64_t uses_ = 0;
  bool cleared_ = false;
  std::list<offered> offered_;  // oldest first
};

}  // namespace penstock::channel
