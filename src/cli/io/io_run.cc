#include "cli/io/io_run.hpp"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <exception>
#include <latch>
#include <limits>
#include <memory>
#include <mutex>
#include <random>
#include <system_error>
#include <thread>
#include <tuple>

#include "bench/meter.hpp"
#include "bench/page_cache.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/progress.hpp"
#include "cli/common/sizes.hpp"
#include "cli/common/transfer_memory.hpp"
#include "cli/io/io_ceiling.hpp"
#include "cli/io/io_worker.hpp"
#include "cli/io/numa.hpp"

namespace penstock::cli {
namespace {

using clock = std::chrono::steady_clock;

constexpr std::uint64_t written_by_default = std::uint64_t{1} << 30;
constexpr std::uint64_t checked_by_default = std::uint64_t{1} << 30;  // total for all threads
constexpr std::uint64_t fixed_generation = 1;                         // for runs that may share a block with earlier ones

// A job with the resources that it needs.
struct prepared_job {
  const io_job* job = nullptr;
  std::string device;
  std::uint64_t io_size = 0;
  std::vector<io_target> targets;
  std::vector<io_region> data;  // the range of each target that the run uses
  std::unique_ptr<io_pattern> pattern;
  std::optional<io_memory> source;
  std::unique_ptr<io_shared> shared;
  std::vector<io_worker> workers;
  unsigned threads = 0, depth = 0;  // as reported by gdsio
};

std::vector<std::string> paths_of(const io_job& job) {
  if (!job.file.empty()) return {job.file};
  std::vector<std::string> paths;
  for (unsigned i = 0; i < job.threads; ++i) paths.push_back(fmt::format("{}/gdsio.{}", job.directory, i));
  return paths;
}

// Returns true if every 4 KiB block is written by a single run.
bool is_by_blocks(const io_plan& plan, const prepared_job& job, const io_region& data) {
  const bool aligned = job.io_size % pattern_block == 0 && data.first % pattern_block == 0 && plan.alignment % pattern_block == 0;
  const std::uint64_t end = data.first + data.length;
  return aligned && (end % pattern_block == 0 || end >= data.target->before().size);
}

// Reads cover the existing data, as in gdsio.
std::uint64_t length_of(const io_plan& plan, const io_job& job, const io_target& target, std::vector<std::string>& remarks) {
  const auto wanted = job.size ? job.size : plan.size;
  if (is_write(plan.io)) return wanted.value_or(written_by_default);
  const std::uint64_t size = target.before().size, there = size - std::min(size, job.offset);
  if (wanted && *wanted > there && there > 0) {
    remarks.push_back(fmt::format("{} is only {} long: the run covers {}, not {}", target.path(), format_size(size), format_size(there),
                                  format_size(*wanted)));
  }
  return std::min(wanted.value_or(there), there);
}

status open_targets(const engine& owner, const io_plan& plan, prepared_job& job, std::vector<std::string>& remarks) {
  const io_target::options how{is_write(plan.io), writes_direct(plan), plan.force, plan.immutable};
  for (const std::string& path : paths_of(*job.job)) {
    auto target = io_target::open(owner, path, how);
    if (!target) return target.error();
    job.targets.push_back(*std::move(target));
  }
  for (io_target& target : job.targets) {
    const std::uint64_t length = length_of(plan, *job.job, target, remarks);
    if (length == 0)
      return {errc::invalid_argument, fmt::format("{}: there is no data at or after offset {}", target.path(), job.job->offset)};
    job.data.push_back({&target, job.job->offset, length});
  }
  return {};
}

// Runs that write whole blocks are distinguished by random generations.
result<std::uint64_t> generation_for(const io_plan& plan, const prepared_job& job) {
  const bool by_blocks =
      std::all_of(job.data.begin(), job.data.end(), [&](const io_region& data) { return is_by_blocks(plan, job, data); });
  if (by_blocks) {
    std::random_device source;
    return (std::uint64_t{source()} << 32) + source();
  }
  for (const io_target& target : job.targets) {
    const auto there = target.before().generation;
    if (there && *there != fixed_generation) {
      return status(errc::invalid_argument, fmt::format("{} contains earlier data in 4 KiB blocks, which these requests would overwrite in "
                                                        "part, so the result could not be verified; remove the file first",
                                                        target.path()));
    }
  }
  return fixed_generation;
}

// Returns one region per thread or batch slot: its own file, or its share of the single file.
std::vector<io_region> regions_of(const prepared_job& job) {
  if (job.job->file.empty()) return job.data;
  const io_region& all = job.data.front();
  const std::uint64_t requests = (all.length + job.io_size - 1) / job.io_size;
  const std::uint64_t each = (requests + job.job->threads - 1) / job.job->threads * job.io_size;
  std::vector<io_region> regions;
  for (std::uint64_t first = 0; first < all.length; first += each)
    regions.push_back({all.target, all.first + first, std::min(each, all.length - first)});
  return regions;
}

status make_source(const engine& owner, const io_plan& plan, prepared_job& job) {
  auto generation = generation_for(plan, job);
  if (!generation) return generation.error();
  try {
    job.pattern = std::make_unique<io_pattern>(*generation, job.io_size);
  } catch (const std::exception&) {  // bad_alloc or length_error
    return {errc::out_of_memory, fmt::format("not enough memory for requests of {}", format_size(job.io_size))};
  }
  const auto type = plan.transfer == transfer_type::cpu_only ? buffer_type::plain : job.job->memory;
  auto memory = io_memory::make(owner, type, job.device, job.pattern->bytes().size(), plan.register_memory);
  if (!memory) return memory.error();
  job.source = *std::move(memory);
  return owner.copy(job.source->data(), job.pattern->bytes().data(), job.pattern->bytes().size());
}

status make_workers(const engine& owner, const io_plan& plan, prepared_job& job) {
  if (is_write(plan.io)) {
    if (status error = make_source(owner, plan, job); !error.ok()) return error;
  }
  job.shared =
      std::make_unique<io_shared>(io_shared{owner, plan, *job.job, job.device, job.io_size, job.pattern ? job.pattern->generation() : 0,
                                            job.pattern.get(), job.source ? &*job.source : nullptr});
  const bool one_thread = is_batch(plan.transfer) && plan.depth == 0;
  std::vector<std::vector<io_cursor>> cursors(one_thread ? 1 : 0);
  std::uint64_t seed = plan.seed;
  for (const io_region& region : regions_of(job)) {
    if (!one_thread) cursors.emplace_back();
    cursors.back().emplace_back(region, job.io_size, plan.alignment, is_random(plan.io), seed++);
  }
  for (auto& of_thread : cursors) {
    job.depth = io_worker::depth_of(plan, of_thread.size());
    auto worker = io_worker::make(*job.shared, std::move(of_thread));
    if (!worker) return worker.error();
    job.workers.push_back(*std::move(worker));
  }
  job.threads = one_thread ? 1 : job.job->threads;
  return {};
}

result<std::string> device_for(const engine& owner, const io_plan& plan, const io_job& job, std::vector<std::string>& remarks) {
  auto device = choose_device_of_d(owner, job.device);
  if (!device) return device.error();
  const std::string reason = why_no_gpu(owner);
  if (job.device.empty() && !reason.empty() && plan.transfer != transfer_type::cpu_only)
    remarks.push_back(fmt::format("{}: the device is {}, a simulated GPU in host memory", reason, device->name));
  return device->name;
}

status set_cache(const io_plan& plan, const std::vector<prepared_job>& jobs) {
  for (const prepared_job& job : jobs) {
    for (const io_region& data : job.data) {
      const std::string& path = data.target->path();
      const std::uint64_t there = data.target->before().size;
      const std::uint64_t length = std::min(data.length, there - std::min(there, data.first));
      status error;
      if (plan.cold) error = bench::drop_cached(path, data.first, length).with_context("--cold");
      if (plan.warm) error = bench::fill_cached(path, data.first, length, interrupted).with_context("--warm");
      if (!error.ok()) return error;
    }
  }
  return {};
}

// Runs each worker of all jobs on its own thread; the calling thread shows the progress bar.
struct thread_times {
  std::vector<clock::time_point> begins, ends;
};

template <class Work>
status on_threads(std::vector<prepared_job>& jobs, const std::function<void()>& meanwhile, thread_times& times, const Work& work) {
  struct one {
    prepared_job* job;
    io_worker* worker;
    status error;
  };
  std::vector<one> all;
  for (prepared_job& job : jobs) {
    for (io_worker& worker : job.workers) all.push_back({&job, &worker, {}});
  }
  std::latch ready(static_cast<std::ptrdiff_t>(all.size()) + 1);
  std::mutex mutex;
  std::condition_variable ended;
  std::size_t left = all.size();
  times.begins.assign(all.size(), {});
  times.ends.assign(all.size(), {});
  status refused;  // the system refused to start a thread
  const auto thread_of = [&](std::size_t i) {
    return std::thread([&, i] {
      one& own = all[i];
      if (own.job->job->numa_node >= 0) own.error = run_on_node(own.job->job->numa_node);
      ready.arrive_and_wait();
      times.begins[i] = clock::now();
      if (own.error.ok() && refused.ok()) own.error = work(*own.worker);
      times.ends[i] = clock::now();
      const std::lock_guard lock(mutex);
      --left;
      ended.notify_one();
    });
  };
  std::vector<std::thread> threads;
  threads.reserve(all.size());
  try {
    while (threads.size() < all.size()) threads.push_back(thread_of(threads.size()));
  } catch (const std::system_error& error) {
    refused = status::from_errno(error.code().value(), fmt::format("start {} threads", all.size()));
    ready.count_down(static_cast<std::ptrdiff_t>(all.size() - threads.size()));
    const std::lock_guard lock(mutex);
    left -= all.size() - threads.size();
  }
  ready.arrive_and_wait();
  {
    std::unique_lock lock(mutex);
    while (!ended.wait_for(lock, std::chrono::milliseconds(100), [&] { return left == 0; })) meanwhile();
  }
  for (std::thread& each : threads) each.join();
  if (!refused.ok()) return refused;
  for (one& each : all) {
    if (!each.error.ok()) return each.error;
  }
  return {};
}

double seconds_between(clock::time_point from, clock::time_point to) { return std::chrono::duration<double>(to - from).count(); }

void add_figures(const prepared_job& job, const thread_times& times, std::size_t first_worker, io_figures& out) {
  io_job_figures one;
  one.name = job.job->file.empty() ? job.job->directory : job.job->file;
  one.device = job.device;
  one.threads = job.threads;
  one.depth = job.depth;
  const auto begin = *std::min_element(times.begins.begin(), times.begins.end());
  for (const io_region& data : job.data) one.total_bytes += data.length;
  for (std::size_t i = 0; i < job.workers.size(); ++i) {
    one.bytes += job.workers[i].bytes();
    one.latencies.add(job.workers[i].latencies());
    one.seconds = std::max(one.seconds, seconds_between(begin, times.ends[first_worker + i]));
  }
  out.all.bytes += one.bytes;
  out.all.total_bytes += one.total_bytes;
  out.all.threads += one.threads;
  out.all.depth = std::max(out.all.depth, one.depth);
  out.all.seconds = std::max(out.all.seconds, one.seconds);
  out.all.latencies.add(one.latencies);
  if (out.jobs.empty()) out.all.name = one.name, out.all.device = one.device;
  out.jobs.push_back(std::move(one));
}

status run_timed(const engine& owner, const io_plan& plan, std::vector<prepared_job>& jobs, io_figures& out) {
  std::atomic<std::uint64_t> done{0};
  // If a run has a time limit, its progress is measured in time.
  const auto start = clock::now();
  progress_bar bar(is_write(plan.io) ? "writing" : "reading", out.all.name,
                   plan.seconds > 0 ? static_cast<std::uint64_t>(plan.seconds * 1e3) : out.data_bytes);
  const auto show = [&] {
    bar.update(plan.seconds > 0 ? static_cast<std::uint64_t>(seconds_between(start, clock::now()) * 1e3) : done.load());
  };
  const engine_stats before = owner.stats();
  const double cpu = bench::process_cpu_seconds();
  const auto until = start + std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(plan.seconds));
  thread_times times;
  if (status error = on_threads(jobs, show, times, [&](io_worker& worker) { return worker.run(until, done); }); !error.ok()) return error;
  out.cpu_seconds = bench::process_cpu_seconds() - cpu;
  out.path = bench::paths_between(before, owner.stats());
  std::size_t first = 0;
  for (const prepared_job& job : jobs) {
    add_figures(job, times, first, out);
    first += job.workers.size();
  }
  return {};
}

// Returns true if the expected contents of the file are known. If not, the user is informed that nothing was compared.
bool can_verify(const io_plan& plan, const io_target& target) {
  return is_write(plan.io) || plan.read_back || target.before().generation.has_value();
}

status verify(const io_plan& plan, std::vector<prepared_job>& jobs, io_figures& out) {
  std::vector<prepared_job*> known;
  std::size_t workers = 0;
  for (prepared_job& job : jobs) {
    bool all = true;
    for (const io_target& target : job.targets) {
      if (can_verify(plan, target)) continue;
      all = false;
      out.unverified.push_back(target.path());
    }
    if (!all) job.workers.clear();
    workers += job.workers.size();
  }
  if (workers == 0) return {};
  const std::uint64_t most = plan.read_back ? ~std::uint64_t{0} : std::max<std::uint64_t>(1, checked_by_default / workers);
  thread_times times;
  const status error = on_threads(
      jobs, [] {}, times,
      [&](io_worker& worker) {
        const status latest = worker.check_latest();
        return latest.ok() ? worker.check_again(most) : latest;
      });
  for (const prepared_job& job : jobs) {
    for (const io_worker& worker : job.workers) {
      out.verified_bytes += worker.verified_bytes();
      out.unwritten_bytes += worker.unwritten_bytes();
    }
  }
  return error;
}

std::optional<std::uint64_t> cached_of(const std::vector<prepared_job>& jobs) {
  std::uint64_t sum = 0;
  for (const prepared_job& job : jobs) {
    for (const io_region& data : job.data) {
      auto found = bench::cached_bytes(data.target->path(), data.first, data.length);
      if (!found) return std::nullopt;
      sum += *found;
    }
  }
  return sum;
}

// Refuses jobs that write to the same range, because the resulting mixture would be reported as wrong bytes.
status check_apart(const std::vector<prepared_job>& jobs) {
  struct range {
    dev_t device;
    ino_t file;
    std::uint64_t first, length;
    const io_target* target;
  };
  std::vector<range> all;
  for (const prepared_job& job : jobs) {
    for (const io_region& data : job.data) {
      struct stat info {};
      if (::fstat(data.target->plain_fd(), &info) != 0) return status::from_errno(errno, fmt::format("fstat {}", data.target->path()));
      all.push_back({info.st_dev, info.st_ino, data.first, data.length, data.target});
    }
  }
  std::stable_sort(all.begin(), all.end(), [](const range& a, const range& b) {
    return std::tie(a.device, a.file, a.first) < std::tie(b.device, b.file, b.first);
  });
  const auto met = std::adjacent_find(all.begin(), all.end(), [](const range& a, const range& b) {
    return a.device == b.device && a.file == b.file && b.first - a.first < a.length;
  });
  if (met == all.end()) return {};
  return {errc::invalid_argument, fmt::format("another job also writes to {}, at offset {}", (met + 1)->target->path(), (met + 1)->first)};
}

status prepare(const engine& owner, const io_plan& plan, std::uint64_t io_size, std::vector<prepared_job>& jobs,
               std::vector<std::string>& remarks) {
  for (const io_job& job : plan.jobs) {
    jobs.emplace_back();
    prepared_job& made = jobs.back();
    made.job = &job;
    made.io_size = job.io_size.value_or(io_size);
    auto device = device_for(owner, plan, job, remarks);
    if (!device) return device.error();
    made.device = *device;
    if (status error = open_targets(owner, plan, made, remarks); !error.ok()) return error;
  }
  if (is_write(plan.io) && plan.verify) {
    if (status error = check_apart(jobs); !error.ok()) return error;
  }
  if (status error = set_cache(plan, jobs); !error.ok()) return error;
  for (prepared_job& job : jobs) {
    if (status error = make_workers(owner, plan, job); !error.ok()) return error;
  }
  return {};
}

status carry_out(const engine& owner, const io_plan& plan, std::vector<prepared_job>& jobs, io_figures& out) {
  out.cached_before = cached_of(jobs);
  for (const prepared_job& job : jobs) {
    for (const io_region& data : job.data) out.data_bytes += data.length;
  }
  if (status error = run_timed(owner, plan, jobs, out); !error.ok()) return error;
  if (plan.verify) {
    if (status error = verify(plan, jobs, out); !error.ok()) return error;
  }
  if (plan.ceiling) {
    const io_region& data = jobs.front().data.front();
    const bool hot = out.cached_before.value_or(0) * 2 > out.data_bytes;
    auto ceiling = measure_ceiling(plan, jobs.front().device, data.target->path(), data.length, hot);
    if (!ceiling) return ceiling.error().with_context("--ceiling");
    out.ceiling_name = ceiling->name;
    out.ceiling_gbs = ceiling->gbs;
  }
  for (prepared_job& job : jobs) {
    for (io_target& target : job.targets) {
      if (status error = target.close(); !error.ok()) return error;
    }
  }
  return {};
}

}  // namespace

