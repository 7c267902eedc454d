// The counters of usage_stats, one line each. Boards, snapshots and the tables of all tools take their names and order from here. To add
// one, add its field and its line here, and increment board_layout::layout_version.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "penstock/facts.hpp"

namespace penstock::stats {

inline constexpr std::array counter_table{
    usage_counter{"sequential_reads", &usage_stats::sequential_reads,
                  "Blocking reads of less than 64 KiB that each started where the thread's previous one ended"},
    usage_counter{"sequential_read_bytes", &usage_stats::sequential_read_bytes,
                  "Bytes read by sequential blocking reads of less than 64 KiB"},
    usage_counter{"sequential_read_ns", &usage_stats::sequential_read_ns, "Time spent in sequential blocking reads of less than 64 KiB"},
    usage_counter{"sequential_writes", &usage_stats::sequential_writes,
                  "Blocking writes of less than 64 KiB that each started where the thread's previous one ended"},
    usage_counter{"sequential_write_bytes", &usage_stats::sequential_write_bytes,
                  "Bytes written by sequential blocking writes of less than 64 KiB"},
    usage_counter{"sequential_write_ns", &usage_stats::sequential_write_ns, "Time spent in sequential blocking writes of less than 64 KiB"},
    usage_counter{"lone_reads", &usage_stats::lone_reads, "Other blocking reads of up to 128 KiB by one thread alone"},
    usage_counter{"lone_read_bytes", &usage_stats::lone_read_bytes,
                  "Bytes read by other blocking reads of up to 128 KiB by one thread alone"},
    usage_counter{"lone_read_ns", &usage_stats::lone_read_ns, "Time spent in other blocking reads of up to 128 KiB by one thread alone"},
    usage_counter{"registrations", &usage_stats::registrations, "Completed memory registrations"},
    usage_counter{"registration_ns", &usage_stats::registration_ns, "Time spent on registering and deregistering memory"},
    usage_counter{"short_registrations", &usage_stats::short_registrations, "Registrations that served at most four requests"},
    usage_counter{"short_registration_ns", &usage_stats::short_registration_ns,
                  "Time spent on registrations that served at most four requests"},
    usage_counter{"short_registration_requests", &usage_stats::short_registration_requests,
                  "Requests served by registrations that served at most four"},
    usage_counter{"unaligned_pieces", &usage_stats::unaligned_pieces,
                  "Pieces that took a different path from the rest of the request because they were not aligned"},
    usage_counter{"unaligned_bytes", &usage_stats::unaligned_bytes,
                  "Bytes of unaligned pieces that took a different path from the rest of the request"},
    usage_counter{"unaligned_ns", &usage_stats::unaligned_ns,
                  "Time spent on unaligned pieces that took a different path from the rest of the request"},
    usage_counter{"block_reads", &usage_stats::block_reads,
                  "Pieces read past the page cache in whole blocks that contain more bytes than were requested"},
    usage_counter{"block_read_bytes", &usage_stats::block_read_bytes,
                  "Bytes requested from pieces read past the page cache in whole blocks"},
    usage_counter{"block_extra_bytes", &usage_stats::block_extra_bytes,
                  "Bytes read only because whole blocks must be read past the page cache"},
    usage_counter{"block_read_ns", &usage_stats::block_read_ns, "Time spent on pieces read past the page cache in whole blocks"},
    usage_counter{"cold_read_bytes", &usage_stats::cold_read_bytes, "Bytes read past the page cache"},
    usage_counter{"cold_read_ns", &usage_stats::cold_read_ns, "Time with at least one read past the page cache in flight"},
    usage_counter{"reread_bytes", &usage_stats::reread_bytes, "Bytes read past the page cache that had been read that way before"},
    usage_counter{"near_pieces", &usage_stats::near_pieces, "Pieces transferred by a thread on the GPU's NUMA node"},
    usage_counter{"near_bytes", &usage_stats::near_bytes, "Bytes transferred by threads on the GPU's NUMA node"},
    usage_counter{"near_ns", &usage_stats::near_ns, "Time spent on pieces transferred by a thread on the GPU's NUMA node"},
    usage_counter{"far_pieces", &usage_stats::far_pieces, "Pieces transferred by a thread on a different NUMA node than the GPU"},
    usage_counter{"far_bytes", &usage_stats::far_bytes, "Bytes transferred by threads on a different NUMA node than the GPU"},
    usage_counter{"far_ns", &usage_stats::far_ns, "Time spent on pieces transferred by a thread on a different NUMA node than the GPU"},
    usage_counter{"slab_waits", &usage_stats::slab_waits, "Waits for pinned memory because the budget was exhausted"},
    usage_counter{"slab_wait_ns", &usage_stats::slab_wait_ns, "Time with at least one thread waiting for pinned memory"},
    usage_counter{"kept_read_bytes", &usage_stats::kept_read_bytes, "Bytes read through the page cache that were not in it yet"},
    usage_counter{"kept_read_ns", &usage_stats::kept_read_ns,
                  "Time with at least one read of uncached bytes through the page cache in flight"},
    usage_counter{"uncached_bytes", &usage_stats::uncached_bytes, "Bytes that passed through the page cache but did not stay in it"},
    usage_counter{"background_requests", &usage_stats::background_requests, "Completed background requests"},
    usage_counter{"background_bytes", &usage_stats::background_bytes, "Bytes transferred by background requests"},
    usage_counter{"background_waits", &usage_stats::background_waits, "Times that background requests waited for other requests"},
    usage_counter{"background_wait_ns", &usage_stats::background_wait_ns,
                  "Time with at least one background request waiting for other requests"},
    usage_counter{"held_pieces", &usage_stats::held_pieces, "Pieces held back by a rate limit"},
    usage_counter{"held_bytes", &usage_stats::held_bytes, "Bytes of pieces held back by a rate limit"},
    usage_counter{"held_ns", &usage_stats::held_ns, "Time with at least one piece held back by a rate limit"},
    usage_counter{"late_read_bytes", &usage_stats::late_read_bytes, "Uncached bytes read from file systems that answer slowly"},
    usage_counter{"late_read_ns", &usage_stats::late_read_ns, "Time with at least one read from a slow file system in flight"},
    usage_counter{"remote_requests", &usage_stats::remote_requests, "Requests sent to object servers"},
    usage_counter{"remote_retries", &usage_stats::remote_retries, "Requests that had to be resent to a server"},
    usage_counter{"remote_put_offs", &usage_stats::remote_put_offs, "Requests that servers delayed because they received too many"},
    usage_counter{"remote_put_off_ns", &usage_stats::remote_put_off_ns, "Time with at least one request delayed by a server"},
    usage_counter{"remote_connections", &usage_stats::remote_connections, "Connections made to object servers"},
    usage_counter{"remote_redirects", &usage_stats::remote_redirects, "Redirects received from servers"},
    usage_counter{"remote_bytes", &usage_stats::remote_bytes, "Bytes of objects received from servers"},
    usage_counter{"remote_tls_bytes", &usage_stats::remote_tls_bytes, "Bytes of objects received from servers over TLS"},
    usage_counter{"remote_tls_bound_ns", &usage_stats::remote_tls_bound_ns,
                  "Time with at least one thread receiving over TLS as fast as its core can"},
    usage_counter{"remote_unversioned", &usage_stats::remote_unversioned, "Objects whose server sends no strong ETag"},
    usage_counter{"remote_without_ranges", &usage_stats::remote_without_ranges,
                  "Objects read whole and sequentially because their server does not support ranges"},
    usage_counter{"remote_hedges", &usage_stats::remote_hedges,
                  "Pieces of objects whose remainder was requested on a different connection because the first was far slower than others"},
    usage_counter{"remote_memory_waits", &usage_stats::remote_memory_waits,
                  "Times that reads from a server waited for their share of the pinned memory"},
    usage_counter{"remote_memory_wait_ns", &usage_stats::remote_memory_wait_ns,
                  "Time with at least one server's reads waiting for pinned memory"},
    usage_counter{"handle_registers", &usage_stats::handle_registers, "Files registered by cuFile programs"},
    usage_counter{"handle_register_errors", &usage_stats::handle_register_errors, "Files refused at registration"},
    usage_counter{"buffer_registers", &usage_stats::buffer_registers, "Buffers registered by cuFile programs"},
    usage_counter{"buffer_register_errors", &usage_stats::buffer_register_errors, "Buffers refused at registration"},
    usage_counter{"batch_submits", &usage_stats::batch_submits, "Batches submitted by cuFile programs"},
    usage_counter{"batch_submit_errors", &usage_stats::batch_submit_errors, "Batch submissions that were refused"},
};

// Returns the index of a counter in the table.
consteval std::size_t place_of(std::uint64_t usage_stats::*value) {
  for (std::size_t i = 0; i < counter_table.size(); ++i) {
    if (counter_table[i].value == value) return i;
  }
  throw "it has no line in the table";
}

}  // namespace penstock::stats
