// File systems that stop responding, return short counts, or report wrong file sizes. Files on a hanging file system delay no others;
// requests queued behind the hang can be cancelled and keep their deadlines; and bytes_done is true for the rest.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "core/engine_core.hpp"
#include "device/device_fixture.hpp"
#include "support/engines.hpp"
#include "support/fuse_world.hpp"
#include "support/pattern.hpp"
#include "support/requests.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"
#include "support/thread_watchdog.hpp"

namespace penstock::testing::stalls {
namespace {

using namespace std::chrono_literals;

constexpr std::uint64_t kib = 1024;
constexpr std::uint64_t mib = 1024 * kib;
constexpr std::uint64_t file_bytes = 9 * mib;
constexpr std::uint64_t seed = 31;

const std::vector<request_kind>& kinds() {
  static const std::vector<request_kind> all = {
      {"call_small_host", asked_by::call, false, 4 * kib},
      {"call_small_device", asked_by::call, true, 4 * kib},
      {"call_large_host", asked_by::call, false, 8 * mib},
      {"call_large_device", asked_by::call, true, 8 * mib},
      {"operation_small_host", asked_by::operation, false, 4 * kib},
      {"operation_small_device", asked_by::operation, true, 128 * kib},
      {"operation_large_host", asked_by::operation, false, 8 * mib},
      {"operation_large_device", asked_by::operation, true, 8 * mib},
      {"batch_small_host", asked_by::batch, false, 4 * kib, 16},
      {"batch_small_device", asked_by::batch, true, 4 * kib, 16},
      {"batch_large_host", asked_by::batch, false, 2 * mib, 4},
      {"batch_large_device", asked_by::batch, true, 2 * mib, 4},
      {"stream_small", asked_by::stream, true, 4 * kib},
      {"stream_large", asked_by::stream, true, 8 * mib},
      {"operation_small_write", asked_by::operation, false, 4 * kib, 1, true},
      {"operation_large_write_device", asked_by::operation, true, 8 * mib, 1, true},
  };
  return all;
}

// True once the request has ended; false when nothing happens for so long that it never will.
bool ends(const running_request& request) {
  const auto until = std::chrono::steady_clock::now() + 20s;
  while (!request.done()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(100us);
  }
  return true;
}

// An engine, a file system that can be made to hang, and two that are well: another of its kind, and an ordinary one.
class stall_fixture : public ::testing::Test {
 protected:
  void start(unsigned lanes) {
    if (const auto reason = fuse_world::missing(); !reason.empty()) GTEST_SKIP() << reason;
    sick_.emplace();
    well_.emplace();
    sick_file_ = &sick_->add("sick", file_bytes, seed);
    well_->add("well", file_bytes, seed);
    store_pattern(directory_.file("ordinary"), file_bytes, seed);
    const auto options = without_cuda(lanes);
    doors_ = core::real_seams(options);
    auto made = core::make_engine(options, doors_);
    ASSERT_TRUE(made.ok()) << made.error().message();
    engine_.emplace(*std::move(made));
    auto session = doors_.host->open(0, nullptr);
    ASSERT_TRUE(session.ok()) << session.error().message();
    session_ = *session;
    open_files();
  }

  void TearDown() override {
    if (sick_) sick_->release_all();
    stuck_.clear();
    files_.clear();
    sick_handle_ = file();
    streams_.clear();
    engine_.reset();
  }

  void hang() { sick_file_->held_calls = fuse_reads | fuse_writes; }
  [[nodiscard]] bool hangs() const { return sick_file_->held_now.load() > 0; }

