#include "cli/measure/peers.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "cli/common/interrupt.hpp"
#include "cli/common/own_libraries.hpp"
#include "penstock/status.hpp"

namespace penstock::cli {
namespace {

using nlohmann::json;

// A temporary folder, removed with its contents.
class scratch_folder {
 public:
  scratch_folder() {
    std::error_code error;
    std::string name = (std::filesystem::temp_directory_path(error) / "penstock-report-XXXXXX").string();
    if (!error && ::mkdtemp(name.data()) != nullptr) path_ = name;
  }
  scratch_folder(const scratch_folder&) = delete;
  scratch_folder& operator=(const scratch_folder&) = delete;
  ~scratch_folder() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  [[nodiscard]] const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Waits for the child and forwards interrupts of this process to it.
int wait_for(pid_t child) {
  bool told = false;
  int state = 0;
  while (true) {
    const pid_t ended = ::waitpid(child, &state, WNOHANG);
    if (ended == child) return state;
    if (ended < 0 && errno != EINTR) return -1;
    if (interrupted() && !told) ::kill(child, SIGTERM), told = true;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// Discards stdout, and writes stderr to the file.
status run_program(const std::vector<std::string>& words, const std::string& errors) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 2, errors.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
  std::vector<char*> argv;
  for (const std::string& word : words) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  pid_t child = -1;
  const int error = ::posix_spawnp(&child, argv[0], &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) return status::from_errno(error, fmt::format("start {}", words.front()));
  const int state = wait_for(child);
  if (WIFEXITED(state) && WEXITSTATUS(state) == 0) return {};
  std::ifstream said(errors);
  std::string last;
  for (std::string line; std::getline(said, line);) {
    if (!line.empty()) last = line;
  }
  return {errc::internal, fmt::format("{}: {}", words.front(), last.empty() ? fmt::format("exit code {}", WEXITSTATUS(state)) : last)};
}

std::vector<std::string> command_line(const peer_request& wanted, const std::string& folder) {
  std::error_code ignored;
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  std::vector<std::string> words{
      wanted.python,    folder + "/report_peers.py",
      "--file",         wanted.file,
      "--device",       wanted.device,
      "--sizes",        fmt::format("{}", fmt::join(wanted.sizes, ",")),
      "--out",          folder + "/peers.json",
      "--programs",     (own / "../../bench").lexically_normal().string(),  // for a build folder inside the source tree
      "--cufile-bench", (own / "penstock_cufile_bench").string()};
  if (const auto found = find_own_libraries(false); !found.folder.empty()) {
    words.insert(words.end(), {"--own-cufile", found.folder + "/" + library_name});
  }
  if (wanted.quick) words.emplace_back("--quick");
  return words;
}

result<json> run_peers(const peer_request& wanted) {
  const scratch_folder folder;
  if (folder.path().empty()) return status(errc::not_found, "cannot create a temporary folder (TMPDIR)");
  std::ofstream(folder.path() + "/report_peers.py") << peers_program;
  if (status error = run_program(command_line(wanted, folder.path()), folder.path() + "/errors"); !error.ok()) return error;
  std::ifstream file(folder.path() + "/peers.json");
  json found = json::parse(file, nullptr, false);
  if (!found.is_object() || !found.contains("peers")) return status(errc::internal, "the program wrote no figures");
  return found.at("peers");
}

}  // namespace

json measure_peers(const peer_request& wanted) {
  auto found = run_peers(wanted);
  if (found) return std::move(*found);
  return json::array({{{"name", "NVIDIA libcufile, KvikIO, PyTorch, safetensors"},
                       {"state", "absent"},
                       {"reason", std::string(found.error().message())},
                       {"install", "Python 3.10 or newer (apt-get install python3); --python selects one with the libraries installed"}}});
}

}  // namespace penstock::cli
