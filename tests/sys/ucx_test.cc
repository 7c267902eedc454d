// Both ends of a connection over UCX's tcp, in one process.
#include <gtest/gtest.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <ctime>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "sys/fabric.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;
using bytes = std::vector<std::byte>;

bytes pattern(std::size_t count, unsigned seed) {
  bytes made(count);
  for (std::size_t i = 0; i < count; ++i) made[i] = static_cast<std::byte>(i * 167 + (i >> 10) + seed);
  return made;
}

// What ended, and how.
class outcomes {
 public:
  sys::fabric_line::told note() {
    return [this](const status& outcome) {
      const std::lock_guard guard(lock_);
      come_.push_back(outcome);
      more_.notify_all();
    };
  }
  status next() {
    std::unique_lock guard(lock_);
    more_.wait(guard, [this] { return !come_.empty(); });
    auto first = come_.front();
    come_.pop_front();
    return first;
  }
  [[nodiscard]] std::size_t left() {
    const std::lock_guard guard(lock_);
    return come_.size();
  }

 private:
  std::mutex lock_;
  std::condition_variable more_;
  std::deque<status> come_;
};

class ucx_test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto problem = door_->usable(); !problem.ok()) GTEST_SKIP() << problem.message();
    connect();
  }
  std::unique_ptr<sys::fabric_line> line_of(std::shared_ptr<sys::fabric>& fabric, outcomes& ended) {
    if (fabric == nullptr) {
      auto made = door_->open({});
      EXPECT_TRUE(made.ok()) << made.error().message();
      if (!made) return nullptr;
      fabric = *made;
    }
    auto line = fabric->make_line(ended.note());
    EXPECT_TRUE(line.ok()) << line.error().message();
    return line ? *std::move(line) : nullptr;
  }
  void connect() {
    here_ = line_of(fabric_here_, here_ended_);
    there_ = line_of(fabric_there_, there_ended_);
    ASSERT_TRUE(here_ != nullptr && there_ != nullptr);
    EXPECT_FALSE(here_->address().empty());
    here_->connect(there_->address());
    there_->connect(here_->address());
  }
  static sys::fabric_buffer buffer(bytes& of) { return {of.data(), of.size()}; }
  // From here to there.
  void carry(std::uint64_t tag, std::size_t size) {
    auto content = pattern(size, 1);
    bytes room(size);
    there_->receive(tag, buffer(room), come_.note());
    here_->send(tag, buffer(content), sent_.note());
    EXPECT_TRUE(come_.next().ok());
    EXPECT_EQ(room, content);
  }

  const std::shared_ptr<sys::fabrics> door_ = sys::ucx_fabrics();
  outcomes here_ended_;
  outcomes there_ended_;
  outcomes sent_;
  outcomes come_;
  std::shared_ptr<sys::fabric> fabric_here_;
  std::shared_ptr<sys::fabric> fabric_there_;
  std::unique_ptr<sys::fabric_line> here_;
  std::unique_ptr<sys::fabric_line> there_;
};

TEST_F(ucx_test, messages_of_many_sizes_arrive_whole_in_both_directions) {
  std::uint64_t tag = 100;
  for (const std::size_t size : {1, 2, 7, 64, 1000, 4096, 8191, 8192, 8193, 65536, 1'000'003, 4 << 20, (9 << 20) + 5}) {
    for (const bool back : {false, true}) {
      auto& from = back ? *there_ : *here_;
      auto& to = back ? *here_ : *there_;
      auto content = pattern(size, static_cast<unsigned>(tag));
      bytes room(size + 2, std::byte{0x5a});
      to.receive(++tag, {room.data() + 1, size}, come_.note());
      from.send(tag, buffer(content), sent_.note());
      ASSERT_TRUE(sent_.next().ok());
      ASSERT_TRUE(come_.next().ok());
      EXPECT_TRUE(std::equal(content.begin(), content.end(), room.begin() + 1)) << size;
      EXPECT_EQ(room.front(), std::byte{0x5a});
      EXPECT_EQ(room.back(), std::byte{0x5a});
    }
  }
}

