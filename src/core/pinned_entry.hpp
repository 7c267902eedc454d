// Implements the public pinned_range: a pinned range of a file's page cache, and the engine to which it belongs.
#pragma once

#include <cstdint>
#include <memory>

#include "core/file_core.hpp"
#include "path/pinned_pages.hpp"

namespace penstock::core {

// Thread-safe.
class pinned_entry {
 public:
  // See file::pin().
  static result<std::shared_ptr<pinned_entry>> make(file_core& file, std::uint64_t offset, std::uint64_t length);
  pinned_entry(const pinned_entry&) = delete;
  pinned_entry& operator=(const pinned_entry&) = delete;
  ~pinned_entry();

  [[nodiscard]] std::uint64_t size() const noexcept;
  [[nodiscard]] status problem() const;

 private:
  explicit pinned_entry(std::shared_ptr<core::runtime> with) : runtime_(std::move(with)) {}

  const std::shared_ptr<core::runtime> runtime_;
  std::shared_ptr<path::pinned_pages::entry> held_;
};

}  // namespace penstock::core
