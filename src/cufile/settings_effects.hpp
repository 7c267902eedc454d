// Translates cuFile's settings into engine options. Only values that differ from NVIDIA's defaults have an effect, because the engine's own
// defaults are chosen by measurement. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cufile/settings_data.hpp"
#include "penstock/options.hpp"

namespace penstock::cufile {

// Applies the settings to options for a new engine. PENSTOCK_LANES, if set, overrides execution.max_io_threads.
void apply(const settings& asked, engine_options& to);

// Lists the settings that an existing engine does not follow, one sentence each.
std::vector<std::string> not_applied(const settings& asked, const engine_options& has);

// The rules for requests, in one machine word, so that threads can read them while another thread reopens the library.
struct request_rules {
  std::uint32_t unsplit_kib = 0;  // requests up to this size are not split
  std::uint8_t lanes = 0;         // as io_options::lanes
  cache_use cache = cache_use::automatic;
  bool direct : 1 = true;
  bool only_direct : 1 = false;
  bool background : 1 = false;
  bool one_link : 1 = false;
  bool whole_unaligned_writes : 1 = false;  // through pinned memory, not GPU-direct
};
static_assert(sizeof(request_rules) == 8);

request_rules rules_of(const settings& asked);
io_options options_of(const request_rules& rules) noexcept;
// The same for one request. aligned: to 4 KiB blocks, in memory and in the file.
io_options options_of(const request_rules& rules, std::uint64_t length, bool is_write, bool aligned) noexcept;

// Returns true if files bypass the page cache (O_DIRECT).
[[nodiscard]] bool wants_direct_io(const settings& asked);
// Returns the capacity of a batch.
[[nodiscard]] unsigned most_batch_entries(const settings& asked);

}  // namespace penstock::cufile
