// penstock io: runs gdsio's workloads, with its options, its configuration files and its output line.
#include <fmt/format.h>

#include <charconv>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <set>

#include "cli/common/command.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/json.hpp"
#include "cli/common/say.hpp"
#include "cli/common/sizes.hpp"
#include "cli/common/transfer_memory.hpp"
#include "cli/common/usage.hpp"
#include "cli/io/io_report.hpp"
#include "cli/io/io_sweep.hpp"

namespace penstock::cli {
namespace {

// Values from the command line, as given.
struct gdsio_options {
  std::string config;
  std::vector<std::string> files, directories, devices, nodes, threads, memories;  // for each job in turn
  std::string offset, sizes, size, io, alignment;
  int transfer = -1;
  double seconds = -1;
  std::uint64_t seed = 0;
  unsigned depth = 0;
  int buffered = -1;
  bool seeded = false;
  bool verify = false, no_verify = false, skip_register = false, unaligned = false, fill = false, refill = false, nvlinks = false;
  sweep_options sweep;
  bool job_stats = false, cold = false, warm = false, immutable = false, ceiling = false, force = false;
  output_options output;
};

result<unsigned> number_of(const std::string& option, const std::string& text, unsigned most) {
  unsigned number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size() || number > most)
    return status(errc::invalid_argument, fmt::format("{}: \"{}\" is not a number from 0 to {}", option, text, most));
  return number;
}

using set_option = std::function<status(io_job&, const std::string&)>;

template <class Target>
set_option number_for(const char* option, unsigned most, Target io_job::*target) {
  return [=](io_job& job, const std::string& text) {
    auto number = number_of(option, text, most);
    if (number) job.*target = static_cast<Target>(*number);
    return number.error();
  };
}

const std::map<std::string, set_option>& job_options() {
  static const std::map<std::string, set_option> options{{"-d",
                                                          [](io_job& job, const std::string& text) {
                                                            job.device = device_called(text);
                                                            return status();
                                                          }},
                                                         {"-n",
                                                          [](io_job& job, const std::string& text) {
                                                            // sysfs reports -1 for devices on a machine with one node.
                                                            if (text == "-1") return job.numa_node = -1, status();
                                                            return number_for("-n", 1 << 20, &io_job::numa_node)(job, text);
                                                          }},
                                                         {"-w", number_for("-w", 65536, &io_job::threads)},
                                                         {"-m", number_for("-m", buffer_types - 1, &io_job::memory)}};
  return options;
}

// Each -f or -D starts a job. Options after it apply to that job, options before the first job apply to all. An option that is given only
// once also applies to all jobs.
class job_maker {
 public:
  status take(const std::string& option, const std::string& text) {
    if (option == "-f" || option == "-D") {
      jobs_.push_back(all_);
      (option == "-f" ? jobs_.back().file : jobs_.back().directory) = text;
      return {};
    }
    const auto& set = job_options().at(option);
    ++times_[option];
    last_[option] = text;
    return set(jobs_.empty() ? all_ : jobs_.back(), text);
  }
  result<std::vector<io_job>> jobs() {
    for (const auto& [option, times] : times_) {
      for (std::size_t i = 0; i < jobs_.size() && times == 1; ++i) {
        if (status error = job_options().at(option)(jobs_[i], last_[option]); !error.ok()) return error;
      }
    }
    return jobs_;
  }
  // Applies the options to a job from a configuration file.
  status change(io_job& job) const {
    for (const auto& [option, text] : last_) {
      if (status error = job_options().at(option)(job, text); !error.ok()) return error;
    }
    return {};
  }
  [[nodiscard]] bool empty() const { return jobs_.empty(); }

