// penstock bench: the command line of the benchmark in bench/.
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>

#include "bench/bench.hpp"
#include "bench/meter.hpp"
#include "cli/common/check_machine.hpp"
#include "cli/common/command.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/json.hpp"
#include "cli/common/progress.hpp"
#include "cli/common/say.hpp"
#include "cli/common/sizes.hpp"
#include "cli/common/text_file.hpp"
#include "cli/common/transfer_memory.hpp"
#include "cli/common/usage.hpp"
#include "cli/measure/peers.hpp"
#include "cli/measure/report_page.hpp"

namespace penstock::cli {
namespace {

struct bench_options {
  bench::options run;
  bool only_hot = false;
  bool only_cold = false;
  bool log = false;
  bool list = false;
  std::vector<std::string> sizes;
  std::string report_file, from_file;
  std::string python = "python3";
  bool no_others = false;
};

int list_rows(bool as_json) {
  if (as_json) {
    auto rows = nlohmann::json::array();
    for (const bench::row_summary& row : bench::rows()) rows.push_back({{"name", row.name}, {"summary", row.summary}});
    print_json(rows);
    return exit_success;
  }
  for (const bench::row_summary& row : bench::rows()) say("{:<15} {}\n", row.name, row.summary);
  return exit_success;
}

void show_progress(std::string_view doing, unsigned done, unsigned rows, bool log) {
  constexpr unsigned width = 24;
  static const bench::stopwatch since_start;
  const unsigned filled = rows > 0 ? done * width / rows : 0;
  const std::string bar = std::string(filled, '#') + std::string(width - filled, '.');
  const std::string left = done > 0 ? fmt::format(", about {:.0f} s left", since_start.seconds() / done * (rows - done)) : std::string();
  show_status_line(doing.empty() ? std::string() : fmt::format("{} [{}] {} of {} rows{}", doing, bar, done, rows, left));
  if (log && !doing.empty()) complain("penstock: {} of {} rows done, {}\n", done, rows, doing);
}

status take_sizes(const bench_options& wanted, bench::options& run) {
  run.over_sizes = !wanted.sizes.empty() || !wanted.report_file.empty();
  for (const std::string& each : wanted.sizes) {
    auto bytes = parse_size(each);
    if (!bytes) return bytes.error();
    if (*bytes == 0) return {errc::invalid_argument, "--sizes: the call size must not be 0"};
    run.sizes.push_back(*bytes);
  }
  return {};
}

// Returns the command line as typed, if the kernel provides it.
std::string own_command_line() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::string out;
  for (std::string word; std::getline(file, word, '\0');) {
    const bool is_plain = !word.empty() && word.find_first_of(" \t\n\"'\\$`*?&|;<>()") == std::string::npos;
    out += (out.empty() ? "" : " ") + (is_plain ? word : "'" + word + "'");
  }
  return out;
}

status write_page(const std::string& name, const nlohmann::json& report) {
  auto page = render_report(report);
  if (!page) return page.error();
  errno = 0;
  std::ofstream file(name, std::ios::binary);
  file << *page;
  file.close();
  return file ? status() : status::from_errno(errno != 0 ? errno : EIO, fmt::format("write {}", name));
}

// Checks first that the page can be written, because the measurements take minutes. Leaves an existing file unchanged.
status can_be_written(const std::string& name) {
  std::error_code ignored;
  const bool was_there = std::filesystem::exists(name, ignored);
  errno = 0;
  if (!std::ofstream(name, std::ios::binary | std::ios::app))
    return status::from_errno(errno != 0 ? errno : EIO, fmt::format("write {}", name));
  if (!was_there) std::filesystem::remove(name, ignored);
  return {};
}

// Adds measurements of other libraries and facts that only this command has, and writes the page.
status complete(const bench_options& wanted, nlohmann::json& report, const std::string& file) {
  report["command"] = own_command_line();
  report["file"] = file;
  report["machine"] = to_json(examine(machine::tree()), {true, true, true, false});
  // Replaces invalid UTF-8 once for all uses.
  report = nlohmann::json::parse(report.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  if (!wanted.no_others && report.at("stopped") == false) {
    peer_request others{wanted.python, file, text_in(report, "device"), {}, wanted.run.quick};
    for (const auto& point : list_in(report, "sizes")) {
      const auto bytes = point.at("call_bytes").get<std::uint64_t>();
      if (std::ranges::find(others.sizes, bytes) == others.sizes.end()) others.sizes.push_back(bytes);
    }
    show_status_line("measuring other libraries");
    if (wanted.log) complain("penstock: measuring other libraries\n");
    report["peers"] = measure_peers(others);
  }
  return write_page(wanted.report_file, report);
}

int report_saved(const bench_options& wanted) {
  constexpr std::uint64_t most_bytes = std::uint64_t{256} << 20;
  const auto text = read_text(wanted.from_file, most_bytes);
  if (!text) return interrupted() ? interrupted_exit_code() : fail(text.error());
  const auto report = nlohmann::json::parse(*text, nullptr, false);
  status error = report.is_object() ? write_page(wanted.report_file, report) : status(errc::invalid_argument, "not a JSON document");
  if (error.code() == errc::invalid_argument) error = {errc::invalid_argument, fmt::format("{}: {}", wanted.from_file, error.message())};
  return error.ok() ? exit_success : fail(error);
}

int run_bench(const bench_options& wanted) {
  if (wanted.list) return list_rows(wanted.run.json_file == "-");
  if (!wanted.from_file.empty()) return report_saved(wanted);
  bench::options run = wanted.run;
  run.device = device_called(run.device);
  run.hot = !wanted.only_cold || wanted.only_hot;
  run.cold = !wanted.only_hot || wanted.only_cold;
  run.stop = interrupted;
  if (const std::size_t columns = columns_of(stdout); columns > 0) run.columns = columns;
  bool has_report = true;
  run.failed = [&has_report](const status& error) {
    has_report = false;
    (void)fail(error);
  };
  run.progress = [log = wanted.log](std::string_view doing, unsigned done, unsigned rows) { show_progress(doing, done, rows, log); };
  if (status error = take_sizes(wanted, run); !error.ok()) return fail(error), exit_usage;
  if (!wanted.report_file.empty()) {
    if (status error = can_be_written(wanted.report_file); !error.ok()) return fail(error);
    run.complete = [&](nlohmann::json& report, const std::string& file) { return complete(wanted, report, file); };
  }
  const int exit_code = bench::run(run);
  if (has_report) note_printed_json();
  show_status_line("");
  return interrupted() ? interrupted_exit_code() : exit_code;
}

}  // namespace

void add_bench(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<bench_options>();
  bench::options& run = wanted->run;
  CLI::App& sub = *app.add_subcommand("bench", "Measure this machine: each figure next to the ceiling from the same run");
  sub.add_option("--rows", run.rows, "Rows to measure: a,b,c (default: all)")->type_name("ROW,...")->delimiter(',');
  sub.add_flag("--list", wanted->list, "List the rows");
  sub.add_flag("--hot", wanted->only_hot, "Only files in the page cache");
  sub.add_flag("--cold", wanted->only_cold, "Only files not in the page cache");
  sub.add_flag_callback(
      "--no-io-uring", [&run] { run.use_io_uring = false; }, "Behave as if io_uring were forbidden");
  sub.add_flag("--quick", run.quick, "Use small sizes: takes seconds on a small machine");
  sub.add_flag("--targets", run.show_targets, "Mark rows that have a target with PASS or below");
  add_size_option(sub, "--size", run.size_bytes, "Size of the file (default 4GiB, quick 256MiB)");
  auto* file = sub.add_option("--file", run.file, "Read this file; if it does not exist, create and keep it")->type_name("FILE");
  sub.add_option("--dir", run.directory, "Folder for temporary files (default: the current folder)")->type_name("DIR")->excludes(file);
  add_device_options(sub, run.device);
  sub.add_option("--repeats", run.repeats, "Runs of each row (default 5, cold 3)")->check(whole_number(1));
  // CLI11 passes this text for an option whose optional value is missing.
  const auto take_json_file = [&run](const std::string& name) {
    run.json_file = name.empty() || name == "true" || name == "{}" ? "-" : name;
    if (run.json_file == "-") promise_json();
  };
  sub.add_option_function<std::string>("--json", take_json_file, "Print JSON instead of the table, or write it to this file")
      ->type_name("[FILE]")
      ->expected(0, 1);
  sub.add_option("--sizes", wanted->sizes,
                 "Also measure calls with these sizes, from one thread: 4KiB,1MiB (default with --report: 4KiB to 64MiB)")
      ->type_name("SIZE,...")
      ->delimiter(',');
  auto* page =
      sub.add_option("--report", wanted->report_file, "Write an HTML page with plots of all figures, compared with other libraries")
          ->type_name("FILE");
  sub.add_option("--from", wanted->from_file, "Measure nothing: create the page from this --json file")->type_name("FILE")->needs(page);
  sub.add_option("--python", wanted->python, "Python interpreter with the other libraries installed (default python3)")
      ->type_name("FILE")
      ->needs(page);
  sub.add_flag("--no-others", wanted->no_others, "Omit other libraries from the page")->needs(page);
  sub.add_flag_callback("-q,--quiet", hide_progress, "Print figures and errors only");
  sub.add_flag("--log", wanted->log, "Print each step on stderr");
  sub.callback([wanted, &chosen] { chosen.run = [wanted] { return run_bench(*wanted); }; });
}

}  // namespace penstock::cli
