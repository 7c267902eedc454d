// Cuts a request into pieces and chooses a path for each. Pure: it obtains all facts about the system from plan_input and its functions, so
// tests need no system. The pieces cover the range, or the part of it that was examined, exactly once and in file order.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "path/registry.hpp"
#include "penstock/options.hpp"
#include "sys/page_size.hpp"

namespace penstock::core {

enum class plan_reason : std::uint8_t {
  host_memory,
  small_request,
  small_request_bypass,
  declared,          // the path always serves such requests
  declared_untried,  // the same, but no device is in use, so the path was not queried
  resident,
  not_resident,
  partly_resident,
  kept,  // not in the page cache, and read through it (see core/cache/cache_policy)
  kept_as_asked,
  bypass_as_asked,  // not in the page cache, and read past it
  bypass_as_lent,
  bypass_shared_memory,  // the device shares the host's memory
  bypass_at_random,
  bypass_memory_unknown,
  bypass_no_room,
  bypass_faster,
  bypass_tried,
  bypass_late,     // the server answers slowly
  bypass_untimed,  // the server may answer slowly; a first part measures it
  registered,      // in the page cache, and pinned by the user
  residency_unknown,
  no_direct_io,
  far,
  buffered_write,
  direct_write,
  unaligned_edge,
  unaligned_read_edge,
  too_little_aligned,
  forced,
};
std::string describe(plan_reason reason, const path::declaration& path);

// How to read uncached bytes.
struct cold_way {
  bool keeps = false;  // through the page cache, in file order
  plan_reason why = plan_reason::not_resident;
  std::uint64_t tried_bytes = 0;                 // if keeps: read this much past the page cache to measure the speed
  std::uint64_t most_bytes = ~std::uint64_t{0};  // the plan ends after this much, because more will be known by then
};

// Shorter parts are copied from a slab even if they are pinned: such a copy completes before a thread that waits for it has woken up.
inline constexpr std::uint64_t least_registered_bytes = std::uint64_t{1} << 20;
// To save CPU time, cached ranges of at least this length use the path that maps the page cache.
inline constexpr std::uint64_t least_mapped_bytes = std::uint64_t{8} << 20;

struct planned_piece {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  path_kind path = path_kind::automatic;
  path::way way = path::way::cached;
  plan_reason reason = plan_reason::resident;
  std::uint32_t wave = 1;  // the number of pieces, starting with this one, that share a slab and a copy; 0: shares an earlier piece's
  bool waits = false;      // a server provides the bytes and may answer slowly
};

struct plan_input {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t whole_length = 0;  // length of the request that contains this range
  bool continues = false;          // an earlier part was planned, and this one does not wait for it
  bool is_continued = false;       // a later part will be planned
  // If the path depends on the page cache, the plan may end after this many bytes were looked up. A lookup takes time (1.6 ms for 256 MiB)
  // in which the pieces planned so far could already run.
  std::uint64_t most_asked = ~std::uint64_t{0};
  bool is_write = false;
  bool on_device = false;
  bool emulated_device = false;
  bool device_in_use = true;
  bool direct_writes = false;
  bool aligned_together = true;  // whenever the file offset is a multiple of direct_alignment, so is the address
  // For writes past the page cache, pieces also end at multiples of this. Otherwise one page of the page cache could contain bytes of both
  // a buffered edge and a direct body, and its write-back would undo the body.
  std::uint64_t cache_page_bytes = sys::page_size();
  bool has_cached = true;  // the file has a descriptor of this kind
  bool has_direct = false;
  std::uint64_t far_piece = 0;                     // for reads: length of one fill of a remote source; 0: the source answers promptly
  std::uint64_t late_piece = 0;                    // for reads from a server that answers slowly, or may: bytes to request at a time
  std::uint64_t most_untimed = ~std::uint64_t{0};  // while it is unknown whether it does, plan no more than this at once
  const path::path_table* paths = &path::built_in_paths();
  path_kind forced = path_kind::automatic;
  preference prefer = preference::automatic;
  unsigned lanes = 1;
  bool few_cores = false;
  bool busy_cores = false;          // other processes keep the cores busy
  bool spares_cache = false;        // uncached bytes must not enter the page cache
  bool shared_link = false;         // with other requests, which benefit more from longer copies than this one does from an early first
                                    // copy
  bool memory_file_system = false;  // tmpfs: registering its pages is slow
  // Returns why a path cannot serve a range, or nullopt if it can. Called for the whole range. For paths that transfer whole requests, it
  // is called for the body, which is empty in a forced write that consists of edges only.
  std::function<std::optional<std::string>(path_kind, std::uint64_t offset, std::uint64_t length)> refuses;
  // Returns how many bytes of a range are in the page cache, or nullopt if unknown.
  std::function<std::optional<std::uint64_t>(std::uint64_t offset, std::uint64_t length)> resident;
  // Returns the first part of a range that the user has pinned; empty if there is none. The function may be empty, which means that nothing
  // is pinned.
  struct part {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
  };
  std::function<part(std::uint64_t offset, std::uint64_t length)> registered;
  // Called once, if uncached bytes could be read past the page cache. If it is empty, they are read past it.
  std::function<cold_way()> cold;
};

// Error: unsupported, if the forced path refuses the request.
result<std::vector<planned_piece>> make_plan(const plan_input& input);

}  // namespace penstock::core
