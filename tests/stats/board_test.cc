// Boards: what other processes see of this one, even if the writer or the reader dies.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <random>
#include <thread>

#include "core/engine_core.hpp"
#include "penstock/version.hpp"
#include "stats/processes.hpp"
#include "support/engines.hpp"
#include "support/gated_kernel.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"
#include "sys/process_identity.hpp"

namespace penstock::testing {
namespace {

using stats::board_layout::page;
constexpr std::size_t file_bytes = std::size_t{1} << 20;

class boards : public ::testing::Test {
 protected:
  void SetUp() override { store_pattern(name_, file_bytes, 1); }
  // What killed processes have left goes with the test.
  void TearDown() override {
    std::error_code missing;
    for (const auto& each : std::filesystem::directory_iterator(folder_name(), missing)) {
      if (const int segment = segment_in(each.path().string()); segment >= 0 && nobody_has(segment)) shmctl(segment, IPC_RMID, nullptr);
    }
  }

  [[nodiscard]] std::shared_ptr<sys::board_folder> folder() const { return sys::make_board_folder(directory_.path().string()); }
  [[nodiscard]] std::string folder_name() const { return folder()->name(); }
  [[nodiscard]] std::string board_name(int pid = getpid()) const { return folder_name() + "/" + std::to_string(pid); }
  // Of the memory that the file of a board tells of; -1: of none.
  static int segment_in(const std::string& name) {
    sys::board_folder::segment_number segment = -1;
    std::ifstream board(name, std::ios::binary | std::ios::ate);
    if (board.tellg() != sizeof(stats::board_layout::head) + sizeof segment) return -1;
    board.seekg(sizeof(stats::board_layout::head));
    board.read(reinterpret_cast<char*>(&segment), sizeof segment);
    return static_cast<int>(segment);
  }
  [[nodiscard]] int segment_of(int pid = getpid()) const { return segment_in(board_name(pid)); }
  static bool exists(int segment) {
    shmid_ds facts{};
    return shmctl(segment, IPC_STAT, &facts) == 0;
  }
  static bool nobody_has(int segment) {
    shmid_ds facts{};
    return shmctl(segment, IPC_STAT, &facts) == 0 && facts.shm_nattch == 0;
  }
  // The memory of a board for as long as this is there, as one who wants to do harm has it.
  class memory_of {
   public:
    explicit memory_of(int segment) : data(static_cast<char*>(shmat(segment, nullptr, 0))) {}
    memory_of(const memory_of&) = delete;
    memory_of& operator=(const memory_of&) = delete;
    ~memory_of() { shmdt(data); }
    char* const data;
  };
  // Writes the file of a board.
  void tell_of(int pid, const stats::board_layout::head& head, sys::board_folder::segment_number segment) const {
    std::ofstream board(board_name(pid), std::ios::binary | std::ios::trunc);
    board.write(reinterpret_cast<const char*>(&head), sizeof head);
    board.write(reinterpret_cast<const char*>(&segment), sizeof segment);
  }
  // Makes a board with these bytes behind its head. The number of its memory.
  int put_board(const stats::board_layout::head& head, std::size_t bytes) const {
    const int segment = shmget(IPC_PRIVATE, bytes + sys::board_folder::mark_bytes, IPC_CREAT | 0600);
    const memory_of board(segment);
    const auto maker = folder();
    const auto made = maker->make(1);  // for its mark
    maker->remove();
    std::memcpy(board.data, &head, std::min(bytes, sizeof head));
    std::memcpy(board.data + bytes, made->data() + 1, sys::board_folder::mark_bytes);
    tell_of(head.pid, head, segment);
    return segment;
  }
  engine engine_with(std::shared_ptr<stats::board> on, std::shared_ptr<sys::kernel> kernel = sys::make_kernel()) const {
    core::seams doors{std::move(kernel), nullptr, device::make_host_driver()};
    doors.board = std::move(on);
    auto made = core::make_engine(without_cuda(), std::move(doors));
    EXPECT_TRUE(made.ok()) << made.error().message();
    return *std::move(made);
  }
  engine engine_with_board() const { return engine_with(std::make_shared<stats::board>(folder())); }
  // So many reads of 4 KiB into memory of the host.
  void read(const engine& with, int count) const {
    auto file = opened_file(with, name_);
    std::array<std::byte, 4096> memory;
    for (int i = 0; i < count; ++i) EXPECT_EQ(file.read(memory.data(), memory.size(), i * 4096).bytes_done, memory.size());
  }
  process_stats observe(int pid = getpid(), bool with_requests = false) const {
    auto seen = stats::observe_process(*folder(), pid, with_requests);
    EXPECT_TRUE(seen.ok()) << seen.error().message();
    return seen.value_or({});
  }
  status why_not(int pid = getpid()) const { return stats::observe_process(*folder(), pid, false).error(); }

