// Finds what slows a program down, from its counters. penstock::advise() and everything that shows advice call it. Pure: the same counters
// give the same advice. Free functions, safe to call from any thread.
//
// How the losses are estimated: if times were summed over threads or pieces that ran concurrently, the loss is divided by the average
// number of pieces in flight (the busy time of all paths over their active time).
// - tiny-sequential-calls: the time of the calls, minus the time of 1 MiB calls for the same bytes. Each 1 MiB call counts as one call as
//   slow as the measured ones, plus the time to copy its bytes at this machine's measured memory speed. Calls that waited for a disk do not
//   count.
// - one-thread-on-a-hot-file: the time of the calls, minus that of a batch whose requests are shared equally by up to four lanes. Only if
//   nothing else ran concurrently and there are at least four lanes.
// - register-in-a-loop: the time to register and deregister the buffers, minus that of one registration.
// - unaligned: the time of the pieces that took a different path, minus that of as many bytes at the average speed of all others; and for
//   reads in whole blocks, the share of the bytes that no request asked for.
// - cold-file-read-twice: of the time with a read past the page cache in flight, the share of the bytes read again, minus the time to copy
//   them from the page cache.
// - wrong-numa-node: the time of the pieces on the wrong node, minus that of as many bytes at the speed of the pieces on the right one;
//   unknown if too few bytes (16 MiB) were transferred there to compare.
// - pinned-budget-exhausted: the time with at least one thread waiting for pinned memory.
// - server-throttles: the time with at least one request delayed by a server.
// - tls-binds: unknown; ranked by the time in which receiving over TLS kept the core of at least one thread busy.
// - remote-reads-lack-memory: the time with at least one server's reads waiting for pinned memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "penstock/facts.hpp"

namespace penstock::stats {

// A loss is reported only if it reaches both limits.
struct advice_limits {
  double least_part = 0.05;  // share of the time with anything in flight plus that of registrations
  double least_seconds = 0.1;
};

// Returns the greatest loss first. Throws std::bad_alloc.
std::vector<advice> advise(const engine_stats& stats, const advice_limits& limits);

// Returns one line "advice: TEXT REMEDY [CODE]" per entry, each with its line feed.
std::string advice_lines(const std::vector<advice>& found);

// Returns usage_stats::copy_ns_per_mib, measured on the first call (some milliseconds); 0 if there is not enough memory for that.
std::uint64_t measured_copy_ns_per_mib() noexcept;

}  // namespace penstock::stats
