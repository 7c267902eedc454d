// penstock serve: replaces this process with the Python package's server, which holds a model's weights for other processes.
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "cli/common/command.hpp"
#include "cli/common/say.hpp"
#include "cli/common/usage.hpp"

namespace penstock::cli {
namespace {

constexpr auto python_advice = "Pass the interpreter of an environment with Penstock's Python package as --python";
constexpr auto server_program = R"(import sys
try:
    from penstock.weights._daemon import main
except ImportError as problem:
    sys.exit(f"penstock serve: {sys.executable}: {problem}. {sys.argv[5]}")
main(*sys.argv[1:5])
)";
constexpr int exit_not_started = 127;  // as in a shell

struct serve_options {
  std::string model;
  std::string device;
  std::string address;
  std::string python = "python3";
  unsigned readers = 256;
  bool host = false;
};

int serve(const serve_options& wanted) {
  const std::string device = wanted.host ? "host" : wanted.device;
  const std::string readers = fmt::format("{}", wanted.readers);
  const std::vector<const char*> words = {wanted.python.c_str(), "-c",           server_program,
                                          wanted.model.c_str(),  device.c_str(), wanted.address.c_str(),
                                          readers.c_str(),       python_advice,  nullptr};
  ::setenv("PYTHONSAFEPATH", "1", 1);  // a folder "penstock" in the working directory is not the package
  ::execvp(words[0], const_cast<char* const*>(words.data()));
  complain("penstock serve: {}: {}. {}\n", wanted.python, std::strerror(errno), python_advice);
  return exit_not_started;
}

}  // namespace

void add_serve(CLI::App& app, command& chosen) {
  auto wanted = std::make_shared<serve_options>();
  CLI::App& sub = *app.add_subcommand("serve", "Keep a model's weights in memory for other processes");
  sub.add_option("MODEL", wanted->model, "A safetensors file, an index (.json) of such files, or a folder with either; may be a URL")
      ->required();
  auto* device = sub.add_option("--device", wanted->device, "Keep the weights on this device (default: the first GPU, else host memory)");
  sub.add_flag("--host", wanted->host, "Keep the weights in host memory instead")->excludes(device);
  sub.add_option("--address", wanted->address, "unix:@NAME or unix:/PATH (default: a name for this user and device)");
  sub.add_option("--readers", wanted->readers, "Maximum number of attached processes, and of processes that copy (default 256)")
      ->check(whole_number(1, 4096));
  sub.add_option("--python", wanted->python,
                 "A Python interpreter that can import penstock (default: the one that runs this command, else python3)")
      ->take_last();
  sub.callback([wanted, &chosen] { chosen.run = [wanted] { return serve(*wanted); }; });
}

}  // namespace penstock::cli