  // Starts more of the kind than there are threads to be stuck, and waits until the first is.
  void get_stuck(const request_kind& kind) {
    const std::size_t count = kind.way == asked_by::stream ? 3 : kind.way == asked_by::call ? 6 : kind.length > mib ? 12 : 40;
    for (std::size_t i = 0; i < count; ++i) stuck_.push_back(begin(sick_handle_, kind));
    const auto until = std::chrono::steady_clock::now() + 20s;
    while (!hangs() && std::chrono::steady_clock::now() < until) std::this_thread::sleep_for(1ms);
    ASSERT_TRUE(hangs()) << kind.name << ": no request has reached the file system";
  }

  // Stream-ordered requests run on a stream of their own each.
  std::unique_ptr<running_request> begin(const file& target, const request_kind& kind, const io_options& options = {}) {
    device::stream on = nullptr;
    if (kind.way == asked_by::stream) on = streams_.emplace_back(*session_);
    return std::make_unique<running_request>(*engine_, target, kind, seed, 0, options, on);
  }

  void expect_ends(running_request& request, errc code = errc::ok) {
    const bool ended = ends(request);
    EXPECT_TRUE(ended) << request.name() << " does not end";
    if (!ended) sick_->release_all();
    EXPECT_EQ(ended ? request.wrong(code) : "", "");
  }

  void expect_all_end_after_release() {
    sick_->release_all();
    for (auto& each : stuck_) expect_ends(*each);
  }

  const thread_watchdog watch_{::testing::UnitTest::GetInstance()->current_test_info()->name()};
  std::optional<fuse_world> sick_;
  std::optional<fuse_world> well_;
  fuse_file_control* sick_file_ = nullptr;
  temp_dir directory_ = temp_dir::on_build_disk();
  core::seams doors_;
  std::optional<engine> engine_;
  device::session* session_ = nullptr;
  file sick_handle_;
  std::vector<std::pair<std::string, file>> files_;  // of the file systems that are well
  std::deque<scoped_stream> streams_;
  std::vector<std::unique_ptr<running_request>> stuck_;

