// What a storm holds of the machine while it lasts: resident memory and open descriptors of this process, looked at again and again, and
// the rule by which they count as flat. A series belongs to one thread.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace penstock::testing {

struct footprint {
  std::uint64_t resident_bytes = 0;
  std::uint64_t descriptors = 0;
};

// Of this process at this moment, from /proc/self. Blocks for some tens of microseconds; fails the running test where /proc is missing.
footprint footprint_now();

// What malloc has given out and not got back: unlike resident memory it is exact, once nothing is under way. 0 where a sanitizer allocates.
std::uint64_t heap_bytes_in_use();

// How much the median of the last third of a series may be above that of its first third. Medians of clean storms of 150 and 300 s on two
// loaded cores were 40 MiB and 4 descriptors apart at most: engines come and go, and the allocator keeps what threads of theirs have freed.
struct footprint_allowance {
  std::uint64_t resident_bytes = 0;
  std::uint64_t descriptors = 0;
  static footprint_allowance of_this_build();  // a sanitizer keeps freed memory for a while, so there it is more
};

class footprint_series {
 public:
  using clock = std::chrono::steady_clock;

  // For a storm of this length that begins now. A sample is due each second; those of the first tenth, 10 s at least, are a warm-up.
  explicit footprint_series(std::chrono::seconds length);
  // Takes a sample if one is due.
  void look();
  // One after the warm-up.
  void note(const footprint& sample);

  [[nodiscard]] std::size_t size() const { return samples_.size(); }  // without the warm-up
  // The most of each, also in the warm-up.
  [[nodiscard]] footprint highest() const { return highest_; }
  // Medians of the first, the second and the last third; nothing of a series of fewer than 120 samples, which says nothing.
  [[nodiscard]] std::optional<std::array<footprint, 3>> thirds() const;
  // In words, where the last third is above the first by more than is allowed.
  [[nodiscard]] std::optional<std::string> growth(const footprint_allowance& allowed) const;

 private:
  void raise_highest(const footprint& sample);

  clock::time_point warm_, due_;
  std::vector<footprint> samples_;
  footprint highest_;
};

}  // namespace penstock::testing
