// A request's route: how it is transferred, decided once at admission from its options and properties. The code that transfers it follows
// the route and does not read the options again. Pure, except that each path is queried for whether it accepts the request. Free functions,
// safe to call from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/file_core.hpp"
#include "core/runtime.hpp"
#include "penstock/options.hpp"
#include "staging/link.hpp"

namespace penstock::core {

// Requests up to this length are grouped if they are in a batch or their caller does not wait.
inline constexpr std::uint64_t small_request_bytes = std::uint64_t{128} << 10;

enum class carrier : std::uint8_t {
  undecided,  // not admitted yet
  caller,     // the waiting thread, without a handover (data_path::carry_now)
  collector,  // groups it with other small requests
  lanes,      // cut into pieces
};

// The kind of caller.
enum class asker : std::uint8_t {
  waits,    // a thread waits for this request alone
  goes_on,  // the caller continues and is notified of completion
  batch,
  stream,  // a device stream, in stream order
};

struct route {
  carrier by : 2 = carrier::undecided;
  // For reads of uncached bytes into device memory: the request's option, or the default of its file or engine.
  cache_use cache : 2 = cache_use::automatic;
  path_kind path : 4 = path_kind::automatic;  // for a request transferred by its caller; otherwise a path is chosen per piece
};
static_assert(sizeof(route) == 1);  // a batch of thousands has one per request

// Returns true if such an asynchronous request goes to the collector. Starting it makes no driver call and performs no file I/O.
bool starts_at_once(const file_core& file, std::uint64_t length, const io_options& options) noexcept;

// Returns true if a read is started at its source and can be abandoned. This applies to remote sources, and to a file system with a server
// if the request has a deadline. Returns true even if the kernel reports the bytes as cached, because it also reports pages that are still
// being requested from the server.
bool comes_from_far(const file_core& file, bool is_write, const io_options& options) noexcept;

// Returns true if the bytes of such a piece must not stay in the page cache when it is transferred through the cache: for a read that
// bypasses the cache, and for a write to a file with direct writes. Returns false for small pieces, which the kernel reads ahead and merges
// in the cache; without that, 4 KiB calls are 4 to 13 times slower. asked: the cache option of the route.
bool spares_cache(const file_core& file, bool is_write, std::uint64_t length, cache_use asked) noexcept;

// The effective cache option. If none is set, a longer read into a device without its own memory bypasses the cache, because a cached copy
// of the file would take up the same memory a second time. memory: as below.
cache_use cache_of(cache_use asked, bool is_write, std::uint64_t length, const staging::place* memory) noexcept;

// memory: null if not known yet, which is allowed only for asker::goes_on. address: the memory's address; null if unknown.
route find_route(runtime& with, const file_core& file, bool is_write, std::uint64_t offset, std::uint64_t length,
                 const staging::place* memory, const io_options& options, asker who, const std::byte* address = nullptr);

}  // namespace penstock::core
