// Memory of the other end's devices that is mapped into this process, so that a message maps nothing that one before it has. Thread-safe.
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
  static constexpr std::size_t most_offered = 256;  // descriptors that are kept
  static constexpr std::size_t most_ahead = 64;     // allocations that were mapped ahead, and that nobody has opened yet

  // Unmapped with its last holder, which may wait for the device: not while a lock is held.
  class import {
   public:
    explicit import(device::session& by) noexcept : by_(by) {}
    import(const import&) = delete;
    import& operator=(const import&) = delete;
    ~import();
    // Once. Errors: of session::open_shared.
    status open(const std::string& handle, std::int64_t process, int descriptor);
    [[nodiscard]] const std::byte* base() const noexcept { return base_; }

   private:
    device::session& by_;
    std::byte* base_ = nullptr;  // null: nothing is mapped
  };
  using held = std::shared_ptr<const import>;

  // A descriptor that has come for it, kept until a message has opened it: the other end passes it once.
  void offer(const std::string& handle, std::uint64_t generation, sys::owned_descriptor by);
  // What is mapped already, or now; waits while another thread is mapping it. process: that shared it, as this one numbers it. Errors: of
  // session::open_shared.
  result<held> open(device::session& by, const std::string& handle, std::uint64_t generation, std::int64_t process);
  // Maps it for whoever opens it later. Calls the driver. Does nothing where the handle is known, and after clear(), and where its posting
  // has gone. At most most_ahead are mapped so and have not been opened; where there are as many, those whose postings have gone are let go
  // of. Of failures it says nothing: open() meets them.
  void map_ahead(device::session& by, const std::string& handle, std::uint64_t generation, std::int64_t process,
                 const std::weak_ptr<const void>& posting);
  // Whether it is mapped or being mapped, or failed when it was to be mapped ahead. Calls no driver.
  [[nodiscard]] bool knows(device::session& by, const std::string& handle);
  // Lets go of all, and keeps nothing from here on.
  void clear() noexcept;

 private:
  using key = std::pair<device::session*, std::string>;
  struct entry {
    std::uint64_t generation;
    held memory;
    std::uint64_t used;  // when
  };
  using descriptor = std::shared_ptr<const sys::owned_descriptor>;  // shared with a thread that maps by it
  struct offered {
    std::string handle;
    std::uint64_t generation;
    descriptor by;
  };
  // The caller holds the lock through guard; map() opens it for the driver's call and returns with it open.
  result<held> map(std::unique_lock<std::mutex>& guard, const key& of, std::uint64_t generation, std::int64_t process);
  // --- with the lock
  [[nodiscard]] bool is_known(const key& of) const;
  [[nodiscard]] descriptor find_offered(const key& of, std::uint64_t generation) const;
  void drop_offered(const key& of, std::uint64_t generation);
  held take_out(const key& of);
  held keep(const key& of, std::uint64_t generation, const held& memory);
  std::vector<held> take_out_without_posting();

  std::mutex lock_;                 // guards what follows
  std::condition_variable mapped_;  // something that was being mapped has been, or not
  std::set<key> being_mapped_;      // by a thread that has let go of the lock
  std::map<key, entry> entries_;
  // Tried ahead, with or without success, for these postings, and opened by no message since.
  std::map<key, std::weak_ptr<const void>> ahead_;
  std::uint64_t uses_ = 0;
  bool cleared_ = false;
  std::list<offered> offered_;  // the oldest first
};

}  // namespace penstock::channel
