// How an object that is written is cut into parts, as S3 takes them, and what of a part has come. Values; for one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <utility>

#include "penstock/status.hpp"

namespace penstock::source::remote {

// "Amazon S3 multipart upload limits", Amazon S3 user guide. All parts but the last have 5 MiB or more there, and 5 GiB at most.
inline constexpr unsigned most_parts = 10'000;
inline constexpr std::uint64_t most_object_bytes = std::uint64_t{5} << 40;
inline constexpr std::uint64_t usual_part_bytes = std::uint64_t{8} << 20;

struct part_range {
  unsigned number = 0;  // from 1
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

// Which bytes are in which part, before any of them has come.
class part_plan {
 public:
  // Of a size that nobody knows: the first thousand parts have the usual size, and each thousand after them parts of twice the size before,
  // so that 10,000 are enough.
  part_plan() noexcept = default;
  // Of equal parts of the usual size, or of larger ones where those were too many. Errors: invalid_argument (larger than S3 takes).
  static result<part_plan> of_size(std::uint64_t bytes);

  // The part that a byte is in; it lies before most_object_bytes, and before the size where that is known.
  [[nodiscard]] part_range part_at(std::uint64_t offset) const noexcept;
  // Whether the object is known to be of one part at most.
  [[nodiscard]] bool is_single() const noexcept { return size_ && *size_ <= part_bytes_; }

 private:
  std::optional<std::uint64_t> size_;
  std::uint64_t part_bytes_ = usual_part_bytes;
};

// What of a range has come, from 0 on.
class come_ranges {
 public:
  static constexpr std::size_t most = 65'536;  // pieces with gaps between them
  // False: they lie in more pieces than may be.
  [[nodiscard]] bool add(std::uint64_t first, std::uint64_t end);
  // First and end of the first gap before that length.
  [[nodiscard]] std::optional<std::pair<std::uint64_t, std::uint64_t>> first_gap(std::uint64_t length) const noexcept;
  [[nodiscard]] bool is_whole(std::uint64_t length) const noexcept { return !first_gap(length); }

 private:
  std::map<std::uint64_t, std::uint64_t> ends_;  // by where they begin; none touches another
};

}  // namespace penstock::source::remote