 private:
  void open_files() {
    sick_handle_ = opened_file(*engine_, sick_->path_of("sick"));
    files_.emplace_back("another mount", opened_file(*engine_, well_->path_of("well")));
    files_.emplace_back("an ordinary file", opened_file(*engine_, directory_.file("ordinary")));
  }
};

class stalls : public stall_fixture, public ::testing::WithParamInterface<std::tuple<unsigned, std::size_t>> {
 protected:
  void SetUp() override { start(std::get<0>(GetParam())); }
  static const request_kind& kind() { return kinds()[std::get<1>(GetParam())]; }
};

// Requests for files elsewhere end while one file system hangs.
TEST_P(stalls, hold_up_only_requests_for_their_own_files) {
  hang();
  get_stuck(kind());
  for (const auto& [where, target] : files_) {
    for (const auto& asked : kinds()) {
      SCOPED_TRACE(fmt::format("{} of {} while {} hangs", asked.name, where, kind().name));
      expect_ends(*begin(target, asked));
      if (HasFailure()) return;
    }
  }
  EXPECT_TRUE(hangs()) << "still";
  expect_all_end_after_release();
}

std::string name_of_stall(const ::testing::TestParamInfo<std::tuple<unsigned, std::size_t>>& info) {
  const auto lanes = std::get<0>(info.param);
  return fmt::format("{}_{}", kinds()[std::get<1>(info.param)].name, lanes == 0 ? "usual_lanes" : fmt::format("{}_lanes", lanes));
}

INSTANTIATE_TEST_SUITE_P(kinds, stalls, ::testing::Combine(::testing::Values(1U, 2U, 0U), ::testing::Range(std::size_t{0}, kinds().size())),
                         name_of_stall);

class queued_behind_a_stall : public stall_fixture, public ::testing::WithParamInterface<unsigned> {
 protected:
  void SetUp() override {
    start(GetParam());
    if (IsSkipped()) return;
    hang();
    get_stuck({"operation_large_host", asked_by::operation, false, 2 * mib});
    for (const auto& each : kinds()) {
      if (each.way == asked_by::operation || each.way == asked_by::batch) get_stuck(each);
    }
  }
};

TEST_P(queued_behind_a_stall, a_request_keeps_its_deadline) {
  for (const auto& kind : kinds()) {
    if (kind.way == asked_by::stream || kind.way == asked_by::call) continue;
    SCOPED_TRACE(kind.name);
    io_options soon;
    soon.deadline = deadline_clock::now() + 100ms;
    expect_ends(*begin(sick_handle_, kind, soon), errc::timed_out);
    EXPECT_TRUE(hangs()) << "it ended because the hang did";
    if (HasFailure()) break;
  }
  expect_all_end_after_release();
}

TEST_P(queued_behind_a_stall, a_request_can_be_cancelled) {
  for (const auto& kind : kinds()) {
    if (kind.way == asked_by::stream || kind.way == asked_by::call) continue;
    SCOPED_TRACE(kind.name);
    const auto queued = begin(sick_handle_, kind);
    queued->cancel();
    expect_ends(*queued, errc::cancelled);
    EXPECT_TRUE(hangs()) << "it ended because the hang did";
    if (HasFailure()) break;
  }
  expect_all_end_after_release();
}

// The waiter comes back although nothing has happened: it did not take part in the request.
TEST_P(queued_behind_a_stall, a_wait_of_limited_time_ends) {
  for (auto& each : stuck_) {
    if (each->done()) continue;
    EXPECT_FALSE(each->wait_for(1ms)) << each->name();
    EXPECT_FALSE(each->wait_for(0ms)) << each->name();
  }
  EXPECT_FALSE(stuck_.front()->wait_for(50ms));
  EXPECT_FALSE(stuck_.back()->wait_for(50ms));
  EXPECT_TRUE(hangs());
  expect_all_end_after_release();
}

TEST_P(queued_behind_a_stall, all_can_be_cancelled_and_the_engine_works_afterwards) {
  for (auto& each : stuck_) each->cancel();
  sick_->release_all();
  for (auto& each : stuck_) {
    ASSERT_TRUE(ends(*each)) << each->name();
    EXPECT_EQ(each->wrong_if([](errc code) { return code == errc::ok || code == errc::cancelled; }), "");
  }
  for (const auto& [where, target] : files_) expect_ends(*begin(target, kinds()[6]));
  expect_ends(*begin(sick_handle_, kinds()[6]));
}

INSTANTIATE_TEST_SUITE_P(lanes, queued_behind_a_stall, ::testing::Values(1U, 2U, 0U), [](const auto& info) {
  return info.param == 0 ? std::string("usual_lanes") : fmt::format("{}_lanes", info.param);
});

// A server that does not answer any more costs who has a deadline no longer than that: the read is left behind, with its memory.
TEST_P(stalls, a_read_that_has_begun_keeps_its_deadline) {
  if (kind().is_write || kind().way == asked_by::stream) return;
  hang();
  auto most = 200ms;
  for (int hung = 0; hung < 3;) {
    ASSERT_LT(most, 60s) << "it never begins";
    io_options soon;
    soon.deadline = deadline_clock::now() + most;
    const auto asked = begin(sick_handle_, kind(), soon);
    expect_ends(*asked, errc::timed_out);
    if (HasFailure()) break;
    if (hangs()) {
      ++hung;
    } else {
      most *= 2;  // a busy machine had not begun by then
    }
  }
  sick_->release_all();
  io_options later;
  later.deadline = deadline_clock::now() + 20s;
  expect_ends(*begin(sick_handle_, kind(), later));
  EXPECT_TRUE(sick_handle_.close().ok()) << "what was left behind has ended";
}

// --- file systems that answer, but not as files on a disk do

class strange_files : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = fuse_world::missing(); !reason.empty()) GTEST_SKIP() << reason;
    world_.emplace();
    engine_.emplace(made_engine(without_cuda()));
  }

  file open(const std::string& name) { return opened_file(*engine_, world_->path_of(name)); }

  // Reads into memory of one kind, in one way; the bytes that came.
  std::vector<std::byte> read(const file& from, bool on_device, bool asynchronous, std::uint64_t length, std::uint64_t offset,
                              io_result& outcome) {
    std::vector<std::byte> seen(length, std::byte{0xa7});
    device_buffer memory;
    void* target = seen.data();
    if (on_device) {
      auto made = engine_->allocate("host:0", length);
      EXPECT_TRUE(made.ok()) << made.error().message();
      if (!made.ok()) return {};
      memory = *std::move(made);
      target = memory.data();
    }
    const auto at = static_cast<std::int64_t>(offset);
    outcome = asynchronous ? from.read_async(target, length, at).wait() : from.read(target, length, at);
    if (on_device) {
      const auto copied = engine_->copy(seen.data(), memory.data(), length);
      EXPECT_TRUE(copied.ok()) << copied.message();
    }
    EXPECT_LE(outcome.bytes_done, length);
    seen.resize(std::min<std::uint64_t>(length, outcome.bytes_done));
    EXPECT_EQ(pattern::first_difference(seen, seed, offset), std::nullopt) << "of " << outcome.bytes_done;
    return seen;
  }

  // Takes the file out of the page cache, so that the file system is asked again. An errno.
  [[nodiscard]] int cool(const std::string& name) const {
    const int fd = ::open(world_->path_of(name).c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) return errno;
    const int wrong = ::posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
    ::close(fd);
    return wrong;
  }

  std::optional<fuse_world> world_;
  std::optional<engine> engine_;
};

