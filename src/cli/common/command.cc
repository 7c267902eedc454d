#include <fmt/format.h>

#include <cstdio>

#include "cli/common/command.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/common/json.hpp"
#include "cli/common/progress.hpp"
#include "cli/common/say.hpp"
#include "cli/common/sizes.hpp"
#include "cli/common/transfer_memory.hpp"
#include "cli/common/usage.hpp"

namespace penstock::cli {

CLI::Option* add_size_option(CLI::App& app, const std::string& name, std::uint64_t& target, const std::string& description) {
  const auto take = [&target, name](const std::string& text) {
    auto bytes = parse_size(text);
    if (!bytes) throw CLI::ValidationError(name, std::string(bytes.error().message()));
    target = *bytes;
  };
  return app.add_option_function<std::string>(name, take, description)->type_name("SIZE");
}

void add_device_options(CLI::App& app, std::string& name) {
  auto* device = app.add_option("--device", name, "Device: cuda:0, cuda or 0; host:0 (default: the first that `penstock devices` lists)")
                     ->type_name("DEVICE");
  const auto take_number = [&name](const unsigned& number) { name = fmt::format("cuda:{}", number); };
  app.add_option_function<unsigned>("--gpu", take_number, "GPU by number: 0 is cuda:0")->check(whole_number(0, 65535))->excludes(device);
}

void add_memory_options(CLI::App& app, std::string& name) {
  add_device_options(app, name);
  CLI::Option* device = app.get_option("--device");
  device->description("Device: cuda:0, cuda or 0; host or cpu for host memory (default: the first that `penstock devices` lists)");
}

void add_output_options(CLI::App& app, output_options& output) {
  const auto print_json = [&output] {
    output.json = true;
    promise_json();
  };
  app.add_flag_callback("--json", print_json, "Print JSON");
  const auto be_quiet = [&output] {
    output.quiet = true;
    hide_progress();
  };
  app.add_flag_callback("-q,--quiet", be_quiet, "Print figures and errors only");
}

result<engine> make_engine(const std::function<void(engine_options&)>& change) {
  auto options = engine_options::from_environment();
  if (!options) return options.error();
  options->stop_requested = &interrupted;
  if (change) change(*options);
  return engine::create(*options);
}

int fail(const status& error) {
  if (error.code() == errc::cancelled && interrupted()) return exit_failure;
  note_failure(error.message());
  complain("penstock: {}\n", error.message());
  return exit_failure;
}

}  // namespace penstock::cli
