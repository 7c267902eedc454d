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
                  "Blocking reads of less than 64 KiB that each began where the thread's previous one had ended"},
    usage_counter{"sequential_read_bytes", &usage_stats::sequential_read_bytes, "Bytes of these reads"},
    usage_counter{"sequential_read_ns", &usage_stats::sequential_read_ns, "Time that these reads took"},
    usage_counter{"sequential_writes", &usage_stats::sequential_writes,
                  "Blocking writes of less than 64 KiB that each began where the thread's previous one had ended"},
    usage_counter{"sequential_write_bytes", &usage_stats::sequential_write_bytes, "Bytes of these writes"},
    usage_counter{"sequential_write_ns", &usage_stats::sequential_write_ns, "Time that these writes took"},
    usage_counter{"lone_reads", &usage_stats::lone_reads, "Other blocking reads of up to 128 KiB by one thread alone"},
    usage_counter{"lone_read_bytes", &usage_stats::lone_read_bytes, "Bytes of these lone reads"},
    usage_counter{"lone_read_ns", &usage_stats::lone_read_ns, "Time that these lone reads took"},
    usage_counter{"registrations", &usage_stats::registrations, "Registrations of memory that have ended"},
    usage_counter{"registration_ns", &usage_stats::registration_ns, "Time that registering and deregistering memory took"},
    usage_counter{"short_registrations", &usage_stats::short_registrations, "Registrations that served at most four requests"},
    usage_counter{"short_registration_ns", &usage_stats::short_registration_ns, "Time that these short registrations took"},
    usage_counter{"short_registration_requests", &usage_stats::short_registration_requests,
                  "Requests that these short registrations served"},
    usage_counter{"unaligned_pieces", &usage_stats::unaligned_pieces,
                  "Pieces that took a different path from the rest of the request because they were not aligned"},
    usage_counter{"unaligned_bytes", &usage_stats::unaligned_bytes, "Bytes of these unaligned pieces"},
    usage_counter{"unaligned_ns", &usage_stats::unaligned_ns, "Time that these unaligned pieces took"},
    usage_counter{"block_reads", &usage_stats::block_reads,
                  "Pieces read past the page cache in whole blocks that hold more bytes than were requested"},
    usage_counter{"block_read_bytes", &usage_stats::block_read_bytes, "Bytes of these pieces"},
    usage_counter{"block_extra_bytes", &usage_stats::block_extra_bytes, "Bytes of these pieces that were not requested"},
    usage_counter{"block_read_ns", &usage_stats::block_read_ns, "Time that these pieces took"},
    usage_counter{"cold_read_bytes", &usage_stats::cold_read_bytes, "Bytes read past the page cache"},
    usage_counter{"cold_read_ns", &usage_stats::cold_read_ns, "Time with at least one read past the page cache under way"},
    usage_counter{"reread_bytes", &usage_stats::reread_bytes, "Bytes read past the page cache that had been read that way before"},
    usage_counter{"near_pieces", &usage_stats::near_pieces, "Pieces carried by a thread on the NUMA node of the GPU"},
    usage_counter{"near_bytes", &usage_stats::near_bytes, "Bytes of these near pieces"},
    usage_counter{"near_ns", &usage_stats::near_ns, "Time that these near pieces took"},
    usage_counter{"far_pieces", &usage_stats::far_pieces, "Pieces carried by a thread on a different NUMA node than the GPU"},
    usage_counter{"far_bytes", &usage_stats::far_bytes, "Bytes of these far pieces"},
    usage_counter{"far_ns", &usage_stats::far_ns, "Time that these far pieces took"},
    usage_counter{"slab_waits", &usage_stats::slab_waits, "Waits for pinned memory while the budget was used up"},
    usage_counter{"slab_wait_ns", &usage_stats::slab_wait_ns, "Time with at least one thread waiting for it"},
    usage_counter{"kept_read_bytes", &usage_stats::kept_read_bytes, "Bytes read through the page cache that were not in it yet"},
    usage_counter{"kept_read_ns", &usage_stats::kept_read_ns, "Time with at least one such read under way"},
    usage_counter{"uncached_bytes", &usage_stats::uncached_bytes, "Bytes that went through the page cache but did not stay in it"},
    usage_counter{"background_requests", &usage_stats::background_requests, "Requests in the background that have ended"},
    usage_counter{"background_bytes", &usage_stats::background_bytes, "Bytes that these requests in the background moved"},
    usage_counter{"background_waits", &usage_stats::background_waits, "Times that requests in the background let others go first"},
    usage_counter{"background_wait_ns", &usage_stats::background_wait_ns, "Time with at least one of them doing so"},
    usage_counter{"held_pieces", &usage_stats::held_pieces, "Pieces that a limit of bytes a second held back"},
    usage_counter{"held_bytes", &usage_stats::held_bytes, "Bytes of these held pieces"},
    usage_counter{"held_ns", &usage_stats::held_ns, "Time with at least one piece held back so"},
    usage_counter{"late_read_bytes", &usage_stats::late_read_bytes,
                  "Bytes read from file systems that answer late, not out of the page cache"},
    usage_counter{"late_read_ns", &usage_stats::late_read_ns, "Time with at least one read from a late file system under way"},
    usage_counter{"remote_requests", &usage_stats::remote_requests, "Requests sent to servers of objects"},
    usage_counter{"remote_retries", &usage_stats::remote_retries, "Requests that had to be sent to a server again"},
    usage_counter{"remote_put_offs", &usage_stats::remote_put_offs, "Requests that servers put off because they received too many"},
    usage_counter{"remote_put_off_ns", &usage_stats::remote_put_off_ns, "Time with at least one request put off so"},
    usage_counter{"remote_connections", &usage_stats::remote_connections, "Connections made to servers of objects"},
    usage_counter{"remote_redirects", &usage_stats::remote_redirects, "Responses in which a server redirected its reader"},
    usage_counter{"remote_bytes", &usage_stats::remote_bytes, "Bytes of objects received from servers"},
    usage_counter{"remote_tls_bytes", &usage_stats::remote_tls_bytes, "Bytes of these that came over TLS"},
    usage_counter{"remote_tls_bound_ns", &usage_stats::remote_tls_bound_ns,
                  "Time with at least one thread receiving over TLS as fast as its core can"},
    usage_counter{"remote_unversioned", &usage_stats::remote_unversioned, "Objects whose server sends no strong ETag"},
    usage_counter{"remote_without_ranges", &usage_stats::remote_without_ranges,
                  "Objects that were read as a whole, in order, because their server does not serve ranges"},
    usage_counter{"remote_hedges", &usage_stats::remote_hedges,
                  "Pieces of objects whose remainder was requested on a different connection because the first was far slower than others"},
    usage_counter{"remote_memory_waits", &usage_stats::remote_memory_waits,
                  "Times that reads from a server waited for their share of the pinned memory"},
    usage_counter{"remote_memory_wait_ns", &usage_stats::remote_memory_wait_ns, "Time with at least one server's reads waiting so"},
    usage_counter{"handle_registers", &usage_stats::handle_registers, "Files that programs of cuFile have registered"},
    usage_counter{"handle_register_errors", &usage_stats::handle_register_errors, "Such files that were refused"},
    usage_counter{"buffer_registers", &usage_stats::buffer_registers, "Buffers that programs of cuFile have registered"},
    usage_counter{"buffer_register_errors", &usage_stats::buffer_register_errors, "Such buffers that were refused"},
    usage_counter{"batch_submits", &usage_stats::batch_submits, "Submissions of batches by programs of cuFile"},
    usage_counter{"batch_submit_errors", &usage_stats::batch_submit_errors, "Such submissions that were refused"},
};

// Returns the index of a counter in the table.
consteval std::size_t place_of(std::uint64_t usage_stats::*value) {
  for (std::size_t i = 0; i < counter_table.size(); ++i) {
    if (counter_table[i].value == value) return i;
  }
  throw "it has no line in the table";
}

}  // namespace penstock::stats
