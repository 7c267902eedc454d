// What a storm holds of the machine while it lasts: resident memory and open descriptors of this process, looked at again and again, and
// the rules by which descriptors and memory that is no slab count as flat. Resident memory as a whole is only told, with what it consists
// of: one storm alone does not say whether it grows, since an engine keeps the slabs that it has needed once; tools/soak judges it over
// many. A series belongs to one thread.
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
  std::uint64_t slab_bytes = 0;  // of resident_bytes, as are the next: by the kinds of storm_mappings.hpp
  std::uint64_t malloc_bytes = 0;
  std::uint64_t other_bytes = 0;
};

// Of this process at this moment, from /proc/self. Blocks for some milliseconds; fails the running test where /proc is missing.
footprint footprint_now();

// What malloc has given out and not got back: unlike resident memory it is exact, once nothing is under way. 0 where a sanitizer allocates.
std::uint64_t heap_bytes_in_use();

// How many more descriptors the median of the last third of a series may have than that of its first third. Medians of clean storms of
// 150 and 300 s on two loaded cores were 4 apart at most: engines come and go.
inline constexpr std::uint64_t descriptor_allowance = 32;

// Likewise for the sum of malloc's and other memory. Its medians in storms of 150 and 300 s were 4 MiB apart at most, where malloc keeps
// little (storm_test.cc).
inline constexpr std::uint64_t memory_allowance_bytes = std::uint64_t{32} << 20;

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
  // In words, where the last third has more descriptors than the first by more than is allowed.
  [[nodiscard]] std::optional<std::string> descriptor_growth(std::uint64_t allowed) const;
  // Likewise, of malloc's and other memory.
  [[nodiscard]] std::optional<std::string> memory_growth(std::uint64_t allowed_bytes) const;
  // In words, how far resident memory was from the first third to the last, and of which kinds; nothing of a series that says nothing.
  [[nodiscard]] std::optional<std::string> resident_change() const;

 private:
  void raise_highest(const footprint& sample);

  clock::time_point warm_, due_;
  std::vector<footprint> samples_;
  footprint highest_;
};

}  // namespace penstock::testing