  // Runs body in a process of its own, until it is killed by the destructor or by end().
  class other_process {
   public:
    explicit other_process(const std::function<void()>& body) {
      std::array<int, 2> ends{};
      EXPECT_EQ(pipe(ends.data()), 0);
      child_ = fork();
      if (child_ == 0) {
        body();
        const bool told = ::write(ends[1], "x", 1) == 1;
        while (told) pause();
        _exit(1);
      }
      close(ends[1]);
      char ready = 0;
      EXPECT_EQ(::read(ends[0], &ready, 1), 1);
      close(ends[0]);
    }
    other_process(const other_process&) = delete;
    other_process& operator=(const other_process&) = delete;
    ~other_process() { end(); }
    void end() {
      if (child_ <= 0) return;
      kill(child_, SIGKILL);
      waitpid(std::exchange(child_, -1), nullptr, 0);
    }
    [[nodiscard]] pid_t pid() const { return child_; }

   private:
    pid_t child_ = -1;
  };
  other_process reader_of(int count) const {
    return other_process([this, count] {
      auto* with = new engine(engine_with_board());  // is there when the process is killed
      read(*with, count);
    });
  }

  temp_dir directory_;
  std::string name_ = directory_.file("data");
};

TEST_F(boards, the_first_request_makes_one_with_what_the_engine_counts) {
  const auto with = engine_with_board();
  EXPECT_FALSE(std::filesystem::exists(folder_name()));
  read(with, 3);
  const auto seen = observe();
  const auto own = with.stats();
  EXPECT_EQ(seen.pid, getpid());
  EXPECT_EQ(seen.penstock_version, version());
  EXPECT_FALSE(seen.program.empty());
  EXPECT_FALSE(seen.ended);
  EXPECT_EQ(seen.stats.reads, 3U);
  EXPECT_EQ(seen.stats.read_bytes, 3U * 4096);
  ASSERT_EQ(seen.stats.by_device.size(), 1U);
  EXPECT_EQ(seen.stats.by_device.front().name, "host");
  EXPECT_EQ(seen.stats.by_device.front().reads, 3U);
  ASSERT_EQ(own.by_device.size(), 1U);
  EXPECT_EQ(own.by_device.front().read_bytes, 3U * 4096);
  for (const auto& path : seen.stats.by_path) {
    const auto same = std::find_if(own.by_path.begin(), own.by_path.end(), [&](const path_stats& each) { return each.name == path.name; });
    ASSERT_NE(same, own.by_path.end()) << path.name;
    EXPECT_EQ(path.operations, same->operations) << path.name;
    EXPECT_EQ(path.bytes, same->bytes) << path.name;
    EXPECT_EQ(path.busy_ns, same->busy_ns) << path.name;
    EXPECT_EQ(path.size_histogram, same->size_histogram) << path.name;
  }
}

TEST_F(boards, only_their_user_may_look_and_they_go_with_their_process) {
  int segment = -1;
  {
    const auto with = engine_with_board();
    read(with, 1);
    struct stat facts {};
    ASSERT_EQ(stat(folder_name().c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0700U);
    ASSERT_EQ(stat(board_name().c_str(), &facts), 0);
    EXPECT_EQ(facts.st_mode & 0777, 0600U);
    segment = segment_of();
    shmid_ds memory{};
    ASSERT_EQ(shmctl(segment, IPC_STAT, &memory), 0);
    EXPECT_EQ(memory.shm_perm.mode & 0777U, 0600U);
    EXPECT_EQ(memory.shm_segsz, sizeof(page) + sys::board_folder::mark_bytes);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_name()));
  EXPECT_FALSE(exists(segment));
  EXPECT_EQ(why_not().code(), errc::not_found);
}

// What it does in a process of its own ends well, and not by a signal.
template <class Steps>
void expect_no_harm(const Steps& steps) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(steps());
  }
  int outcome = 0;
  ASSERT_EQ(waitpid(child, &outcome, 0), child);
  EXPECT_FALSE(WIFSIGNALED(outcome)) << "signal " << WTERMSIG(outcome);
  EXPECT_EQ(WEXITSTATUS(outcome), 0);
}

TEST_F(boards, whose_files_others_cut_off_or_remove_harm_nobody) {
  const auto cut_off = [&] {
    const auto with = engine_with_board();
    read(with, 2);
    if (truncate(board_name().c_str(), 0) != 0) return 1;
    read(with, 2);
    if (with.stats().reads != 4 || why_not().code() != errc::invalid_argument) return 2;
    if (unlink(board_name().c_str()) != 0) return 3;
    read(with, 2);
    return with.stats().reads == 6 && why_not().code() == errc::not_found ? 0 : 4;
  };
  expect_no_harm(cut_off);
}