 private:
  io_job all_;
  std::vector<io_job> jobs_;
  std::map<std::string, unsigned> times_;
  std::map<std::string, std::string> last_;
};

result<job_maker> jobs_in_order(const CLI::App& sub) {
  job_maker made;
  std::map<const CLI::Option*, std::size_t> seen;
  for (const CLI::Option* option : sub.parse_order()) {
    if (option->get_snames().empty()) continue;
    const std::string name = "-" + option->get_snames().front();
    if (name != "-f" && name != "-D" && !job_options().contains(name)) continue;
    if (status error = made.take(name, option->results().at(seen[option]++)); !error.ok()) return error;
  }
  return made;
}

constexpr double most_seconds = 1e9;  // about 30 years; small enough to add to a nanosecond clock

template <class Value, class Target>
status assign(result<Value> parsed, Target& target) {
  if (!parsed) return parsed.error();
  target = *parsed;
  return {};
}

status apply_values(const gdsio_options& wanted, io_plan& plan) {
  status error;
  if (error.ok() && !wanted.io.empty()) error = assign(parse_io_type(wanted.io), plan.io).with_context("-I");
  if (error.ok() && !wanted.sizes.empty()) error = assign(parse_io_sizes(wanted.sizes), plan.sizes).with_context("-i");
  if (error.ok() && !wanted.size.empty()) error = assign(parse_gdsio_size(wanted.size), plan.size).with_context("-s");
  // The command line also overrides a configuration file's settings for its jobs.
  for (io_job& job : plan.jobs) {
    if (!wanted.sizes.empty()) job.io_size.reset();
    if (!wanted.size.empty()) job.size.reset();
  }
  if (error.ok() && !wanted.alignment.empty()) {
    error = assign(parse_gdsio_size(wanted.alignment), plan.alignment).with_context("-a");
    if (error.ok() && plan.alignment == 0) error = status(errc::invalid_argument, "-a must be greater than 0");
  }
  if (error.ok() && !wanted.offset.empty()) {
    auto offset = parse_gdsio_size(wanted.offset);
    if (!offset) return offset.error().with_context("-o");
    for (io_job& job : plan.jobs) job.offset = *offset;
  }
  return error;
}

void apply_flags(const gdsio_options& wanted, io_plan& plan) {
  if (wanted.transfer >= 0) plan.transfer = static_cast<transfer_type>(wanted.transfer);
  if (wanted.seconds >= 0) plan.seconds = wanted.seconds;
  if (wanted.seeded) plan.seed = wanted.seed;
  if (wanted.unaligned && wanted.alignment.empty()) plan.alignment = 4096;
  if (wanted.depth > 0) plan.depth = wanted.depth;
  if (wanted.buffered >= 0) plan.direct = wanted.buffered == 0;
  plan.read_back = plan.read_back || wanted.verify;
  plan.verify = !wanted.no_verify;
  plan.register_memory = plan.register_memory && !wanted.skip_register;
  plan.refill = plan.refill || wanted.refill;
  plan.job_lines = wanted.job_stats;
  plan.cold = wanted.cold;
  plan.warm = wanted.warm;
  plan.immutable = wanted.immutable;
  plan.ceiling = wanted.ceiling;
  plan.force = wanted.force;
}

result<io_plan> plan_of(const gdsio_options& wanted, const CLI::App& sub, std::vector<std::string>& remarks) {
  auto jobs = jobs_in_order(sub);
  if (!jobs) return jobs.error();
  io_plan plan;
  if (!wanted.config.empty()) {
    if (!jobs->empty()) return status(errc::invalid_argument, "-f and -D cannot be combined with a configuration file");
    auto read = read_io_config(wanted.config, remarks);
    if (!read) return read.error();
    plan = *std::move(read);
    for (io_job& job : plan.jobs) {
      if (status error = jobs->change(job); !error.ok()) return error;
    }
  } else {
    auto made = jobs->jobs();
    if (!made) return made.error();
    plan.jobs = *std::move(made);
  }
  if (status error = apply_values(wanted, plan); !error.ok()) return error;
  apply_flags(wanted, plan);
  if (status error = check_plan(plan); !error.ok()) return error;
  return plan;
}

// Prints results, either as soon as they are ready or at the end.
class io_output {
 public:
  explicit io_output(const output_options& wanted) : wanted_(wanted) {}
  // Prints each remark once.
  void remark(const std::string& text) {
    if (!wanted_.quiet && said_.insert(text).second) figure(text);
  }
  // Prints figures that gdsio does not report to stderr first, so that gdsio's line is the last and only one on stdout.
  void add(const io_figures& run, bool job_lines) {
    if (wanted_.json) {
      runs_.push_back(to_json(run));
      return;
    }
    for (const std::string& line : describe(run)) figure(line);
    for (const io_job_figures& job : run.jobs) {
      if (job_lines) put_exactly(gdsio_line(run, job) + "\n");
    }
    put_exactly(gdsio_line(run, run.all) + "\n");
  }
  void say_verifying() const {
    if (!wanted_.json) say("Verifying data \n");
  }
  void end(const status& error) const {
    if (wanted_.json) print_json({{"runs", runs_}, {"error", error_json(error)}});
  }

