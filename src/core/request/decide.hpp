// Chooses the path for each part of a request, for requests that run and for explain().
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/planner.hpp"
#include "core/request/admission.hpp"
#include "penstock/facts.hpp"

namespace penstock::core {

// The maximum length of a section. A long request is planned and completed section by section.
inline constexpr std::uint64_t section_bytes = std::uint64_t{256} << 20;

// How to cut a request.
struct cutting {
  unsigned lanes = 1;         // the number of lanes
  bool shared_link = false;   // with other requests
  bool row = false;           // its bytes go to several destinations
  bool short_pieces = false;  // at most 16 MiB each, on any path, because other requests may have priority
  bool has_tried = false;     // one of its sections tries the other way; set by explain(), whose plans do not call cold_speeds::tries()
};

// How far a read may extend.
struct reach {
  std::uint64_t length = 0;
  bool past_size = false;  // beyond the reported size: the actual size is unknown
};

// Returns how much of the range to plan a read for: up to the reported end of the source, and beyond it only if there is more data, because
// the reported size may be outdated or 0. Returns 0 if the source ends there. May read a byte.
result<reach> readable(source::source& from, const transfer& what);

// Checks whether a write can be completed. Checks the whole write before anything is transferred. Returns ok for reads. Errors: those of
// path::writable().
status writable(file_core& file, const transfer& whole, const staging::place& place);

// Returns the path that transfers a whole read into a device better than pieces would, usually GPU-direct. Returns null if there is none.
// Queries the paths.
const path::declaration* carrier_of_whole(runtime& with, file_core& file, const staging::place& place, std::uint64_t offset,
                                          std::uint64_t length, const io_options& options);

// Returns how many neighbours of the device have links that such a request may also use.
std::uint32_t neighbours_of(runtime& with, const transfer& what, const staging::place& place, const io_options& options);

// Returns true if cached bytes of a request are mapped only because other processes keep the cores busy.
bool spares_busy_cores(runtime& with, const file_core& file, const transfer& whole, const staging::place& place, const io_options& options);

std::uint64_t length_of(std::span<const planned_piece> pieces) noexcept;

// Plans the next section of a request that lanes transfer: the first part of `rest`. asked: the cache option of its route. Errors: those of
// writable() and make_plan().
result<std::vector<planned_piece>> decide(runtime& with, file_core& file, const transfer& rest, const transfer& whole,
                                          const staging::place& place, const io_options& options, cache_use asked, const cutting& how);

}  // namespace penstock::core