TEST_F(boards, whose_memory_others_write_over_end_no_process) {
  const auto written_over = [&] {
    const auto with = engine_with_board();
    read(with, 2);
    const int segment = segment_of();
    shmid_ds facts{};
    if (shmctl(segment, IPC_STAT, &facts) != 0) return 1;
    const memory_of board(segment);
    for (const int byte : {0xff, 0x61, 0x80, 1}) {
      std::memset(board.data, byte, facts.shm_segsz);
      (void)with.summary();
      (void)with.stats();
      (void)with.advice();
      read(with, 1);
    }
    return 0;
  };
  expect_no_harm(written_over);
}

TEST_F(boards, memory_that_others_remove_is_told_of_as_gone_and_counted_in) {
  const auto with = engine_with_board();
  read(with, 1);
  ASSERT_EQ(shmctl(segment_of(), IPC_RMID, nullptr), 0);
  read(with, 1);
  EXPECT_EQ(with.stats().reads, 2U);
}

TEST_F(boards, of_the_gone_that_name_memory_which_is_no_board_only_the_file_goes) {
  ASSERT_EQ(mkdir(folder_name().c_str(), 0700), 0);
  const int foreign = shmget(IPC_PRIVATE, sizeof(page), IPC_CREAT | 0600);
  stats::board_layout::head head;
  head.magic = stats::board_layout::magic;
  head.version = stats::board_layout::layout_version;
  head.size_bytes = sizeof(page);
  head.namespace_inode = sys::identify_own_process()->namespace_inode;
  head.pid = 5'000'000;
  tell_of(head.pid, head, foreign);
  EXPECT_NE(why_not(head.pid).message().find("is not a board"), std::string_view::npos) << why_not(head.pid).message();
  const timespec long_ago[] = {{0, UTIME_OMIT}, {std::time(nullptr) - 601, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, board_name(head.pid).c_str(), long_ago, 0), 0);
  (void)stats::observe_processes(*folder(), false);
  EXPECT_FALSE(std::filesystem::exists(board_name(head.pid)));
  EXPECT_TRUE(exists(foreign));
  shmctl(foreign, IPC_RMID, nullptr);
}

TEST_F(boards, engines_that_have_ended_stay_in_the_sum) {
  const auto on = std::make_shared<stats::board>(folder());
  const auto first = engine_with(on);
  read(first, 2);
  for (int i = 0; i < 20; ++i) read(engine_with(on), 1);
  EXPECT_EQ(observe().stats.reads, 22U);
  EXPECT_EQ(first.stats().reads, 2U);
}

TEST_F(boards, engines_that_find_no_room_count_for_themselves_and_say_why) {
  const auto on = std::make_shared<stats::board>(folder());
  std::vector<engine> all;
  for (std::size_t i = 0; i < stats::board_layout::most_engines + 1; ++i) {
    all.push_back(engine_with(on));
    read(all.back(), 1);
  }
  EXPECT_EQ(observe().stats.reads, stats::board_layout::most_engines);
  EXPECT_EQ(all.back().stats().reads, 1U);
  auto file = opened_file(all.back(), name_);
  const auto plan = all.back().explain(file, "host", 4096, 0);
  ASSERT_TRUE(plan.ok());
  const auto says_why = [](const std::string& remark) { return remark.find("more than 8 engines") != std::string::npos; };
  EXPECT_TRUE(std::any_of(plan->remarks.begin(), plan->remarks.end(), says_why));
}

TEST_F(boards, reasons_of_fallbacks_are_cut_off_where_the_room_ends) {
  stats::shared_text<16> text;
  text.set("0123456789abcdefXYZ");
  EXPECT_EQ(text.get(), "0123456789abcdef");
  text.set("short\n\x1b");
  EXPECT_EQ(text.get(), "short??");
  text.set("");
  EXPECT_EQ(text.get(), "");
}

TEST_F(boards, text_is_whole_characters_and_none_that_a_terminal_obeys) {
  stats::shared_text<16> text;
  text.set("\xc3\xa9 \xe2\x82\xac \xf0\x9f\x93\x81");
  EXPECT_EQ(text.get(), "\xc3\xa9 \xe2\x82\xac \xf0\x9f\x93\x81");
  text.set(
      "a\xc2\x9b"
      "31m \x9b"
      "b");  // CSI, as UTF-8 and as a byte
  EXPECT_EQ(text.get(), "a??31m ?b");
  text.set("\xff\xc0\xaf\xed\xa0\x80\xf5\x80\x80\x80.");  // no UTF-8
  EXPECT_EQ(text.get(), "??????????.");
  text.set("0123456789abcde\xc3\xa9");  // cut off within a character
  EXPECT_EQ(text.get(), "0123456789abcde?");
}