TEST_F(ucx_test, many_at_once_go_where_their_tags_say_though_some_come_before_they_are_expected) {
  constexpr std::size_t count = 40;
  std::vector<bytes> content;
  std::vector<bytes> room;
  for (std::size_t i = 0; i < count; ++i) {
    content.push_back(pattern(50'000 + i, static_cast<unsigned>(i)));
    room.emplace_back(50'000 + i);
  }
  for (std::size_t i = 0; i < count / 2; ++i) here_->send(i, buffer(content[i]), sent_.note());
  for (std::size_t i = count; i-- > 0;) there_->receive(i, buffer(room[i]), come_.note());
  for (std::size_t i = count / 2; i < count; ++i) here_->send(i, buffer(content[i]), sent_.note());
  for (std::size_t i = 0; i < count; ++i) {
    EXPECT_TRUE(sent_.next().ok());
    EXPECT_TRUE(come_.next().ok());
  }
  EXPECT_EQ(room, content);
}

TEST_F(ucx_test, what_nobody_has_sent_can_be_cancelled_and_the_line_goes_on) {
  bytes room(1000);
  const auto number = there_->receive(1, buffer(room), come_.note());
  there_->cancel(number);
  EXPECT_EQ(come_.next().code(), errc::cancelled);
  there_->cancel(number);  // of which nothing is left
  there_->cancel(77);
  carry(2, 1000);
}

TEST_F(ucx_test, a_message_of_another_length_ends_the_line_and_writes_nothing_beyond_its_room) {
  auto content = pattern(100'000, 1);
  for (const std::size_t expected : {50'000U, 100'001U}) {
    connect();
    bytes room(100'002, std::byte{0x5a});
    there_->receive(1, {room.data(), expected}, come_.note());
    here_->send(1, buffer(content), sent_.note());
    const auto outcome = come_.next();
    EXPECT_FALSE(outcome.ok());
    EXPECT_FALSE(there_ended_.next().ok());
    EXPECT_TRUE(
        std::all_of(room.begin() + static_cast<std::ptrdiff_t>(expected), room.end(), [](auto each) { return each == std::byte{0x5a}; }));
  }
}

TEST_F(ucx_test, the_end_of_a_line_ends_what_is_under_way_on_it_and_what_comes_after) {
  bytes room(1 << 20);
  there_->receive(1, buffer(room), come_.note());
  there_->end({errc::closed, "enough"});
  EXPECT_EQ(come_.next().message(), "enough");
  there_->receive(2, buffer(room), come_.note());
  EXPECT_EQ(come_.next().message(), "enough");
  there_->send(2, buffer(room), come_.note());
  EXPECT_EQ(come_.next().message(), "enough");
  there_ = nullptr;
  here_->receive(3, buffer(room), sent_.note());
  here_ = nullptr;
  EXPECT_EQ(sent_.next().code(), errc::closed);
  EXPECT_EQ(there_ended_.left(), 0U);  // nobody but the caller has ended it
}

TEST_F(ucx_test, what_is_sent_before_the_line_is_connected_ends_it) {
  outcomes ended;
  auto line = line_of(fabric_here_, ended);
  auto content = pattern(10, 1);
  line->send(1, buffer(content), sent_.note());
  EXPECT_NE(sent_.next().message().find("connected"), std::string_view::npos);
  EXPECT_FALSE(ended.next().ok());
}

TEST_F(ucx_test, a_line_that_was_never_connected_ends_like_others) {
  outcomes ended;
  auto line = line_of(fabric_here_, ended);
  auto room = pattern(100'000, 1);
  line->receive(1, buffer(room), come_.note());
  line = nullptr;
  EXPECT_EQ(come_.next().code(), errc::closed);
}

// Nobody receives: without a limit it would wait for ever.
TEST_F(ucx_test, what_does_not_move_in_time_ends_the_line) {
  auto content = pattern(3 << 20, 1);
  bytes room(100);
  here_->limit(1ms);  // for what is under way: nothing
  here_->send(1, buffer(content), sent_.note());
  here_->limit(100ms);
  EXPECT_EQ(sent_.next().code(), errc::closed);
  EXPECT_NE(here_ended_.next().message().find("in time"), std::string_view::npos);
}

// A word of a child's, told by the parent.
class child_end {
 public:
  explicit child_end(int fd) : fd_(fd) {}
  void give(const bytes& what) const {
    const auto size = static_cast<std::uint32_t>(what.size());
    ASSERT_EQ(::write(fd_, &size, sizeof(size)), static_cast<ssize_t>(sizeof(size)));
    ASSERT_EQ(::write(fd_, what.data(), what.size()), static_cast<ssize_t>(what.size()));
  }
  [[nodiscard]] bytes get() const {
    std::uint32_t size = 0;
    if (::read(fd_, &size, sizeof(size)) != static_cast<ssize_t>(sizeof(size))) return {};
    bytes out(size);
    for (std::size_t at = 0; at < size;) {
      const auto got = ::read(fd_, out.data() + at, size - at);
      if (got <= 0) return {};
      at += static_cast<std::size_t>(got);
    }
    return out;
  }

 private:
  int fd_;
};

// Looks at memory that another thread is filling just now, which the thread sanitizer is not to take for a mistake.
[[gnu::no_sanitize("thread"), gnu::noinline]] bool has_begun(const volatile std::byte* at) { return std::to_integer<int>(*at) != 0; }

// UCX does not tell of the death of who was sending: the limit does.
TEST_F(ucx_test, a_process_that_is_killed_while_it_sends_leaves_memory_alone_within_the_limit) {
  std::array<int, 2> up{};
  std::array<int, 2> down{};
  ASSERT_EQ(::pipe(up.data()), 0);
  ASSERT_EQ(::pipe(down.data()), 0);
  constexpr std::size_t size = 512 << 20;
  here_ = nullptr;
  there_ = nullptr;
  fabric_here_ = nullptr;
  fabric_there_ = nullptr;
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    auto fabric = sys::ucx_fabrics()->open({});
    auto line = fabric ? (*fabric)->make_line({}) : result<std::unique_ptr<sys::fabric_line>>(fabric.error());
    if (!line) _exit(1);
    child_end(up[1]).give((*line)->address());
    (*line)->connect(child_end(down[0]).get());
    bytes content(size, std::byte{1});
    (*line)->send(1, {content.data(), content.size()}, [](const status&) {});
    ::pause();
    _exit(0);
  }
  ::close(up[1]);
  outcomes ended;
  auto line = line_of(fabric_here_, ended);
  ASSERT_NE(line, nullptr);
  line->connect(child_end(up[0]).get());
  bytes room(size);
  line->receive(1, buffer(room), come_.note());
  child_end(down[1]).give(line->address());
  while (!has_begun(&room[1000])) std::this_thread::yield();
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  line->limit(300ms);
  const auto outcome = come_.next();
  if (!outcome.ok()) {
    EXPECT_EQ(outcome.code(), errc::closed) << outcome.message();
    EXPECT_FALSE(ended.next().ok());
    const auto then = room;
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(room, then);
  }
  for (const int fd : {up[0], down[0], down[1]}) ::close(fd);
}

TEST_F(ucx_test, a_forked_child_may_let_go_of_it) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    bytes room(10);
    there_->receive(1, buffer(room), come_.note());
    there_->end({errc::closed, "by a child"});
    there_->limit(1ms);
    const bool refused = !fabric_here_->make_line({}).ok();
    here_ = nullptr;
    there_ = nullptr;
    fabric_here_ = nullptr;
    _exit(refused ? 0 : 1);
  }
  int outcome = 0;
  ASSERT_EQ(::waitpid(child, &outcome, 0), child);
  EXPECT_TRUE(WIFEXITED(outcome) && WEXITSTATUS(outcome) == 0) << outcome;
  carry(9, 100'000);
}

std::atomic<int> still_there{0};
void (*ask_late)() = nullptr;
// Made before UCX is loaded, and so gone after UCX's own end.
const struct last_look {
  ~last_look() {
    if (ask_late != nullptr) ask_late();
    if (still_there > 0) _exit(1);
  }
} at_the_very_end;

// Several, which nobody has any more once a receive has ended: on the threads that have to take them down while the process ends. They
// begin to when it does, and it exits with 1 where it has not waited for them.
[[noreturn]] void let_go_of_fabrics_on_their_threads_and_exit() {
  constexpr int count = 6;
  static std::atomic<int> gone{0};
  static std::atomic<bool> alone{false};  // nobody else uses them any more
  static std::atomic<bool> ends{false};
  struct owner {
    std::shared_ptr<sys::fabric> fabric;
    std::unique_ptr<sys::fabric_line> line;
    bytes room = bytes(100);
  };
  still_there = count;
  for (int i = 0; i < count; ++i) {
    auto* own = new owner;
    own->fabric = *sys::ucx_fabrics()->open({});
    own->line = *own->fabric->make_line({});
    own->line->receive(1, {own->room.data(), own->room.size()}, [own](const status&) {
      while (!alone) std::this_thread::yield();
      delete own;
      ++gone;
      while (!ends) std::this_thread::yield();
      --still_there;
    });
    own->line->end({errc::closed, "the end"});
  }
  (void)std::atexit([] { ends = true; });
  alone = true;
  while (gone < count) std::this_thread::yield();
  std::exit(0);
}

TEST(ucx_exit_test, a_process_waits_for_fabrics_that_end_by_themselves) {
  if (const auto problem = sys::ucx_fabrics()->usable(); !problem.ok()) GTEST_SKIP() << problem.message();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (int i = 0; i < 2; ++i) EXPECT_EXIT(let_go_of_fabrics_on_their_threads_and_exit(), ::testing::ExitedWithCode(0), "");
}

// What is under way is told of the end, and what is asked for later too.
[[noreturn]] void exit_with_lines_under_way() {
  struct owner {
    std::shared_ptr<sys::fabric> fabric = *sys::ucx_fabrics()->open({});
    std::unique_ptr<sys::fabric_line> line = *fabric->make_line({});
    bytes room = bytes(100);
  };
  static auto* const own = new owner;
  const auto told = [](const status& outcome) { still_there -= outcome.code() == errc::closed ? 1 : 0; };
  ask_late = [] {
    own->line->receive(2, {own->room.data(), own->room.size()}, [](const status& outcome) { still_there -= outcome.ok() ? 0 : 1; });
    still_there -= own->fabric->make_line({}).error().code() == errc::closed ? 1 : 0;
    still_there -= sys::ucx_fabrics()->open({}).error().code() == errc::closed ? 1 : 0;
    delete own;
  };
  still_there = 4;
  own->line->receive(1, {own->room.data(), own->room.size()}, told);
  std::exit(0);
}

TEST(ucx_exit_test, lines_that_are_left_end_with_the_process) {
  if (const auto problem = sys::ucx_fabrics()->usable(); !problem.ok()) GTEST_SKIP() << problem.message();
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_lines_under_way(), ::testing::ExitedWithCode(0), "");
}

// Counted in processor time, not in time: a thread that looked again and again would take about all of it.
TEST_F(ucx_test, lines_that_are_idle_take_no_processor_time) {
  auto content = pattern(100'000, 1);
  bytes room(content.size());
  there_->receive(1, buffer(room), come_.note());
  here_->send(1, buffer(content), sent_.note());
  ASSERT_TRUE(come_.next().ok() && sent_.next().ok());
  const auto before = std::clock();
  std::this_thread::sleep_for(400ms);
  EXPECT_LT(std::clock() - before, CLOCKS_PER_SEC / 5);
}

std::vector<sighandler_t> signal_handlers() {
  std::vector<sighandler_t> all;
  for (const int each : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGHUP}) {
    struct sigaction now {};
    if (::sigaction(each, nullptr, &now) == 0) all.push_back(now.sa_handler);
  }
  return all;
}
const auto handlers_at_start = signal_handlers();  // a sanitizer has some

TEST_F(ucx_test, the_programs_signals_stay_its_own) { EXPECT_EQ(signal_handlers(), handlers_at_start); }

// Names of those that have an address, separated by commas.
std::string network_interfaces(std::size_t& count) {
  ifaddrs* all = nullptr;
  std::string names;
  if (::getifaddrs(&all) != 0) return names;
  for (const auto* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET || (each->ifa_flags & IFF_UP) == 0) continue;
    names += (names.empty() ? "" : ",") + std::string(each->ifa_name);
    ++count;
  }
  ::freeifaddrs(all);
  return names;
}

TEST_F(ucx_test, a_transfer_may_go_over_several_devices) {
  std::size_t count = 0;
  const auto names = network_interfaces(count);
  if (count < 2) GTEST_SKIP() << "there is one network interface";
  here_.reset();
  there_.reset();
  fabric_here_ = *door_->open({.devices = names, .rails = count});
  fabric_there_ = *door_->open({.devices = names, .rails = count});
  ASSERT_NO_FATAL_FAILURE(connect());
  for (const std::size_t size : {std::size_t{1}, std::size_t{65'537}, (std::size_t{9} << 20) + 5}) carry(size, size);
}

TEST_F(ucx_test, devices_that_are_not_there_are_named_as_the_reason) {
  auto opened = door_->open({.devices = "no_such_device:1", .only_rdma = true});
  auto line = opened ? (*opened)->make_line({}) : result<std::unique_ptr<sys::fabric_line>>(opened.error());
  ASSERT_FALSE(line.ok());
  EXPECT_NE(line.error().message().find("ucp_"), std::string_view::npos) << line.error().message();
}

}  // namespace
}  // namespace penstock::testing
