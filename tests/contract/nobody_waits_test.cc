// Requests end without a waiting thread: the caller only polls, has left, or has cancelled. Each request ends exactly once, with the right
// bytes. One request at a time, so that no other request helps it along. Times are printed but not checked: a request fails only after a
// time that means it will never end.
//   PENSTOCK_NOBODY_WAITS_COUNT   requests of each kind in the long suite (100000)
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <functional>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "contract/contract_fixture.hpp"
#include "device/device_fixture.hpp"
#include "support/forwarding_kernel.hpp"
#include "support/thread_watchdog.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

constexpr std::uint64_t long_file_bytes = 32 * mib;
constexpr std::uint64_t most_bytes = 4 * mib;  // of a request, or of all requests of a batch
constexpr std::uint64_t seed = 81;
constexpr auto patience = 20s;

enum class asked_as { operation, batch, stream };

// How it is learned that a request has ended, and what is done meanwhile.
enum class watched {
  by_callback,
  by_done,
  by_waits_that_expire,
  after_cancel,
  after_drop,
  beside_another_waiter,
};

struct kind_of_request {
  asked_as way = asked_as::operation;
  bool on_device = false;
  std::uint64_t length = 0;
  watched how = watched::by_callback;
  [[nodiscard]] std::string name() const {
    constexpr std::array ways{"operation", "batch", "stream"};
    constexpr std::array hows{"callback", "done", "expired_waits", "cancel", "drop", "another_waiter"};
    return fmt::format("{}_{}k_{}_{}", ways[static_cast<std::size_t>(way)], length / kib, on_device ? "device" : "host",
                       hows[static_cast<std::size_t>(how)]);
  }
};

std::vector<kind_of_request> make_kinds() {
  std::vector<kind_of_request> all;
  for (const std::uint64_t length : {4 * kib, 64 * kib, 128 * kib, 200 * kib, mib}) {
    for (const auto how : {watched::by_callback, watched::by_done, watched::by_waits_that_expire, watched::after_cancel,
                           watched::after_drop, watched::beside_another_waiter}) {
      for (const auto way : {asked_as::operation, asked_as::batch}) {
        for (const bool on_device : {false, true}) all.push_back({way, on_device, length, how});
      }
      // A stream-ordered request has no handle: its count is looked at, or it calls back.
      if (how == watched::by_callback || how == watched::by_done) all.push_back({asked_as::stream, true, length, how});
    }
  }
  return all;
}

const std::vector<kind_of_request>& all_kinds() {
  static const std::vector<kind_of_request> all = make_kinds();
  return all;
}

class many_cores final : public forwarding_kernel {
 public:
  unsigned usable_cores() override { return 16; }
};

// What the engine is like: how many lanes, or a machine that claims to have more cores than there are.
enum class engine_kind { one_lane, two_lanes, four_lanes, usual_lanes, sixteen_cores };
constexpr std::array engine_kinds{engine_kind::one_lane, engine_kind::two_lanes, engine_kind::four_lanes, engine_kind::usual_lanes,
                                  engine_kind::sixteen_cores};
constexpr std::array engine_names{"one_lane", "two_lanes", "four_lanes", "usual_lanes", "sixteen_cores"};

engine_options options_of(engine_kind kind) {
  constexpr std::array<unsigned, 5> lanes{1, 2, 4, 0, 0};
  engine_options options;
  options.lanes = lanes[static_cast<std::size_t>(kind)];
  return options;
}

core::seams doors_of(engine_kind kind) {
  auto doors = core::real_seams(options_of(kind));
  if (kind == engine_kind::sixteen_cores) doors.kernel = std::make_shared<many_cores>();
  return doors;
}

// The calling thread, and those it starts from now on, on the first so many cores.
class on_cores {
 public:
  explicit on_cores(int count) {
    EXPECT_EQ(sched_getaffinity(0, sizeof before_, &before_), 0);
    cpu_set_t fewer;
    CPU_ZERO(&fewer);
    for (std::size_t i = 0; i < CPU_SETSIZE && count > 0; ++i) {
      if (!CPU_ISSET(i, &before_)) continue;
      CPU_SET(i, &fewer);
      --count;
    }
    enough_ = count == 0;
    EXPECT_EQ(sched_setaffinity(0, sizeof fewer, &fewer), 0);
  }
  on_cores(const on_cores&) = delete;
  on_cores& operator=(const on_cores&) = delete;
  ~on_cores() { EXPECT_EQ(sched_setaffinity(0, sizeof before_, &before_), 0); }
  [[nodiscard]] bool enough() const { return enough_; }

