// Cuts a request into pieces and chooses the path of each. Pure: what it needs to know of the world it is told or asks through two
// functions, so it can be tested without any. The pieces cover the range, or what was asked about of it, once and in file order.
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
  declared,          // what the path declares
  declared_untried,  // that, where no device is in use that could be asked for
  resident,
  not_resident,
  partly_resident,
  kept,  // not in the page cache, and read through it (core/cache/cache_policy tells when)
  kept_as_asked,
  bypass_as_asked,  // not in the page cache, and read past it
  bypass_as_lent,
  bypass_shared_memory,  // the device has no memory but the host's
  bypass_at_random,
  bypass_memory_unknown,
  bypass_no_room,
  bypass_faster,
  bypass_tried,
  bypass_late,     // its server answers late
  bypass_untimed,  // or may: a first part tells
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

// How a read gets what is not in the page cache.
struct cold_way {
  bool keeps = false;  // through the page cache, in file order
  plan_reason why = plan_reason::not_resident;
  std::uint64_t tried_bytes = 0;                 // of what is kept, so much goes past the page cache, to see how fast that is
  std::uint64_t most_bytes = ~std::uint64_t{0};  // the plan ends behind so many, since more will be known by then
};

// Where CPU time is spared, so much of the page cache or more goes by the path for that.
inline constexpr std::uint64_t least_mapped_bytes = std::uint64_t{8} << 20;

struct planned_piece {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  path_kind path = path_kind::automatic;
  bool bypass_cache = false;
  plan_reason reason = plan_reason::resident;
  std::uint32_t wave = 1;    // pieces, from this one on, that share a slab and a copy; 0: shares an earlier one's
  bool fills_cache = false;  // not in the page cache, and read through it: by few threads at a time
  bool registered = false;   // what path::pinned_pages holds
  bool far = false;          // its far source begins it
  bool waits = false;        // a server brings it, and may answer late
};

struct plan_input {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t whole_length = 0;  // of the request that this is a part of
  bool continues = false;          // something was planned before this, and waits for nothing
  bool is_continued = false;       // and something will be after it
  // Where it matters what is in the page cache, a plan may end once that was asked about so much, since asking takes time (1.6 ms for
  // 256 MiB) in which what is planned could be under way.
  std::uint64_t most_asked = ~std::uint64_t{0};
  bool is_write = false;
  bool on_device = false;
  bool emulated_device = false;
  bool device_in_use = true;
  bool direct_writes = false;
  bool aligned_together = true;  // where the file offset is a multiple of direct_alignment, the address is one too
  // Of a write: what goes past the page cache is cut at multiples of this too, for a page of the page cache must never hold bytes of both a
  // buffered edge and a direct body, or its write-back would undo the body.
  std::uint64_t cache_page_bytes = sys::page_size();
  bool has_cached = true;  // descriptors
  bool has_direct = false;
  std::uint64_t far_piece = 0;  // of a read: the source is far, and wants fills of this length; 0: it answers at once
  std::uint64_t late_piece =
      0;  // of a read: a server brings what is not cached, answers late or may, and is best asked for so much at a time
  std::uint64_t most_untimed = ~std::uint64_t{0};  // before that is known no more is planned at once
  const path::path_table* paths = &path::built_in_paths();
  path_kind forced = path_kind::automatic;
  preference prefer = preference::automatic;
  unsigned lanes = 1;
  bool few_cores = false;
  bool busy_cores = false;          // others want them
  bool spares_cache = false;        // nothing that is not in the page cache shall enter it
  bool shared_link = false;         // with other requests: longer copies serve all better than an early first one serves this
  bool memory_file_system = false;  // tmpfs: registering its pages is slow
  std::uint64_t most_bytes = 0;     // of a slab: a piece or wave of staged work is at most this
  // Why a path cannot carry a range; nothing when it can. Asked of the whole range, and of paths that are for whole requests, of the body,
  // which is empty in a forced write that has edges only.
  std::function<std::optional<std::string>(path_kind, std::uint64_t offset, std::uint64_t length)> refuses;
  // Bytes of a range in the page cache; nothing when that cannot be known.
  std::function<std::optional<std::uint64_t>(std::uint64_t offset, std::uint64_t length)> resident;
  // The first part of a range that the user has pinned; empty where there is none. The function may be empty: nothing is.
  struct part {
    std::uint64_t offset = 0;
    std::uint64_t length = 0;
  };
  std::function<part(std::uint64_t offset, std::uint64_t length)> registered;
  // Asked once, where something is not in the page cache and could be read past it. Empty: it is.
  std::function<cold_way()> cold;
};

// Errors: unsupported, when the forced path refuses.
result<std::vector<planned_piece>> make_plan(const plan_input& input);

}  // namespace penstock::core
