// Values that an engine returns: devices, memory, plans, requests in flight, and counters.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/options.hpp"
#include "penstock/status.hpp"

namespace penstock {

enum class memory_kind : std::uint8_t { host = 0, pinned, device };

struct device_info {
  std::string name;         // "cuda:0" or "host:0"; allocate() and explain() take it
  std::string description;  // "NVIDIA H200"; if the device cannot be queried (for example, no descriptors left), the reason, and the other
                            // fields are unknown
  std::string pci_bus_id;   // empty for the host device
  std::uint64_t memory_bytes = 0;
  int numa_node = -1;                   // -1: unknown
  std::array<std::uint8_t, 16> uuid{};  // zeros: unknown
  std::uint64_t window_bytes = 0;       // the device's largest PCI memory window (BAR1); 0: unknown
  // True: the device shares the host's memory (DGX Spark, Jetson), so programs and the page cache use part of memory_bytes.
  bool shares_host_memory = false;
};

// The memory behind a pointer.
struct memory_facts {
  memory_kind kind = memory_kind::host;
  std::string device;      // the device that owns the memory, as in device_info::name; empty for pageable memory
  void* base = nullptr;    // start of the allocation; null if unknown, as for pageable memory
  std::uint64_t size = 0;  // size of the allocation in bytes, from base
};

// The plan for a part of a file, with the reason.
struct plan_part {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  path_kind path = path_kind::automatic;
  std::string path_name;
  std::string reason;  // one sentence
};

// The plan for a request.
struct plan {
  std::vector<plan_part> parts;  // in file order, covering the range once
  // Number of bytes of the range that are in the page cache; estimated from samples if this process may not write the file; nullopt if
  // unknown.
  std::optional<std::uint64_t> cached_bytes;
  std::vector<std::string> remarks;  // why faster paths were not used, and what would make the request faster
};

// A request in flight, or a pipe message that is being sent (a write) or whose tensors are awaited or being received.
struct request_info {
  std::string file;          // file::path(); for a pipe, the peer
  std::int64_t offset = 0;   // offset in the file; -1 for pipes, and for a stream-ordered request that its stream has not reached
  std::uint64_t length = 0;  // requested bytes; for a request that its stream has not reached, the maximum
  bool is_write = false;
  // The device that owns the memory, as in device_info::name, or "host"; empty if not looked up yet, and for zero-byte requests.
  std::string device;
  std::int64_t since_ns = 0;  // start time by std::chrono::steady_clock, accurate to 10 ms
  bool of_pipe = false;
  request_priority priority = request_priority::normal;
};

struct path_stats {
  std::string name;              // the path's name
  std::uint64_t operations = 0;  // pieces moved
  std::uint64_t bytes = 0;
  std::uint64_t written_bytes = 0;  // how many of the bytes were written; the others were read
  std::uint64_t errors = 0;
  std::uint64_t fallbacks =
      0;  // pieces that this path should have moved, or started, but handed to another path; memory that it could not register
  std::string last_fallback;    // the reason for the latest fallback
  std::uint64_t busy_ns = 0;    // summed over pieces
  std::uint64_t active_ns = 0;  // time with at least one piece in flight
  // Number of pieces by size: [i] counts lengths in [2^i, 2^(i+1)) KiB; [0] includes smaller ones, the last includes larger ones.
  std::array<std::uint64_t, 24> size_histogram{};
  // Number of pieces by duration: [i] counts [2^i, 2^(i+1)) microseconds; the first and last entries are extended in the same way.
  std::array<std::uint64_t, 24> latency_histogram{};
};

// Completed requests on memory of one device.
struct device_stats {
  std::string name;  // as in device_info::name, or "host"; empty for requests that completed before the memory was looked up
  std::uint64_t reads = 0, writes = 0;
  std::uint64_t read_bytes = 0, written_bytes = 0;
};

// Usage patterns that may cost speed, and their cost; the input to advise(). Times are sums over calls or pieces unless stated otherwise.
struct usage_stats {
  // Blocking calls of less than 64 KiB that started where the same thread's previous call ended. These counters and the next ones exclude
  // calls that took more than 50 us, because those waited for something other than the page cache.
  std::uint64_t sequential_reads = 0, sequential_read_bytes = 0, sequential_read_ns = 0;
  std::uint64_t sequential_writes = 0, sequential_write_bytes = 0, sequential_write_ns = 0;
  // Other blocking reads up to 128 KiB from the file that the same thread read last.
  std::uint64_t lone_reads = 0, lone_read_bytes = 0, lone_read_ns = 0;
  // Completed registrations from register_memory(), and the time spent on registering and unregistering memory; the same for registrations
  // that served at most four requests, and the number of requests that they served.
  std::uint64_t registrations = 0, registration_ns = 0;
  std::uint64_t short_registrations = 0, short_registration_ns = 0, short_registration_requests = 0;
  // Pieces that took a different route from the rest of the request, through the page cache or a buffer, because they were not aligned.
  std::uint64_t unaligned_pieces = 0, unaligned_bytes = 0, unaligned_ns = 0;
  // Pieces read past the page cache in whole blocks that included bytes that were not requested, and the number of those bytes.
  std::uint64_t block_reads = 0, block_read_bytes = 0, block_extra_bytes = 0, block_read_ns = 0;
  // Bytes read past the page cache; the time with at least one such piece in flight; and how many of these bytes had already been read this
  // way from the unchanged file (a lower bound: only bytes that cannot be explained by reading each 64th of the file once).
  std::uint64_t cold_read_bytes = 0, cold_read_ns = 0, reread_bytes = 0;
  // On machines with several NUMA nodes: pieces moved by a thread on the same node as the GPU (or buffer), and by a thread on another node.
  std::uint64_t near_pieces = 0, near_bytes = 0, near_ns = 0;
  std::uint64_t far_pieces = 0, far_bytes = 0, far_ns = 0;
  // Waits for pinned memory because the budget was used up, and the time with at least one thread waiting.
  std::uint64_t slab_waits = 0, slab_wait_ns = 0;
  // Bytes read through the page cache that were not cached yet and stay there (cache_use); and the time with at least one such piece in
  // flight.
  std::uint64_t kept_read_bytes = 0, kept_read_ns = 0;
  // Bytes moved through the page cache and dropped from it afterwards (RWF_DONTCACHE).
  std::uint64_t uncached_bytes = 0;
  // Completed background requests (request_priority) and their bytes; how often one yielded to normal requests, and the time with at least
  // one yielding.
  std::uint64_t background_requests = 0, background_bytes = 0, background_waits = 0, background_wait_ns = 0;
  // Pieces delayed by a limit on bytes per second, and the time with at least one delayed.
  std::uint64_t held_pieces = 0, held_bytes = 0, held_ns = 0;
  // Bytes read from file systems with a slow server rather than from the page cache, and the time with at least one such piece in flight.
  std::uint64_t late_read_bytes = 0, late_read_ns = 0;
  // Object servers: requests of every kind; retried requests; retried requests that the server throttled, and the time with at least one
  // throttled; connections made; redirects; object bytes; object bytes over TLS, and the time with at least one thread receiving as fast as
  // its core allows; objects without a strong ETag; objects read as a whole, in order, because their server does not support ranges;
  // pieces continued on another connection because the first was far slower than others; and how often reads waited for their share of the
  // pinned memory, and the time with at least one server's reads waiting.
  std::uint64_t remote_requests = 0, remote_retries = 0, remote_put_offs = 0, remote_put_off_ns = 0;
  std::uint64_t remote_connections = 0, remote_redirects = 0, remote_bytes = 0, remote_tls_bytes = 0, remote_tls_bound_ns = 0;
  std::uint64_t remote_unversioned = 0, remote_without_ranges = 0, remote_hedges = 0, remote_memory_waits = 0, remote_memory_wait_ns = 0;
  // Calls to the cuFile layer that register files, register memory and submit batches: successes and
  // failures.
  std::uint64_t handle_registers = 0, handle_register_errors = 0, buffer_registers = 0, buffer_register_errors = 0;
  std::uint64_t batch_submits = 0, batch_submit_errors = 0;
  unsigned lanes = 0;  // the engine's CPU copy threads per file system; 0: unknown
  // Nanoseconds that one core of this machine needs to copy 1 MiB of memory; 0: not measured. Set by observe_process() and
  // engine::advice(), not by engine::stats().
  std::uint64_t copy_ns_per_mib = 0;
};

// One counter of usage_stats: its public name, which ends in the unit (_bytes, _ns) unless it is a count, and a clause that describes what
// it counts.
struct usage_counter {
  std::string_view name;
  std::uint64_t usage_stats::*value;
  std::string_view what;
};
// Returns all counters that change while a program runs: all except lanes and copy_ns_per_mib.
PENSTOCK_API std::span<const usage_counter> usage_counters() noexcept;

// Traffic of one pipe channel.
struct channel_stats {
  std::string name;
  std::uint64_t sent_tensors = 0, sent_bytes = 0, received_tensors = 0, received_bytes = 0;
  std::uint64_t pushed_tensors = 0;  // sent or received: written by the sender's device directly into the target of an earlier receive
};

// A usage pattern that costs a program speed.
struct advice {
  std::string code;  // stable: "tiny-sequential-calls"; docs/guides/operations.md lists them
  std::string text;  // what happened, how often, and what it cost: one sentence
  std::string remedy;
  // Estimated from measured times; nullopt if there was nothing to compare with.
  std::optional<double> loss_seconds;
};

struct engine_stats {
  std::vector<path_stats> by_path;      // indexed by path_kind
  std::uint64_t reads = 0, writes = 0;  // completed requests
  std::uint64_t read_bytes = 0, written_bytes = 0;
  std::uint64_t failed = 0, cancelled = 0, timed_out = 0;
  std::uint64_t pinned_bytes = 0, pinned_peak_bytes = 0;
  // Page cache bytes pinned by file::pin(), and how many pins were dropped before their owner released them.
  std::uint64_t pinned_file_bytes = 0, pinned_file_drops = 0;
  std::vector<device_stats> by_device;    // devices that requests have used
  std::vector<channel_stats> by_channel;  // channels that have moved pipe tensors
  usage_stats usage;
  [[nodiscard]] const path_stats& path(path_kind kind) const {
    static const path_stats none;
    return static_cast<std::size_t>(kind) < by_path.size() ? by_path[static_cast<std::size_t>(kind)] : none;
  }
};

// Returns advice based only on a program's counters, greatest loss first; empty if no loss reaches both 100 ms and a twentieth of the time
// spent moving bytes. src/core/advisor.hpp documents how each loss is estimated.
PENSTOCK_API std::vector<advice> advise(const engine_stats& stats);

}  // namespace penstock
