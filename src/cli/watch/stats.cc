// penstock stats: prints the activity of running processes from their counters.
#include <fmt/format.h>

#include <charconv>
#include <memory>

#include "cli/common/command.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/json.hpp"
#include "cli/common/say.hpp"
#include "cli/common/sizes.hpp"
#include "cli/common/usage.hpp"
#include "cli/watch/observed.hpp"
#include "cli/watch/prometheus.hpp"
#include "machine/platform_facts.hpp"

namespace penstock::cli {
namespace {

struct stats_options {
  int pid = 0;
  int level = 1;
  bool prometheus = false;
  std::string serve;
  output_options output;
};

int show_one(const stats_options& wanted) {
  const auto seen = observe_process(wanted.pid);
  if (!seen) return fail(seen.error());
  if (wanted.output.json) {
    print_json(to_json(*seen));
  } else if (wanted.prometheus) {
    put_exactly(exposition({{*seen}, {}}));
  } else {
    say("{}", as_is{describe(*seen, wanted.level)});
  }
  return exit_success;
}

// Prints the running processes, and those that have exited on one line.
void print_table(const process_list& seen, bool quiet) {
  std::vector<int> ended;
  bool is_titled = false;
  for (const auto& each : seen.processes) {
    if (each.ended) {
      ended.push_back(each.pid);
      continue;
    }
    if (!is_titled) say("{}\n", stats_title());
    is_titled = true;
    say_hanging(2 + std::to_string(each.pid).size(), "{}\n", stats_line(each));
  }
  if (quiet) return;
  if (!is_titled && (seen.problems.empty() || !ended.empty())) say("{}\n", no_processes());
  if (!ended.empty()) say("{}\n", ended_line(ended, "`penstock stats -p PID` shows the last figures of one"));
  // The driver counts all cuFile programs on the machine, including those that do not use Penstock.
  const auto module = machine::gather_nvidia_fs(machine::tree());
  if (module.shadow_mib)
    say("nvidia-fs: {} MiB of shadow buffers in {}\n", *module.shadow_mib, counted(module.processes.value_or(0), "process", "processes"));
}

int show_all(const stats_options& wanted) {
  const auto seen = observe_processes(true);
  if (wanted.output.json) {
    auto documents = nlohmann::json::array();
    for (const auto& each : seen.processes) documents.push_back(to_json(each));
    print_json(documents);
  } else if (wanted.prometheus) {
    put_exactly(exposition(seen));
  } else {
    print_table(seen, wanted.output.quiet);
  }
  for (const auto& each : seen.problems) (void)fail(each);
  return seen.processes.empty() && !seen.problems.empty() ? exit_failure : exit_success;
}

// where: PORT or ADDRESS:PORT.
int serve(const std::string& where) {
  const auto colon = where.rfind(':');
  const std::string address = colon == std::string::npos ? "127.0.0.1" : where.substr(0, colon);
  const std::string number = colon == std::string::npos ? where : where.substr(colon + 1);
  std::uint16_t port = 0;
  const auto [end, problem] = std::from_chars(number.data(), number.data() + number.size(), port);
  if (problem != std::errc() || end != number.data() + number.size()) {
    complain("penstock: stats: --serve {}: expected PORT or 127.0.0.1:PORT\n", where);
    return exit_usage;
  }
  const auto started = [&](std::uint16_t bound) { say("http://{}:{}/metrics\n", address, bound); };
  const auto ended = serve_metrics(
      address, port, [] { return exposition(observe_processes(true)); }, started, interrupted);
  if (!ended.ok()) return fail(ended);
  return interrupted_exit_code();
}

}  // namespace

void add_stats(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<stats_options>();
  CLI::App& sub = *app.add_subcommand("stats", "Show the reads and writes of running processes: one, or all of this user's");
  auto* pid = sub.add_option("-p,--pid", wanted->pid, "Process to show (default: all, one line each)")
                  ->check(whole_number(1, 1 << 30))
                  ->type_name("PID");
  sub.add_option("-l,--level", wanted->level, "1: totals and speed; 2: also histograms of sizes and times; 3: also by device")
      ->check(whole_number(1, 3))
      ->needs(pid);
  add_output_options(sub, wanted->output);
  auto* as_json = sub.get_option("--json");
  auto* prometheus = sub.add_flag("--prometheus", wanted->prometheus, "Print the counters in Prometheus' text format");
  prometheus->excludes(as_json);
  sub.add_option("--serve", wanted->serve, "Serve the counters to Prometheus at http://127.0.0.1:PORT/metrics, until Ctrl-C")
      ->type_name("PORT")
      ->excludes(pid)
      ->excludes(as_json)
      ->excludes(prometheus);
  sub.callback([wanted, &chosen] {
    chosen.run = [wanted] {
      if (!wanted->serve.empty()) return serve(wanted->serve);
      return wanted->pid != 0 ? show_one(*wanted) : show_all(*wanted);
    };
  });
}

}  // namespace penstock::cli
