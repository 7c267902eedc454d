// Everything at once: threads run random operations of every kind side by side, on shared files, while allocations and kernel calls fail, a
// file system stalls, and processes fork. Each thread owns a region of each file, so that it knows every byte.
//   PENSTOCK_STORM_SEED      the seed that a run has printed (threads still race, so it makes a repeat likely, not certain)
//   PENSTOCK_STORM_SECONDS   duration (5; long_storm 3600)
//   PENSTOCK_STORM_LANES     engine_options::lanes of the engines (0: chosen from the cores)
//   PENSTOCK_STORM_WITHOUT   what to leave out: allocations,faults,stalls,forks
// If a thread makes no progress for a minute, the process prints what each thread is doing and aborts. After everything is closed, the
// process must have no more descriptors than at the beginning, no slabs, and its initial heap and resident memory; meanwhile neither
// descriptors nor memory other than slabs may grow (storm_footprint.hpp has the rules). The test prints the course of resident memory;
// tools/soak judges it over many storms. The last line, "storm figures: " and a JSON object, is for programs.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "memory/failing_allocations.hpp"
#include "storm/storm_footprint.hpp"
#include "storm/storm_mappings.hpp"
#include "storm/storm_world.hpp"
#include "support/open_descriptors.hpp"
#include "support/process_memory.hpp"
#include "support/thread_stacks.hpp"

namespace penstock::testing {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

constexpr auto patience = 60s;
// Counters, names and tables that a process makes once: 80 KiB, after 3 seconds as after 40.
constexpr std::uint64_t heap_allowance_bytes = std::uint64_t{1} << 20;
// Pages of the program that had not been touched before, and what malloc keeps: 6 MiB after 5 seconds, 9 after 150.
constexpr std::uint64_t resident_allowance_bytes = std::uint64_t{32} << 20;

// Looks at the threads from time to time, and makes the weather.
class supervisor {
 public:
  supervisor(const storm_settings& settings, storm_files& files, std::deque<storm_activity>& threads, footprint_series& footprints)
      : settings_(settings),
        files_(files),
        threads_(threads),
        footprints_(footprints),
        seen_(threads.size(), 0),
        since_(threads.size(), steady_clock::now()) {}

  // Until the time is over, or a thread has failed.
  void storm(std::atomic<bool>& over) {
    const auto end = steady_clock::now() + settings_.duration;
    std::minstd_rand random(static_cast<unsigned>(settings_.seed));
    while (steady_clock::now() < end && !::testing::Test::HasFailure()) {
      if (settings_.allocations) fail_allocations_at_random(random() % 3 == 0 ? 0 : 500 + random() % 3000);
      if (settings_.stalls) files_.stall(random() % 3 == 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(10 + random() % 40));
      look();
      footprints_.look();
    }
    fail_allocations_at_random(0);
    files_.stall(false);
    over = true;
  }
  // Until all threads have ended.
  void wait_for_the_end(const std::atomic<unsigned>& running) {
    while (running > 0) {
      std::this_thread::sleep_for(10ms);
      look();
    }
  }

 private:
  void look() {
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      const auto steps = threads_[i].steps.load();
      if (steps != seen_[i]) {
        seen_[i] = steps;
        since_[i] = steady_clock::now();
      } else if (steady_clock::now() - since_[i] > patience && std::string_view(threads_[i].doing) != "ended") {
        dump(i);
      }
    }
  }
  [[noreturn]] void dump(std::size_t stuck) {
    std::fprintf(stderr, "\nstorm: thread %zu makes no progress; seed %llu\n", stuck, static_cast<unsigned long long>(settings_.seed));
    for (std::size_t i = 0; i < threads_.size(); ++i) {
      const auto& each = threads_[i];
      const auto text = fmt::format("  thread {}: step {}, {} (file {}, {} bytes at {}), {} under way\n", i, each.steps.load(),
                                    each.doing.load(), each.file.load(), each.length.load(), each.offset.load(), each.under_way.load());
      std::fputs(text.c_str(), stderr);
    }
    print_thread_stacks();
    std::abort();
  }

  const storm_settings& settings_;
  storm_files& files_;
  std::deque<storm_activity>& threads_;
  footprint_series& footprints_;
  std::vector<std::uint64_t> seen_;
  std::vector<steady_clock::time_point> since_;
};

// Returns the steps of all threads. Nothing of the storm is left then, but for what ends on its own time.
std::uint64_t storm_over(const storm_settings& settings, footprint_series& footprints) {
  storm_files files(settings);
  std::vector<std::shared_ptr<storm_engine>> engines;
  for (const bool faulty : {false, true}) {
    engine_options options;
    options.use_cuda = false;
    options.lanes = faulty ? 2 : settings.lanes;
    engines.push_back(storm_engine::make(files, options, faulty && settings.faults, settings.seed));
    EXPECT_NE(engines.back(), nullptr);
    if (engines.back() == nullptr) return 0;
  }
  std::deque<storm_activity> activities(settings.threads);
  std::atomic<bool> over{false};
  std::atomic<unsigned> running{settings.threads};
  std::vector<std::thread> crew;
  for (unsigned i = 0; i < settings.threads; ++i) {
    crew.emplace_back([&, i] {
      storm_thread(settings, files, engines, i, activities[i]).run(over);
      activities[i].doing = "ended";
      --running;
    });
  }
  supervisor watching(settings, files, activities, footprints);
  watching.storm(over);
  watching.wait_for_the_end(running);
  for (auto& each : crew) each.join();
  std::uint64_t steps = 0;
  for (const auto& each : activities) steps += each.steps.load();
  return steps;
}

