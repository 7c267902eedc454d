// The staged path, for the files that it is made of: staged.cc (one extent), staged_wave.cc (neighbouring extents that share a slab),
// staged_gather.cc (many small ranges in one slab) and staged_drain.cc (from slabs to the page cache). Thread-safe.
#pragma once

#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "base/no_memory.hpp"
#include "path/data_path.hpp"
#include "path/slab_io.hpp"
#include "staging/lent_slab.hpp"

namespace penstock::path {

class staged final : public data_path {
 public:
  explicit staged(const services& with) : with_(with) {}

  [[nodiscard]] path_kind kind() const override { return path_kind::staged; }
  [[nodiscard]] std::optional<std::string> refuses(const question& asked) override;
  bool run(job& item) override;

 private:
  // --- what all of them use
  static job& job_of(staging::copy_task& task) { return *static_cast<job*>(task.context); }
  static job& job_of(staging::ring_task& task) { return *static_cast<job*>(task.context); }

  static slab_route route_of(const job& item) { return {item.bypass_cache, item.sent_at_once}; }

  enum class slab_wait { taken, not_now, ended };
  slab_wait take_slab(job& item);
  result<staging::lent_slab> wait_for_slab(const job& item, std::uint64_t bytes);
  static std::uint64_t slab_need(const job& item);
  static void give_back(job& item);
  static void finish(job& item, std::uint64_t bytes, status error);
  static void hand_over(job& item, status why);
  void submit(job& item, staging::copy_task& copy);
  static void prepare_ring(job& item, bool is_write);
  bool ends_at(const file_view& file, std::uint64_t offset);

  // A step on the way of a job. One that runs out of memory has handed nothing on yet, and ends the job.
  template <class Step>
  static void step(job& item, Step go) {
    try {
      go();
    } catch (const std::bad_alloc&) {
      finish(item, 0, no_memory());
    }
  }
  // What a disk lane calls when all pieces of a job have ended.
  template <void (staged::*Next)(job&)>
  static void after_ring(staging::ring_task& task) {
    auto& item = job_of(task);
    step(item, [&] { (static_cast<staged*>(item.path)->*Next)(item); });
  }

  // --- one extent
  void read_here(job& item);
  void start_ring_read(job& item);
  void ring_read_done(job& item);
  void read_arrived(job& item, std::uint64_t bytes, std::uint64_t skip);
  void send(job& item, std::uint64_t bytes, bool to_device, std::uint64_t skip = 0);
  static void arrived_on_device(staging::copy_task& task, status outcome);
  static void arrived_on_host(staging::copy_task& task, status outcome);
  static void start_ring_write(job& item);
  void ring_write_done(job& item);

  // --- extents that share a slab
  void read_in_wave(job& item);
  status enter(wave& shared, const job& item);
  void wave_read(wave& shared);
  static void finish_wave(wave& shared, status outcome);

  // --- many small ranges in one slab
  static std::uint64_t gather_need(const job& item);
  void start_gather_read(job& item);
  bool read_later(job& item, gather_range& range, std::byte* place);
  void gather_ring_done(job& item);
  status take_piece(gather_range& range, const staging::ring_piece& done);
  void scatter(job& item);
  static void scattered(staging::copy_task& task, status outcome);
  void copy_one_by_one(job& item, std::size_t count);
  void write_out_ranges(job& item);
  static void finish_ranges(job& item);

  // --- from slabs to the page cache
  static void queue_drain(job& item);
  void drain(job& first);
  status write_out(job& item);

  const services with_;
};

// What the file system refuses to do past the cache it may do through it; a full or broken disk stays full or broken.
bool refuses_direct(const status& error);

}  // namespace penstock::path
