// Values that an engine tells: what devices and memory are, what a request would do, what is under way, what was done.
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
  std::string name;         // "cuda:0" or "host:0": what allocate() and explain() take
  std::string description;  // "NVIDIA H200"; where the device cannot be asked now, as without descriptors, why: the rest is not known then
  std::string pci_bus_id;   // empty for the host device
  std::uint64_t memory_bytes = 0;
  int numa_node = -1;                   // -1: not known
  std::array<std::uint8_t, 16> uuid{};  // zeros: not known
  std::uint64_t window_bytes = 0;       // its largest PCI memory window (BAR1); 0: not known
  // It has no memory but the host's (DGX Spark, Jetson): of memory_bytes, what programs and the page cache hold is not free.
  bool shares_host_memory = false;
};

// What a pointer is.
struct memory_facts {
  memory_kind kind = memory_kind::host;
  std::string device;      // that owns it, as in device_info::name; empty for pageable memory
  void* base = nullptr;    // of the allocation; null where that is not known, as for pageable memory
  std::uint64_t size = 0;  // of the allocation, from base
};

// What the planner would do with a part of a file, and why.
struct plan_part {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  path_kind path = path_kind::automatic;
  std::string path_name;
  std::string reason;  // one sentence
};

// What a request would do.
struct plan {
  std::vector<plan_part> parts;  // in file order, covering the range once
  // Of the range, in the page cache. Estimated from samples where this process may not write the file, and nothing where it is not known.
  std::optional<std::uint64_t> cached_bytes;
  std::vector<std::string> remarks;  // why faster paths were not taken, and what would make it faster
};

// A request under way; or a message of a pipe that is being sent (a write), or whose tensors are awaited or received.
struct request_info {
  std::string file;          // as file::path() tells it; of a pipe who is at its other end
  std::int64_t offset = 0;   // in the file; -1 for a stream-ordered request that its stream has not reached, and for pipes
  std::uint64_t length = 0;  // that was asked for; of a request that its stream has not reached, the most that it may be
  bool is_write = false;
  // Whose memory it is: a name as in device_info::name, or "host"; empty where that was not looked up yet, and for no bytes.
  std::string device;
  std::int64_t since_ns = 0;  // when it began, by std::chrono::steady_clock, to within 10 ms
  bool of_pipe = false;
  request_priority priority = request_priority::normal;
};

struct path_stats {
  std::string name;              // of the path
  std::uint64_t operations = 0;  // pieces carried
  std::uint64_t bytes = 0;
  std::uint64_t written_bytes = 0;  // of these; the others were read
  std::uint64_t errors = 0;
  std::uint64_t fallbacks = 0;  // pieces that this path began or was due to carry and handed to another; memory that it could not register
  std::string last_fallback;    // the reason for the latest of them
  std::uint64_t busy_ns = 0;    // summed over pieces
  std::uint64_t active_ns = 0;  // while at least one piece was under way
  // Piece counts by size: [i] counts lengths in [2^i, 2^(i+1)) KiB; [0] also smaller ones; the last also larger ones.
  std::array<std::uint64_t, 24> size_histogram{};
  // Piece counts by time taken: [i] counts [2^i, 2^(i+1)) microseconds, likewise.
  std::array<std::uint64_t, 24> latency_histogram{};
};

// Requests that have ended, on memory of one device.
struct device_stats {
  std::string name;  // as in device_info::name, or "host"; empty where a request ended before anybody knew
  std::uint64_t reads = 0, writes = 0;
  std::uint64_t read_bytes = 0, written_bytes = 0;
};

