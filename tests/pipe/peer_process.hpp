// penstock_pipe_peer, running: the process at the other end of a pipe.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <string>

extern char** environ;

namespace penstock::testing {

// The program.
std::string path_of_peer();

// Killed with this.
class peer_process {
 public:
  // program: its path.
  peer_process(std::string program, const std::string& url, const std::string& channel, const std::string& step, std::size_t bytes = 0,
               const std::string& device = "") {
    std::array<int, 2> in{};
    std::array<int, 2> out{};
    EXPECT_EQ(::pipe2(in.data(), O_CLOEXEC), 0);
    EXPECT_EQ(::pipe2(out.data(), O_CLOEXEC), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::array<std::string, 5> words{url, channel, step, std::to_string(bytes), device};
    std::array<char*, 7> arguments{program.data(),  words[0].data(), words[1].data(), words[2].data(),
                                   words[3].data(), words[4].data(), nullptr};
    if (device.empty()) arguments[5] = nullptr;
    EXPECT_EQ(posix_spawn(&process_, program.c_str(), &actions, nullptr, arguments.data(), environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(in[0]);
    ::close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  peer_process(const peer_process&) = delete;
  peer_process& operator=(const peer_process&) = delete;
  ~peer_process() {
    kill();
    ::close(in_);
    ::close(out_);
  }
  [[nodiscard]] std::string line() const {
    std::string told;
    char byte = 0;
    while (::read(out_, &byte, 1) == 1 && byte != '\n') told += byte;
    return told;
  }
  void send_signal(int number) const { ::kill(process_, number); }
  void kill() {
    if (process_ <= 0) return;
    send_signal(SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = 0;
  }
  [[nodiscard]] pid_t id() const { return process_; }

 private:
  pid_t process_ = 0;
  int in_ = -1;
  int out_ = -1;
};

}  // namespace penstock::testing
