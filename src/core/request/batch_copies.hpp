// The reads in a batch that copy an earlier read's bytes into other memory (io_request::copy_of), from device to device, so that the file
// is read only once. If such a copy is not possible, the request reads the file itself.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "core/request/admission.hpp"
#include "core/request/batch_part.hpp"

namespace penstock::core {

class batch_copies {
 public:
  [[nodiscard]] static bool any(std::span<const io_request> requests) noexcept;
  // Finds the requests whose copy_of refers to an earlier request for the same range.
  batch_copies(runtime& with, part_owner& of, std::span<const io_request> requests);
  batch_copies(const batch_copies&) = delete;
  batch_copies& operator=(const batch_copies&) = delete;
  ~batch_copies();

  [[nodiscard]] bool is_copy(std::uint32_t index) const noexcept { return copy_of_[index] != nullptr; }
  // Called once a request has been located, before it starts. Call it for every request that is not refused, because its copies need the
  // place of its memory.
  void located(std::uint32_t index, const admission& item) noexcept;
  // Starts a copy that has been located. It runs when its bytes have arrived. This may be destroyed on return unless its owner prevents it.
  void begin(std::uint32_t index, const admission& item, const io_options& options);
  // Called if a copy has failed before it could start and its outcome has been reported. This may be destroyed on return, as with begin().
  void refused(std::uint32_t index) noexcept;
  // Called when any request has completed. Returns false if no copy needs its bytes. Otherwise copied_on() follows, possibly at once.
  bool ended(std::uint32_t index, const io_result& outcome) noexcept;

 private:
  class copy;
  runtime& with_;
  part_owner& owner_;
  std::deque<copy> copies_;
  std::vector<copy*> copy_of_;  // by request index; null: not a copy
  std::vector<copy*> first_;    // by request index: the first of its copies, which links to the next
};

}  // namespace penstock::core
