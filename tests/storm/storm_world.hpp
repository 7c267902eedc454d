// What the threads of a storm share: files on disk and on a FUSE mount, in which each thread owns a region; and engines over doors that
// fail at random. Thread-safe once made.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "core/engine_core.hpp"
#include "penstock/penstock.hpp"
#include "support/faulty_kernel.hpp"
#include "support/fuse_world.hpp"
#include "support/temp_dir.hpp"

namespace penstock::testing {

struct storm_settings {
  std::uint64_t seed = 0;
  std::chrono::seconds duration{5};
  unsigned threads = 4;
  unsigned lanes = 0;  // 0: one for each core
  // What else goes wrong meanwhile; PENSTOCK_STORM_WITHOUT names those that do not.
  bool allocations = true;
  bool faults = true;
  bool stalls = true;
  bool forks = true;
  // PENSTOCK_STORM_SEED, PENSTOCK_STORM_SECONDS, PENSTOCK_STORM_LANES, PENSTOCK_STORM_WITHOUT=allocations,faults,stalls,forks
  static storm_settings from_environment(std::chrono::seconds usual);
};

inline constexpr std::uint64_t storm_region_bytes = std::uint64_t{4} << 20;    // of a thread, in each file
inline constexpr std::uint64_t storm_constant_bytes = std::uint64_t{1} << 20;  // at the end of each file: never written
inline constexpr std::uint64_t storm_seed_of_files = 91;                       // pattern::make(.., this) is in each file first

class storm_files {
 public:
  explicit storm_files(const storm_settings& settings);
  [[nodiscard]] const std::vector<std::string>& paths() const { return paths_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t constant_at() const { return bytes_ - storm_constant_bytes; }
  // Makes the FUSE file hang, or answer again.
  void stall(bool on);

 private:
  const std::uint64_t bytes_;
  temp_dir directory_ = temp_dir::on_build_disk();
  std::optional<fuse_world> mount_;
  fuse_file_control* mounted_ = nullptr;
  std::vector<std::string> paths_;
};

// An engine with every file open.
class storm_engine {
 public:
  // Null: memory was exhausted. faulty: its kernel fails now and then, once begin_faults() has been called.
  static std::shared_ptr<storm_engine> make(const storm_files& files, const engine_options& options, bool faulty, std::uint64_t seed);
  storm_engine(const storm_engine&) = delete;
  storm_engine& operator=(const storm_engine&) = delete;
  ~storm_engine();  // what went through its kernel has been given back, or the test fails

  [[nodiscard]] const penstock::engine& engine() const { return *engine_; }
  // as many as files, then the same again with direct writes
  [[nodiscard]] const std::vector<file>& handles() const { return handles_; }
  [[nodiscard]] bool faulty() const { return kernel_ != nullptr; }
  [[nodiscard]] device::session& session() const { return *session_; }

 private:
  storm_engine() = default;
  void begin_faults(std::uint64_t seed);

  std::shared_ptr<faulty_kernel> kernel_;
  core::seams doors_;
  device::session* session_ = nullptr;
  std::optional<penstock::engine> engine_;
  std::vector<file> handles_;
};

// What a thread does at the moment: for the dump of a storm that hangs.
struct storm_activity {
  std::atomic<const char*> doing{"nothing yet"};
  std::atomic<std::uint64_t> steps{0};
  std::atomic<std::uint64_t> file{0}, offset{0}, length{0};
  std::atomic<std::size_t> under_way{0};
};

// One thread of a storm, from its first operation to the last. Failures are reported through GoogleTest.
class storm_thread {
 public:
  storm_thread(const storm_settings& settings, const storm_files& files, std::vector<std::shared_ptr<storm_engine>> engines, unsigned index,
               storm_activity& activity);
  ~storm_thread();
  storm_thread(const storm_thread&) = delete;
  storm_thread& operator=(const storm_thread&) = delete;
  void run(const std::atomic<bool>& over);

 private:
  class impl;
  std::unique_ptr<impl> impl_;
};

}  // namespace penstock::testing
