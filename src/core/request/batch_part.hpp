// What the parts of a batch tell it, which carry some of its requests: rows, and copies of what others have read.
#pragma once

#include <cstdint>
#include <memory>

#include "core/file_core.hpp"
#include "penstock/engine.hpp"

namespace penstock::core {

class part_owner {
 public:
  // Any thread. This may be gone on return.
  virtual void item_ended(std::uint32_t index, io_result outcome) noexcept = 0;
  // So many reads, from that one on, of one file and into one place, have moved all that they asked for. As item_ended() of each, which
  // would write the words that all requests share once for each. Any thread. This may be gone on return.
  virtual void items_moved(std::uint32_t first, std::uint32_t count) noexcept = 0;
  // A request of a part is to run by itself. This may be gone on return.
  virtual void go_alone(const io_options& options, const std::shared_ptr<file_core>& file, std::uint32_t index) noexcept = 0;
  // The bytes that a request has read have been copied on from its memory, which its user may have now. This may be gone on return.
  virtual void copied_on(std::uint32_t index) noexcept = 0;

 protected:
  ~part_owner() = default;
};

}  // namespace penstock::core
