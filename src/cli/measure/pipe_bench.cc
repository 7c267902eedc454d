// penstock pipe-bench: the command line of bench/pipes.
#include <memory>
#include <string>

#include "bench/pipes.hpp"
#include "cli/common/command.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/sizes.hpp"
#include "cli/common/transfer_memory.hpp"
#include "cli/common/usage.hpp"

namespace penstock::cli {

namespace {

struct pipe_options_given {
  bench::pipe_bench_options run;
  std::string serve;
  std::vector<std::string> sizes;
  output_options output;
};

int run_pipe_bench(pipe_options_given given) {
  for (const auto& each : given.sizes) {
    const auto bytes = parse_size(each);
    if (!bytes) return fail(bytes.error()), exit_usage;
    if (*bytes == 0) return fail({errc::invalid_argument, "a tensor of no bytes has no speed"}), exit_usage;
    given.run.sizes.push_back(*bytes);
  }
  // Plain memory of the host is no device, and has a name of its own here.
  for (std::string* each : {&given.run.from, &given.run.to}) *each = *each == "host" || *each == "cpu" ? "host" : device_called(*each);
  end_at_first_interrupt();
  given.run.json = given.output.json;
  given.run.quiet = given.output.quiet;
  if (given.serve.empty()) return bench::run_pipes(given.run, "/proc/self/exe");
  given.run.url = given.serve;
  return bench::serve_pipes(given.run);
}

}  // namespace

void add_pipe_bench(CLI::App& app, command& chosen) {
  auto given = std::make_shared<pipe_options_given>();
  auto& run = given->run;
  CLI::App& sub = *app.add_subcommand("pipe-bench", "Measure messages between two processes, beside a bare copy in the same run");
  sub.add_option("--from", run.from, "Device of the sender's tensors: host, host:0, cuda:0 (default host)")->type_name("DEVICE");
  sub.add_option("--to", run.to, "Device of the receiver's tensors (default host)")->type_name("DEVICE");
  sub.add_option("--sizes", given->sizes, "Sizes of a tensor: a,b,c (default 4KiB to 1GiB)")->type_name("SIZE,...")->delimiter(',');
  sub.add_option("--channel", run.channels, "A channel that may be used; of several, the best first (default: all)")->type_name("CHANNEL");
  sub.add_option("--connections", run.connections, "Connections of a tcp pipe, at most (default 4)")->check(whole_number(1, 16));
  sub.add_option("--url", run.url, "Where to listen: unix:, tcp://127.0.0.1:0 (default unix:)")->type_name("URL");
  sub.add_option("--seconds", run.seconds, "Time to measure each figure (default 1)")
      ->check(number_of_seconds(0.001, 1e6))
      ->type_name("SECONDS");
  sub.add_option("--serve", given->serve, "Be the other process")->group("");
  add_output_options(sub, given->output);
  sub.callback([given, &chosen] { chosen.run = [given] { return run_pipe_bench(*given); }; });
}

}  // namespace penstock::cli