TEST_F(boards, requests_under_way_are_told_when_asked_for) {
  gate before;
  const auto with = engine_with(std::make_shared<stats::board>(folder()), std::make_shared<gated_kernel>(before));
  auto file = opened_file(with, name_);
  before.shut({8192});
  std::array<std::byte, 4096> memory;
  std::thread caller([&] { EXPECT_TRUE(file.read(memory.data(), memory.size(), 8192).ok()); });
  before.await(1);
  auto seen = observe(getpid(), true);
  // A machine under load may answer late: asked again until it does.
  while (!seen.requests) seen = observe(getpid(), true);
  before.open();
  caller.join();
  ASSERT_EQ(seen.requests->size(), 1U);
  const auto& request = seen.requests->front();
  EXPECT_EQ(request.file, name_);
  EXPECT_EQ(request.offset, 8192);
  EXPECT_EQ(request.length, 4096U);
  EXPECT_FALSE(request.is_write);
  EXPECT_EQ(request.device, "host");
}

// Tells when it is let.
class held_teller final : public stats::board_teller {
 public:
  answer tell() override {
    asked.set_value();
    go_on.get_future().wait();
    telling_ended = true;
    return {};
  }
  std::promise<void> asked;
  std::promise<void> go_on;
  std::atomic<bool> telling_ended{false};
};

TEST_F(boards, an_engine_that_ends_waits_for_its_answer_and_is_asked_no_more) {
  const auto board = std::make_shared<stats::board>(folder());
  held_teller teller;
  auto joined = board->join(teller);
  ASSERT_TRUE(joined.ok()) << joined.error().message();
  const auto asked = teller.asked.get_future().share();
  auto reader = std::async(std::launch::async, [&] {
    do {
      (void)observe(getpid(), true);  // a busy machine may need longer to ask than one question waits
    } while (asked.wait_for(std::chrono::seconds(0)) != std::future_status::ready);
  });
  asked.wait();
  auto ending = std::async(std::launch::async, [&] {
    board->forget(*joined);
    return teller.telling_ended.load();
  });
  EXPECT_EQ(ending.wait_for(std::chrono::milliseconds(5)), std::future_status::timeout);
  teller.go_on.set_value();
  EXPECT_TRUE(ending.get());
  reader.wait();
  auto seen = observe(getpid(), true);
  while (!seen.requests) seen = observe(getpid(), true);  // else the second promise would be broken
  board->leave(*joined);
}

TEST_F(boards, of_several_processes_are_told_apart) {
  const auto first = reader_of(2);
  const auto second = reader_of(5);
  EXPECT_EQ(observe(first.pid()).stats.reads, 2U);
  EXPECT_EQ(observe(second.pid()).stats.reads, 5U);
  const auto all = stats::observe_processes(*folder(), true);
  EXPECT_TRUE(all.problems.empty());
  ASSERT_EQ(all.processes.size(), 2U);
  EXPECT_LT(all.processes[0].pid, all.processes[1].pid);
}

TEST_F(boards, a_killed_process_leaves_its_last_figures_for_a_while) {
  auto other = reader_of(4);
  const auto pid = other.pid();
  other.end();
  const auto seen = observe(pid, true);
  EXPECT_TRUE(seen.ended);
  EXPECT_FALSE(seen.requests.has_value());
  EXPECT_EQ(seen.stats.reads, 4U);
  EXPECT_TRUE(observe(pid).ended);  // looking does not end it
  const timespec long_ago[] = {{0, UTIME_OMIT}, {std::time(nullptr) - 601, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, board_name(pid).c_str(), long_ago, 0), 0);
  (void)stats::observe_processes(*folder(), false);
  EXPECT_FALSE(std::filesystem::exists(board_name(pid)));
  EXPECT_EQ(why_not(pid).code(), errc::not_found);
}

TEST_F(boards, whoever_makes_one_removes_those_that_nobody_needs) {
  auto other = reader_of(1);
  const auto pid = other.pid();
  other.end();
  (void)observe(pid);
  const timespec long_ago[] = {{0, UTIME_OMIT}, {std::time(nullptr) - 601, 0}};
  ASSERT_EQ(utimensat(AT_FDCWD, board_name(pid).c_str(), long_ago, 0), 0);
  read(engine_with_board(), 1);
  EXPECT_FALSE(std::filesystem::exists(board_name(pid)));
}

