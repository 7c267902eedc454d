#include <fmt/format.h>

#include <cstdio>

#include "cli/commands.hpp"
#include "cli/sizes.hpp"

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
  auto* device = app.add_option("--device", name, "Device by name: cuda:0, host:0 (default: the first of `penstock devices`)");
  const auto take_number = [&name](const unsigned& number) { name = fmt::format("cuda:{}", number); };
  app.add_option_function<unsigned>("--gpu", take_number, "GPU by number: 0 is cuda:0")->excludes(device);
}

int fail(const status& error) {
  fmt::print(stderr, "penstock: {}\n", error.message());
  return exit_failure;
}

}  // namespace penstock::cli
