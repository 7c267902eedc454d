// What the resident memory of this process consists of. It tells whoever sees it grow what has grown: slabs, which an engine keeps until
// trim(); what malloc keeps of what threads have freed; or something that nobody expects.
#pragma once

#include <cstdint>
#include <istream>
#include <map>
#include <string>

namespace penstock::testing {

// Resident bytes by kind of mapping. A mapping of a file is of the kind that the file's path names. Others are
//   "malloc"   its heap and its arenas, in use or not
//   "slabs"    memory with MADV_HUGEPAGE, which nobody but the slab pools asks for; "other" where slabs_are_told() is false
//   "other"    stacks of threads, and large blocks that malloc has mapped one by one
using resident_kinds = std::map<std::string, std::uint64_t>;

// Of this process at this moment, from /proc/self/smaps; nothing where that is missing. Blocks for some milliseconds.
resident_kinds resident_kinds_now();
// Of what smaps says.
resident_kinds resident_kinds_in(std::istream& smaps);
// Whether smaps tells slabs from other memory. False on kernels without transparent huge pages, which refuse MADV_HUGEPAGE, and where smaps
// has no flags. Blocks for some milliseconds; for when no slab comes or goes meanwhile.
bool slabs_are_told();
// In words, such as "slabs +64.0 MiB, malloc -2.5 MiB": the kinds that differ by 1 MiB or more, the largest change first.
std::string changes_of_kinds(const resident_kinds& before, const resident_kinds& now);

}  // namespace penstock::testing
