// Threads that cannot be started, as under RLIMIT_NPROC or a container's pids limit: the waiting thread does the work, or the request ends
// with out_of_memory. Nothing aborts.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/engine_core.hpp"
#include "memory/failing_allocations.hpp"
#include "support/engines.hpp"
#include "support/requests.hpp"
#include "support/stored_file.hpp"
#include "support/temp_dir.hpp"
#include "support/thread_watchdog.hpp"

namespace penstock::testing::thread_memory {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kib = 1024;
constexpr std::size_t mib = 1024 * kib;
constexpr std::size_t file_bytes = 9 * mib;
constexpr std::uint64_t seed = 61;

const std::vector<request_kind>& kinds() {
  static const std::vector<request_kind> all = {
      {"operation_small_host", asked_by::operation, false, 4 * kib},
      {"operation_small_device", asked_by::operation, true, 4 * kib},
      {"operation_large_host", asked_by::operation, false, 8 * mib},
      {"operation_large_device", asked_by::operation, true, 8 * mib},
      {"batch_small_device", asked_by::batch, true, 4 * kib, 16},
      {"batch_large_host", asked_by::batch, false, 2 * mib, 4},
      {"stream_large", asked_by::stream, true, 8 * mib},
      {"operation_large_write_device", asked_by::operation, true, 8 * mib, 1, true},
  };
  return all;
}

engine_options one_lane() { return without_cuda(1); }

class thread_failures : public ::testing::Test {
 protected:
  thread_failures() { store_pattern(path_, file_bytes, seed); }

  thread_watchdog watch_{"threads that cannot be started", 60s};
  temp_dir directory_ = temp_dir::on_build_disk();
  const std::string path_ = directory_.file("data");
};

// Starts a request and waits for it: who waits may be the only thread there is.
void run_to_end(running_request& asked, const file& on) {
  asked.start(on);
  if (asked.can_be_cancelled()) (void)asked.outcomes();
  while (!asked.done()) std::this_thread::sleep_for(100us);
}

TEST_F(thread_failures, end_requests_or_leave_them_to_who_waits) {
  for (const auto& kind : kinds()) {
    for (const bool lasting : {false, true}) {
      bool refused = true;
      for (std::uint64_t nth = 1; refused && nth < 40 && !HasFailure(); ++nth) {
        const auto what = fmt::format("{}: thread {}{} cannot be started", kind.name, nth, lasting ? " and those after it" : "");
        SCOPED_TRACE(what);
        watch_.feed(what);
        const auto made = made_engine(one_lane());
        auto opened = opened_file(made, path_);
        const auto before = failed_threads();
        {
          running_request asked(made, kind, seed);
          std::optional<failing_threads> armed(std::in_place, nth, lasting);
          run_to_end(asked, opened);
          armed.reset();
          EXPECT_EQ(asked.wrong_if([](errc code) { return code == errc::ok || code == errc::out_of_memory; }), "");
        }
        refused = failed_threads() > before;
        watch_.feed(what + ", and afterwards they can");
        for (const auto& next : kinds()) {
          running_request asked(made, next, seed);
          run_to_end(asked, opened);
          EXPECT_EQ(asked.wrong(), "") << "afterwards";
        }
        EXPECT_TRUE(opened.close().ok());
      }
    }
  }
}

// The last owner of an engine is a callback on its only worker thread, and no thread can be started that would end it.
TEST_F(thread_failures, do_not_keep_an_engine_from_going_away_in_a_callback) {
  struct owner {
    std::optional<engine> made;
    std::optional<file> opened;
    std::vector<std::byte> memory = std::vector<std::byte>(8 * mib);
  };
  for (const bool refuse : {false, true}) {
    for (const std::size_t length : {std::size_t{4} * kib, 8 * mib}) {
      const auto what = fmt::format("the last owner goes in the callback of {} bytes{}", length, refuse ? ", without threads" : "");
      SCOPED_TRACE(what);
      watch_.feed(what);
      auto doors = core::real_seams(one_lane());
      const std::weak_ptr<sys::kernel> seen = doors.kernel;
      auto all = std::make_shared<owner>();
      all->made.emplace(std::move(*core::make_engine(one_lane(), std::move(doors))));
      all->opened.emplace(std::move(*all->made->open(path_)));
      std::promise<io_result> told;
      auto arrived = told.get_future();
      std::optional<failing_threads> armed;
      const auto& from = *all->opened;
      auto* memory = all->memory.data();
      auto under_way =
          from.read_async(memory, length, 0, {}, [all = std::exchange(all, nullptr), &told, &armed, refuse](const io_result& done) mutable {
            if (refuse) armed.emplace(1, true);
            all->opened.reset();
            all->made.reset();
            told.set_value(done);
          });
      under_way = operation();  // and its handle does not keep the engine either
      const auto outcome = arrived.get();
      EXPECT_TRUE(outcome.ok()) << outcome.error.message();
      EXPECT_EQ(outcome.bytes_done, length);
      while (!seen.expired()) std::this_thread::sleep_for(100us);
    }
  }
}

}  // namespace
}  // namespace penstock::testing::thread_memory
