// penstock top: prints lines into a pipe; in a terminal, shows a screen that reacts to keys and restores the terminal at the end.
#include <gtest/gtest.h>
#include <poll.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "cli/program.hpp"

namespace penstock::cli_test {
namespace {

// The command in a terminal whose keys a test presses.
class live_terminal {
 public:
  explicit live_terminal(const std::vector<std::string>& arguments) {
    std::vector<std::string> words{PENSTOCK_CLI_PATH};
    words.insert(words.end(), arguments.begin(), arguments.end());
    std::vector<char*> argv;
    for (auto& word : words) argv.push_back(word.data());
    argv.push_back(nullptr);
    winsize size{.ws_row = 24, .ws_col = 120, .ws_xpixel = 0, .ws_ypixel = 0};
    child_ = ::forkpty(&fd_, nullptr, nullptr, &size);
    if (child_ == 0) {
      ::setenv("TERM", "xterm", 1);
      ::execv(argv[0], argv.data());
      ::_exit(127);
    }
  }
  live_terminal(const live_terminal&) = delete;
  live_terminal& operator=(const live_terminal&) = delete;
  ~live_terminal() {
    if (child_ > 0) {
      ::kill(child_, SIGKILL);
      ::waitpid(child_, nullptr, 0);
    }
    ::close(fd_);
  }
  // Until the text has been written, after what was waited for before. False when the command ended without it, or is silent for long.
  bool wait_for(const std::string& text) {
    for (;;) {
      if (const auto at = text_.find(text, seen_); at != std::string::npos) return seen_ = at + text.size(), true;
      if (!read_more()) return false;
    }
  }
  void press(const std::string& keys) const { EXPECT_EQ(::write(fd_, keys.data(), keys.size()), static_cast<ssize_t>(keys.size())); }
  void resize(unsigned short columns) const {
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    EXPECT_EQ(::ioctl(fd_, TIOCSWINSZ, &size), 0);
  }
  void send(int signal_number) const { ::kill(child_, signal_number); }
  [[nodiscard]] tcflag_t modes() const {
    termios now{};
    EXPECT_EQ(::tcgetattr(fd_, &now), 0);
    return now.c_lflag;
  }
  int finish() {
    while (read_more()) {
    }
    int outcome = 0;
    ::waitpid(std::exchange(child_, -1), &outcome, 0);
    return WIFEXITED(outcome) ? WEXITSTATUS(outcome) : 128 + WTERMSIG(outcome);
  }
  [[nodiscard]] const std::string& text() const { return text_; }

