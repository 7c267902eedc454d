// penstock pipe-bench: the command line of the pipe benchmark in bench/.
#include <memory>
#include <string>

#include "bench/pipes.hpp"
#include "cli/common/command.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/json.hpp"
#include "cli/common/say.hpp"
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

// Replaces the word with the engine's name for the device. Errors: not_found.
status name_memory(std::string& word) {
  const bool is_plain = word == host_memory || word == "cpu";
  if (is_plain) word = host_memory;
  if (is_plain) return {};
  const auto owner = make_engine();
  if (!owner) return owner.error();
  const auto device = choose_device(*owner, word);
  if (device) word = device->name;
  return device.error();
}

int run_pipe_bench(pipe_options_given given) {
  for (const auto& each : given.sizes) {
    const auto bytes = parse_size(each);
    if (!bytes) return fail(bytes.error()), exit_usage;
    if (*bytes == 0) return fail({errc::invalid_argument, "--sizes: a tensor needs at least one byte"}), exit_usage;
    given.run.sizes.push_back(*bytes);
  }
  // Plain host memory is not a device; it has its own name here.
  for (std::string* each : {&given.run.from, &given.run.to}) {
    if (status error = name_memory(*each); !error.ok()) return fail(error);
  }
  end_at_first_interrupt();
  given.run.json = given.output.json;
  given.run.quiet = given.output.quiet;
  if (const std::size_t columns = columns_of(stdout); columns > 0) given.run.columns = columns;
  bool has_report = true;
  given.run.failed = [&has_report](const status& error) {
    has_report = false;
    (void)fail(error.with_context("pipe-bench"));
  };
  if (given.serve.empty()) {
    const int exit_code = bench::run_pipes(given.run, "/proc/self/exe");
    if (has_report) note_printed_json();
    return exit_code;
  }
  given.run.url = given.serve;
  return bench::serve_pipes(given.run);
}

}  // namespace

void add_pipe_bench(CLI::App& app, command& chosen) {
  auto given = std::make_shared<pipe_options_given>();
  auto& run = given->run;
  CLI::App& sub =
      *app.add_subcommand("pipe-bench", "Measure messages between two processes, with a plain copy in the same run for comparison");
  sub.add_option("--from", run.from, "Device of the sender's tensors: host, host:0, cuda:0 (default host)")->type_name("DEVICE");
  sub.add_option("--to", run.to, "Device of the receiver's tensors (default host)")->type_name("DEVICE");
  sub.add_option("--sizes", given->sizes, "Tensor sizes: a,b,c (default 4KiB to 1GiB)")->type_name("SIZE,...")->delimiter(',');
  sub.add_option("--channel", run.channels, "Channel to allow; can be repeated, best first (default: all)")->type_name("CHANNEL");
  sub.add_option("--connections", run.connections, "Maximum number of connections of a tcp pipe (default 4)")->check(whole_number(1, 16));
  sub.add_option("--url", run.url, "Where to listen: unix:, tcp://127.0.0.1:0 (default unix:)")->type_name("URL");
  sub.add_option("--seconds", run.seconds, "Time to spend on each figure (default 1)")
      ->check(number_of_seconds(0.001, 1e6))
      ->type_name("SECONDS");
  sub.add_option("--serve", given->serve, "Be the other process")->group("");
  add_output_options(sub, given->output);
  sub.callback([given, &chosen] { chosen.run = [given] { return run_pipe_bench(*given); }; });
}

}  // namespace penstock::cli