 private:
  cpu_set_t before_{};
  bool enough_ = false;
};

// What is seen of one request. Lives until the engine has gone, so that a second end would show.
struct sighting {
  std::atomic<int> ended{0};
  std::atomic<int> items_ended{0};
  io_result outcome;  // written before ended
  std::size_t length = 0;
  std::int64_t offset = 0;
  std::atomic<std::int64_t> bytes_done{-77};
  int expected_ends = 0;
  int expected_items = 0;

  io_callback callback() {
    ++expected_ends;
    return [this](const io_result& seen) {
      outcome = seen;
      ended.fetch_add(1, std::memory_order_release);
    };
  }
};

// One engine, and requests asked of it one after the other.
class lonely_requests {
 public:
  lonely_requests(engine_kind kind, const std::string& path, thread_watchdog& watch)
      : watch_(watch), house_(options_of(kind), doors_of(kind)) {
    auto opened = house_.engine().open(path, {});
    EXPECT_TRUE(opened.ok()) << told(opened.error());
    if (opened.ok()) from_ = *std::move(opened);
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_GE(fd_, 0);
    on_host_.resize(most_bytes);
    for (auto* each : {&on_device_, &another_}) {
      auto made = house_.engine().allocate(house_.device(), most_bytes);
      EXPECT_TRUE(made.ok()) << told(made.error());
      if (made.ok()) *each = *std::move(made);
    }
    stream_ = std::make_unique<scoped_stream>(house_.session());
  }
  lonely_requests(const lonely_requests&) = delete;
  lonely_requests& operator=(const lonely_requests&) = delete;
  // Ends the engine; then each request has ended once.
  ~lonely_requests() {
    ::close(fd_);
    EXPECT_TRUE(from_.close().ok());
    stream_.reset();
    on_device_ = device_buffer();
    another_ = device_buffer();
    house_.end();
    for (const auto& each : seen_) {
      EXPECT_EQ(each.ended.load(), each.expected_ends);
      EXPECT_EQ(each.items_ended.load(), each.expected_items);
    }
  }

  // False when it did not end, or ended wrong: enough for this engine.
  bool run(const kind_of_request& kind, bool cold) {
    const std::uint64_t count = kind.way != asked_as::batch ? 1 : kind.length < mib ? 8 : 2;
    const std::uint64_t total = count * kind.length;
    next_ = next_ + total > long_file_bytes ? 0 : next_;
    const auto offset = std::exchange(next_, next_ + total);
    prepare(kind, offset, total, cold);
    auto& seen = seen_.emplace_back();
    handles made;
    const auto started = steady_clock::now();
    start(kind, offset, count, seen, made);
    const bool ended = watch(kind, seen, made, started);
    longest_ = std::max(longest_, steady_clock::now() - started);
    ++requests_;
    if (!ended) return give_up(kind, made);
    return judge(kind, seen, made, offset, count);
  }

  [[nodiscard]] std::chrono::microseconds longest() const { return std::chrono::duration_cast<std::chrono::microseconds>(longest_); }
  [[nodiscard]] std::uint64_t requests() const { return requests_; }
  [[nodiscard]] std::uint64_t really_cold() const { return really_cold_; }

 private:
  struct handles {
    operation single;
    batch several;
    operation another;
    bool dropped = false;
  };

  std::byte* memory(bool on_device) { return on_device ? static_cast<std::byte*>(on_device_.data()) : on_host_.data(); }

