// The interface of a path: one way to transfer an extent between a source and memory. To add a path, write one file that implements
// data_path and its declaration, and add one line to registry.cc. The contract tests then cover it by name.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.hpp"
#include "path/begun_reads.hpp"
#include "path/cut.hpp"
#include "path/way.hpp"
#include "penstock/options.hpp"
#include "penstock/status.hpp"
#include "source/source.hpp"
#include "source/turnstile.hpp"
#include "staging/disk_lanes.hpp"
#include "staging/feeder.hpp"
#include "staging/lanes.hpp"
#include "staging/link.hpp"
#include "staging/slab_pool.hpp"
#include "staging/waiting_lanes.hpp"
#include "sys/kernel.hpp"

namespace penstock::path {

using source::blocks_around;
using source::direct_alignment;
using source::round_down;
using source::round_up;

class pinned_pages;
class kept_pages;

// The services shared by all paths of an engine.
struct services {
  std::shared_ptr<sys::kernel> kernel;
  staging::feeders* feeders = nullptr;
  std::string cufile_library{};                     // as in engine_options
  cufile_parameters cufile{};                       // as in engine_options
  std::size_t direct_piece_bytes = 0;               // as in engine_options
  pinned_pages* pinned = nullptr;                   // null: no file pages are pinned
  kept_pages* kept = nullptr;                       // null: pages that a read registers are unregistered when it completes
  std::function<std::uint64_t()> ended_requests{};  // number of completed requests on device memory; may be empty
  bool use_io_uring = true;                         // as in engine_options
};

class data_path;
class job;
struct gather_range;

// The owner of a job.
class job_owner {
 public:
  virtual ~job_owner() = default;
  // Called when the job has ended. `bytes` were transferred, counted from its start. With an ok status, fewer bytes than its length means
  // end of file. The job may be destroyed.
  virtual void finished(job& ended, std::uint64_t bytes, status error) = 0;
  // Called if the path cannot transfer the job, or not all of it. The rest, after job.moved bytes, goes to the next path. The job may be
  // destroyed.
  virtual void hand_over(job& refused, status why) = 0;
  // Called when the calling thread starts the job.
  virtual void begins(job& /*item*/) noexcept {}
  // Called when a rate limit admits the job.
  virtual void passed(job& /*item*/) noexcept {}
  // Called if the path transfers the job, but not in the best way. Counts as a fallback.
  virtual void did_without(const job& /*carried*/, const status& /*why*/) {}
  // Returns an error if the request was cancelled or its deadline has passed. Called before each step.
  [[nodiscard]] virtual status stopped() const = 0;
  // The same for one range in a gathering job.
  [[nodiscard]] virtual status range_stopped(const gather_range& /*range*/) const { return stopped(); }
};

// The queues for the jobs of one request on one file system: the lanes that serve that file system, and the request's own lists. Must
// outlive the jobs.
struct job_queues {
  // Returns true if these jobs can use io_uring. Starts the disk lanes on first use. In the background, a lane waits for its disk itself,
  // so that there are never more reads in flight than lanes.
  [[nodiscard]] bool has_rings() const { return !background && disk->available().ok(); }
  // Returns the share of the staging memory that a copy lane uses for these jobs.
  [[nodiscard]] staging::slab_user slab_user() const noexcept {
    return background ? staging::slab_user::background : staging::slab_user::cpu;
  }

