// An S3 server for a test. tests/support/s3_server.py starts it, and it ends with this object. Needs PENSTOCK_S3_SERVER_PATH, the path of
// that script. If the server is not installed, why() says what to install.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <string>
#include <utility>

#include <nlohmann/json.hpp>

#include "support/temp_dir.hpp"

extern char** environ;

namespace penstock::testing {

class s3_server {
 public:
  explicit s3_server(const std::string& kind) { start(kind); }
  s3_server(const s3_server&) = delete;
  s3_server& operator=(const s3_server&) = delete;
  ~s3_server() {
    if (orders_ >= 0) ::close(orders_);
    if (told_ != nullptr) std::fclose(told_);
    int ignored = 0;
    if (process_ > 0) waitpid(process_, &ignored, 0);
  }

  [[nodiscard]] bool is_up() const { return facts_.contains("endpoint"); }
  [[nodiscard]] std::string why() const { return facts_.value("skipped", "s3_server.py did not start"); }
  // Returns endpoint, access_key, secret_key, region or bucket.
  [[nodiscard]] std::string operator[](const char* name) const { return facts_.value(name, ""); }

 private:
  void start(const std::string& kind) {
    std::array<int, 2> orders{}, told{};
    if (pipe2(orders.data(), O_CLOEXEC) != 0 || pipe2(told.data(), O_CLOEXEC) != 0) return;
    posix_spawn_file_actions_t actions{};
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, orders[0], 0);
    posix_spawn_file_actions_adddup2(&actions, told[1], 1);
    std::string python("python3"), script(PENSTOCK_S3_SERVER_PATH), name(kind), folder(folder_.file("kept"));
    const std::array<char*, 5> arguments{python.data(), script.data(), name.data(), folder.data(), nullptr};
    if (posix_spawnp(&process_, python.c_str(), &actions, nullptr, arguments.data(), environ) != 0) process_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    ::close(orders[0]);
    ::close(told[1]);
    orders_ = orders[1];
    told_ = fdopen(told[0], "r");
    facts_ = nlohmann::json::parse(line(), nullptr, false);
    if (!facts_.is_object()) facts_ = nlohmann::json::object();
  }

  std::string line() {
    std::string text;
    for (int c = std::fgetc(told_); c != EOF && c != '\n'; c = std::fgetc(told_)) text.push_back(static_cast<char>(c));
    return text;
  }

  temp_dir folder_;
  pid_t process_ = -1;
  int orders_ = -1;
  std::FILE* told_ = nullptr;
  nlohmann::json facts_ = nlohmann::json::object();
};

}  // namespace penstock::testing