 private:
  void figure(const std::string& text) const {
    if (!wanted_.quiet) complain("penstock: {}\n", text);
  }
  output_options wanted_;
  std::set<std::string> said_;
  nlohmann::json runs_ = nlohmann::json::array();
};

status run_one(const engine& owner, const io_plan& plan, std::uint64_t io_size, io_output& output) {
  std::vector<std::string> remarks;
  const auto figures = run_io(owner, plan, io_size, remarks);
  for (const std::string& each : remarks) output.remark(each);
  if (!figures) return figures.error();
  output.add(*figures, plan.job_lines);
  if (!plan.read_back || !is_write(plan.io)) return {};
  output.say_verifying();
  io_plan reads = plan;
  reads.io = is_random(plan.io) ? io_type::random_read : io_type::read;
  reads.ceiling = false;
  const auto again = run_io(owner, reads, io_size, remarks);  // these remarks have already been printed
  if (!again) return again.error();
  output.add(*again, plan.job_lines);
  return {};
}

int refuse(const status& error) {
  if (interrupted()) return interrupted_exit_code();
  (void)fail(error);
  return error.code() == errc::invalid_argument ? exit_usage : exit_failure;
}

int sweep_over(const gdsio_options& wanted, const io_plan& plan, std::vector<std::string> remarks) {
  if (plan.jobs.size() != 1 || plan.jobs.front().file.empty())
    return refuse({errc::invalid_argument, "--sweep: one file (-f) is required"});
  if (plan.read_back) return refuse({errc::invalid_argument, "--sweep does not support -V; without it, each run compares up to 1G"});
  const auto sweep = parse_sweep(wanted.sweep);
  if (!sweep) return refuse(sweep.error());
  return run_sweep(wanted.sweep, *sweep, plan, std::move(remarks), wanted.output);
}

int run_all(const gdsio_options& wanted, const CLI::App& sub) {
  std::vector<std::string> remarks;
  const auto plan = plan_of(wanted, sub, remarks);
  if (!plan) return refuse(plan.error());
  if (wanted.sweep.wanted) return sweep_over(wanted, *plan, std::move(remarks));
  io_output output(wanted.output);
  for (const std::string& each : remarks) output.remark(each);
  auto owner = make_engine();
  if (!owner) return fail(owner.error());
  status error;
  for (std::uint64_t size = plan->sizes.least; size <= plan->sizes.most && error.ok(); size += plan->sizes.step) {
    error = run_one(*owner, *plan, size, output);
    if (plan->sizes.step == 0) break;
  }
  output.end(error);
  if (interrupted()) return interrupted_exit_code();
  return error.ok() ? exit_success : fail(error);
}

std::string footer() {
  std::string text = "Transfer types:\n";
  for (unsigned i = 0; i < transfer_types; ++i) {
    const auto type = static_cast<transfer_type>(i);
    text += fmt::format("  {} {}: {}\n", i, name_of(type), meaning_of(type));
  }
  return text + "In sizes, K, M and G, with or without B or iB, are powers of 1024.";
}

void add_job_options(CLI::App& sub, gdsio_options& wanted) {
  const auto one_each = [&sub](const char* name, std::vector<std::string>& target, const char* description, const char* type) {
    sub.add_option(name, target, description)->allow_extra_args(false)->type_name(type);
  };
  one_each("-f,--file", wanted.files, "File, divided among the threads. Starts a job, as -D does", "FILE");
  one_each("-D,--directory", wanted.directories, "Folder that contains a file gdsio.N for each thread", "DIR");
  one_each("-d,--device", wanted.devices, "GPU by number, or device by name: 0, cuda:0, host:0 (default: the first)", "DEVICE");
  one_each("-n,--numa", wanted.nodes, "NUMA node whose cores the threads run on; -1: any", "NODE");
  one_each("-w,--threads", wanted.threads, "Number of threads; with -x 6 or 7 and without -B, requests per batch (default 1)", "N");
  one_each("-m,--memory", wanted.memories, "Memory: 0 and 1 device; host: 2 pinned, 3 malloc, 4 mmap (default 0)", "N");
}

void add_work_options(CLI::App& sub, gdsio_options& wanted) {
  sub.add_option("-x,--transfer", wanted.transfer, "Transfer type, see below (default 0)")->check(whole_number(0, 7));
  sub.add_option("-I,--io", wanted.io, "0 read, 1 write, 2 randread, 3 randwrite (default 0)")->type_name("N");
  sub.add_option("-s,--size", wanted.size, "Size of the data in each file (default: all of it; for writes 1G)")->type_name("SIZE");
  sub.add_option("-o,--offset", wanted.offset, "Start at this offset in each file")->type_name("SIZE");
  sub.add_option("-i,--io-size", wanted.sizes, "Request size, or LEAST:MOST:STEP for one run per size (default 1M)")->type_name("SIZE");
  sub.add_option("-T,--seconds", wanted.seconds, "Run for this long (default: one pass over the data)")
      ->check(number_of_seconds(0, most_seconds))
      ->type_name("SECONDS");
  sub.add_option_function<std::uint64_t>(
         "-k,--seed",
         [&wanted](const std::uint64_t& seed) {
           wanted.seed = seed;
           wanted.seeded = true;
         },
         "Seed for random offsets")
      ->check(whole_number(0, std::numeric_limits<std::uint64_t>::max()));
  sub.add_option("-B,--batch", wanted.depth, "Requests in flight per thread, with -x 3 (default 2), 5 (1), 6 and 7")
      ->check(whole_number(1, 65536));
  sub.add_option("-a,--alignment", wanted.alignment, "Random offsets are multiples of this (default: the request size)")->type_name("SIZE");
  sub.add_option("-O", wanted.buffered, "Writes: 0 bypasses the page cache, 1 uses it (default 0)")->check(whole_number(0, 1));
  sub.add_flag("-U,--unaligned", wanted.unaligned, "Random offsets at multiples of 4K");
  sub.add_flag("-V,--verify", wanted.verify, "Verify everything; written data is read back first, with its own output line");
  sub.add_flag("--no-verify", wanted.no_verify, "Verify nothing (default: up to 1G, after the clock has stopped)");
  sub.add_flag("-b,--no-register", wanted.skip_register, "Do not register memory");
  sub.add_flag("-F,--refill", wanted.refill, "Fill the memory again before each write; this time is not counted");
  sub.add_flag("-R,--random-data", wanted.fill, "Accepted for compatibility: written data is always pseudo-random");
  sub.add_flag("-p,--nvlinks", wanted.nvlinks, "Accepted for compatibility: the driver always routes copies");
  sub.add_flag("-J,--job-stats", wanted.job_stats, "Also print a line for each job");
}

void add_sweep_options(CLI::App& sub, sweep_options& wanted) {
  auto* sweep = sub.add_flag("--sweep", wanted.wanted,
                             "Test one file with several request sizes, thread counts and transfer types; print tables, bars and ceilings");
  for (const char* of_one_run : {"-i", "-w", "-x", "-I"}) sweep->excludes(sub.get_option(of_one_run));
  sub.add_option("--sweep-sizes", wanted.sizes, "Request sizes (default: 4K,64K,1M,16M)")->type_name("LIST")->needs(sweep);
  sub.add_option("--sweep-threads", wanted.threads, "Thread counts (default: 1,4,16)")->type_name("LIST")->needs(sweep);
  sub.add_option("--sweep-io", wanted.ios, "read, write, randread, randwrite (default: read)")->type_name("LIST")->needs(sweep);
  sub.add_option("--sweep-transfers", wanted.transfers, "Transfer types, see below (default: 0)")->type_name("LIST")->needs(sweep);
  sub.add_option("--plot", wanted.plot, "Plot the sweep into this SVG file")->type_name("FILE")->needs(sweep);
  sub.add_option("--csv", wanted.csv, "Write the figures of the sweep to this CSV file")->type_name("FILE")->needs(sweep);
}

}  // namespace

void add_io(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<gdsio_options>();
  CLI::App& sub = *app.add_subcommand("io", "Measure file reads and writes, with the options and the output of gdsio");
  sub.add_option("CONFIG", wanted->config, "gdsio configuration file, instead of -f and -D")->type_name("FILE");
  add_job_options(sub, *wanted);
  add_work_options(sub, *wanted);
  sub.add_flag("--cold", wanted->cold, "Drop the data from the page cache first, and fail if any of it remains");
  sub.add_flag("--warm", wanted->warm, "Read the data into the page cache first, and fail if it does not stay; writes go through it");
  sub.add_flag("--immutable", wanted->immutable, "Declare that the files do not change, so that Penstock can read ahead");
  sub.add_flag("--ceiling", wanted->ceiling, "Also measure the hardware's ceiling");
  sub.add_flag("--force", wanted->force, "Overwrite files that penstock io did not write");
  add_sweep_options(sub, wanted->sweep);
  add_output_options(sub, wanted->output);
  sub.footer(footer());
  sub.callback([wanted, &sub, &chosen] { chosen.run = [wanted, &sub] { return run_all(*wanted, sub); }; });
}

}  // namespace penstock::cli
