// What a path is: one way of moving an extent between a source and memory. A new path is one file that implements data_path and declares
// itself, and one line in registry.cc; it inherits the contract suite by its name.
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

// What all paths of an engine work with.
struct services {
  std::shared_ptr<sys::kernel> kernel;
  staging::feeders* feeders = nullptr;
  std::string cufile_library{};                     // as in engine_options
  cufile_parameters cufile{};                       // likewise
  std::size_t direct_piece_bytes = 0;               // likewise
  pinned_pages* pinned = nullptr;                   // null: nothing of a file is pinned
  kept_pages* kept = nullptr;                       // null: what reads register is undone with them
  std::function<std::uint64_t()> ended_requests{};  // so many on memory of devices have ended; may be empty
  bool use_io_uring = true;                         // as in engine_options
};

class data_path;
class job;
struct gather_range;

// Whoever a job belongs to.
class job_owner {
 public:
  virtual ~job_owner() = default;
  // The job has ended. bytes were moved from its start on; fewer than its length with ok means end of file. The job may be destroyed.
  virtual void finished(job& ended, std::uint64_t bytes, status error) = 0;
  // The path cannot carry this job, or not to its end: the rest after job.moved bytes goes to the next path. The job may be destroyed.
  virtual void hand_over(job& refused, status why) = 0;
  // The calling thread is about to carry the job.
  virtual void begins(job& /*item*/) noexcept {}
  // A limit of bytes a second lets the job go on.
  virtual void passed(job& /*item*/) noexcept {}
  // The path carries the job, but could not do so as it should; counted as a fallback.
  virtual void did_without(const job& /*carried*/, const status& /*why*/) {}
  // Cancelled or past the deadline: an error that says which. Asked before each step.
  [[nodiscard]] virtual status stopped() const = 0;
  // The same of one range of a gathering job.
  [[nodiscard]] virtual status range_stopped(const gather_range& /*range*/) const { return stopped(); }
};

// Where the jobs that one request has on one file system are queued: the lanes that serve that file system, and the request's own lists.
// Outlives the jobs.
struct job_queues {
  // Whether there is a ring for these jobs. Starts the disk lanes on first use. In the background a lane waits for its disk: then as much
  // is under way there as there are lanes.
  [[nodiscard]] bool has_rings() const { return !background && disk->available().ok(); }
  // Whose share of the staging memory a copy lane uses for them.
  [[nodiscard]] staging::slab_user slab_user() const noexcept {
    return background ? staging::slab_user::background : staging::slab_user::cpu;
  }

  staging::lanes* lanes = nullptr;
  staging::disk_lanes* disk = nullptr;
  staging::lanes* keeping = nullptr;          // null: such jobs go to the other lanes
  staging::waiting_lanes* waiting = nullptr;  // where a server may answer late
  source::turnstile* turns = nullptr;         // of a far source
  bool background = false;  // nobody waits for them: lanes and keeping are those of the background, and rings are not used
  staging::work_list cpu_works;
  staging::work_list keeping_works;  // jobs that fill the page cache as they read, in file order
  staging::work_list waiting_works;
  staging::work_list shared_works;  // jobs that have begun, and that others may help to read; none ends later for want of help
  staging::work_list disk_works;
  staging::work_list far_works;  // jobs that wait at the turnstile
  begun_reads far;               // those of them that have begun
  staging::work_list urgent_works;
  // What is written to the page cache, one job at a time: the kernel lets one writer at a time into a file, and the others burn CPU
  // waiting (H200 machine: 1 thread 7.8 GB/s, more threads never faster, 8 for seven times the CPU).
  staging::turn_list cached_writes;
};

// Runs, on the calling thread, the jobs that are queued and have not begun, and ends those that a far source has. For requests that were
// stopped: their jobs then only end, so this does not block.
void end_queued(job_queues& queues);

// A small range that its caller carries himself.
struct small_transfer {
  source::source* file = nullptr;
  const staging::place* place = nullptr;
  std::byte* memory = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  bool is_write = false;
  cache_use cache = cache_use::automatic;  // of a read; automatic: through the page cache
  bool spares_cache = false;               // where it goes through it, nothing is to stay there
  staging::lanes* lanes = nullptr;         // that serve the file system
  std::chrono::steady_clock::time_point deadline = std::chrono::steady_clock::time_point::max();
  // Told why what was to go past the page cache went through it. It outlives the call.
  const std::function<void(const status& why)>* did_without = nullptr;
};

