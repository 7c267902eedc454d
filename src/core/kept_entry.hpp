// What a user's kept_range holds: a range of a file's page cache that is kept registered, and the engine that it belongs to.
#pragma once

#include <cstdint>
#include <memory>

#include "core/file_core.hpp"
#include "path/kept_pages.hpp"

namespace penstock::core {

// Thread-safe.
class kept_entry {
 public:
  // See file::keep().
  static result<std::shared_ptr<kept_entry>> make(file_core& file, std::uint64_t offset, std::uint64_t length);
  kept_entry(const kept_entry&) = delete;
  kept_entry& operator=(const kept_entry&) = delete;
  ~kept_entry();

  [[nodiscard]] std::uint64_t size() const noexcept;
  [[nodiscard]] status problem() const;

 private:
  explicit kept_entry(std::shared_ptr<core::runtime> with) : runtime_(std::move(with)) {}

  const std::shared_ptr<core::runtime> runtime_;
  std::shared_ptr<path::kept_pages::entry> held_;
};

}  // namespace penstock::core