  staging::lanes* lanes = nullptr;
  staging::disk_lanes* disk = nullptr;
  staging::slab_pinner* pinner = nullptr;     // pins memory for disk; null: disk lanes do so themselves
  staging::lanes* keeping = nullptr;          // null: such jobs go to the other lanes
  staging::waiting_lanes* waiting = nullptr;  // for a server that may answer slowly
  source::turnstile* turns = nullptr;         // for a remote source
  bool background = false;  // no caller waits for these jobs: lanes and keeping are the background ones, and rings are not used
  staging::work_list cpu_works;
  staging::work_list keeping_works;  // jobs that fill the page cache as they read, in file order
  staging::work_list waiting_works;
  staging::work_list shared_works;  // jobs that have started and that other threads may help to read; without help, none completes later
  staging::work_list disk_works;
  staging::work_list far_works;  // jobs that wait at the turnstile
  begun_reads far;               // remote reads that have started
  staging::work_list urgent_works;
  // Writes to the page cache, one job at a time, because the kernel admits only one writer to a file and the others waste CPU time while
  // they wait. (H200 machine: 1 thread 7.8 GB/s; more threads are never faster, and 8 take seven times the CPU time.)
  staging::turn_list cached_writes;
};

// For stopped requests. On the calling thread, runs the queued jobs that have not started, and ends those held by a remote source. These
// jobs end without a transfer, so this does not block.
void end_queued(job_queues& queues);

// A small range that the calling thread transfers itself.
struct small_transfer {
  source::source* file = nullptr;
  const staging::place* place = nullptr;
  std::byte* memory = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  bool is_write = false;
  cache_use cache = cache_use::automatic;  // for a read; automatic: through the page cache
  bool spares_cache = false;               // if it passes through the page cache, nothing must stay there
  staging::lanes* lanes = nullptr;         // the file system's lanes
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  // Called with the reason if bytes that should have bypassed the page cache passed through it. Must outlive the call.
  const std::function<void(const status& why)>* did_without = nullptr;
};

// What is known about a range in the page cache before a read.
enum class residency : std::uint8_t { unknown, resident, absent };

// One range in a gathering job: `length` bytes at `offset` in `file`, to or from memory.
struct gather_range {
  source::source* file = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::byte* memory = nullptr;
  std::uint32_t index = 0;  // owned by the job's owner
  residency cached = residency::unknown;
  cache_use cache = cache_use::automatic;  // for a read; automatic: bypass the page cache if none of it is cached
  bool past_cache = false;                 // result: it was read past the page cache
  std::uint64_t moved = 0;                 // result
  status error;                            // result
};
// Batches have thousands of these. Lanes fill them in, and the caller's thread then scans them.
static_assert(sizeof(gather_range) == 64);

// A part of a row: neighbouring ranges of a file, with at most small gaps, that are read as one extent into several places on one device.
struct row_part {
  std::uint64_t offset = 0;  // in the file
  std::uint64_t length = 0;
  std::byte* memory = nullptr;
};

// The state that a path keeps for a job while the job runs.
class path_state {
 public:
  virtual ~path_state() = default;
};

// One extent in flight, or several small ranges that share a slab. Belongs to its owner until it has finished or is handed over.
class job final : public staging::work {
 public:
  // Ends the job at once if its owner was stopped.
  bool run() override;

  job_owner* owner = nullptr;
  job_queues* queues = nullptr;
  data_path* path = nullptr;
  source::source* file = nullptr;
  staging::place place;
  std::byte* memory = nullptr;
  std::span<const row_part> row;  // if not empty: the places of the bytes, in file order; memory is unused; only for the base path
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t done = 0;   // set by the owner
  std::uint32_t part = 0;   // set by the owner
  void* context = nullptr;  // set by the owner
  bool unaligned = false;   // set by the owner: for that reason takes a different path than the rest of its request
  int node = -1;            // set by the owner: the NUMA node of the thread that transfers it
  bool is_write = false;
  bool has_right_of_way = false;      // set by the owner: it runs before background work
  bool passed_file_limit = false;     // set by the owner
  std::uint32_t neighbours = 0;       // number of neighbours of the place's link that may also be used
  std::uint64_t asked_bytes = 0;      // by all requests in flight when the job was planned
  path::way way = path::way::cached;  // planned
  bool spares_cache = false;          // set by the owner: if it passes through the page cache, nothing must stay there
  bool is_forced = false;             // planned: no other path may transfer it
  bool spares_cpu = false;            // requested: CPU time matters more than speed
  bool waits = false;                 // planned: may wait for a slow server, unless it is on a disk lane
  bool on_disk_lane = false;          // set by its queue: it must not wait for a slab there
  std::uint32_t wave = 1;  // planned: number of adjacent jobs, starting with this one, that are best copied together; 0: part of an earlier
                           // job's wave
  std::vector<gather_range> ranges;  // if not empty: a gathering job; file, memory, offset and length above are unused