// As files of /proc and of some network file systems do: st_size is not where the bytes end.
TEST_F(strange_files, bytes_are_read_up_to_where_they_end_whatever_the_size_said) {
  constexpr std::uint64_t real = 21 * mib + 77;
  auto& data = world_->add("data", real, seed);
  data.direct_io = 1;
  for (const std::uint64_t claimed :
       {std::uint64_t{0}, std::uint64_t{1}, real / 2, real - 1, real + 1, real * 2, fuse_file_control::never}) {
    data.claimed_bytes = claimed;
    const auto from = open("data");
    for (const std::uint64_t length : {4 * kib, 200 * kib, 3 * mib, 40 * mib}) {
      for (const std::uint64_t offset : {std::uint64_t{0}, real / 2 - 100, real - 100, real, real + 5000}) {
        for (const bool on_device : {false, true}) {
          const auto what = fmt::format("{} at {} of {} bytes which are claimed to be {}, {}", length, offset, real,
                                        static_cast<std::int64_t>(claimed), on_device ? "device" : "host");
          SCOPED_TRACE(what);
          const thread_watchdog watch(what);
          io_result outcome;
          (void)read(from, on_device, offset % 2 == 0, length, offset, outcome);
          EXPECT_TRUE(outcome.ok()) << outcome.error.message();
          EXPECT_EQ(outcome.bytes_done, offset < real ? std::min(length, real - offset) : 0);
        }
      }
    }
  }
}

TEST_F(strange_files, short_counts_of_the_file_system_are_not_the_end) {
  auto& data = world_->add("data", 5 * mib + 3, seed);
  data.direct_io = 1;
  data.short_reads = 1;
  const auto from = open("data");
  for (const std::uint64_t length : {std::uint64_t{1}, 4 * kib, 100 * kib, 200 * kib, 3 * mib, 8 * mib}) {
    for (const bool on_device : {false, true}) {
      for (const bool asynchronous : {false, true}) {
        const auto what = fmt::format("{} bytes, {}{}", length, on_device ? "device" : "host", asynchronous ? ", asynchronous" : "");
        SCOPED_TRACE(what);
        const thread_watchdog watch(what);
        io_result outcome;
        (void)read(from, on_device, asynchronous, length, 0, outcome);
        EXPECT_TRUE(outcome.ok()) << outcome.error.message();
        EXPECT_EQ(outcome.bytes_done, std::min(length, 5 * mib + 3));
      }
    }
  }
}