// What is known of a range's place in the page cache before it is read.
enum class residency : std::uint8_t { unknown, resident, absent };

// One range of a gathering job: length bytes at offset of file, to or from memory.
struct gather_range {
  source::source* file = nullptr;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::byte* memory = nullptr;
  std::uint32_t index = 0;  // the owner's
  residency cached = residency::unknown;
  cache_use cache = cache_use::automatic;  // of a read; automatic: past the page cache where nothing of it is in there
  bool past_cache = false;                 // result: it was read so
  std::uint64_t moved = 0;                 // result
  status error;                            // result
};
// Batches have thousands, which lanes fill and the caller's thread looks through.
static_assert(sizeof(gather_range) == 64);

// A row: neighbouring ranges of a file, with small gaps at most, which are read as one extent and go to several places of one device.
struct row_part {
  std::uint64_t offset = 0;  // in the file
  std::uint64_t length = 0;
  std::byte* memory = nullptr;
};

// What a path keeps for a job while it is under way.
class path_state {
 public:
  virtual ~path_state() = default;
};

// One extent under way, or several small ranges that travel in one slab. Owned by its owner until finished or handed over.
class job final : public staging::work {
 public:
  // Ends at once where the owner was stopped.
  bool run() override;

  job_owner* owner = nullptr;
  job_queues* queues = nullptr;
  data_path* path = nullptr;
  source::source* file = nullptr;
  staging::place place;
  std::byte* memory = nullptr;
  std::span<const row_part> row;  // not empty: where the bytes go, in file order; memory is unused. Of the base path only.
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t done = 0;   // the owner's
  std::uint32_t part = 0;   // likewise
  void* context = nullptr;  // likewise
  bool unaligned = false;   // likewise: goes another way than the rest of its request for that
  int node = -1;            // likewise: of the thread that carries it
  bool is_write = false;
  bool has_right_of_way = false;   // likewise: is under way, and goes before what is done in the background
  bool passed_file_limit = false;  // likewise
  std::uint32_t neighbours = 0;    // of the place's link, whose links may be used too
  std::uint64_t asked_bytes = 0;   // by all requests under way, when it was planned
  bool bypass_cache = false;       // as planned: past the page cache
  bool spares_cache = false;       // the owner's: where it goes through the page cache, nothing is to stay there
  bool fills_cache = false;        // as planned: through the page cache, in which it is not yet
  bool registered = false;         // as planned: what is pinned
  bool is_forced = false;          // as planned: no other path may carry it
  bool spares_cpu = false;         // as asked: CPU time counts more than speed
  bool far = false;                // as planned: what its far source begins, once it has passed the turnstile
  bool waits = false;              // as planned: may wait for a server that answers late, if no disk lane carries it
  bool on_disk_lane = false;       // its queue: there it may not wait for a slab
  std::uint32_t wave = 1;  // as planned: so many jobs from this one on lie in a row and travel best together; 0: in an earlier one's
  std::vector<gather_range> ranges;  // not empty: a gathering job; file, memory, offset and length above are unused

  std::uint64_t moved = 0;                 // the path's result
  std::int64_t filling_cpu_ns = 0;         // likewise: CPU time that it took to bring it into the page cache and out of there; 0: not known
  path_state* kept = nullptr;              // the path's own
  std::unique_ptr<path_state> keeps;       // and what holds it, for this job or several
  staging::answer_times* times = nullptr;  // likewise: of a read from a file system with a server, whatever way it goes
  std::int64_t started_ns = 0;             // the owner's: when it was queued, or is held back since
  std::int64_t begun_ns = 0;               // likewise: when a thread first took it up; 0: not known
};

// What of a request a path is for.
enum class portion : std::uint8_t {
  everything,      // any range in its kind of memory, cut for the lanes, and many small ones in one job; edges and rests of others too
  whole_requests,  // all of it in one job, but for unaligned edges, which go to the successor
  cached_ranges,   // ranges that are in the page cache, in one job each, where CPU time is to be spared; one job at a time
};

