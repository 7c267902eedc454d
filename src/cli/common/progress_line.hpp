// The text of a progress bar. A free function; safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::cli {

struct progress_facts {
  std::string_view phase;  // "filling", "reading", "writing", "hashing"
  std::string_view name;   // of what it is done to
  std::uint64_t done_bytes = 0;
  std::uint64_t total_bytes = 0;  // not 0
  std::uint64_t first_byte = 0;   // how much was done when the clock was started
  double seconds = 0;             // since then
};

// "reading data/model.bin [#####......]  42% of 1 GiB  3.21 GB/s  0:12 left", in at most this many columns: the name is cut first, then
// the bar is left out, then what stands last. The time that is left is told once there is something to judge it by.
std::string progress_line(const progress_facts& facts, std::size_t columns);

}  // namespace penstock::cli
