// Reads of a batch that want the bytes of an earlier one of it in other memory (io_request::copy_of): these go on from there, from device
// to device, so that the file is read once. One that cannot be had so is read by itself.
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
  // Those among these requests that name one with the same range.
  batch_copies(runtime& with, part_owner& of, std::span<const io_request> requests);
  batch_copies(const batch_copies&) = delete;
  batch_copies& operator=(const batch_copies&) = delete;
  ~batch_copies();

  [[nodiscard]] bool is_copy(std::uint32_t index) const noexcept { return copy_of_[index] != nullptr; }
  // The request has been located, and nothing of it has begun: of every one that is not refused, so that its copies know where it lies.
  void located(std::uint32_t index, const admission& item) noexcept;
  // The copy, which has been located, is to be made as soon as its bytes are there. This may be gone on return, unless its owner sees to
  // that.
  void begin(std::uint32_t index, const admission& item, const io_options& options);
  // The copy has ended before it could begin, which has been told. Likewise.
  void refused(std::uint32_t index) noexcept;
  // Of each request: it has ended so. False: nobody wants its bytes. Else copied_on() follows, maybe at once.
  bool ended(std::uint32_t index, const io_result& outcome) noexcept;

 private:
  class copy;
  runtime& with_;
  part_owner& owner_;
  std::deque<copy> copies_;
  std::vector<copy*> copy_of_;  // by the number of the request; null: it is none
  std::vector<copy*> first_;    // likewise: that wants its bytes, and leads to the next
};

}  // namespace penstock::core
