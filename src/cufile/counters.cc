#include "cufile/counters.hpp"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <exception>
#include <vector>

namespace penstock::cufile {

namespace {

std::uint64_t us_since(counters::clock::time_point began) {
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(counters::clock::now() - began).count());
}

bool is_gpu(int number) { return number >= 0 && static_cast<std::size_t>(number) < counters::most_gpus; }

std::uint64_t per(std::uint64_t amount, std::uint64_t count) { return count == 0 ? 0 : amount / count; }
// Returns a share of a time in percent, at most 100.
std::uint64_t percent(std::uint64_t us, double seconds) {
  return seconds <= 0 ? 0 : std::min<std::uint64_t>(100, static_cast<std::uint64_t>(static_cast<double>(us) / (seconds * 1e4)));
}
std::uint64_t per_second(std::uint64_t amount, double seconds) {
  return seconds <= 0 ? 0 : static_cast<std::uint64_t>(static_cast<double>(amount) / seconds);
}

}  // namespace

void counters::direction::add(const io_result& outcome, std::uint64_t took_us) noexcept {
  operations.add(outcome.ok());
  bytes += outcome.bytes_done;
  us += took_us;
  if (!outcome.ok()) return;
  // Index 0 counts operations up to 4 KiB; the limit doubles with each index.
  const std::uint64_t blocks = (outcome.bytes_done + 4095) / 4096;
  const auto index = blocks <= 1 ? 0U : static_cast<unsigned>(std::bit_width(blocks - 1));
  ++by_size[std::min<std::size_t>(index, by_size.size() - 1)];
}

void counters::set_level(int level) {
  const std::lock_guard guard(lock_);
  level_.store(level);
  refresh();
}

void counters::start() {
  const std::lock_guard guard(lock_);
  if (!started_) since_ = clock::now();
  started_ = true;
  refresh();
}

void counters::stop() {
  const std::lock_guard guard(lock_);
  if (started_) ran_before_ += clock::now() - since_;
  started_ = false;
  refresh();
}

void counters::reset() {
  const std::lock_guard guard(lock_);
  totals_ = {};
  ran_before_ = {};
  since_ = clock::now();
}

int gpu_number(std::string_view device) noexcept {
  constexpr std::string_view prefix = "cuda:";
  int ordinal = -1;
  if (device.starts_with(prefix)) std::from_chars(device.data() + prefix.size(), device.data() + device.size(), ordinal);
  return ordinal;
}

int counters::gpu_of(const engine& owner, const void* memory) const noexcept try {
  if (!counts_by_gpu() || memory == nullptr) return no_gpu;
  const auto facts = owner.describe(memory);
  return facts && facts->kind == memory_kind::device ? gpu_number(facts->device) : no_gpu;
} catch (const std::exception&) {  // out of memory: not counted for any GPU
  return no_gpu;
}

void counters::count(counted what, bool ok) noexcept {
  if (!on()) return;
  const std::lock_guard guard(lock_);
  totals_.calls[static_cast<std::size_t>(what)].add(ok);
}

void counters::count_buffer(int gpu, counted what, bool ok) noexcept {
  if (!on() || !is_gpu(gpu)) return;
  const std::lock_guard guard(lock_);
  auto& of = totals_.gpus[static_cast<std::size_t>(gpu)];
  if (what == counted::buffer_register) of.registered.add(ok);
  if (what == counted::buffer_deregister && ok) ++of.deregistered;
}

// If any part was GPU-direct, the whole transfer is counted as GPU-direct.
void counters::ways::add(const io_result& outcome, direct_way way) noexcept {
  if (outcome.direct_bytes == 0) {
    ++posix;
  } else {
    ++(way == direct_way::p2pdma ? p2pdma : nvidia_fs);
  }
}

void counters::add_to_gpu_locked(const subject& of, const io_result& outcome, clock::time_point began, std::uint64_t took_us) noexcept {
  if (!is_gpu(of.gpu)) return;
  auto& gpu = totals_.gpus[static_cast<std::size_t>(of.gpu)];
  gpu.transfers[of.is_write].add(outcome, took_us);
  auto& way = gpu.by_way[of.is_write];
  // Transfers are counted roughly in order of completion: each adds its time after the latest completion so far.
  const auto from = std::max(began, way.latest_end);
  const auto until = began + std::chrono::microseconds(took_us);
  if (until > from)
    way.active_us += static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(until - from).count());
  way.latest_end = std::max(way.latest_end, until);
  if (!outcome.ok()) return;
  if (!of.aligned) ++way.unaligned;
  way.add(outcome, direct_way_.load(std::memory_order_relaxed));
}

void counters::count_transfer(const subject& of, const io_result& outcome, clock::time_point began) noexcept {
  if (!on()) return;
  const auto took = us_since(began);
  const std::lock_guard guard(lock_);
  totals_.transfers[of.is_write].add(outcome, took);
  add_to_gpu_locked(of, outcome, began, took);
}

