// A request's route: how it is carried, decided once at admission from its options and properties. The code that carries it follows the
// route and reads no option again. Pure, except that paths are asked whether they refuse. Free functions, safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/file_core.hpp"
#include "core/runtime.hpp"
#include "penstock/options.hpp"
#include "staging/link.hpp"

namespace penstock::core {

// Requests up to this length travel together if they are in a batch or their caller does not wait.
inline constexpr std::uint64_t small_request_bytes = std::uint64_t{128} << 10;

enum class carrier : std::uint8_t {
  undecided,  // not admitted yet
  caller,     // the waiting thread, without a hand-over (data_path::carry_now)
  collector,  // groups it with other small requests
  lanes,      // cut into pieces
};

// The kind of caller.
enum class asker : std::uint8_t {
  waits,    // a thread waits for this request alone
  goes_on,  // the caller continues and is notified of the end
  batch,
  stream,  // a device stream, in stream order
};

struct route {
  carrier by : 2 = carrier::undecided;
  // For reads into device memory with uncached bytes: the option of the request, or else that of its file or engine.
  cache_use cache : 2 = cache_use::automatic;
  path_kind path : 4 = path_kind::automatic;  // of a request carried by its caller; otherwise a path is chosen per piece
};
static_assert(sizeof(route) == 1);  // a batch of thousands has one per request

// Whether such an asynchronous request goes to the collector: starting it makes no driver call and no file I/O.
bool starts_at_once(const file_core& file, std::uint64_t length, const io_options& options) noexcept;

// Whether a read is started at its source and can be abandoned: from a remote source, and from a file system with a server if the request
// has a deadline. True even if the kernel reports the bytes as cached, because it also reports pages that are still being requested from
// the server.
bool comes_from_far(const file_core& file, bool is_write, const io_options& options) noexcept;

// Whether the bytes of such a piece must not stay in the page cache if it goes through the cache: true for a read that bypasses the cache,
// and for a write to a file with direct writes. False for small pieces, which the kernel reads ahead and merges there: without that, calls
// of 4 KiB are 4 to 13 times slower. asked: the cache option of the route.
bool spares_cache(const file_core& file, bool is_write, std::uint64_t length, cache_use asked) noexcept;

// The effective cache option. If none is set, a longer read into a device without memory of its own bypasses the cache: a cached copy of
// the file would take up the same memory a second time. memory: as below.
cache_use cache_of(cache_use asked, bool is_write, std::uint64_t length, const staging::place* memory) noexcept;

// memory: null if it is not known yet, which is allowed only for asker::goes_on. address: of the memory; null if unknown.
route find_route(runtime& with, const file_core& file, bool is_write, std::uint64_t offset, std::uint64_t length,
                 const staging::place* memory, const io_options& options, asker who, const std::byte* address = nullptr);

}  // namespace penstock::core
