#include "cli/io/io_sweep.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "bench/meter.hpp"
#include "cli/common/command.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/json.hpp"
#include "cli/common/plain_file.hpp"
#include "cli/common/plot.hpp"
#include "cli/common/say.hpp"
#include "cli/common/sizes.hpp"
#include "cli/common/transfer_memory.hpp"
#include "cli/io/io_ceiling.hpp"
#include "cli/io/io_report.hpp"

namespace penstock::cli {
namespace {

constexpr std::size_t most_runs = 512;

struct sweep_point {
  io_type io = io_type::read;
  transfer_type transfer = transfer_type::gpu_direct;
  std::uint64_t size = 0;
  unsigned threads = 0;
  io_figures figures;
  [[nodiscard]] double gbs() const { return bench::gigabytes_per_second(figures.all.bytes, figures.all.seconds); }
};

// Measured once per direction, because it takes seconds.
struct sweep_ceiling {
  io_type io = io_type::read;
  bool through_cache = false;
  io_ceiling measured;
};

// Not drawn for random access: the ceiling is sequential, and random requests cannot reach it.
bool is_drawn(const sweep_ceiling& of) { return !is_random(of.io) && of.measured.gbs > 0; }

std::string_view cache_words_of(const sweep_ceiling& of) { return of.through_cache ? "page cache" : "no page cache"; }

std::string label_of(const sweep_ceiling& of) { return fmt::format("{} ceiling, sequential, {}", name_of(of.io), cache_words_of(of)); }

struct sweep_result {
  std::vector<sweep_point> points;
  std::vector<sweep_ceiling> ceilings;
  std::vector<std::string> remarks;  // includes the reasons for missing ceilings
  status error;
};

// --- parsing of lists

std::vector<std::string_view> parts_of(std::string_view list) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    parts.push_back(list.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

template <class Value, class Parse>
status parse_list(const char* option, std::string_view list, Parse parse, std::vector<Value>& out) {
  for (const std::string_view part : parts_of(list)) {
    result<Value> value = parse(part);
    if (!value) return value.error().with_context(option);
    if (std::ranges::find(out, *value) == out.end()) out.push_back(*value);
  }
  return {};
}

result<std::uint64_t> size_in(std::string_view text) {
  auto size = parse_gdsio_size(text);
  if (size && *size == 0) return status(errc::invalid_argument, "the request size must not be 0");
  return size;
}

result<unsigned> count_in(std::string_view text, unsigned least, unsigned most) {
  unsigned number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size() && number >= least && number <= most) return number;
  return status(errc::invalid_argument, fmt::format("\"{}\" is not a number from {} to {}", text, least, most));
}

result<transfer_type> transfer_in(std::string_view text) {
  auto number = count_in(text, 0, transfer_types - 1);
  if (!number) return number.error();
  return static_cast<transfer_type>(*number);
}

// --- runs

io_plan plan_of_run(const io_plan& base, io_type io, transfer_type transfer, std::uint64_t size, unsigned threads) {
  io_plan plan = base;
  plan.io = io;
  plan.transfer = transfer;
  plan.sizes = {size, size, 0};
  plan.seconds = base.seconds > 0 ? base.seconds : 1;
  plan.ceiling = false;
  plan.jobs.front().threads = threads;
  plan.jobs.front().io_size.reset();
  return plan;
}

void note_remarks(const std::vector<std::string>& remarks, sweep_result& out) {
  for (const std::string& each : remarks) {
    if (std::ranges::find(out.remarks, each) == out.remarks.end()) out.remarks.push_back(each);
  }
}

status run_point(const engine& owner, const io_plan& plan, sweep_result& out) {
  std::vector<std::string> remarks;
  auto figures = run_io(owner, plan, plan.sizes.least, remarks);
  note_remarks(remarks, out);
  if (!figures) return figures.error();
  out.points.push_back({plan.io, plan.transfer, plan.sizes.least, plan.jobs.front().threads, *std::move(figures)});
  return {};
}

io_type in_order(io_type io) { return is_write(io) ? io_type::write : io_type::read; }

// If a ceiling cannot be measured, adds a remark; the figures are valid without it.
void add_ceiling(const engine& owner, const io_plan& base, const sweep_point& last, sweep_result& out) {
  const auto lacks = [&](const status& why) {
    out.remarks.push_back(fmt::format("no ceiling for {}: {}", name_of(last.io), why.message()));
  };
  auto device = choose_device_of_d(owner, base.jobs.front().device);
  if (!device) return lacks(device.error());
  io_plan plan = plan_of_run(base, in_order(last.io), last.transfer, last.size, last.threads);
  const bool hot = last.figures.cached_before.value_or(0) * 2 > last.figures.data_bytes;
  auto found = measure_ceiling(plan, device->name, base.jobs.front().file, last.figures.data_bytes, hot);
  if (!found) return lacks(found.error());
  out.ceilings.push_back({last.io, is_write(last.io) ? !writes_direct(plan) : hot, *std::move(found)});
}

sweep_result carry_out_sweep(const engine& owner, const sweep_plan& plan, const io_plan& base, std::vector<std::string> remarks,
                             bool quiet) {
  sweep_result out{{}, {}, std::move(remarks), {}};
  for (const io_type io : plan.ios) {
    for (const transfer_type transfer : plan.transfers) {
      for (const std::uint64_t size : plan.sizes) {
        for (const unsigned threads : plan.threads) {
          if (interrupted()) return out.error = {errc::cancelled, "interrupted"}, out;
          out.error = run_point(owner, plan_of_run(base, io, transfer, size, threads), out);
          if (!out.error.ok()) return out;
          const auto& last = out.points.back();
          if (!quiet)
            complain("penstock: {} {} {} x {}: {} GB/s\n", name_of(io), name_of(transfer), format_size(size), threads,
                     fmt::format("{:.2f}", last.gbs()));
        }
      }
    }
    add_ceiling(owner, base, out.points.back(), out);
  }
  return out;
}

// --- output

// A table for one transfer type and direction: a row per size, a column per thread count.
struct sweep_block {
  io_type io;
  transfer_type transfer;
};

std::vector<sweep_block> blocks_of(const sweep_result& of) {
  std::vector<sweep_block> blocks;
  for (const auto& each : of.points) {
    const auto same = [&](const sweep_block& block) { return block.io == each.io && block.transfer == each.transfer; };
    if (std::ranges::none_of(blocks, same)) blocks.push_back({each.io, each.transfer});
  }
  return blocks;
}

const sweep_point* point_at(const sweep_result& of, const sweep_block& block, std::uint64_t size, unsigned threads) {
  const auto found = std::ranges::find_if(of.points, [&](const sweep_point& each) {
    return each.io == block.io && each.transfer == block.transfer && each.size == size && each.threads == threads;
  });
  return found == of.points.end() ? nullptr : &*found;
}

void print_block(const sweep_result& of, const sweep_plan& plan, const sweep_block& block) {
  std::string title = fmt::format("{} {}, GB/s", name_of(block.io), name_of(block.transfer));
  say("{}\n", title);
  std::string heads = fmt::format("  {:>10}", "threads");
  for (const unsigned threads : plan.threads) heads += fmt::format("{:>9}", threads);
  say("{}\n", as_is{heads});
  for (const std::uint64_t size : plan.sizes) {
    std::string line = fmt::format("  {:>10}", format_size(size));
    for (const unsigned threads : plan.threads) {
      const auto* point = point_at(of, block, size, threads);
      line += point == nullptr ? fmt::format("{:>9}", "-") : fmt::format("{:>9.2f}", point->gbs());
    }
    say("{}\n", as_is{line});
  }
}

// Prints a bar for each run, proportional to its speed.
void print_bars(const sweep_result& of) {
  constexpr double columns = 29;
  double most = 0;
  for (const auto& each : of.points) most = std::max(most, each.gbs());
  for (const auto& each : of.ceilings) most = is_drawn(each) ? std::max(most, each.measured.gbs) : most;
  const auto bar = [&](double gbs) { return std::string(most > 0 ? static_cast<std::size_t>(gbs / most * columns + 0.5) : 0, '#'); };
  for (const auto& each : of.points) {
    const auto name = fmt::format("{} {} {} x {}", name_of(each.io), name_of(each.transfer), format_size(each.size), each.threads);
    say("  {}\n", as_is{fmt::format("{:<40} {:<29} {:>6.2f}", name, bar(each.gbs()), each.gbs())});
  }
  for (const auto& each : of.ceilings) {
    if (is_drawn(each))
      say("  {}\n", as_is{fmt::format("{:<40} {:<29} {:>6.2f}", label_of(each), bar(each.measured.gbs), each.measured.gbs)});
  }
}

void print_sweep(const sweep_result& of, const sweep_plan& plan) {
  for (const auto& block : blocks_of(of)) print_block(of, plan, block);
  for (const auto& each : of.ceilings)
    say("{}: {} GB/s ({})\n", label_of(each), fmt::format("{:.2f}", each.measured.gbs), each.measured.name);
  if (!of.points.empty()) print_bars(of);
}

nlohmann::json json_of(const sweep_result& of) {
  auto runs = nlohmann::json::array();
  for (const auto& each : of.points) runs.push_back(to_json(each.figures));
  auto ceilings = nlohmann::json::array();
  for (const auto& each : of.ceilings)
    ceilings.push_back({{"io_type", name_of(each.io)},
                        {"access", "sequential"},
                        {"through_page_cache", each.through_cache},
                        {"name", each.measured.name},
                        {"gb_per_s", each.measured.gbs}});
  return {{"runs", std::move(runs)}, {"ceilings", std::move(ceilings)}, {"remarks", of.remarks}, {"error", error_json(of.error)}};
}

std::string csv_of(const sweep_result& of) {
  std::string out = "io_type,xfer_type,io_size,threads,gb_per_s,requests,seconds,mean_us,p50_us,p99_us,cpu_seconds,path\n";
  for (const auto& each : of.points) {
    const auto& all = each.figures.all;
    out += fmt::format("{},{},{},{},{:.6f},{},{:.6f},{:.3f},{:.3f},{:.3f},{:.6f},\"{}\"\n", name_of(each.io), name_of(each.transfer),
                       each.size, each.threads, each.gbs(), all.latencies.total(), all.seconds, all.latencies.mean_us(),
                       all.latencies.percentile_us(0.5), all.latencies.percentile_us(0.99), each.figures.cpu_seconds, each.figures.path);
  }
  return out;
}

// Plots throughput against request size, with a line for each transfer type, direction and thread count.
line_plot plot_of(const sweep_result& of, const sweep_plan& plan) {
  line_plot plot{"sweep", "penstock io --sweep", "Throughput by request size", "GB/s", x_axis::bytes, "GB/s", {}, {}};
  for (const auto& block : blocks_of(of)) {
    for (const unsigned threads : plan.threads) {
      plot_line line{fmt::format("{} {} x {}", name_of(block.io), name_of(block.transfer), threads),
                     {},
                     static_cast<unsigned>(plot.lines.size()) % plot_styles};
      for (const auto& each : of.points) {
        const bool is_of_line = each.io == block.io && each.transfer == block.transfer && each.threads == threads;
        if (is_of_line && each.gbs() > 0) line.points.emplace_back(static_cast<double>(each.size), each.gbs());
      }
      std::ranges::sort(line.points);
      plot.lines.push_back(std::move(line));
    }
  }
  for (const auto& each : of.ceilings) {
    if (is_drawn(each)) plot.levels.push_back({label_of(each), each.measured.gbs});
  }
  return plot;
}

// Returns true if the path refers to an open file, a terminal or a pipe, which cannot be replaced by a rename.
bool is_of_descriptor(std::string_view path) {
  return path == "/dev/stdout" || path == "/dev/stderr" || path.starts_with("/dev/fd/") || path.starts_with("/proc/");
}

// An output file that is renamed to its final name once it is complete. Until then, and after an error, an existing file is left unchanged.
// One thread.
class figures_file {
 public:
  figures_file() = default;
  figures_file(const figures_file&) = delete;
  figures_file& operator=(const figures_file&) = delete;
  ~figures_file() {
    if (!hidden_.empty()) ::unlink(hidden_.c_str());
  }
  // path: empty for no file. Errors: os errors.
  status begin(const std::string& path) {
    if (path.empty()) return {};
    std::error_code missing;
    const auto real = std::filesystem::canonical(path, missing);
    path_ = missing ? path : real.string();  // replace the target of a link, not the link
    const bool is_kept = is_of_descriptor(path) || (!missing && !std::filesystem::is_regular_file(real, missing));
    const std::string beside = fmt::format("{}.{}.part", path_, ::getpid());
    fd_ = owned_fd(is_kept ? ::open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC)
                           : ::open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
    if (fd_.get() < 0) return status::from_errno(errno, fmt::format("create {}", path));
    if (!is_kept) hidden_ = beside;
    return {};
  }
  // Errors: os errors.
  status end(std::string_view text) {
    if (path_.empty()) return {};
    while (!text.empty()) {
      const ssize_t count = ::write(fd_.get(), text.data(), text.size());
      if (count < 0 && errno != EINTR) return status::from_errno(errno, fmt::format("write {}", path_));
      text.remove_prefix(static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
    }
    if (status error = fd_.close(path_); !error.ok() || hidden_.empty()) return error;
    if (::rename(hidden_.c_str(), path_.c_str()) != 0) return status::from_errno(errno, fmt::format("rename to {}", path_));
    hidden_.clear();
    return {};
  }

 private:
  std::string path_, hidden_;  // hidden_: the temporary name, while the file has it
  owned_fd fd_;
};

void show_sweep(const sweep_result& of, const sweep_plan& plan, const output_options& output) {
  if (output.json) return print_json(json_of(of));
  print_sweep(of, plan);
  for (const std::string& each : of.remarks) {
    if (!output.quiet) complain("penstock: {}\n", each);
  }
}

}  // namespace

result<sweep_plan> parse_sweep(const sweep_options& wanted) {
  const auto or_else = [](const std::string& list, const char* standard) { return list.empty() ? std::string(standard) : list; };
  sweep_plan plan;
  status error = parse_list("--sweep-sizes", or_else(wanted.sizes, "4K,64K,1M,16M"), size_in, plan.sizes);
  const auto threads_in = [](std::string_view text) { return count_in(text, 1, 1024); };
  if (error.ok()) error = parse_list("--sweep-threads", or_else(wanted.threads, "1,4,16"), threads_in, plan.threads);
  if (error.ok()) error = parse_list("--sweep-io", or_else(wanted.ios, "read"), parse_io_type, plan.ios);
  if (error.ok()) error = parse_list("--sweep-transfers", or_else(wanted.transfers, "0"), transfer_in, plan.transfers);
  if (!error.ok()) return error;
  if (plan.runs() > most_runs)
    return status(errc::invalid_argument, fmt::format("--sweep: {} runs, but at most {} are allowed", plan.runs(), most_runs));
  std::ranges::sort(plan.sizes);
  return plan;
}

int run_sweep(const sweep_options& wanted, const sweep_plan& plan, const io_plan& base, std::vector<std::string> remarks,
              const output_options& output) {
  figures_file csv, drawing;
  status written = csv.begin(wanted.csv);
  if (written.ok()) written = drawing.begin(wanted.plot);
  if (!written.ok()) return fail(written);
  auto owner = make_engine();
  if (!owner) return fail(owner.error());
  const double seconds = base.seconds > 0 ? base.seconds : 1;
  if (!output.quiet) complain("penstock: {} of {} s each\n", counted(plan.runs(), "run"), fmt::format("{:g}", seconds));
  const auto found = carry_out_sweep(*owner, plan, base, std::move(remarks), output.quiet);
  show_sweep(found, plan, output);
  if (!found.points.empty()) {
    written = csv.end(csv_of(found));
    if (const status drawn = drawing.end(drawing_of(plot_of(found, plan))); written.ok()) written = drawn;
  }
  if (interrupted()) return interrupted_exit_code();
  if (!found.error.ok()) return fail(found.error);
  return written.ok() ? exit_success : fail(written);
}

}  // namespace penstock::cli
