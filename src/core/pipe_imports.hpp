// Memory of the other end's devices that is mapped into this process, so that a message maps nothing that one before it has. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>

#include "device/device.hpp"

namespace penstock::core {

class pipe_imports {
 public:
  static constexpr std::size_t most = 256;

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

  // What is mapped already, or now. process: that shared it, as this one numbers it. Errors: of session::open_shared.
  result<held> open(device::session& by, const std::string& handle, std::uint64_t generation, std::int64_t process);
  // Lets go of all.
  void clear() noexcept;

 private:
  struct entry {
    device::session* by;
    std::string handle;
    std::uint64_t generation;
    held memory;
  };
  std::mutex lock_;           // guards what follows
  std::list<entry> entries_;  // the one that was used last stands first
};

}  // namespace penstock::core