result<io_figures> run_io(const engine& owner, const io_plan& plan, std::uint64_t io_size, std::vector<std::string>& remarks) {
  std::vector<prepared_job> jobs;
  jobs.reserve(plan.jobs.size());
  io_figures out;
  out.io = plan.io;
  out.transfer = plan.transfer;
  out.io_size = plan.jobs.front().io_size.value_or(io_size);
  status error = prepare(owner, plan, io_size, jobs, remarks);
  if (error.ok()) error = carry_out(owner, plan, jobs, out);
  if (error.ok()) return out;
  for (prepared_job& job : jobs) {
    job.workers.clear();
    for (io_target& target : job.targets) target.discard();
  }
  return error;
}

status check_plan(const io_plan& plan) {
  const auto wrong = [](const std::string& why) { return status(errc::invalid_argument, why); };
  if (plan.jobs.empty()) return wrong("a file (-f), a folder (-D) or a configuration file is required");
  if (plan.cold && plan.warm) return wrong("--cold and --warm are mutually exclusive");
  if (plan.immutable && is_write(plan.io)) return wrong("--immutable cannot be used with writes");
  for (const io_job& job : plan.jobs) {
    if (job.file.empty() == job.directory.empty()) return wrong("a job must have either a file or a folder");
    if (job.threads == 0) return wrong("a job must have at least one thread");
    if (is_by_host(plan.transfer) && job.memory > buffer_type::mapped_device)
      return wrong("host memory (-m 2, 3, 4) requires transfer type 0, 5, 6 or 7");
    if (job.io_size == std::uint64_t{0}) return wrong("the request size must not be 0");
    const std::uint64_t size = job.io_size.value_or(plan.sizes.most);
    const unsigned at_once = plan.depth > 0 ? plan.depth : is_batch(plan.transfer) ? job.threads : 2;
    if (size > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()) / 2 / at_once)
      return wrong(fmt::format("-i {}: {} concurrent requests do not fit in memory", format_size(size), at_once));
  }
  return {};
}

}  // namespace penstock::cli
