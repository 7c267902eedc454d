// The text of a progress bar. A free function; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::cli {

struct progress_facts {
  std::string_view phase;  // "filling", "reading", "writing", "hashing"
  std::string_view name;   // file or device being read, written or hashed
  std::uint64_t done_bytes = 0;
  std::uint64_t total_bytes = 0;  // not 0
  std::uint64_t first_byte = 0;   // done_bytes when the clock started
  double seconds = 0;             // since the clock started
};

// Returns "reading data/model.bin [#####......]  42% of 1 GiB  3.21 GB/s  0:12 left" in at most this many columns. If space is short, the
// name is cut first, then the bar is omitted, then the last fields. The remaining time appears once it can be estimated.
std::string progress_line(const progress_facts& facts, std::size_t columns);

}  // namespace penstock::cli