  std::uint64_t moved = 0;                 // set by the path
  std::int64_t filling_cpu_ns = 0;         // set by the path: CPU time to read it into the page cache and from there; 0: unknown
  path_state* kept = nullptr;              // owned by the path
  std::unique_ptr<path_state> keeps;       // owns kept, for this job or several
  staging::answer_times* times = nullptr;  // set by the owner: for a read from a file system with a server, whichever route it takes
  std::int64_t started_ns = 0;             // set by the owner: when it was queued or held back
  std::int64_t begun_ns = 0;               // set by the owner: when a thread first started it; 0: unknown
};

// The portion of a request that a path transfers.
enum class portion : std::uint8_t {
  everything,      // any range in its kind of memory, cut for the lanes; many small ones in one job; edges and remainders left by other
                   // paths
  whole_requests,  // the whole request in one job, except unaligned edges, which go to the successor
  cached_ranges,   // ranges in the page cache, one job each and one job at a time, to save CPU time
};

// A path's properties.
struct declaration {
  std::string_view name;
  int rank = 0;                  // the lowest is queried first
  std::string_view successor{};  // name of the path that takes over if this one cannot continue; empty: none
  bool of_device = true;         // serves device memory; false: host memory
  bool gpu_direct = false;       // no byte passes through host memory, as far as the path can tell
  portion carries = portion::everything;
  std::uint64_t most_carried_now = 0;  // the path transfers requests of up to this many bytes on a waiting caller's thread (carry_now)
  std::uint64_t alignment = 1;         // for whole_requests: in the file; a write that cannot be aligned in both memory and file is refused
  bool whole_blocks = false;           // transfers only whole blocks: edges of reads go to the successor, even if the path is forced
  std::string_view reason{};           // why the path is chosen, if the planner does not say so
  cutter cut = nullptr;                // for portions of requests; null: each is one piece
  std::unique_ptr<data_path> (*make)(const services& with) = nullptr;
};

// The extent that a path is queried about.
struct question {
  source::source* file = nullptr;
  const staging::place* memory = nullptr;
  bool is_write = false;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  bool spares_cpu = true;  // requested: CPU time matters more than speed
};

// Reads a job's bytes on the calling thread, and times the read if a server provides them. read(from, length) reads a part of the job.
// Through the page cache, the kernel requests one part after another from the server unless it knows in advance what will be needed, so
// only the first part shows the response time.
template <class Read>
io_result timed_read(const job& item, Read read) {
  if (item.times == nullptr || !item.waits) return read(0, item.length);
  constexpr std::uint64_t one_question = std::uint64_t{64} << 10;
  auto timed = item.times->begins(staging::answer_times::clock_ns());
  io_result got;
  const std::uint64_t first = timed.alone && item.way != way::past_cache ? std::min(item.length, one_question) : 0;
  if (first > 0) {
    got = read(0, first);
    if (got.bytes_done > 0) item.times->answered(timed, staging::answer_times::clock_ns());
  }
  if (got.ok() && got.bytes_done == first && first < item.length) {
    if (item.way != way::past_cache) item.file->fetch_ahead(item.offset + first, item.length - first);
    auto rest = read(first, item.length - first);
    got = {first + rest.bytes_done, std::move(rest.error)};
  }
  item.times->ended(timed, staging::answer_times::clock_ns(), got.bytes_done > 0);
  return got;
}

class data_path {
 public:
  virtual ~data_path() = default;
  [[nodiscard]] virtual const declaration& declared() const = 0;
  [[nodiscard]] std::string_view name() const { return declared().name; }
  // Returns the path's number in the engine's path_table; automatic until it is in one.
  [[nodiscard]] path_kind kind() const noexcept { return kind_; }
  // Returns true if the path is known not to transfer anything here, so that refuses() need not be called. Fast.
  [[nodiscard]] virtual bool serves_nothing() const noexcept { return false; }
  // Returns why the path cannot transfer such an extent. Returns nullopt if it can, or if it may, because the memory's device is not in use
  // yet (it has no session).
  [[nodiscard]] virtual std::optional<std::string> refuses(const question& asked) = 0;
  // Creates the path's state for adjacent jobs that are filled in and not yet queued. Call it once, for all jobs that the path will be
  // given. The jobs must complete together, or the first of them last. Throws bad_alloc.
  virtual void prepare(std::span<job> /*jobs*/) {}
  // Transfers the job, on a lane or on the caller's thread. Returns false as staging::work::run does.
  virtual bool run(job& item) = 0;
  // Transfers a range of at most declaration::most_carried_now bytes on the calling thread. Blocks. Returns a short count only at end of
  // file. bytes_done is exact on failure. Errors: those of the file, the device and the deadline, without the name of the path.
  virtual io_result carry_now(const small_transfer& /*what*/) {
    return {0, {errc::unsupported, "it does not transfer on the caller's thread"}};
  }
  // Releases everything kept for a file that is about to be closed. Call it for every file passed to refuses(), while its descriptors are
  // open, and when no query or job for it is in flight or can follow.
  virtual void forget(const source::source& /*closing*/) {}
  // Called when the user has registered this device memory, so that what the path prepares for the first job may serve all later ones.
  // Error: out_of_memory.
  virtual status remember_memory(const staging::place& /*place*/, std::byte* /*base*/, std::uint64_t /*bytes*/) { return {}; }
  // Called when the registration ends. Waits until no job uses what was prepared, then releases it. The memory is still allocated.
  virtual void forget_memory(std::byte* /*base*/) {}
  // Called before device memory of the engine is freed. Releases everything kept for it. May wait for a piece of a request.
  virtual void memory_ends(std::byte* /*base*/) {}
  // Releases everything kept for later requests. May wait for a piece of a request.
  virtual void trim() {}
  // Like trim(), but also closes what cannot be frozen; the next use opens it again. No job may be in progress. Error: unsupported if
  // something that cannot be frozen stays open; the message names it.
  virtual status rest() {
    trim();
    return {};
  }

 private:
  friend class path_table;
  path_kind kind_ = path_kind::automatic;
};

}  // namespace penstock::path
