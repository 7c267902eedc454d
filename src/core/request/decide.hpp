// Which path carries what of a request, and why: for requests that run, and for those that are asked about.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/planner.hpp"
#include "core/request/admission.hpp"
#include "penstock/facts.hpp"

namespace penstock::core {

// A long request is carried in sections of at most this length, which are planned and end one by one.
inline constexpr std::uint64_t section_bytes = std::uint64_t{256} << 20;

// How a request is cut.
struct cutting {
  unsigned lanes = 1;         // over so many
  bool shared_link = false;   // with other requests
  bool row = false;           // its bytes go to several places
  bool short_pieces = false;  // of at most 16 MiB, whatever carries them: others may have to go first
  bool has_tried = false;     // a section of it tries the other way: set by explain(), whose plans do not call cold_speeds::tries()
};

// How far a read may go.
struct reach {
  std::uint64_t length = 0;
  bool past_size = false;  // behind the end that is stated: nobody knows how much there is
};

// How much of the range a read should be planned for: to the end of the source as it is stated, and on from there only where there is
// more, since a stated size may be old, or nothing. 0: the source ends there. May read a byte.
result<reach> readable(source::source& from, const transfer& what);

// Whether a write can be carried to its end; asked of the whole before anything moves. Ok for reads. Errors: of path::writable().
status writable(file_core& file, const transfer& whole, const staging::place& place);

// The path that carries a read of the range into a device better than in pieces: GPU-direct, mostly. Null: none. Asks the paths.
const path::declaration* carrier_of_whole(runtime& with, file_core& file, const staging::place& place, std::uint64_t offset,
                                          std::uint64_t length, const io_options& options);

// Over the links of so many neighbours of its device such a request may go too.
std::uint32_t neighbours_of(runtime& with, const transfer& what, const staging::place& place, const io_options& options);

// Whether what a request finds in the page cache is mapped because other processes keep the cores busy, and for no other reason.
bool spares_busy_cores(runtime& with, const file_core& file, const transfer& whole, const staging::place& place, const io_options& options);

std::uint64_t length_of(std::span<const planned_piece> pieces) noexcept;

// The pieces of the next section of a request that lanes carry, which is the first of what is left of it. asked: of its route. Errors: of
// writable(), and of make_plan().
result<std::vector<planned_piece>> decide(runtime& with, file_core& file, const transfer& rest, const transfer& whole,
                                          const staging::place& place, const io_options& options, cache_use asked, const cutting& how);

}  // namespace penstock::core
