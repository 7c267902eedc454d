// A worker thread of `penstock io`: chooses its requests and executes them as the transfer type requires. Use each object from one thread
// at a time. Threads only read io_shared, except for its atomics.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "bench/caller_stream.hpp"
#include "bench/sample_data.hpp"
#include "cli/io/io_latency.hpp"
#include "cli/io/io_pattern.hpp"
#include "cli/io/io_plan.hpp"
#include "cli/io/io_target.hpp"
#include "penstock/penstock.hpp"

namespace penstock::cli {

// A range of one file. Requests cover it in order or at random, and then start over.
struct io_region {
  io_target* target = nullptr;
  std::uint64_t first = 0;
  std::uint64_t length = 0;
};

struct io_request_place {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
};

class io_cursor {
 public:
  // alignment: alignment of random offsets, relative to the beginning of the region.
  io_cursor(const io_region& region, std::uint64_t io_size, std::uint64_t alignment, bool random, std::uint64_t seed);
  // Do not call at the end of a pass.
  io_request_place next();
  [[nodiscard]] bool at_end() const { return done_ == requests_; }
  // Starts another pass; a random one uses other offsets.
  void go_on() { done_ = 0; }
  // Starts again with the very first request.
  void restart();
  [[nodiscard]] io_target& target() const { return *region_.target; }

 private:
  io_region region_;
  std::uint64_t io_size_, alignment_, requests_, done_ = 0;
  bool random_;
  std::uint64_t seed_;
  bench::random_bytes random_source_;
};

// Memory of one kind for one thread. Removes its registration before freeing the memory.
class io_memory {
 public:
  // device: owns the memory, or uses the pinned range. Errors: out_of_memory, device.
  static result<io_memory> make(const engine& owner, buffer_type type, const std::string& device, std::uint64_t bytes, bool registered);
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  struct freer {
    std::uint64_t mapped_bytes;  // 0: from malloc
    void operator()(void* memory) const noexcept;
  };
  device_buffer on_device_;
  std::unique_ptr<void, freer> on_host_;
  registration registered_;
  std::byte* data_ = nullptr;
};

// Shared by all threads of a job.
struct io_shared {
  const engine& owner;
  const io_plan& plan;
  const io_job& job;
  std::string device;  // a resolved device name
  std::uint64_t io_size = 0;
  std::uint64_t generation = 0;
  const io_pattern* pattern = nullptr;  // for writes: the data to write,
  const io_memory* source = nullptr;    // and a copy of it in device (or host) memory
};

// One request, to or from memory of the plan's kind. at: its place in the file.
struct io_piece {
  io_target* target = nullptr;
  std::byte* memory = nullptr;  // target of a read, or source of a write
  std::byte* host = nullptr;    // the intermediate host buffer of transfer types that go through the host
  std::uint64_t length = 0;
  std::uint64_t offset = 0;
};

class io_worker {
 public:
  // Returns the number of concurrent requests per thread: set by -B, or by the transfer type. cursors: those of the thread.
  static unsigned depth_of(const io_plan& plan, std::size_t cursors);
  static result<io_worker> make(const io_shared& shared, std::vector<io_cursor> cursors);

  // Issues requests until the time is up or, if the plan sets no time, for one pass over the data. Increases done_bytes. Errors: those of
  // the first request that failed.
  status run(std::chrono::steady_clock::time_point until, std::atomic<std::uint64_t>& done_bytes);
  // Compares the data that the latest requests left in memory. Does nothing for writes.
  status check_latest();
  // Repeats the requests, starting with the first, each into wiped memory, and compares up to this many bytes, or one pass over the data.
  // Reads written data back without the engine.
  status check_again(std::uint64_t most_bytes);

  [[nodiscard]] const latency_counts& latencies() const { return latencies_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t requests() const { return latencies_.total(); }
  [[nodiscard]] std::uint64_t verified_bytes() const { return compared_plainly_ + (checker_ ? checker_->verified_bytes() : 0); }
  // Returns the number of bytes that were never written to the file.
  [[nodiscard]] std::uint64_t unwritten_bytes() const { return checker_ ? checker_->unwritten_bytes() : 0; }

 private:
  io_worker(const io_shared& shared, std::vector<io_cursor> cursors) : shared_(&shared), cursors_(std::move(cursors)) {}
  bool take_round(bool over_again);
  status refill();
  status wipe();
  status move();
  status move_blocking();
  status move_by_host();
  status move_overlapped();
  status move_as_batch();
  status move_on_stream();
  void note(std::chrono::steady_clock::time_point since, std::uint64_t requests = 1);
  status check_round();
  status check_bytes(const io_target& target, std::span<const std::byte> bytes, std::uint64_t offset);

  const io_shared* shared_;
  std::vector<io_cursor> cursors_;
  std::optional<io_memory> memory_, host_;
  std::optional<bench::caller_stream> stream_;
  std::vector<io_piece> round_;
  std::size_t next_cursor_ = 0;
  unsigned depth_ = 1;
  latency_counts latencies_;
  std::uint64_t bytes_ = 0, compared_plainly_ = 0;
  std::optional<pattern_checker> checker_;
  const io_target* checked_ = nullptr;  // the file that the checker works on
};

}  // namespace penstock::cli
