// What the settings of cuFile ask of the engine: translation into its options, no more. Only what has another value than NVIDIA's default
// asks for anything, since the engine's own defaults are measured. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cufile/settings_data.hpp"
#include "penstock/options.hpp"

namespace penstock::cufile {

// To options that an engine is yet to be made with. PENSTOCK_LANES, where it is set, comes before execution.max_io_threads.
void apply(const settings& asked, engine_options& to);

// What of it an engine that was made before does otherwise, a sentence for each.
std::vector<std::string> not_applied(const settings& asked, const engine_options& has);

// What holds for requests, in one word, so that threads may ask while another opens the library anew.
struct request_rules {
  std::uint32_t unsplit_kib = 0;  // requests up to this are not split
  std::uint8_t lanes = 0;         // as io_options::lanes
  cache_use cache = cache_use::automatic;
  bool direct : 1 = true;
  bool only_direct : 1 = false;
  bool background : 1 = false;
  bool one_link : 1 = false;
  bool whole_unaligned_writes : 1 = false;  // not direct either
};
static_assert(sizeof(request_rules) == 8);

request_rules rules_of(const settings& asked);
io_options options_of(const request_rules& rules) noexcept;
// The same for one request; aligned: to blocks of 4 KiB, in memory and file.
io_options options_of(const request_rules& rules, std::uint64_t length, bool is_write, bool aligned) noexcept;

// A file is opened past the page cache.
[[nodiscard]] bool wants_direct_io(const settings& asked);
// The most entries of a batch.
[[nodiscard]] unsigned most_batch_entries(const settings& asked);

}  // namespace penstock::cufile