struct holdings {
  footprint of_process;
  std::uint64_t heap_bytes = 0;
  descriptor_names descriptors;
  resident_kinds resident;
  static holdings now() { return {footprint_now(), heap_bytes_in_use(), descriptor_names_now(), resident_kinds_now()}; }
};

bool memory_given_back(const footprint& before, const footprint& after) {
  return after.slab_bytes <= before.slab_bytes && after.resident_bytes <= before.resident_bytes + resident_allowance_bytes;
}

// All that run() judges.
bool all_given_back(const holdings& before) {
  return descriptor_names_now().size() <= before.descriptors.size() && heap_bytes_in_use() <= before.heap_bytes + heap_allowance_bytes &&
         (!resident_bytes_tell || memory_given_back(before.of_process, footprint_now()));
}

// Once all is given back, or patience is at its end: an engine ends on its own time.
holdings holdings_after(const holdings& before) {
  const auto until = steady_clock::now() + patience;
  while (!all_given_back(before) && steady_clock::now() < until) std::this_thread::sleep_for(10ms);
  return holdings::now();
}

nlohmann::json figure_json(std::uint64_t footprint::*figure, const holdings& before, const holdings& after,
                           const footprint_series& series) {
  nlohmann::json thirds;  // null: too few samples
  if (const auto medians = series.thirds()) {
    for (const auto& each : *medians) thirds.push_back(each.*figure);
  }
  return {
      {"start", before.of_process.*figure}, {"end", after.of_process.*figure}, {"highest", series.highest().*figure}, {"thirds", thirds}};
}

// glibc raises its thresholds once a large block has been freed, and keeps 32 MiB of free memory in the arena of each thread from then on:
// 130 MiB after a storm, which would hide what others keep. Setting one of them ends that. Besides, a late write into a buffer that was
// freed then ends the process, since the buffer is unmapped.
void let_malloc_keep_little() {
  constexpr int usual_threshold_bytes = 128 << 10;
  ::mallopt(M_MMAP_THRESHOLD, usual_threshold_bytes);
}

void expect_resident_memory_given_back(const holdings& before, const holdings& after) {
  const auto kept = changes_of_kinds(before.resident, after.resident);
  std::cout << fmt::format("resident memory, when all is closed: {}\n", kept);
  if (!resident_bytes_tell) return;
  EXPECT_LE(after.of_process.slab_bytes, before.of_process.slab_bytes) << "all is closed, and slabs have not been given back";
  EXPECT_LE(after.of_process.resident_bytes, before.of_process.resident_bytes + resident_allowance_bytes)
      << "all is closed, and memory stays resident: " << kept;
}

void run(std::chrono::seconds usual) {
  const auto settings = storm_settings::from_environment(usual);
  std::cout << "PENSTOCK_STORM_SEED=" << settings.seed << std::endl;
  print_stack_of_uncaught_exceptions();
  let_malloc_keep_little();
  const bool told_slabs = slabs_are_told();
  const auto before = holdings::now();
  const auto began = steady_clock::now();
  footprint_series series(settings.duration);
  const auto steps = storm_over(settings, series);
  const auto after = holdings_after(before);
  const std::chrono::duration<double> took = steady_clock::now() - began;
  EXPECT_LE(after.of_process.descriptors, before.of_process.descriptors)
      << "all is closed, and descriptors are left open: " << opened_since(before.descriptors, after.descriptors);
  EXPECT_LE(after.heap_bytes, before.heap_bytes + heap_allowance_bytes) << "all is closed, and memory has not been given back";
  if (const auto grown = series.descriptor_growth(descriptor_allowance)) ADD_FAILURE() << *grown;
  if (!told_slabs) {
    std::cout << "smaps does not tell slabs here (no transparent huge pages): growth of memory that is no slab is not judged\n";
  } else if (const auto grown = series.memory_growth(memory_allowance_bytes); grown && resident_bytes_tell) {
    ADD_FAILURE() << *grown;
  }
  if (const auto change = series.resident_change()) std::cout << *change << '\n';
  expect_resident_memory_given_back(before, after);
  std::cout << fmt::format("{} steps, {} allocations failed\n", steps, failed_allocations());
  const nlohmann::json figures{{"seed", settings.seed},
                               {"seconds", took.count()},
                               {"steps", steps},
                               {"failed_allocations", failed_allocations()},
                               {"samples", series.size()},
                               {"heap_bytes", {{"start", before.heap_bytes}, {"end", after.heap_bytes}}},
                               {"resident_bytes", figure_json(&footprint::resident_bytes, before, after, series)},
                               {"slab_bytes", figure_json(&footprint::slab_bytes, before, after, series)},
                               {"malloc_bytes", figure_json(&footprint::malloc_bytes, before, after, series)},
                               {"other_bytes", figure_json(&footprint::other_bytes, before, after, series)},
                               {"descriptors", figure_json(&footprint::descriptors, before, after, series)}};
  std::cout << "storm figures: " << figures.dump() << std::endl;
}

TEST(storm, passes) { run(5s); }

TEST(long_storm, passes) { run(3600s); }

}  // namespace
}  // namespace penstock::testing