// What was done in ways that may cost speed, and how long it took: what advise() looks at. Times are those of the calls or pieces, summed,
// unless said otherwise.
struct usage_stats {
  // Blocking calls of less than 64 KiB that each began where the call before, of the same thread, had ended in the file. Here and below
  // without those that took more than 50 us, which waited for something else than the page cache.
  std::uint64_t sequential_reads = 0, sequential_read_bytes = 0, sequential_read_ns = 0;
  std::uint64_t sequential_writes = 0, sequential_write_bytes = 0, sequential_write_ns = 0;
  // Other blocking reads of up to 128 KiB, of a file that the same thread had read before and nobody else since.
  std::uint64_t lone_reads = 0, lone_read_bytes = 0, lone_read_ns = 0;
  // register_memory(): registrations that have ended, and the time that they took to begin and to end; of these, those that served at most
  // four requests, and how many they served.
  std::uint64_t registrations = 0, registration_ns = 0;
  std::uint64_t short_registrations = 0, short_registration_ns = 0, short_registration_requests = 0;
  // Pieces that went another way than the rest of the request, through the page cache or a buffer, for want of alignment.
  std::uint64_t unaligned_pieces = 0, unaligned_bytes = 0, unaligned_ns = 0;
  // Pieces read past the page cache in whole blocks of which not all bytes were asked for, and how many were not.
  std::uint64_t block_reads = 0, block_read_bytes = 0, block_extra_bytes = 0, block_read_ns = 0;
  // Read past the page cache; the time with at least one such piece under way; and the bytes of these that had been read so before, from
  // the same file as it is now (less than there were: only what no single reading of a 64th of the file can explain).
  std::uint64_t cold_read_bytes = 0, cold_read_ns = 0, reread_bytes = 0;
  // On machines of several NUMA nodes: pieces carried by a thread on the node of the GPU (of the buffer), and by one on another.
  std::uint64_t near_pieces = 0, near_bytes = 0, near_ns = 0;
  std::uint64_t far_pieces = 0, far_bytes = 0, far_ns = 0;
  // Waits for pinned memory while the budget was used up, and the time with at least one thread waiting so.
  std::uint64_t slab_waits = 0, slab_wait_ns = 0;
  // Read through the page cache, in which it was not yet, so that it stays there (cache_use); and the time with at least one such piece
  // under way.
  std::uint64_t kept_read_bytes = 0, kept_read_ns = 0;
  // Moved through the page cache, in which they did not stay (RWF_DONTCACHE), since they were not to.
  std::uint64_t uncached_bytes = 0;
  // Requests in the background that have ended (request_priority), and the bytes that they moved; how often some of them
  // had to let normal requests go first, and the time with at least one of them doing so.
  std::uint64_t background_requests = 0, background_bytes = 0, background_waits = 0, background_wait_ns = 0;
  // Pieces that a limit of bytes a second has held back, and the time with at least one held back.
  std::uint64_t held_pieces = 0, held_bytes = 0, held_ns = 0;
  // Read from file systems whose server answers late, not out of the page cache; and the time with at least one such piece under way.
  std::uint64_t late_read_bytes = 0, late_read_ns = 0;
  // Of servers of objects: requests sent, of every kind; those that had to be asked again, and of these those that the server put off since
  // it was asked too much, with the time with at least one put off so; connections made, answers that sent their reader elsewhere, bytes of
  // objects, and of these those that came over TLS, with the time with at least one thread receiving as fast as its core can; objects whose
  // server names no version of theirs for sure (a strong ETag); objects that were read as a whole, in order, since their server serves no
  // ranges; pieces whose rest was asked for on another connection, since the first was far slower than others. And how often their reads
  // waited for their share of the pinned memory, with the time with at least one server's reads waiting so.
  std::uint64_t remote_requests = 0, remote_retries = 0, remote_put_offs = 0, remote_put_off_ns = 0;
  std::uint64_t remote_connections = 0, remote_redirects = 0, remote_bytes = 0, remote_tls_bytes = 0, remote_tls_bound_ns = 0;
  std::uint64_t remote_unversioned = 0, remote_without_ranges = 0, remote_hedges = 0, remote_memory_waits = 0, remote_memory_wait_ns = 0;
  // Calls of interfaces over this one (engine::note_call()) that register files and memory and submit batches: those that ended well, and
  // those that did not.
  std::uint64_t handle_registers = 0, handle_register_errors = 0, buffer_registers = 0, buffer_register_errors = 0;
  std::uint64_t batch_submits = 0, batch_submit_errors = 0;
  unsigned lanes = 0;  // threads of an engine for copies through the CPU, per file system; 0: not known
  // What a core of this machine takes to copy 1 MiB of memory, in nanoseconds; 0: was not measured. Filled by observe_process() and
  // engine::advice(), not by engine::stats().
  std::uint64_t copy_ns_per_mib = 0;
};

// One of the numbers of usage_stats: the name under which everybody shows it, which ends in its unit (_bytes, _ns) where it is no count,
// and what it counts, as half a sentence.
struct usage_counter {
  std::string_view name;
  std::uint64_t usage_stats::*value;
  std::string_view what;
};
// All that are counted while a program runs: not lanes, and not copy_ns_per_mib.
PENSTOCK_API std::span<const usage_counter> usage_counters() noexcept;

// What pipes have carried by one channel.
struct channel_stats {
  std::string name;
  std::uint64_t sent_tensors = 0, sent_bytes = 0, received_tensors = 0, received_bytes = 0;
  std::uint64_t pushed_tensors = 0;  // of both: which the sender's device wrote into the target of a receive that was posted before
};

// Something in a program that costs it speed.
struct advice {
  std::string code;  // stable: "tiny-sequential-calls"; docs/guides/operations.md lists them
  std::string text;  // what was done, how often, and what it cost: one sentence
  std::string remedy;
  // Estimated from the times that were measured; none where nothing was done otherwise that it could be compared with.
  std::optional<double> loss_seconds;
};

struct engine_stats {
  std::vector<path_stats> by_path;      // indexed by path_kind
  std::uint64_t reads = 0, writes = 0;  // requests ended
  std::uint64_t read_bytes = 0, written_bytes = 0;
  std::uint64_t failed = 0, cancelled = 0, timed_out = 0;
  std::uint64_t pinned_bytes = 0, pinned_peak_bytes = 0;
  // Of the page cache, pinned by file::pin(); and how often a range was given up before its owner gave it back.
  std::uint64_t pinned_file_bytes = 0, pinned_file_drops = 0;
  std::vector<device_stats> by_device;    // those that something was asked for
  std::vector<channel_stats> by_channel;  // of pipes: those by which tensors have gone or come
  usage_stats usage;
  [[nodiscard]] const path_stats& path(path_kind kind) const {
    static const path_stats none;
    return static_cast<std::size_t>(kind) < by_path.size() ? by_path[static_cast<std::size_t>(kind)] : none;
  }
};

// What in a program costs it speed, the greatest loss first, from its counters alone; nothing where no loss is 100 ms and a twentieth of
// the time that was spent moving bytes. How each loss is estimated: src/core/advisor.hpp.
PENSTOCK_API std::vector<advice> advise(const engine_stats& stats);

}  // namespace penstock
