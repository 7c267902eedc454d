// Memory of the other end's devices that is mapped into this process, so that a message maps nothing that one before it has. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "device/device.hpp"

namespace penstock::channel {

class pipe_imports {
 public:
  static constexpr std::size_t most = 8192;
  static constexpr std::size_t most_offered = 256;  // descriptors that are kept

  // Unmapped with its last holder, which may wait for the device: not while a lock is held.
  class import {
   public:
    import(device::session& by, void* base) noexcept :by_(by), base_(static_cast<std::byte*>(base)){} import(const import&) = delete;
    import& operator=(const import&) = delete;
    ~import();
    [[nodiscard]] const std::byte* base() const noexcept { return base_; }

   private:
    device::session& by_;
    std::byte* const base_;
  };
  using held = std::shared_ptr<const import>;

  // A descriptor that has come for it, kept until it is mapped.
  void offer(const std::string& handle, std::uint64_t generation, sys::owned_descriptor by);
  // What is mapped already, or now. process: that shared it, as this one numbers it. Errors: of session::open_shared.
  result<held> open(device::session& by, const std::string& handle, std::uint64_t generation, std::int64_t process);
  // Lets go of all.
  void clear() noexcept;

 private:
  struct entry {
    std::uint64_t generation;
    held memory;
    std::uint64_t used;  // when
  };
  std::mutex lock_;  // guards what follows
  std::map<std::pair<device::session*, std::string>, entry> entries_;
  std::uint64_t uses_ = 0;
  struct offered {
    std::string handle;
    std::uint64_t generation;
    sys::owned_descriptor by;
  };
  std::list<offered> offered_;  // the oldest first
};

}  // namespace penstock::channel
