// What in a program costs it speed, from its counters: what penstock::advise() and everybody who shows advice calls. Pure: the same
// counters give the same advice. Free functions; safe from any thread.
//
// How the losses are estimated. Where times were summed over threads or pieces that ran beside each other, the loss is divided by how many
// pieces were under way on the average (the busy time of all paths over their active time).
// - tiny-sequential-calls: the time of the calls, less that of calls of 1 MiB for the same bytes: one such call as slow as these each, and
//   the copying, at the speed that was measured for memory of this machine. Calls that waited for a disk are not among them.
// - one-thread-on-a-hot-file: the time of the calls, less that of a batch whose requests the lanes share equally, four of them at
//   most. Only where nothing else ran beside them, and there are four lanes.
// - register-in-a-loop: the time that these registrations took to begin and to end, less that of one of them.
// - unaligned: the time of the pieces that took another way, less that of as many bytes at the average speed of all others; and of what was
//   read in whole blocks, the share that nobody asked for.
// - cold-file-read-twice: of the time in which something was read past the page cache, the share of the bytes read again, less the copying
//   of these from the page cache.
// - wrong-numa-node: the time of the pieces on the wrong node, less that of as many bytes at the speed of those on the right one; unknown
//   where too little (16 MiB) was carried there to compare.
// - pinned-budget-exhausted: the time with at least one thread waiting for pinned memory.
// - server-throttles: the time with at least one request put off.
// - tls-binds: unknown; told by the time in which at least one thread that receives over TLS had a core's work with it.
// - remote-reads-lack-memory: the time with at least one server's reads waiting for pinned memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/facts.hpp"

namespace penstock::stats {

// A loss is told from both of these on.
struct advice_limits {
  double least_part = 0.05;  // of the time in which something was under way, with that of registrations
  double least_seconds = 0.1;
};

// The greatest loss first. Throws bad_alloc.
std::vector<advice> advise(const engine_stats& stats, const advice_limits& limits);

// "advice: TEXT REMEDY [CODE]", a line each with its line feed.
std::string advice_lines(const std::vector<advice>& found);

// usage_stats::copy_ns_per_mib, measured when it is first asked for (some milliseconds); 0 where there is no memory for that.
std::uint64_t measured_copy_ns_per_mib() noexcept;

}  // namespace penstock::stats
