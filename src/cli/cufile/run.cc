// penstock run: replaces this process with a program that uses NVIDIA cuFile, KvikIO or Python's safetensors, and substitutes Penstock for
// that library.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string_view>
#include <vector>

#include "cli/common/command.hpp"
#include "cli/common/own_libraries.hpp"
#include "cli/common/say.hpp"
#include "cli/common/usage.hpp"

namespace penstock::cli {
namespace {

// The exit codes of env(1) for errors that occur before the program runs.
constexpr int exit_not_started = 125;
constexpr int exit_not_executable = 126;
constexpr int exit_not_found = 127;

constexpr auto node_name = "libpenstock_device_node.so";
constexpr auto direct_io_name = "libpenstock_direct_io.so";

struct run_options {
  bool no_audit = false;
  bool nvidia_fs_node = false;
  std::string log;
  std::vector<std::string> words;  // the program and its arguments
};

template <class... Arguments>
int refuse(int exit_code, fmt::format_string<Arguments...> text, Arguments&&... arguments) {
  complain("penstock run: {}\n", fmt::format(text, std::forward<Arguments>(arguments)...));
  return exit_code;
}

// Returns the folder with all required libraries; prints a message if there is none.
std::optional<std::string> find_libraries(bool no_audit) {
  own_libraries found = find_own_libraries(!no_audit);
  if (!found.folder.empty()) return found.folder;
  if (!found.error.empty()) {
    refuse(exit_not_started, "cannot determine the location of this command: {}", found.error);
  } else {
    refuse(exit_not_started, "{}{} not found; searched {}", library_name, no_audit ? "" : fmt::format(" and {}", audit_name),
           fmt::join(found.looked_in, ", "));
  }
  return std::nullopt;
}

// Moves or adds an entry to the front of the list in an environment variable. A `penstock run` within another one adds nothing.
void prepend(const char* variable, const std::string& entry) {
  const char* present = std::getenv(variable);
  std::string list = fmt::format(":{}:", present != nullptr ? present : "");
  if (const auto at = list.find(fmt::format(":{}:", entry)); at != std::string::npos) list.erase(at, entry.size() + 1);
  list = list.size() > 2 ? list.substr(0, list.size() - 1) : "";
  ::setenv(variable, (entry + list).c_str(), 1);
}

// Adds the folder that makes every Python interpreter of the program import Penstock's replacements for safetensors and KvikIO. The folder
// is part of the Python package; without that package, it is below share/ next to bin/, or in the build folder.
void prepend_python_startup(const std::filesystem::path& libraries, bool is_logged) {
  std::error_code ignored;
  const auto command_folder = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  const auto in_share = std::filesystem::path("share") / "penstock" / "_startup";
  for (const auto& folder :
       {libraries.parent_path().parent_path() / "_startup", command_folder.parent_path() / in_share, command_folder / in_share}) {
    if (std::filesystem::exists(folder / "sitecustomize.py", ignored)) return prepend("PYTHONPATH", folder.string());
  }
  if (is_logged)
    complain("penstock run: safetensors and kvikio are not replaced: {} not found next to {}\n", in_share.string(),
             command_folder.string());
}

// With an audit module, the dynamic linker lays out thread-local storage before it has seen the program's libraries. All libraries with
// static TLS then share a surplus of about 1.6 KiB, and the program fails to start if it is exhausted (glibc 2.36; rustc needs 23.2 KiB).
// The surplus is taken from each thread's stack, so it must stay small: 32 KiB still allows stacks of 40 KiB and more.
void widen_static_tls() {
  constexpr std::string_view tunable = "glibc.rtld.optional_static_tls";
  constexpr unsigned bytes = 32 * 1024;
  const char* present = std::getenv("GLIBC_TUNABLES");
  const std::string list = present != nullptr ? present : "";
  if (fmt::format(":{}", list).find(fmt::format(":{}=", tunable)) != std::string::npos) return;  // set by the user or by us
  ::setenv("GLIBC_TUNABLES", fmt::format("{}{}{}={}", list, list.empty() ? "" : ":", tunable, bytes).c_str(), 1);
}

// Executes the program; returns only on failure.
int become(const std::vector<std::string>& words) {
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  ::execvp(argv[0], argv.data());
  const int error = errno;
  if (error == ENOENT && words[0].find('/') == std::string::npos) {
    return refuse(exit_not_found, "{}: no such command on PATH", words[0]);
  }
  return refuse(error == ENOENT ? exit_not_found : exit_not_executable, "{}: {}", words[0], std::strerror(error));
}

int run_program(const run_options& options) {
  const std::optional<std::string> folder = find_libraries(options.no_audit);
  if (!folder) return exit_not_started;
  if (folder->find_first_of(" \t\n:;") != std::string::npos) {
    return refuse(exit_not_started, "'{}' contains a space, colon or semicolon, which LD_PRELOAD does not support: move Penstock elsewhere",
                  *folder);
  }
  const auto exists = [&](const char* name) { return ::access(fmt::format("{}/{}", *folder, name).c_str(), R_OK) == 0; };
  if (exists(direct_io_name)) prepend("LD_PRELOAD", fmt::format("{}/{}", *folder, direct_io_name));
  if (options.nvidia_fs_node) {
    if (!exists(node_name)) return refuse(exit_not_started, "{}/{} not found", *folder, node_name);
    prepend("LD_PRELOAD", fmt::format("{}/{}", *folder, node_name));
  }
  prepend("LD_PRELOAD", fmt::format("{}/{}", *folder, library_name));
  if (!options.no_audit) {
    prepend("LD_AUDIT", fmt::format("{}/{}", *folder, audit_name));
    widen_static_tls();
  }
  prepend("LD_LIBRARY_PATH", *folder);
  // Otherwise, C++ programs that use KvikIO, such as cuDF, read without cuFile. AUTO does so only if the file system rejects O_DIRECT.
  ::setenv("KVIKIO_COMPAT_MODE", "AUTO", 0);
  // Each thread reads over one connection (bench/kvikio_remote_bench.py); 4 and 16 read a hot file equally fast. KvikIO rejects both names.
  if (std::getenv("KVIKIO_NUM_THREADS") == nullptr) ::setenv("KVIKIO_NTHREADS", "16", 0);
  if (!options.log.empty()) ::setenv("PENSTOCK_LOG", options.log.c_str(), 1);
  prepend_python_startup(*folder, std::getenv("PENSTOCK_LOG") != nullptr);
  return become(options.words);
}

}  // namespace

void add_run(CLI::App& app, command& chosen) {
  CLI::App& sub =
      *app.add_subcommand("run", "Run a program that uses NVIDIA cuFile, KvikIO or Python's safetensors, with Penstock in their place");
  auto options = std::make_shared<run_options>();
  sub.add_flag("--no-audit", options->no_audit,
               "Preload only: a program that opens libcufile by full path or as libcufile.so keeps its own library");
  sub.add_flag("--nvidia-fs-node", options->nvidia_fs_node,
               "Pretend that /dev/nvidia-fs0 exists, for programs that check for it before they use cuFile (fastsafetensors)");
  sub.add_option("--log", options->log, "Set PENSTOCK_LOG for the program: summary")->check(one_of({"summary"}));
  sub.footer(
      "PENSTOCK_SAFETENSORS=0, PENSTOCK_KVIKIO=0 and PENSTOCK_FASTSAFETENSORS=0 leave the Python library of that name as it is. "
      "KVIKIO_COMPAT_MODE is set to AUTO and KVIKIO_NTHREADS to 16 unless you set them. The exit code is that of COMMAND; 127 if COMMAND "
      "does not exist.");
  sub.prefix_command();  // the first word that is not an option starts the program's command line, with or without "--" before it
  sub.callback([&sub, &chosen, options] {
    const std::vector<std::string>& program = chosen.program;
    options->words = sub.remaining();
    const bool after_separator = options->words.empty();
    if (!after_separator && options->words.front().starts_with('-')) throw CLI::ExtrasError({options->words.front()});
    options->words.insert(options->words.end(), program.begin() + (after_separator && !program.empty() ? 1 : 0), program.end());
    if (options->words.empty()) throw CLI::RequiredError("COMMAND");
    chosen.run = [options] { return run_program(*options); };
  });
}

}  // namespace penstock::cli
