// The interface through which the parts of a batch (rows and copies) report to it.
#pragma once

#include <cstdint>
#include <memory>

#include "core/file_core.hpp"
#include "penstock/engine.hpp"

namespace penstock::core {

class part_owner {
 public:
  // Reports that one request has completed. Any thread. This may be destroyed on return.
  virtual void item_ended(std::uint32_t index, io_result outcome) noexcept = 0;
  // Reports that `count` reads starting with `first`, from one file into one place, have transferred all their bytes. Does the same as
  // item_ended() for each, but writes the shared counters only once. Any thread. This may be destroyed on return.
  virtual void items_moved(std::uint32_t first, std::uint32_t count) noexcept = 0;
  // Makes one request of a part run by itself. This may be destroyed on return.
  virtual void go_alone(const io_options& options, const std::shared_ptr<file_core>& file, std::uint32_t index) noexcept = 0;
  // Reports that a request's bytes have been copied from its memory, which its user may now use. This may be destroyed on return.
  virtual void copied_on(std::uint32_t index) noexcept = 0;

 protected:
  ~part_owner() = default;
};

}  // namespace penstock::core