TEST_F(boards, whose_files_were_removed_go_with_the_next_that_is_made) {
  auto other = reader_of(1);
  const int segment = segment_of(other.pid());
  ASSERT_EQ(unlink(board_name(other.pid()).c_str()), 0);
  read(engine_with_board(), 1);
  EXPECT_TRUE(exists(segment)) << "somebody counts in it";
  other.end();
  const auto kept = reader_of(1);  // makes one
  EXPECT_FALSE(exists(segment));
  EXPECT_EQ(observe(kept.pid()).stats.reads, 1U);
}

TEST_F(boards, of_killed_processes_a_few_stay) {
  ASSERT_EQ(mkdir(folder_name().c_str(), 0700), 0);
  stats::board_layout::head head;
  head.magic = stats::board_layout::magic;
  head.version = stats::board_layout::layout_version;
  head.size_bytes = sizeof(page);
  head.namespace_inode = sys::identify_own_process()->namespace_inode;
  std::vector<int> segments;
  for (int pid = 5'000'000; pid < 5'000'020; ++pid) {  // beyond what the kernel gives
    head.pid = pid;
    segments.push_back(put_board(head, sizeof(page)));
  }
  EXPECT_EQ(stats::observe_processes(*folder(), false).processes.size(), 20U);
  EXPECT_EQ(stats::observe_processes(*folder(), false).processes.size(), sys::board_folder::most_kept);
  EXPECT_EQ(static_cast<std::size_t>(std::ranges::count_if(segments, &exists)), sys::board_folder::most_kept);
}

TEST_F(boards, a_stopped_process_is_shown_without_its_requests) {
  const auto other = reader_of(1);
  ASSERT_EQ(kill(other.pid(), SIGSTOP), 0);
  ASSERT_EQ(waitpid(other.pid(), nullptr, WUNTRACED), other.pid());
  const auto seen = observe(other.pid(), true);
  EXPECT_FALSE(seen.ended);
  EXPECT_FALSE(seen.requests.has_value());
  EXPECT_EQ(seen.stats.reads, 1U);
}

TEST_F(boards, a_process_that_has_become_another_program_is_gone) {
  std::array<int, 2> ends{};
  ASSERT_EQ(pipe(ends.data()), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto* with = new engine(engine_with_board());
    read(*with, 3);
    dup2(ends[1], STDOUT_FILENO);
    execl("/bin/sh", "sh", "-c", "echo x; exec sleep 1000", nullptr);
    _exit(1);
  }
  close(ends[1]);
  char ready = 0;
  EXPECT_EQ(::read(ends[0], &ready, 1), 1);
  for (const bool with_requests : {false, true}) {
    const auto seen = observe(child, with_requests);
    EXPECT_TRUE(seen.ended);
    EXPECT_EQ(seen.stats.reads, 3U);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ends[0]);
}

TEST_F(boards, no_question_of_many_readers_is_lost) {
  const auto other = reader_of(1);
  ASSERT_EQ(kill(other.pid(), SIGSTOP), 0);
  ASSERT_EQ(waitpid(other.pid(), nullptr, WUNTRACED), other.pid());
  constexpr std::size_t readers = 4;
  constexpr std::uint32_t questions = 1000;
  const memory_of board(segment_of(other.pid()));
  const auto asked = [&] { return reinterpret_cast<page*>(board.data)->asked.load(); };
  const auto before = asked();
  std::vector<std::thread> all;
  for (std::size_t i = 0; i < readers; ++i) {
    all.emplace_back([&] {
      const auto own = folder();
      for (std::uint32_t j = 0; j < questions; ++j)
        EXPECT_EQ(own->ask(other.pid(), offsetof(page, asked), offsetof(page, answered), std::chrono::milliseconds(0)).code(),
                  errc::timed_out);
    });
  }
  for (auto& each : all) each.join();
  EXPECT_EQ(asked() - before, readers * questions);
}

// A folder that notes for how long an answer may be waited for.
class patient_folder final : public sys::board_folder {
 public:
  explicit patient_folder(std::shared_ptr<sys::board_folder> inner) : inner_(std::move(inner)) {}
  std::chrono::milliseconds waited{0};

