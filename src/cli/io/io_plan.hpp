// What `penstock io` is asked to do: gdsio's words for it, read from its command line or from its configuration files. Values; safe from
// any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "penstock/status.hpp"

namespace penstock::cli {

// By gdsio's numbers (-x).
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

// By gdsio's numbers (-I).
enum class io_type : std::uint8_t { read = 0, write, random_read, random_write };
inline constexpr unsigned io_types = 4;

// What stands behind "XferType: " and "IoType: " of gdsio's line.
std::string_view name_of(transfer_type type);
std::string_view name_of(io_type type);
// One sentence on what a transfer of this type is here.
std::string_view meaning_of(transfer_type type);

inline bool is_write(io_type type) { return type == io_type::write || type == io_type::random_write; }
inline bool is_random(io_type type) { return type == io_type::random_read || type == io_type::random_write; }
inline bool is_batch(transfer_type type) { return type == transfer_type::gpu_batch || type == transfer_type::gpu_batch_stream; }
inline bool is_by_stream(transfer_type type) { return type == transfer_type::gpu_direct_async || type == transfer_type::gpu_batch_stream; }
// Between memory of the host and a file; a copy to or from the device comes before or after it.
inline bool is_by_host(transfer_type type) { return type >= transfer_type::cpu_only && type <= transfer_type::cpu_cached_gpu; }

// By gdsio's numbers (-m).
enum class buffer_type : std::uint8_t { device = 0, mapped_device, pinned, plain, anonymous_map };
inline constexpr unsigned buffer_types = 5;

// Sizes from least to most; one unless they differ.
struct io_sizes {
  std::uint64_t least = std::uint64_t{1} << 20;
  std::uint64_t most = std::uint64_t{1} << 20;
  std::uint64_t step = 0;
};

// Threads that work on the same file or folder with the same device.
struct io_job {
  std::string file;       // or
  std::string directory;  // with a file gdsio.N for each thread
  std::string device;     // "cuda:0"; empty: the first there is
  int numa_node = -1;     // -1: anywhere
  unsigned threads = 1;
  buffer_type memory = buffer_type::device;
  std::uint64_t offset = 0;
  std::optional<std::uint64_t> size;     // of the file, or of each; else the plan's
  std::optional<std::uint64_t> io_size;  // else the plan's
};

struct io_plan {
  std::vector<io_job> jobs;
  transfer_type transfer = transfer_type::gpu_direct;
  io_type io = io_type::read;
  std::optional<std::uint64_t> size;  // of a job's file, or of each; none: 1 GiB to write, all there is to read
  io_sizes sizes;
  double seconds = 0;           // 0: once over the data
  std::uint64_t seed = 1;       // of random offsets
  std::uint64_t alignment = 0;  // of random offsets; 0: the size of a request
  unsigned depth = 0;           // requests of a thread at once; 0: as the transfer type has it
  bool direct = true;           // writes go past the page cache
  bool register_memory = true;
  bool refill = false;     // before each write
  bool read_back = false;  // gdsio's -V
  bool verify = true;      // in a pass of its own, behind the clock
  bool job_lines = false;
  bool cold = false, warm = false, ceiling = false, force = false;
  bool immutable = false;  // files to read are declared so
};

// Whether writes go past the page cache.
inline bool writes_direct(const io_plan& plan) { return plan.direct && !plan.warm && plan.transfer != transfer_type::cpu_cached_gpu; }

// "1M", or "4K:1M:4K" for all sizes from 4 KiB to 1 MiB. Errors: invalid_argument, naming the word.
result<io_sizes> parse_io_sizes(std::string_view text);
// "0" to "3", or read, write, randread, randwrite, seqread, seqwrite.
result<io_type> parse_io_type(std::string_view text);

// gdsio's configuration file: [global], and a section for each job. remarks: what of it means nothing here, a line each.
// Errors: os errors; invalid_argument, naming file and line.
result<io_plan> read_io_config(const std::string& path, std::vector<std::string>& remarks);

}  // namespace penstock::cli