void counters::count_submitted(std::size_t entries, clock::time_point began) noexcept {
  if (!on()) return;
  const auto took = us_since(began);
  const std::lock_guard guard(lock_);
  totals_.batch_entries += entries;
  totals_.batch_submit_us += took;
}

void counters::count_entry(const subject& of, const io_result& outcome, clock::time_point submitted) noexcept {
  if (!on()) return;
  const auto took = us_since(submitted);
  const std::lock_guard guard(lock_);
  totals_.batch[of.is_write].add(outcome, took);
  totals_.batch_last_bytes[of.is_write] = outcome.bytes_done;
  const auto way = outcome.direct_bytes == 0 ? 0U : direct_way_.load(std::memory_order_relaxed) == direct_way::nvidia_fs ? 1U : 2U;
  totals_.batch_ways[way].add(outcome.ok());
  add_to_gpu_locked(of, outcome, submitted, took);
}

double counters::seconds() const {
  return std::chrono::duration<double>(ran_before_ + (started_ ? clock::now() - since_ : clock::duration{})).count();
}

CUfileOpCounter_t counters::calls(counted what) const {
  const auto& found = totals_.calls[static_cast<std::size_t>(what)];
  return {found.ok, found.err};
}

void counters::count_vector(bool is_write, const io_result& outcome, clock::time_point began) noexcept {
  if (!on()) return;
  const auto took = us_since(began);
  const std::lock_guard guard(lock_);
  totals_.vectors[is_write].add(outcome, took);
}

std::vector<std::byte> counters::describe(int level, stats_layout layout, const engine& owner,
                                          const std::array<std::uint64_t, most_gpus>& registered_bytes) const {
  const auto devices = level < 3 ? std::vector<device_info>() : owner.devices();
  CUfileStatsLevel3_t all{};
  vector_stats vectors{};
  {
    const std::lock_guard guard(lock_);
    fill_locked(all.detailed);
    vectors = vectors_locked();
    for (const auto& device : devices) {
      if (!device.name.starts_with("cuda:") || all.num_gpus == totals_.gpus.size()) continue;
      auto& gpu = all.per_gpu_stats[all.num_gpus];
      std::memcpy(gpu.uuid, device.uuid.data(), sizeof gpu.uuid);
      fill_gpu(gpu, totals_.gpus[all.num_gpus], seconds());
      gpu.reg_bytes = registered_bytes[all.num_gpus];
      ++all.num_gpus;
    }
  }
  std::vector<std::byte> made;
  const auto put = [&made](const void* from, std::size_t bytes) {
    const auto* const first = static_cast<const std::byte*>(from);
    made.insert(made.end(), first, first + bytes);
  };
  put(&all.detailed.basic, sizeof all.detailed.basic);
  if (layout == stats_layout::of_1_19) put(&vectors, sizeof vectors);
  if (level >= 2) put(all.detailed.read_size_kb_hist, sizeof all.detailed.read_size_kb_hist);
  if (level >= 2) put(all.detailed.write_size_kb_hist, sizeof all.detailed.write_size_kb_hist);
  constexpr std::size_t head = offsetof(CUfileStatsLevel3_t, per_gpu_stats) - offsetof(CUfileStatsLevel3_t, num_gpus);
  if (level >= 3)
    put(reinterpret_cast<const std::byte*>(&all) + offsetof(CUfileStatsLevel3_t, num_gpus),
        head + all.num_gpus * sizeof(CUfilePerGpuStats_t));
  return made;
}

vector_stats counters::vectors_locked() const {
  const double time = seconds();
  const auto& [read, write] = totals_.vectors;
  return {.readv_ops = {read.operations.ok, read.operations.err},
          .writev_ops = {write.operations.ok, write.operations.err},
          .readv_bytes = read.bytes,
          .writev_bytes = write.bytes,
          .readv_bw_bytes_per_sec = per_second(read.bytes, time),
          .writev_bw_bytes_per_sec = per_second(write.bytes, time),
          .readv_lat_avg_us = per(read.us, read.operations.all()),
          .writev_lat_avg_us = per(write.us, write.operations.all()),
          .readv_ops_per_sec = per_second(read.operations.all(), time),
          .writev_ops_per_sec = per_second(write.operations.all(), time),
          .readv_lat_sum_us = read.us,
          .writev_lat_sum_us = write.us};
}