  result<sys::shared_region> make(std::size_t bytes) override { return inner_->make(bytes); }
  status publish(std::span<const std::byte> start) override { return inner_->publish(start); }
  void remove() noexcept override { inner_->remove(); }
  result<std::vector<int>> list() override { return inner_->list(); }
  status read(int pid, std::span<std::byte> into) override { return inner_->read(pid, into); }
  result<std::size_t> read_start(int pid, std::span<std::byte> into) override { return inner_->read_start(pid, into); }
  status ask(int pid, std::size_t asked, std::size_t answered, std::chrono::milliseconds most) override {
    auto outcome = inner_->ask(pid, asked, answered, std::chrono::milliseconds(0));
    if (!outcome.ok()) waited += most;
    return outcome;
  }
  bool is_mapped_by(int pid) noexcept override { return inner_->is_mapped_by(pid); }
  void note_gone(int pid) noexcept override { inner_->note_gone(pid); }
  void tidy(std::span<const int> gone) noexcept override { inner_->tidy(gone); }
  [[nodiscard]] const std::string& name() const noexcept override { return inner_->name(); }

 private:
  const std::shared_ptr<sys::board_folder> inner_;
};

TEST_F(boards, of_many_stopped_processes_not_each_is_waited_for) {
  std::vector<std::unique_ptr<other_process>> all;
  for (int i = 0; i < 12; ++i) {
    all.push_back(std::make_unique<other_process>([this] {
      auto* with = new engine(engine_with_board());
      read(*with, 1);
    }));
    ASSERT_EQ(kill(all.back()->pid(), SIGSTOP), 0);
    ASSERT_EQ(waitpid(all.back()->pid(), nullptr, WUNTRACED), all.back()->pid());
  }
  patient_folder asked(folder());
  EXPECT_EQ(stats::observe_processes(asked, true).processes.size(), all.size());
  EXPECT_LE(asked.waited, stats::all_answers_time + all.size() * stats::least_answer_time);
  EXPECT_GE(asked.waited, stats::answer_time);
}

#if !defined(__SANITIZE_THREAD__)  // which does not support new threads in a forked child
TEST_F(boards, a_forked_child_counts_for_itself) {
  const auto on = std::make_shared<stats::board>(folder());
  const auto with = engine_with(on);
  auto file = opened_file(with, name_);
  read(with, 1);
  {
    const other_process child([&] {
      std::array<std::byte, 16> memory;
      EXPECT_EQ(file.read(memory.data(), memory.size(), 0).error.code(), errc::forked);  // counted as failed, and not here
      auto* own = new engine(engine_with(on));
      read(*own, 7);
    });
    EXPECT_EQ(observe(child.pid()).stats.reads, 7U);
    const auto seen = observe(getpid(), false);
    EXPECT_EQ(seen.stats.reads, 1U);
    EXPECT_EQ(seen.stats.failed, 0U);
  }
  read(with, 1);
  EXPECT_EQ(observe().stats.reads, 2U);
}
#endif

TEST_F(boards, what_an_earlier_process_of_the_same_number_left_is_replaced) {
  ASSERT_EQ(mkdir(folder_name().c_str(), 0700), 0);
  std::ofstream(board_name()) << "old";
  EXPECT_EQ(why_not().code(), errc::invalid_argument);
  const auto with = engine_with_board();
  read(with, 1);
  EXPECT_EQ(observe().stats.reads, 1U);
}

TEST_F(boards, a_second_copy_of_the_library_leaves_the_first_alone) {
  const auto first = engine_with_board();
  read(first, 2);
  const auto second = engine_with_board();
  read(second, 1);
  EXPECT_EQ(observe().stats.reads, 2U);
  EXPECT_EQ(second.stats().reads, 1U);
}

TEST_F(boards, nothing_is_put_where_somebody_else_may_look_or_has_been_before) {
  const auto expect_refused = [&](const char* what) {
    const auto made = folder()->make(4096);
    EXPECT_EQ(made.error().code(), errc::permission_denied) << what;
    EXPECT_EQ(stats::observe_processes(*folder(), false).problems.size(), 1U) << what;
    const auto with = engine_with_board();
    read(with, 1);
    EXPECT_EQ(with.stats().reads, 1U) << what;
  };
  const auto elsewhere = directory_.file("elsewhere");
  ASSERT_EQ(mkdir(elsewhere.c_str(), 0700), 0);
  ASSERT_EQ(symlink(elsewhere.c_str(), folder_name().c_str()), 0);
  expect_refused("a link");
  EXPECT_TRUE(std::filesystem::is_empty(elsewhere));
  ASSERT_EQ(unlink(folder_name().c_str()), 0);

  std::ofstream(folder_name()) << "no folder";
  expect_refused("a file");
  ASSERT_EQ(unlink(folder_name().c_str()), 0);

  ASSERT_EQ(mkdir(folder_name().c_str(), 0700), 0);
  ASSERT_EQ(chmod(folder_name().c_str(), 0755), 0);
  expect_refused("open to others");

  if (geteuid() != 0) GTEST_SKIP() << "only root can give a folder to somebody else";
  ASSERT_EQ(chmod(folder_name().c_str(), 0700), 0);
  if (chown(folder_name().c_str(), 1, 1) != 0) GTEST_SKIP() << "there are no other users here";  // a user namespace of one
  expect_refused("another user's");
}

