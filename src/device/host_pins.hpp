// Records which host memory was pinned through the host device. Nothing is locked in RAM, because no hardware reads it. It rejects the same
// mistakes as a GPU driver. Reading a file mapping whose file was truncated is an error rather than a crash. Owned by the driver;
// thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <shared_mutex>

#include "penstock/status.hpp"

namespace penstock::device {

class host_pins {
 public:
  struct range {
    std::byte* base = nullptr;
    std::uint64_t bytes = 0;
    bool read_only = false;
  };

  // Errors: invalid_argument (0 bytes, or overlaps a pinned range), bad_memory (not mapped), unsupported (read_only if this process is not
  // permitted to read itself with process_vm_readv, as under some seccomp profiles).
  status add(void* base, std::uint64_t length, bool read_only);
  // base must have been passed to add(). Errors: invalid_argument.
  status remove(void* base);
  // Returns the pinned range that contains an address.
  [[nodiscard]] std::optional<range> find(const void* address) const;
  // Returns true if any part of [address, address+length) was pinned read-only.
  [[nodiscard]] bool read_only(const void* address, std::uint64_t length) const;

  // Copies from memory that may be a file mapping. Past the end of the file it returns an error (io), whereas a plain read would raise
  // SIGBUS.
  static status read_safely(void* target, const void* source, std::uint64_t length);

 private:
  [[nodiscard]] std::optional<range> first_overlap(std::uintptr_t address, std::uint64_t length) const;

  mutable std::shared_mutex lock_;          // guards the map
  std::map<std::uintptr_t, range> ranges_;  // by start address; they never overlap
  std::atomic<std::size_t> count_{0};       // lets the common case, in which nothing is pinned, skip the lock
  std::atomic<std::size_t> read_only_count_{0};
};

}  // namespace penstock::device