  void prepare(const kind_of_request& kind, std::uint64_t offset, std::uint64_t total, bool cold) {
    std::fill_n(on_host_.begin(), total, std::byte{0});
    if (kind.on_device) PENSTOCK_EXPECT_OK(house_.engine().copy(on_device_.data(), on_host_.data(), total));
    if (!cold) return;
    EXPECT_EQ(::posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(total), POSIX_FADV_DONTNEED), 0);
    if (kernel_->resident_bytes(fd_, offset, total).value_or(total) < total) ++really_cold_;
  }

  void start(const kind_of_request& kind, std::uint64_t offset, std::uint64_t count, sighting& seen, handles& made) {
    const auto at = static_cast<std::int64_t>(offset);
    auto* target = memory(kind.on_device);
    const bool calls_back = kind.how != watched::by_done && kind.how != watched::by_waits_that_expire;
    // What is cold goes one way and the other, each kind of request in turn.
    const io_options how{.cache = (requests_ + requests_ / (3 * all_kinds().size())) % 2 == 0 ? cache_use::fill : cache_use::bypass};
    auto callback = calls_back ? seen.callback() : io_callback();
    if (kind.way == asked_as::stream) {
      seen.length = kind.length;
      seen.offset = at;
      stream_request asked{.stream = *stream_, .memory = target, .length = &seen.length, .offset = &seen.offset};
      asked.bytes_done = reinterpret_cast<std::int64_t*>(&seen.bytes_done);
      asked.ended = std::move(callback);
      PENSTOCK_EXPECT_OK(from_.read_on_stream(asked));
    } else if (kind.way == asked_as::operation) {
      made.single = from_.read_async(target, kind.length, at, how, std::move(callback));
    } else {
      std::vector<io_request> asked;
      for (std::uint64_t i = 0; i < count; ++i) {
        asked.push_back({&from_, target + i * kind.length, kind.length, at + static_cast<std::int64_t>(i * kind.length), false});
      }
      seen.expected_items = static_cast<int>(count);
      made.several =
          house_.engine().submit(asked, how, std::move(callback), [&seen](std::size_t, const io_result&) { ++seen.items_ended; });
    }
    if (kind.how == watched::beside_another_waiter) made.another = from_.read_async(another_.data(), 64 * kib, 0);
  }

  static bool is_done(const kind_of_request& kind, const handles& made) {
    return kind.way == asked_as::batch ? made.several.done() : made.single.done();
  }
  static bool wait_for(const kind_of_request& kind, handles& made, std::chrono::nanoseconds time) {
    return kind.way == asked_as::batch ? made.several.wait_for(time) : made.single.wait_for(time);
  }

  bool watch(const kind_of_request& kind, sighting& seen, handles& made, steady_clock::time_point started) {
    const bool is_batch = kind.way == asked_as::batch;
    switch (kind.how) {
      case watched::by_waits_that_expire:
        if (!wait_for(kind, made, 0ns)) (void)wait_for(kind, made, 100us);
        break;
      case watched::after_cancel:
        is_batch ? made.several.cancel() : made.single.cancel();
        break;
      case watched::after_drop:
        (void)operation(std::move(made.single));
        (void)batch(std::move(made.several));
        made.dropped = true;
        break;
      case watched::beside_another_waiter:
        EXPECT_TRUE(made.another.wait().ok());
        break;
      default:
        break;
    }
    const auto has_ended = [&] {
      if (kind.how == watched::by_waits_that_expire) return is_done(kind, made);
      if (kind.how != watched::by_done) return seen.ended.load(std::memory_order_acquire) > 0;
      return kind.way == asked_as::stream ? seen.bytes_done.load(std::memory_order_acquire) != -77 : is_done(kind, made);
    };
    while (!has_ended()) {
      if (steady_clock::now() - started > patience) return false;
      std::this_thread::sleep_for(20us);
    }
    return true;
  }

  bool give_up(const kind_of_request& kind, handles& made) {
    ADD_FAILURE() << kind.name() << " has not ended after " << patience.count() << " s, though nobody waits";
    watch_.feed(kind.name() + ": now somebody waits");
    if (!made.dropped) (void)(kind.way == asked_as::batch ? made.several.wait_for(10s) : made.single.wait_for(10s));
    return false;
  }

  bool judge(const kind_of_request& kind, const sighting& seen, handles& made, std::uint64_t offset, std::uint64_t count) {
    std::vector<io_result> outcomes(count);
    if (kind.way == asked_as::batch && !made.dropped) {
      outcomes = made.several.wait();
    } else if (kind.way == asked_as::operation && !made.dropped) {
      outcomes = {made.single.wait()};
    } else if (kind.way == asked_as::stream) {
      EXPECT_TRUE(house_.session().synchronize(*stream_).ok());
      outcomes.front().bytes_done = static_cast<std::uint64_t>(seen.bytes_done.load());
    } else {
      EXPECT_TRUE(seen.outcome.ok()) << told(seen.outcome.error);
      EXPECT_EQ(seen.outcome.bytes_done, count * kind.length);
      for (auto& each : outcomes) each.bytes_done = kind.length;
    }
    EXPECT_EQ(outcomes.size(), count);
    if (kind.on_device) PENSTOCK_EXPECT_OK(house_.engine().copy(on_host_.data(), on_device_.data(), count * kind.length));
    for (std::uint64_t i = 0; i < outcomes.size(); ++i) {
      const auto& each = outcomes[i];
      const bool stopped = kind.how == watched::after_cancel && each.error.code() == errc::cancelled;
      EXPECT_TRUE(each.ok() || stopped) << told(each.error);
      EXPECT_TRUE(stopped ? each.bytes_done <= kind.length : each.bytes_done == kind.length) << each.bytes_done;
      const auto wrong = pattern::first_difference({on_host_.data() + i * kind.length, std::min(each.bytes_done, kind.length)}, seed,
                                                   offset + i * kind.length);
      EXPECT_EQ(wrong, std::nullopt);
    }
    return !::testing::Test::HasFailure();
  }

  thread_watchdog& watch_;
  open_house house_;
  file from_;
  int fd_ = -1;
  std::shared_ptr<sys::kernel> kernel_ = sys::make_kernel();
  bytes on_host_;
  device_buffer on_device_;
  device_buffer another_;
  std::unique_ptr<scoped_stream> stream_;
  std::deque<sighting> seen_;
  std::uint64_t next_ = 0;
  steady_clock::duration longest_{0};
  std::uint64_t requests_ = 0;
  std::uint64_t really_cold_ = 0;
};