 private:
  bool read_more() {
    pollfd output{fd_, POLLIN, 0};
    if (::poll(&output, 1, 60000) <= 0) return false;
    std::array<char, 4096> part;
    const auto count = ::read(fd_, part.data(), part.size());
    if (count > 0) text_.append(part.data(), static_cast<std::size_t>(count));
    return count > 0;
  }
  pid_t child_ = -1;
  int fd_ = -1;
  std::string text_;
  std::size_t seen_ = 0;
};

class top_command : public ::testing::Test {
 protected:
  void SetUp() override {
    auto file = *engine_.open(directory_.make_file("data", 65536));
    std::array<std::byte, 4096> memory;
    ASSERT_TRUE(file.read(memory.data(), memory.size(), 0).ok());
  }
  const std::string own_ = std::to_string(getpid());
  const std::string restored_ = "\x1b[?25h\x1b[?1049l";
  scratch_directory directory_;
  engine engine_ = host_engine();
};

TEST_F(top_command, prints_lines_in_a_pipe) {
  const auto once = run({"top", "--once", "--interval", "0.05"});
  EXPECT_EQ(once.exit_code, 0) << once.err;
  EXPECT_TRUE(contains(once.out, own_ + " penstock_cli_tests ")) << once.out;
  EXPECT_FALSE(contains(once.out, "\x1b"));
  const auto twice = run({"top", "--count", "2", "--interval", "0.05"});
  EXPECT_NE(twice.out.find(own_), twice.out.rfind(own_)) << twice.out;
  const auto documents = nlohmann::json::parse(run({"top", "--once", "--json", "--interval", "0.05"}).out);
  EXPECT_TRUE(documents.is_array());
  EXPECT_TRUE(documents[0].contains("read_gigabytes_per_second"));
  EXPECT_EQ(run({"top", "--interval", "0"}).exit_code, 2);
}

TEST_F(top_command, shows_only_the_processes_that_are_asked_for) {
  const auto other = std::to_string(getppid());
  const auto seen = run({"top", "--once", "-p", other + "," + own_, "--interval", "0.05"});
  EXPECT_EQ(std::count(seen.out.begin(), seen.out.end(), '\n'), 2) << seen.out;
  EXPECT_TRUE(contains(seen.out, own_ + " penstock_cli_tests ")) << seen.out;
  EXPECT_EQ(run({"top", "--once", "-p", other, "--interval", "0.05"}).out, "no process of this user with these PIDs uses Penstock\n");
  EXPECT_EQ(run({"top", "--once", "-p", "0"}).exit_code, 2);
}

TEST_F(top_command, obeys_keys_and_gives_the_terminal_back) {
  live_terminal shown({"top", "--interval", "0.1"});
  ASSERT_TRUE(shown.wait_for("\x1b[?1049h"));
  ASSERT_TRUE(shown.wait_for("> ")) << shown.text();
  EXPECT_EQ(shown.modes() & (ICANON | ECHO), 0U);
  shown.press("s");
  EXPECT_TRUE(shown.wait_for("by pid"));
  shown.press("s");
  EXPECT_TRUE(shown.wait_for("by oldest request"));
  shown.press("p");
  EXPECT_TRUE(shown.wait_for("PAUSED"));
  shown.press("p");
  shown.press("\r");
  EXPECT_TRUE(shown.wait_for("requests in flight"));
  shown.press("j");
  shown.press("\x1b[A");
  shown.resize(30);
  EXPECT_TRUE(shown.wait_for("PROGRAM        +10\x1b[K")) << shown.text();
  shown.press("q");
  EXPECT_EQ(shown.finish(), 0);
  EXPECT_TRUE(shown.text().ends_with(restored_)) << shown.text();
  EXPECT_EQ(shown.modes() & (ICANON | ECHO), tcflag_t{ICANON | ECHO});
}

TEST_F(top_command, shows_advice_in_the_line_of_a_process_and_in_words_below) {
  const auto data = directory_.make_file("little", mib);
  auto file = *engine_.open(data);
  std::array<std::byte, 256> memory;
  // Well above the least loss that is told: each process measures for itself what copying costs.
  const auto loses_enough = [] {
    const auto found = advise(observe_process(getpid())->stats);
    return !found.empty() && found.front().loss_seconds.value_or(0) > 0.5;
  };
  (void)file.read(memory.data(), memory.size(), 0);
  while (!loses_enough()) {
    for (std::size_t at = 0; at < mib; at += memory.size()) (void)file.read(memory.data(), memory.size(), static_cast<std::int64_t>(at));
  }
  live_terminal shown({"top", "--pid", own_, "--interval", "0.1"});
  ASSERT_TRUE(shown.wait_for("advice: tiny-sequential-calls")) << shown.text();
  EXPECT_TRUE(shown.wait_for("sequential reads of")) << shown.text();
  shown.press("q");
  EXPECT_EQ(shown.finish(), 0);
}

TEST_F(top_command, draws_blocks_only_in_a_utf8_locale) {
  auto file = *engine_.open(directory_.make_file("more", 65536));
  std::array<std::byte, 4096> memory;
  for (const bool has_blocks : {false, true}) {
    const scoped_variable locale("LC_ALL", has_blocks ? "C.UTF-8" : "C");
    live_terminal shown({"top", "--pid", own_, "--interval", "0.1"});
    ASSERT_TRUE(shown.wait_for("HISTORY")) << shown.text();
    // A look without reads shows the lowest level, which differs in both.
    ASSERT_TRUE(file.read(memory.data(), memory.size(), 0).ok());
    EXPECT_TRUE(shown.wait_for(has_blocks ? "▁" : "_  ")) << shown.text();
    shown.press("q");
    EXPECT_EQ(shown.finish(), 0);
    EXPECT_EQ(contains(shown.text(), "▁"), has_blocks);
  }
}

TEST_F(top_command, gives_the_terminal_back_after_signals) {
  for (const int signal_number : {SIGINT, SIGTERM}) {
    live_terminal shown({"top", "--interval", "0.1"});
    ASSERT_TRUE(shown.wait_for("> ")) << shown.text();
    shown.send(signal_number);
    EXPECT_EQ(shown.finish(), 128 + signal_number);
    EXPECT_TRUE(shown.text().ends_with(restored_)) << shown.text();
    EXPECT_EQ(shown.modes() & (ICANON | ECHO), tcflag_t{ICANON | ECHO});
  }
}

#if !defined(__SANITIZE_THREAD__)  // which does not support new threads in a forked child
TEST_F(top_command, survives_that_what_it_watches_is_killed) {
  const auto data = directory_.make_file("more", 65536);
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t watched = ::fork();
  if (watched == 0) {
    auto* own = new engine(host_engine());
    auto file = *own->open(data);
    std::array<std::byte, 4096> memory;
    (void)file.read(memory.data(), memory.size(), 0);
    const bool told = ::write(ends[1], "x", 1) == 1;
    while (told) ::pause();
    ::_exit(1);
  }
  char ready = 0;
  ASSERT_EQ(::read(ends[0], &ready, 1), 1);
  live_terminal shown({"top", "--pid", std::to_string(watched), "--interval", "0.1"});
  EXPECT_TRUE(shown.wait_for(std::to_string(watched))) << shown.text();
  ::kill(watched, SIGKILL);
  ::waitpid(watched, nullptr, 0);
  EXPECT_TRUE(shown.wait_for(" exited")) << shown.text();
  shown.press("q");
  EXPECT_EQ(shown.finish(), 0);
  ::close(ends[0]);
  ::close(ends[1]);
}
#endif

}  // namespace
}  // namespace penstock::cli_test
