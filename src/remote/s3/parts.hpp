// How an object is split into S3 parts, and which bytes of a part have arrived. Values; not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "penstock/status.hpp"

namespace penstock::source::remote {

// "Amazon S3 multipart upload limits", Amazon S3 user guide. Every part except the last must be 5 MiB to 5 GiB long.
inline constexpr unsigned most_parts = 10'000;
inline constexpr std::uint64_t most_object_bytes = std::uint64_t{5} << 40;
inline constexpr std::uint64_t usual_part_bytes = std::uint64_t{8} << 20;

struct part_range {
  unsigned number = 0;  // from 1
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// Maps bytes to parts, before any bytes have arrived.
class part_plan {
 public:
  // For an unknown size: the first thousand parts have the usual size, and parts in each further thousand are twice as large as in the
  // previous one, so that 10,000 parts are enough.
  part_plan() noexcept = default;
  // For a known size: equal parts of the usual size, or larger if that would be too many. Error: invalid_argument (larger than S3 allows).
  static result<part_plan> of_size(std::uint64_t bytes);

  // Returns the part that contains the byte at an offset, which must be below most_object_bytes and below the size, if known.
  [[nodiscard]] part_range part_at(std::uint64_t offset) const noexcept;
  // Returns true if the object is known to fit in one part.
  [[nodiscard]] bool is_single() const noexcept { return size_ && *size_ <= part_bytes_; }

 private:
  std::optional<std::uint64_t> size_;
  std::uint64_t part_bytes_ = usual_part_bytes;
};

// The ranges of a part that have arrived; offsets start at 0.
class come_ranges {
 public:
  static constexpr std::size_t most = 65'536;  // disjoint pieces
  // Returns false if there would be too many disjoint pieces.
  [[nodiscard]] bool add(std::uint64_t first, std::uint64_t end);
  // Returns the start and end of the first gap below that length.
  [[nodiscard]] std::optional<std::pair<std::uint64_t, std::uint64_t>> first_gap(std::uint64_t length) const noexcept;
  [[nodiscard]] bool is_whole(std::uint64_t length) const noexcept { return !first_gap(length); }

 private:
  std::map<std::uint64_t, std::uint64_t> ends_;  // keyed by start; disjoint and not adjacent
};

}  // namespace penstock::source::remote
