// penstock bench: the command line of bench/.
#include <fmt/format.h>

#include <cstdio>
#include <memory>

#include "bench/bench.hpp"
#include "bench/meter.hpp"
#include "cli/commands.hpp"
#include "cli/interrupt.hpp"
#include "cli/progress.hpp"
#include "cli/sizes.hpp"

namespace penstock::cli {
namespace {

struct bench_options {
  bench::options run;
  bool only_hot = false;
  bool only_cold = false;
  bool log = false;
  bool list = false;
  std::vector<std::string> sizes;
};

int list_rows() {
  for (const bench::row_summary& row : bench::rows()) fmt::print("{:<15} {}\n", row.name, row.summary);
  return exit_success;
}

void show_progress(std::string_view doing, unsigned done, unsigned rows, bool log) {
  constexpr unsigned width = 24;
  static const bench::stopwatch since_start;
  const unsigned filled = rows > 0 ? done * width / rows : 0;
  const std::string bar = std::string(filled, '#') + std::string(width - filled, '.');
  const std::string left = done > 0 ? fmt::format(", about {:.0f} s left", since_start.seconds() / done * (rows - done)) : std::string();
  show_status_line(doing.empty() ? std::string() : fmt::format("{} [{}] {} of {} rows{}", doing, bar, done, rows, left));
  if (log && !doing.empty()) fmt::print(stderr, "penstock: {} of {} rows done, {}\n", done, rows, doing);
}

status take_sizes(const bench_options& wanted, bench::options& run) {
  run.over_sizes = !wanted.sizes.empty();
  for (const std::string& each : wanted.sizes) {
    auto bytes = parse_size(each);
    if (!bytes) return bytes.error();
    if (*bytes == 0) return {errc::invalid_argument, "--sizes: a call of 0 bytes moves nothing"};
    run.sizes.push_back(*bytes);
  }
  return {};
}

int run_bench(const bench_options& wanted) {
  if (wanted.list) return list_rows();
  bench::options run = wanted.run;
  run.hot = !wanted.only_cold || wanted.only_hot;
  run.cold = !wanted.only_hot || wanted.only_cold;
  run.stop = interrupted;
  run.progress = [log = wanted.log](std::string_view doing, unsigned done, unsigned rows) { show_progress(doing, done, rows, log); };
  if (status error = take_sizes(wanted, run); !error.ok()) return fail(error), exit_usage;
  const int exit_code = bench::run(run);
  show_status_line("");
  return interrupted() ? interrupted_exit_code() : exit_code;
}

}  // namespace

void add_bench(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<bench_options>();
  bench::options& run = wanted->run;
  CLI::App& sub = *app.add_subcommand("bench", "Measure this machine: every figure beside the ceiling of the same run");
  sub.add_option("--rows", run.rows, "Rows to measure: a,b,c (default: all)")->delimiter(',');
  sub.add_flag("--list", wanted->list, "List the rows");
  sub.add_flag("--hot", wanted->only_hot, "Only files in the page cache");
  sub.add_flag("--cold", wanted->only_cold, "Only files not in the page cache");
  sub.add_flag("--quick", run.quick, "Small sizes: seconds on a small machine");
  sub.add_flag("--targets", run.show_targets, "Show PASS or below beside rows that have a target");
  add_size_option(sub, "--size", run.size_bytes, "Size of the file (default 4GiB, quick 256MiB)");
  auto* file = sub.add_option("--file", run.file, "Read this file; it is made, and kept, when it does not exist")->type_name("FILE");
  sub.add_option("--dir", run.directory, "Where temporary files are made (default: here)")->type_name("DIR")->excludes(file);
  add_device_options(sub, run.device);
  sub.add_option("--repeats", run.repeats, "Runs of each row (default 5, cold 3)")->check(CLI::PositiveNumber);
  // CLI11 gives one of these to an option that may lack its value and does.
  const auto take_json_file = [&run](const std::string& name) {
    run.json_file = name.empty() || name == "true" || name == "{}" ? "-" : name;
  };
  sub.add_option_function<std::string>("--json", take_json_file, "Print JSON in place of the table, or write it to this file")
      ->type_name("[FILE]")
      ->expected(0, 1);
  sub.add_option("--sizes", wanted->sizes, "Also calls of these sizes, from one thread: 4KiB,1MiB")->delimiter(',');
  sub.add_flag_callback("-q,--quiet", hide_progress, "Print figures and errors only: no progress");
  sub.add_flag("--log", wanted->log, "Say on stderr what is being done, a line each");
  sub.callback([wanted, &chosen] { chosen = [wanted] { return run_bench(*wanted); }; });
}

}  // namespace penstock::cli
