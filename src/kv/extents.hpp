// The free extents of a file, each a whole number of blocks. Allocation is best-fit, and adjacent free extents are merged. Not thread-safe.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace penstock::kv {

// Offset and length in bytes.
struct extent {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

class extents {
 public:
  // Everything is initially free. capacity_bytes: a whole number of blocks.
  explicit extents(std::uint64_t capacity_bytes);
  // Allocates an extent of this length, a whole number of blocks. Returns nothing if no free extent is long enough.
  [[nodiscard]] std::optional<extent> take(std::uint64_t length);
  // Allocates exactly this extent. Returns false if part of it is not free or is outside the file.
  [[nodiscard]] bool take_at(const extent& wanted);
  // Frees an extent. If there is no memory to record it, it stays allocated.
  void give(const extent& taken) noexcept;
  // Returns true if there was no memory to record a free extent.
  [[nodiscard]] bool has_lost() const noexcept { return has_lost_; }
  void grow(std::uint64_t capacity_bytes);
  [[nodiscard]] std::uint64_t capacity_bytes() const noexcept { return capacity_; }
  [[nodiscard]] std::uint64_t free_bytes() const noexcept { return free_; }
  // Returns the number of free extents.
  [[nodiscard]] std::size_t holes() const noexcept { return by_offset_.size(); }

 private:
  using places = std::map<std::uint64_t, std::uint64_t>;  // lengths by offset
  void add(const extent& hole) noexcept;
  places::iterator remove(places::iterator hole);
  void cut(places::iterator hole, const extent& part);

  std::uint64_t capacity_;
  std::uint64_t free_ = 0;
  bool has_lost_ = false;
  places by_offset_;
  std::set<std::pair<std::uint64_t, std::uint64_t>> by_length_;  // length, offset
};

}  // namespace penstock::kv