TEST_F(boards, a_board_that_is_a_link_is_not_followed) {
  ASSERT_EQ(mkdir(folder_name().c_str(), 0700), 0);
  ASSERT_EQ(symlink(name_.c_str(), board_name(1).c_str()), 0);
  EXPECT_FALSE(stats::observe_process(*folder(), 1, true).ok());
}

TEST_F(boards, where_there_is_no_shared_memory_counters_are_private_and_that_is_said) {
  const auto with = engine_with(std::make_shared<stats::board>(sys::make_board_folder(directory_.file("missing"))));
  read(with, 2);
  EXPECT_EQ(with.stats().reads, 2U);
  auto file = opened_file(with, name_);
  const auto plan = with.explain(file, "host", 4096, 0);
  ASSERT_TRUE(plan.ok());
  const auto says_why = [](const std::string& remark) {
    return remark.find("penstock stats cannot see this process: create the folder") != std::string::npos;
  };
  EXPECT_TRUE(std::any_of(plan->remarks.begin(), plan->remarks.end(), says_why));
}

TEST_F(boards, are_not_made_where_they_are_not_wanted) {
  engine_options options = without_cuda();
  EXPECT_NE(core::real_seams(options).board, nullptr);
  options.use_board = false;
  EXPECT_EQ(core::real_seams(options).board, nullptr);
  ::setenv("PENSTOCK_STATS", "0", 1);
  EXPECT_FALSE(engine_options::from_environment()->use_board);
  ::setenv("PENSTOCK_STATS", "no", 1);
  EXPECT_NE(engine_options::from_environment().error().message().find("PENSTOCK_STATS=no: expected 0 or 1"), std::string_view::npos);
  ::unsetenv("PENSTOCK_STATS");
}

TEST_F(boards, of_other_versions_are_refused_with_both_versions) {
  const auto other = reader_of(1);
  const std::uint32_t version = stats::board_layout::layout_version + 1;
  std::fstream board(board_name(other.pid()), std::ios::in | std::ios::out | std::ios::binary);
  board.seekp(offsetof(stats::board_layout::head, version));
  board.write(reinterpret_cast<const char*>(&version), sizeof version);
  board.close();
  const auto why = why_not(other.pid());
  EXPECT_EQ(why.code(), errc::unsupported);
  EXPECT_NE(why.message().find("layout " + std::to_string(version)), std::string_view::npos) << why.message();
  EXPECT_EQ(stats::observe_processes(*folder(), true).problems.size(), 1U);
}

TEST_F(boards, that_nobody_can_read_are_not_told_of_where_their_process_is_gone) {
  ASSERT_EQ(mkdir(folder_name().c_str(), 0700), 0);
  stats::board_layout::head head;
  head.magic = stats::board_layout::magic;
  head.version = stats::board_layout::layout_version + 1;
  head.size_bytes = 128;
  head.namespace_inode = sys::identify_own_process()->namespace_inode;
  const auto put = [&](int pid, std::uint64_t start_ticks) {
    head.pid = pid;
    head.start_ticks = start_ticks;
    std::array<char, 128> bytes{};
    std::memcpy(bytes.data(), &head, sizeof head);
    std::ofstream(board_name(pid), std::ios::binary).write(bytes.data(), bytes.size());
  };
  const auto listed = [&] {
    return std::distance(std::filesystem::directory_iterator(folder_name()), std::filesystem::directory_iterator());
  };
  for (int pid = 5'000'000; pid < 5'000'010; ++pid) put(pid, 1);  // beyond what the kernel gives
  for (int pid = 5'000'010; pid < 5'000'020; ++pid) std::ofstream(board_name(pid)) << "garbage";
  put(getpid(), sys::identify_own_process()->start_ticks + 1);  // of an earlier process of the same number
  const auto seen = stats::observe_processes(*folder(), true);
  EXPECT_TRUE(seen.processes.empty());
  EXPECT_TRUE(seen.problems.empty()) << seen.problems.front().message();
  EXPECT_EQ(listed(), static_cast<std::ptrdiff_t>(sys::board_folder::most_kept));
  put(getpid(), sys::identify_own_process()->start_ticks);
  ASSERT_EQ(stats::observe_processes(*folder(), true).problems.size(), 1U);
  EXPECT_EQ(stats::observe_processes(*folder(), true).problems.front().code(), errc::unsupported);
}