TEST_F(strange_files, short_writes_of_the_file_system_are_carried_on) {
  auto& data = world_->add("data", 0, seed);
  data.short_writes = 1;
  for (const bool direct_io : {false, true}) {
    data.direct_io = direct_io ? 1 : 0;
    const auto to = open("data");
    for (const std::uint64_t length : {std::uint64_t{1}, 4 * kib, 100 * kib, 3 * mib}) {
      for (const bool on_device : {false, true}) {
        const request_kind kind{"write", asked_by::operation, on_device, length, 1, true};
        SCOPED_TRACE(fmt::format("{} bytes, {}, direct {}", length, on_device ? "device" : "host", direct_io));
        const thread_watchdog watch("short writes");
        std::ranges::fill(world_->content(data).first(length), std::byte{0});
        running_request writing(*engine_, to, kind, seed + 5);
        ASSERT_TRUE(ends(writing));
        EXPECT_EQ(writing.wrong(), "");
        EXPECT_EQ(pattern::first_difference(world_->content(data).first(length), seed + 5, 0), std::nullopt);
      }
    }
  }
}

TEST_F(strange_files, an_error_past_some_bytes_leaves_those_and_says_how_many) {
  auto& data = world_->add("data", 8 * mib, seed);
  for (const bool direct_io : {false, true}) {
    data.direct_io = direct_io ? 1 : 0;
    for (const std::uint64_t good : {std::uint64_t{0}, 4 * kib, 64 * kib, mib + 12 * kib, 7 * mib}) {
      data.fails_from = good;
      const auto from = open("data");
      for (const std::uint64_t length : {8 * kib, 100 * kib, 8 * mib}) {
        for (const bool on_device : {false, true}) {
          SCOPED_TRACE(fmt::format("{} bytes, {} good, {}, direct {}", length, good, on_device ? "device" : "host", direct_io));
          const thread_watchdog watch("an error at an offset");
          ASSERT_EQ(cool("data"), 0);
          io_result outcome;
          (void)read(from, on_device, length % 3 == 0, length, 0, outcome);
          EXPECT_EQ(outcome.ok(), good >= length) << outcome.error.message();
          EXPECT_LE(outcome.bytes_done, good);
          if (good >= length) {
            EXPECT_EQ(outcome.bytes_done, length);
          } else {
            EXPECT_EQ(outcome.error.code(), errc::io) << outcome.error.message();
          }
        }
      }
    }
  }
}

TEST_F(strange_files, a_full_file_system_says_how_far_it_came) {
  auto& data = world_->add("data", 0, seed);
  for (const std::uint64_t room : {std::uint64_t{0}, 4 * kib, 300 * kib, 5 * mib}) {
    data.full_from = room;
    const auto to = open("data");
    for (const std::uint64_t length : {4 * kib, 100 * kib, 8 * mib}) {
      for (const bool on_device : {false, true}) {
        SCOPED_TRACE(fmt::format("{} bytes, room for {}, {}", length, room, on_device ? "device" : "host"));
        const thread_watchdog watch("a full file system");
        std::ranges::fill(world_->content(data).first(length), std::byte{0});
        running_request writing(*engine_, to, {"write", asked_by::operation, on_device, length, 1, true}, seed);
        ASSERT_TRUE(ends(writing));
        EXPECT_EQ(writing.wrong(room >= length ? errc::ok : errc::no_space), "");
        const auto done = writing.outcomes().front().bytes_done;
        EXPECT_LE(done, room);
        EXPECT_EQ(pattern::first_difference(world_->content(data).first(std::min(done, room)), seed, 0), std::nullopt);
      }
    }
  }
}

}  // namespace
}  // namespace penstock::testing::stalls
