// The settings of `penstock io`, in gdsio's terms, read from its command line or configuration file. Values; thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/status.hpp"

namespace penstock::cli {

// Numbered as in gdsio (-x).
enum class transfer_type : std::uint8_t {
  gpu_direct = 0,
  cpu_only,
  cpu_gpu,
  cpu_async_gpu,
  cpu_cached_gpu,
  gpu_direct_async,
  gpu_batch,
  gpu_batch_stream
};
inline constexpr unsigned transfer_types = 8;

// Numbered as in gdsio (-I).
enum class io_type : std::uint8_t { read = 0, write, random_read, random_write };
inline constexpr unsigned io_types = 4;

// Returns the value of "XferType: " or "IoType: " in gdsio's line.
std::string_view name_of(transfer_type type);
std::string_view name_of(io_type type);
// Returns one sentence that explains the transfer type.
std::string_view meaning_of(transfer_type type);

inline bool is_write(io_type type) { return type == io_type::write || type == io_type::random_write; }
inline bool is_random(io_type type) { return type == io_type::random_read || type == io_type::random_write; }
inline bool is_batch(transfer_type type) { return type == transfer_type::gpu_batch || type == transfer_type::gpu_batch_stream; }
inline bool is_by_stream(transfer_type type) { return type == transfer_type::gpu_direct_async || type == transfer_type::gpu_batch_stream; }
// Returns true if file I/O uses host memory; a copy to or from the device comes before or after it.
inline bool is_by_host(transfer_type type) { return type >= transfer_type::cpu_only && type <= transfer_type::cpu_cached_gpu; }

// Numbered as in gdsio (-m).
enum class buffer_type : std::uint8_t { device = 0, mapped_device, pinned, plain, anonymous_map };
inline constexpr unsigned buffer_types = 5;

// Sizes from least to most; a single size if both are equal.
struct io_sizes {
  std::uint64_t least = std::uint64_t{1} << 20;
  std::uint64_t most = std::uint64_t{1} << 20;
  std::uint64_t step = 0;
};

// Threads that work on the same file or folder with the same device.
struct io_job {
  std::string file;       // either this file, or
  std::string directory;  // contains a file gdsio.N for each thread
  std::string device;     // "cuda:0"; empty: the engine's first
  int numa_node = -1;     // -1: any node
  unsigned threads = 1;
  buffer_type memory = buffer_type::device;
  std::uint64_t offset = 0;
  std::optional<std::uint64_t> size;     // size of each file; nullopt: the plan's
  std::optional<std::uint64_t> io_size;  // nullopt: the plan's
};

struct io_plan {
  std::vector<io_job> jobs;
  transfer_type transfer = transfer_type::gpu_direct;
  io_type io = io_type::read;
  std::optional<std::uint64_t> size;  // size of each file of a job; nullopt: 1 GiB for writes, the whole file for reads
  io_sizes sizes;
  double seconds = 0;           // 0: one pass over the data
  std::uint64_t seed = 1;       // seed for random offsets
  std::uint64_t alignment = 0;  // alignment of random offsets; 0: the request size
  unsigned depth = 0;           // concurrent requests per thread; 0: set by the transfer type
  bool direct = true;           // writes bypass the page cache
  bool register_memory = true;
  bool refill = false;     // refill the memory before each write
  bool read_back = false;  // gdsio's -V
  bool verify = true;      // verify in a separate pass that is not timed
  bool job_lines = false;
  bool cold = false, warm = false, ceiling = false, force = false;
  bool immutable = false;  // declare files to read as immutable
};

// Returns true if writes bypass the page cache.
inline bool writes_direct(const io_plan& plan) { return plan.direct && !plan.warm && plan.transfer != transfer_type::cpu_cached_gpu; }

// Parses "1M", or "4K:1M:4K" for all sizes from 4 KiB to 1 MiB in steps of 4 KiB. Errors: invalid_argument, whose message quotes the word.
result<io_sizes> parse_io_sizes(std::string_view text);
// Parses "0" to "3", or read, write, randread, randwrite, seqread, seqwrite.
result<io_type> parse_io_type(std::string_view text);

// Reads gdsio's configuration file: [global], and a section for each job. remarks: one line for each setting without effect here.
// Errors: os errors; invalid_argument, whose message contains the file name and the line number.
result<io_plan> read_io_config(const std::string& path, std::vector<std::string>& remarks);

}  // namespace penstock::cli
