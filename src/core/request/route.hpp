// How a request is carried: decided once, when it is admitted, from its options and from what it is. Whoever carries it does as its route
// says and asks no option again. Pure but for the paths, which are asked whether they refuse. Free functions; safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/file_core.hpp"
#include "core/runtime.hpp"
#include "penstock/options.hpp"
#include "staging/link.hpp"

namespace penstock::core {

// In a batch, and where nobody waits, requests up to this travel together.
inline constexpr std::uint64_t small_request_bytes = std::uint64_t{128} << 10;

enum class carrier : std::uint8_t {
  undecided,  // it has not been admitted
  caller,     // the thread that waits for it, without a hand-over (data_path::carry_now)
  collector,  // which gathers it with other small ones
  lanes,      // cut into pieces
};

// Who asks for it.
enum class asker : std::uint8_t {
  waits,    // a thread, for this request alone
  goes_on,  // and is told of its end
  batch,
  stream,  // of a device, in whose order it runs
};

struct route {
  carrier by : 2 = carrier::undecided;
  // Of reads into device memory, where something is not in the page cache: the request's own wish, or else that of its file or engine.
  cache_use cache : 2 = cache_use::automatic;
  path_kind path : 4 = path_kind::automatic;  // by its caller: which path; else it is found piece by piece
};
static_assert(sizeof(route) == 1);  // each request of a batch of thousands has one

// Whether such a request, whose caller goes on, is for the collector: beginning it makes no driver call and no file I/O.
bool starts_at_once(const file_core& file, std::uint64_t length, const io_options& options) noexcept;

// Whether a read is begun, and can be left behind: of a far source; and of a file with a server, where the request has a deadline. Also
// where it is in the page cache, as far as the kernel says: it says so of pages that the server is still asked for.
bool comes_from_far(const file_core& file, bool is_write, const io_options& options) noexcept;

// Whether nothing of such a piece is to stay in the page cache, where it goes through it: of a read that is to bypass it, and of a write to
// a file whose writes are. Not of small ones, which the kernel reads ahead of and gathers there: without that calls of 4 KiB are 4 to 13
// times slower. asked: of the route.
bool spares_cache(const file_core& file, bool is_write, std::uint64_t length, cache_use asked) noexcept;

// What becomes of the page cache: as asked for; else a longer read into a device that has no memory but the host's spares it, since what it
// kept of a file would take up the only memory that there is once more. memory: as below.
cache_use cache_of(cache_use asked, bool is_write, std::uint64_t length, const staging::place* memory) noexcept;

// memory: null where it is not known yet, which is so for those that go on only. address: there; null where nobody knows.
route find_route(runtime& with, const file_core& file, bool is_write, std::uint64_t offset, std::uint64_t length,
                 const staging::place* memory, const io_options& options, asker who, const std::byte* address = nullptr);

}  // namespace penstock::core
