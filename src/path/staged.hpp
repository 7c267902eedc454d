// The staged path, for its source files: staged.cc (one extent), staged_wave.cc (neighbouring extents that share a slab), staged_slab.cc
// (the destinations of a full slab, and its link), staged_gather.cc (many small ranges in one slab), staged_drain.cc (from slabs to the
// page cache) and staged_cut.cc (how a range is cut). Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/no_memory.hpp"
#include "path/data_path.hpp"
#include "path/far_read.hpp"
#include "path/slab_io.hpp"
#include "staging/lent_slab.hpp"

namespace penstock::path {

extern const declaration declared_staged;
void cut_for_staged(const range_to_cut& range, std::vector<cut_piece>& pieces);

class staged final : public data_path {
 public:
  explicit staged(const services& with) : with_(with) {}

  [[nodiscard]] const declaration& declared() const override { return declared_staged; }
  [[nodiscard]] std::optional<std::string> refuses(const question& asked) override;
  void prepare(std::span<job> jobs) override;
  bool run(job& item) override;
  io_result carry_now(const small_transfer& what) override;

 private:
  struct wave;

  // A copy of a slab to the device, where its bytes may go to many places.
  struct slab_copy : staging::copy_task {
    std::vector<device::segment> parts;  // parts not yet sent
    job* of = nullptr;
    staging::link* by = nullptr;  // the device's own link, or a neighbour's
    void (*ended)(staging::copy_task&, status) = nullptr;
  };

  // The state of a job. As a work item, it writes the full slab to the file.
  struct progress final : path_state, staging::turn_work {
    job* of = nullptr;
    staging::lent_slab slab;
    slab_copy copy;
    staging::ring_task ring;          // holds the slab while it runs
    wave* shared = nullptr;           // the wave that contains the job
    bool ring_refused = false;        // a disk lane could not read all ranges
    std::int64_t slab_wanted_ns = 0;  // from slab_pool::begin_wait()
    status failure;                   // error from the file, if bytes before it must still be sent to the device
    void carry() override;
    void end() override;
  };
  struct progress_in_row;

  // --- shared helpers
  static progress& progress_of(const job& item) { return static_cast<progress&>(*item.kept); }
  static job& job_of(staging::copy_task& task) { return *static_cast<job*>(task.context); }
  static staged& path_of(const job& item) { return *static_cast<staged*>(item.path); }
  static slab_route route_of(const job& item);

  enum class slab_wait { taken, not_now, ended };
  slab_wait take_slab(job& item);
  result<staging::lent_slab> wait_for_slab(const job& item, std::uint64_t bytes, staging::slab_user user);
  static std::uint64_t slab_need(const job& item);
  static void finish(job& item, std::uint64_t bytes, status error);
  static void hand_over(job& item, status why);
  void submit(const job& item, staging::copy_task& copy) { submit(item, copy, *item.place.via); }
  void submit(const job& item, staging::copy_task& copy, staging::link& by);
  static staging::ring_task& prepare_ring(job& item, bool is_write);

  // Runs one step of a job. A step that runs out of memory has not passed anything on yet, and ends the job.
  template <class Step>
  static void step(job& item, Step go) {
    or_without_memory(go, [&item] { finish(item, 0, no_memory()); });
  }
  // Called by a disk lane when all pieces of a job have completed.
  template <void (staged::*Next)(job&)>
  static void after_ring(staging::ring_task& task) {
    auto& item = *static_cast<job*>(task.context);
    progress_of(item).slab = staging::lent_slab(*task.pool, task.memory);  // empty if the ring failed and lost the slab
    step(item, [&] { (path_of(item).*Next)(item); });
  }

  // --- one extent
  void read_here(job& item);
  void begin_far_read(job& item);
  static void far_arrived(job& item, far_read::memory into, io_result got);
  void start_ring_read(job& item);
  void ring_read_done(job& item);
  void read_arrived(job& item, std::uint64_t bytes, std::uint64_t skip);
  void send(job& item, std::uint64_t bytes, bool to_device, std::uint64_t skip = 0);
  static void arrived_on_device(staging::copy_task& task, status outcome);
  static void arrived_on_host(staging::copy_task& task, status outcome);
  static void start_ring_write(job& item);
  void ring_write_done(job& item);

  // --- extents that share a slab
  static std::size_t count_waves(std::span<const job> jobs);
  static void make_waves(std::span<job> jobs, wave* made);
  void read_in_wave(job& item);
  status enter(wave& shared, const job& item);
  void wave_read(wave& shared);
  static void finish_wave(wave& shared, const status& outcome);

  // --- destinations of a full slab
  static bool aim(slab_copy& copy, const job& item, std::uint64_t bytes, const std::byte* from);
  static void aim_at_last(slab_copy& copy);
  void send_over(slab_copy& copy, job& item, void (*ended)(staging::copy_task&, status));
  static bool divert(slab_copy& copy);
  static void slab_sent(staging::copy_task& task, status outcome);

  // --- many small ranges in one slab
  class shared_reading;
  static std::uint64_t gather_need(const job& item);
  void start_gather_read(job& item);
  void read_ranges(const job& item, std::span<gather_range> ranges, std::uint64_t at, bool ring) noexcept;
  static bool is_for_disk(const gather_range& range, bool by_ring);
  void ranges_read(job& item);
  void gather_ring_done(job& item);
  status take_piece(gather_range& range, const staging::ring_piece& done);
  void scatter(job& item);
  static void scattered(staging::copy_task& task, status outcome);
  void copy_one_by_one(job& item, std::size_t count);
  void write_out_ranges(job& item);
  static void finish_ranges(job& item);

  // --- from slabs to the page cache
  static void queue_drain(job& item);
  void write_out(job& item);

  const services with_;
};

// Neighbouring extents of one cached read that share a slab. Several lanes fill it concurrently, and one copy sends it. One lane takes 130
// us to fill 1 MiB, while the link is idle. Eight lanes take 20 us, about as long as the copy.
struct staged::wave {
  // The first lane takes the slab. The others spin, because sleeping usually takes longer.
  enum class state : std::uint8_t { untaken, taking, decided };
  std::atomic<state> slab_state{state::untaken};
  staging::lent_slab slab;
  status refusal;  // why there is no slab
  std::uint64_t length = 0;
  std::span<job> jobs;                    // in file order
  std::atomic<std::size_t> remaining{0};  // jobs not yet read
  slab_copy copy;
};

// The state of adjacent jobs.
struct staged::progress_in_row final : path_state {
  progress_in_row(std::size_t jobs, std::size_t waves_of_them)
      : each(std::make_unique<progress[]>(jobs)), waves(std::make_unique<wave[]>(waves_of_them)) {}
  std::unique_ptr<progress[]> each;
  std::unique_ptr<wave[]> waves;
};

// Returns true for errors that may not occur through the page cache. A full or broken disk, for example, stays full or broken.
bool refuses_direct(const status& error);

}  // namespace penstock::path