// What a path says of itself.
struct declaration {
  std::string_view name;
  int rank = 0;                  // the lowest is asked first
  std::string_view successor{};  // by name: goes on where this one cannot; empty: nobody
  bool of_device = true;         // the memory that it serves: a device's, or the host's
  bool gpu_direct = false;       // no byte passes through memory of the host, as far as the path can know
  portion carries = portion::everything;
  std::uint64_t most_carried_now = 0;  // requests of at most so many bytes it carries on the thread of a caller who waits (carry_now)
  std::uint64_t alignment = 1;  // of whole_requests: in the file; a write that cannot be aligned in memory and file at once is refused
  bool whole_blocks = false;    // of such a path: it moves nothing else; edges of reads go to the successor too, also where it is asked for
  std::string_view reason{};    // why it is taken, where that is not the planner's to say
  cutter cut = nullptr;         // of portions of requests; null: each goes in one piece
  std::unique_ptr<data_path> (*make)(const services& with) = nullptr;
};

// What is asked of a path.
struct question {
  source::source* file = nullptr;
  const staging::place* memory = nullptr;
  bool is_write = false;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  bool spares_cpu = true;  // as asked: CPU time counts more than speed
};

// Reads what a job asks for, on the calling thread, and times it where a server brings it. read(from, length) reads a part of it. Through
// the page cache the kernel asks the server for a part after the other, unless it is told before what will be wanted; the first part alone
// tells how long an answer takes.
template <class Read>
io_result timed_read(const job& item, Read read) {
  if (item.times == nullptr || !item.waits) return read(0, item.length);
  constexpr std::uint64_t one_question = std::uint64_t{64} << 10;
  auto timed = item.times->begins(staging::answer_times::clock_ns());
  io_result got;
  const std::uint64_t first = timed.alone && !item.bypass_cache ? std::min(item.length, one_question) : 0;
  if (first > 0) {
    got = read(0, first);
    if (got.bytes_done > 0) item.times->answered(timed, staging::answer_times::clock_ns());
  }
  if (got.ok() && got.bytes_done == first && first < item.length) {
    if (!item.bypass_cache) item.file->fetch_ahead(item.offset + first, item.length - first);
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
  // Its number in the engine's path_table; automatic before it is in one.
  [[nodiscard]] path_kind kind() const noexcept { return kind_; }
  // Known already: it carries nothing whatsoever here, so that refuses() need not be asked. Quick.
  [[nodiscard]] virtual bool serves_nothing() const noexcept { return false; }
  // Why this path cannot carry such an extent; nothing when it can, or, for memory of a device that is not in use (it has no session), may.
  [[nodiscard]] virtual std::optional<std::string> refuses(const question& asked) = 0;
  // Makes what the path keeps for jobs of its own that stand in a row, filled in and not yet queued. To be called once, for all jobs that
  // it will be given. They end together, or the first of them last. Throws bad_alloc.
  virtual void prepare(std::span<job> /*jobs*/) {}
  // Carries the job, on a lane or on the caller's thread; false as for staging::work::run.
  virtual bool run(job& item) = 0;
  // Carries a range of at most declaration::most_carried_now bytes, on the calling thread. Blocks. Short count only at the end of the file;
  // bytes_done is true on failure. Errors: those of the file, of the device and of the deadline, without the name of the path.
  virtual io_result carry_now(const small_transfer& /*what*/) { return {0, {errc::unsupported, "it carries nothing at once"}}; }
  // The file is about to be closed: lets go of whatever is kept for it. To be called for every file that refuses() was asked about, while
  // its descriptors are still open, and once no question or job of it is under way or can come.
  virtual void forget(const source::source& /*closing*/) {}
  // The user has registered this device memory: what a path prepares for it at the first job may serve all. Errors: out_of_memory.
  virtual status remember_memory(const staging::place& /*place*/, std::byte* /*base*/, std::uint64_t /*bytes*/) { return {}; }
  // The registration ends: lets go of what was prepared, once no job uses it, for which it waits. The memory is still allocated.
  virtual void forget_memory(std::byte* /*base*/) {}
  // Device memory that the engine has allocated is about to be released: lets go of it. May wait for a piece of a request.
  virtual void memory_ends(std::byte* /*base*/) {}
  // Lets go of what is kept for later requests. May wait likewise.
  virtual void trim() {}

 private:
  friend class path_table;
  path_kind kind_ = path_kind::automatic;
};

}  // namespace penstock::path
