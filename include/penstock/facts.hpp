// Values that an engine tells: what devices and memory are, what a request would do, what is under way, what was done.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "penstock/options.hpp"

namespace penstock {

enum class memory_kind : std::uint8_t { host = 0, pinned, device };

struct device_info {
  std::string name;         // "cuda:0" or "host:0": what allocate() and explain() take
  std::string description;  // "NVIDIA H200"; where the device cannot be asked now, as without descriptors, why: the rest is not known then
  std::string pci_bus_id;   // empty for the host device
  std::uint64_t memory_bytes = 0;
  int numa_node = -1;                   // -1: not known
  std::array<std::uint8_t, 16> uuid{};  // zeros: not known
  std::uint64_t window_bytes = 0;       // its largest PCI memory window (BAR1); 0: not known
};

// What a pointer is.
struct memory_facts {
  memory_kind kind = memory_kind::host;
  std::string device;      // that owns it, as in device_info::name; empty for pageable memory
  void* base = nullptr;    // of the allocation; null where that is not known, as for pageable memory
  std::uint64_t size = 0;  // of the allocation, from base
};

// What the planner would do with a part of a file, and why.
struct plan_part {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  path_kind path = path_kind::automatic;
  std::string path_name;
  std::string reason;  // one sentence
};

// What a request would do.
struct plan {
  std::vector<plan_part> parts;  // in file order, covering the range once
  // Of the range, in the page cache. Estimated from samples where this process may not write the file, and nothing where it is not known.
  std::optional<std::uint64_t> cached_bytes;
  std::vector<std::string> remarks;  // why faster paths were not taken, and what would make it faster
};

// A request under way.
struct request_info {
  std::string file;          // as file::path() tells it
  std::int64_t offset = 0;   // in the file; -1 for a stream-ordered request that its stream has not reached
  std::uint64_t length = 0;  // that was asked for; of a request that its stream has not reached, the most that it may be
  bool is_write = false;
  // Whose memory it is: a name as in device_info::name, or "host"; empty where that was not looked up yet, and for no bytes.
  std::string device;
  std::int64_t since_ns = 0;  // when it began, by std::chrono::steady_clock, to within 10 ms
};

struct path_stats {
  std::string name;              // of the path
  std::uint64_t operations = 0;  // pieces carried
  std::uint64_t bytes = 0;
  std::uint64_t written_bytes = 0;  // of these; the others were read
  std::uint64_t errors = 0;
  std::uint64_t fallbacks = 0;  // pieces that this path began or was due to carry and handed to another; memory that it could not register
  std::string last_fallback;    // the reason for the latest of them
  std::uint64_t busy_ns = 0;    // summed over pieces
  std::uint64_t active_ns = 0;  // while at least one piece was under way
  // Piece counts by size: [i] counts lengths in [2^i, 2^(i+1)) KiB; [0] also smaller ones; the last also larger ones.
  std::array<std::uint64_t, 24> size_histogram{};
  // Piece counts by time taken: [i] counts [2^i, 2^(i+1)) microseconds, likewise.
  std::array<std::uint64_t, 24> latency_histogram{};
};

// Requests that have ended, on memory of one device.
struct device_stats {
  std::string name;  // as in device_info::name, or "host"; empty where a request ended before anybody knew
  std::uint64_t reads = 0, writes = 0;
  std::uint64_t read_bytes = 0, written_bytes = 0;
};

struct engine_stats {
  std::vector<path_stats> by_path;      // indexed by path_kind
  std::uint64_t reads = 0, writes = 0;  // requests ended
  std::uint64_t read_bytes = 0, written_bytes = 0;
  std::uint64_t failed = 0, cancelled = 0, timed_out = 0;
  std::uint64_t pinned_bytes = 0, pinned_peak_bytes = 0;
  std::vector<device_stats> by_device;  // those that something was asked for
  [[nodiscard]] const path_stats& path(path_kind kind) const {
    static const path_stats none;
    return static_cast<std::size_t>(kind) < by_path.size() ? by_path[static_cast<std::size_t>(kind)] : none;
  }
};

}  // namespace penstock
