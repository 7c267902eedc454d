// One thread of `penstock io`: which requests it makes, and how its transfer type carries them. Each object is for one thread at a time;
// what stands in io_shared is only read, but for its atomics.
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

// A range of one file that requests are made to, one after the other or at random, and then over again.
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
  // alignment: of random offsets, from the beginning of the region.
  io_cursor(const io_region& region, std::uint64_t io_size, std::uint64_t alignment, bool random, std::uint64_t seed);
  // Not at the end.
  io_request_place next();
  [[nodiscard]] bool at_end() const { return done_ == requests_; }
  // To another pass, at random over other offsets.
  void go_on() { done_ = 0; }
  // To the very first request.
  void restart();
  [[nodiscard]] io_target& target() const { return *region_.target; }

 private:
  io_region region_;
  std::uint64_t io_size_, alignment_, requests_, done_ = 0;
  bool random_;
  std::uint64_t seed_;
  bench::random_bytes random_source_;
};

// Memory of one kind for one thread. Ends what it holds in the right order: a registration before its memory.
class io_memory {
 public:
  // device: whose, or that a pinned range is for. Errors: out_of_memory, device.
  static result<io_memory> make(const engine& owner, buffer_type type, const std::string& device, std::uint64_t bytes, bool registered);
  [[nodiscard]] std::byte* data() const { return data_; }

 private:
  struct freer {
    std::uint64_t mapped_bytes;  // 0: of malloc
    void operator()(void* memory) const noexcept;
  };
  device_buffer on_device_;
  std::unique_ptr<void, freer> on_host_;
  registration registered_;
  std::byte* data_ = nullptr;
};

// What all threads of a job share.
struct io_shared {
  const engine& owner;
  const io_plan& plan;
  const io_job& job;
  std::string device;  // resolved
  std::uint64_t io_size = 0;
  std::uint64_t generation = 0;
  const io_pattern* pattern = nullptr;  // of a write: what is written,
  const io_memory* source = nullptr;    // and where a device (or the host) has all of it
};

// One request: to or from memory of the plan's kind. at: in the file.
struct io_piece {
  io_target* target = nullptr;
  std::byte* memory = nullptr;  // what is read into, or written from
  std::byte* host = nullptr;    // what it passes through, of transfer types by the host
  std::uint64_t length = 0;
  std::uint64_t offset = 0;
};

class io_worker {
 public:
  // The requests at once of one thread: by -B, or as the transfer type has it. cursors: of the thread.
  static unsigned depth_of(const io_plan& plan, std::size_t cursors);
  static result<io_worker> make(const io_shared& shared, std::vector<io_cursor> cursors);

  // Makes requests until the time is up, or once over the data where the plan has no time. Errors: of the first request that failed.
  // done_bytes counts up.
  status run(std::chrono::steady_clock::time_point until, std::atomic<std::uint64_t>& done_bytes);
  // Compares what the latest requests have left in memory. Of writes nothing has.
  status check_latest();
  // Makes requests again from the first on, each into wiped memory, and compares, up to this many bytes or once over the data. What was
  // written is read plainly.
  status check_again(std::uint64_t most_bytes);

  [[nodiscard]] const latency_counts& latencies() const { return latencies_; }
  [[nodiscard]] std::uint64_t bytes() const { return bytes_; }
  [[nodiscard]] std::uint64_t requests() const { return latencies_.total(); }
  [[nodiscard]] std::uint64_t verified_bytes() const { return compared_plainly_ + (checker_ ? checker_->verified_bytes() : 0); }
  // That a file does not have yet.
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
  const io_target* checked_ = nullptr;  // whose bytes the checker sees
};

}  // namespace penstock::cli