// One file for all tests of the process, on disk.
class shared_file {
 public:
  static const std::string& path() {
    static const shared_file made;
    return made.path_;
  }

 private:
  shared_file() {
    store_file(path_, pattern::make(long_file_bytes, seed));
    drop_cache(path_);
  }
  temp_dir directory_ = temp_dir::on_build_disk();
  const std::string path_ = directory_.file("data");
};

void tell(const std::string& what, const lonely_requests& of) {
  std::cout << fmt::format("{}: {} requests, {} of them cold, the longest took {} us\n", what, of.requests(), of.really_cold(),
                           of.longest().count());
}

class nobody_waits : public ::testing::TestWithParam<std::tuple<engine_kind, int>> {};

TEST_P(nobody_waits, and_every_request_ends) {
  const auto [engine, cores] = GetParam();
  const on_cores fewer(cores);
  if (!fewer.enough()) GTEST_SKIP() << "fewer than " << cores << " cores may be used";
  const auto what = fmt::format("{} on {} cores", engine_names[static_cast<std::size_t>(engine)], cores);
  thread_watchdog watch(what, 60s);
  lonely_requests requests(engine, shared_file::path(), watch);
  bool going_on = true;
  for (int round = 0; round < 9 && going_on; ++round) {
    for (const auto& each : all_kinds()) {
      SCOPED_TRACE(fmt::format("{} on {}, {}", each.name(), what, round % 3 == 0 ? "cold" : "warm"));
      watch.feed(fmt::format("{} on {}", each.name(), what));
      going_on = requests.run(each, round % 3 == 0);
      if (!going_on) break;
    }
  }
  watch.feed("the end of the engine: " + what);
  tell(what, requests);
}

INSTANTIATE_TEST_SUITE_P(engines, nobody_waits, ::testing::Combine(::testing::ValuesIn(engine_kinds), ::testing::Values(1, 2, 4)),
                         [](const auto& info) {
                           return fmt::format("{}_{}_cores", engine_names[static_cast<std::size_t>(std::get<0>(info.param))],
                                              std::get<1>(info.param));
                         });

class long_nobody_waits : public ::testing::TestWithParam<std::size_t> {};

TEST_P(long_nobody_waits, and_every_request_ends) {
  const auto& kind = all_kinds()[GetParam()];
  const char* text = std::getenv("PENSTOCK_NOBODY_WAITS_COUNT");
  const std::uint64_t count = text != nullptr ? std::strtoull(text, nullptr, 10) : 100000;
  for (const auto engine : engine_kinds) {
    const std::string name = engine_names[static_cast<std::size_t>(engine)];
    SCOPED_TRACE(name);
    thread_watchdog watch(kind.name() + " on " + name, 60s);
    lonely_requests requests(engine, shared_file::path(), watch);
    bool going_on = true;
    for (std::uint64_t i = 0; i < count / engine_kinds.size() && going_on; ++i) {
      going_on = requests.run(kind, i % 10 == 0);
      watch.feed();
    }
    tell(kind.name() + " on " + name, requests);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(long_kinds, long_nobody_waits, ::testing::Range(std::size_t{0}, all_kinds().size()),
                         [](const auto& info) { return all_kinds()[info.param].name(); });

}  // namespace
}  // namespace penstock::testing