void counters::fill_locked(CUfileStatsLevel1_t& out) const {
  out = {};
  const double time = seconds();
  const auto& [read, write] = totals_.transfers;
  out.read_ops = {read.operations.ok, read.operations.err};
  out.write_ops = {write.operations.ok, write.operations.err};
  out.hdl_register_ops = calls(counted::handle_register);
  out.hdl_deregister_ops = calls(counted::handle_deregister);
  out.buf_register_ops = calls(counted::buffer_register);
  out.buf_deregister_ops = calls(counted::buffer_deregister);
  out.read_bytes = read.bytes;
  out.write_bytes = write.bytes;
  out.read_bw_bytes_per_sec = per_second(read.bytes, time);
  out.write_bw_bytes_per_sec = per_second(write.bytes, time);
  out.read_lat_avg_us = per(read.us, read.operations.all());
  out.write_lat_avg_us = per(write.us, write.operations.all());
  out.read_ops_per_sec = per_second(read.operations.all(), time);
  out.write_ops_per_sec = per_second(write.operations.all(), time);
  out.read_lat_sum_us = read.us;
  out.write_lat_sum_us = write.us;

  const auto& [batch_read, batch_write] = totals_.batch;
  const outcomes entries{batch_read.operations.ok + batch_write.operations.ok, batch_read.operations.err + batch_write.operations.err};
  out.batch_setup_ops = calls(counted::batch_setup);
  out.batch_submit_ops = calls(counted::batch_submit);
  out.batch_cancel_ops = calls(counted::batch_cancel);
  out.batch_destroy_ops = calls(counted::batch_destroy);
  out.batch_complete_ops = {entries.ok, entries.err};
  out.batch_enqueued_ops = {totals_.batch_entries, 0};
  out.batch_processed_ops = {entries.ok, entries.err};
  // An entry's path is known only after the entry completes.
  const auto& [other, nvidia_fs, p2pdma] = totals_.batch_ways;
  out.batch_posix_enqueued_ops = out.batch_posix_processed_ops = {other.ok, other.err};
  out.batch_nvfs_submit_ops = {nvidia_fs.ok, nvidia_fs.err};
  out.batch_p2p_submit_ops = {p2pdma.ok, p2pdma.err};
  out.batch_total_submit_ops = {totals_.batch_entries, 0};
  out.batch_read_bytes = batch_read.bytes;
  out.batch_write_bytes = batch_write.bytes;
  out.batch_read_bw_bytes = per_second(batch_read.bytes, time);
  out.batch_write_bw_bytes = per_second(batch_write.bytes, time);
  out.batch_submit_lat_sum_us = totals_.batch_submit_us;
  out.batch_submit_lat_avg_us = per(totals_.batch_submit_us, out.batch_submit_ops.ok);
  out.batch_completion_lat_sum_us = batch_read.us + batch_write.us;
  out.batch_completion_lat_avg_us = per(out.batch_completion_lat_sum_us, entries.all());
  out.batch_submit_ops_per_sec = per_second(out.batch_submit_ops.ok, time);
  out.batch_complete_ops_per_sec = per_second(entries.all(), time);
  out.last_batch_read_bytes = totals_.batch_last_bytes[0];
  out.last_batch_write_bytes = totals_.batch_last_bytes[1];
}

void counters::fill_locked(CUfileStatsLevel2_t& out) const {
  out = {};
  fill_locked(out.basic);
  std::copy(totals_.transfers[0].by_size.begin(), totals_.transfers[0].by_size.end(), out.read_size_kb_hist);
  std::copy(totals_.transfers[1].by_size.begin(), totals_.transfers[1].by_size.end(), out.write_size_kb_hist);
}

void counters::fill_gpu(CUfilePerGpuStats_t& out, const of_gpu& counts, double time) {
  const auto& [read, write] = counts.transfers;
  const auto& [read_ways, write_ways] = counts.by_way;
  out.read_bytes = read.bytes;
  out.read_bw_bytes_per_sec = per_second(read.bytes, time);
  out.read_utilization = percent(read_ways.active_us, time);
  out.read_duration_us = read.us;
  out.n_total_reads = read.operations.ok;
  out.n_p2p_reads = read_ways.p2pdma;
  out.n_nvfs_reads = read_ways.nvidia_fs;
  out.n_posix_reads = read_ways.posix;
  out.n_unaligned_reads = read_ways.unaligned;
  out.n_reads_err = read.operations.err;
  out.writes_bytes = write.bytes;
  out.write_bw_bytes_per_sec = per_second(write.bytes, time);
  out.write_utilization = percent(write_ways.active_us, time);
  out.write_duration_us = write.us;
  out.n_total_writes = write.operations.ok;
  out.n_p2p_writes = write_ways.p2pdma;
  out.n_nvfs_writes = write_ways.nvidia_fs;
  out.n_posix_writes = write_ways.posix;
  out.n_unaligned_writes = write_ways.unaligned;
  out.n_writes_err = write.operations.err;
  out.n_mmap = counts.registered.all();
  out.n_mmap_ok = counts.registered.ok;
  out.n_mmap_err = counts.registered.err;
  out.n_mmap_free = counts.deregistered;
}

}  // namespace penstock::cufile