TEST_F(boards, of_whatever_bytes_and_length_are_refused_or_read_without_harm) {
  auto other = reader_of(1);
  const auto pid = other.pid();
  const int segment = segment_of(pid);
  const memory_of board(segment);
  const std::vector<char> good(board.data, board.data + sizeof(page));
  other.end();
  const auto seed = std::random_device()();
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  std::mt19937 random(seed);
  stats::board_layout::head head;
  std::memcpy(static_cast<void*>(&head), good.data(), sizeof head);
  for (const std::size_t length : {std::size_t{0}, std::size_t{1}, std::size_t{7}, std::size_t{64}, std::size_t{71}, sizeof(page)}) {
    std::ofstream(board_name(pid), std::ios::binary | std::ios::trunc).write(good.data(), static_cast<std::streamsize>(length));
    EXPECT_FALSE(stats::observe_process(*folder(), pid, true).ok()) << length;
  }
  for (const auto number : {std::int64_t{-1}, std::int64_t{INT_MAX}, std::int64_t{1} << 40}) {
    tell_of(pid, head, number);
    EXPECT_EQ(why_not(pid).code(), errc::invalid_argument) << number;
  }
  for (const std::size_t length : {sizeof head, sizeof(page) - 1, sizeof(page) + 1}) {
    const int other_size = put_board(head, length);
    EXPECT_EQ(why_not(pid).code(), errc::invalid_argument) << length;
    shmctl(other_size, IPC_RMID, nullptr);
  }
  tell_of(pid, head, segment);
  EXPECT_TRUE(stats::observe_process(*folder(), pid, true).ok());
  for (int round = 0; round < 200; ++round) {
    auto bytes = good;
    const std::size_t kept = round % 2 == 0 ? sizeof(stats::board_layout::head) : 0;
    if (round % 4 < 2) {
      for (std::size_t i = kept; i < bytes.size(); ++i) bytes[i] = static_cast<char>(random());
    } else {
      for (int i = 0; i < 64; ++i) bytes[kept + random() % (bytes.size() - kept)] = static_cast<char>(random());
    }
    std::memcpy(board.data, bytes.data(), bytes.size());
    std::memcpy(static_cast<void*>(&head), bytes.data(), sizeof head);
    head.pid = pid;
    tell_of(pid, head, segment);
    const auto seen = stats::observe_process(*folder(), pid, true);
    if (!seen) continue;
    EXPECT_EQ(seen->pid, pid);
    EXPECT_LE(seen->stats.by_path.size(), stats::board_layout::most_paths * (stats::board_layout::most_engines + 1));
    EXPECT_LE(seen->stats.by_device.size(), stats::board_layout::most_devices);
    for (const char each : seen->program) EXPECT_GE(static_cast<unsigned char>(each), 0x20);
  }
}

TEST_F(boards, say_of_processes_without_one_why) {
  EXPECT_NE(why_not(getpid()).message().find("does not use Penstock"), std::string_view::npos);
  EXPECT_EQ(why_not(5'000'000).code(), errc::not_found);
  EXPECT_NE(why_not(5'000'000).message().find("there is no process 5000000"), std::string_view::npos);
}

TEST_F(boards, what_was_read_and_what_was_written_are_counted_apart) {
  const path::path_table table;
  stats::book book(table, nullptr);
  std::atomic<bool> end{false};
  std::thread writer([&] {
    while (!end) book.count_piece(path_kind::posix, true, 4096, {0, 1}, false);
  });
  std::uint64_t read = 0;
  for (int i = 0; i < 20'000; ++i) {
    const auto seen = book.snapshot().path(path_kind::posix);
    read |= seen.bytes - seen.written_bytes;
  }
  end = true;
  writer.join();
  EXPECT_EQ(read, 0U);
}

TEST_F(boards, are_read_while_many_threads_count) {
  const auto on = std::make_shared<stats::board>(folder());
  const auto with = engine_with(on);
  std::vector<std::thread> all;
  for (int i = 0; i < 4; ++i) all.emplace_back([&] { read(with, 200); });
  std::thread coming_and_going([&] {
    for (int i = 0; i < 30; ++i) read(engine_with(on), 1);
  });
  std::uint64_t before = 0;
  for (int i = 0; i < 100; ++i) {
    const auto seen = stats::observe_process(*folder(), getpid(), i % 10 == 0);
    if (!seen) continue;  // not yet made
    EXPECT_GE(seen->stats.reads, before);
    before = seen->stats.reads;
  }
  for (auto& each : all) each.join();
  coming_and_going.join();
  EXPECT_EQ(observe().stats.reads, 830U);
}

}  // namespace
}  // namespace penstock::testing
