// The values of cuFile's settings, and the keys that set them. Plain data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cufile/cufile.h"

namespace penstock::cufile {

// A log at one level also writes the lines of all levels before it.
enum class log_level : std::uint8_t { notice = 0, error, warn, info, debug, trace };
inline constexpr int log_level_count = 6;

// "ERROR"
std::string_view to_string(log_level level) noexcept;
// Inverse of to_string; ignores case.
std::optional<log_level> parse_log_level(std::string_view word) noexcept;

inline constexpr std::size_t size_parameter_count = CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS + 1;
inline constexpr std::size_t flag_parameter_count = CUFILE_PARAM_GDS_FALLBACK_IO + 1;
inline constexpr std::size_t word_parameter_count = CUFILE_PARAM_RDMA_TRANSPORT + 1;

// A pool of staging buffers in cuFile's terms: counts[i] buffers of sizes_kb[i] KiB. Both arrays have the same length.
struct slab_array {
  std::vector<std::size_t> sizes_kb;
  std::vector<std::size_t> counts;
};

enum class slab_pool : std::uint8_t { posix = 0, gpu_bounce };

// The denylist: storage that is never GPU-direct.
struct deny_lists {
  std::vector<std::string> drivers{};
  std::vector<std::string> devices{};
  std::vector<std::string> mounts{};
  std::vector<std::string> filesystems{};
  [[nodiscard]] bool empty() const noexcept { return drivers.empty() && devices.empty() && mounts.empty() && filesystems.empty(); }
};

struct settings {
  settings();  // the defaults

  // Indexed by CUFileSizeTConfigParameter_t, CUFileBoolConfigParameter_t and CUFileStringConfigParameter_t.
  std::array<std::size_t, size_parameter_count> sizes{};
  std::array<bool, flag_parameter_count> flags{};
  std::array<std::string, word_parameter_count> words;
  slab_array posix_pool;
  slab_array gpu_bounce;

  // True if words[CUFILE_PARAM_ENV_LOGFILE_PATH] was set, possibly to an empty string.
  bool log_path_given = false;
  // The log file: CUFILE_LOGFILE_PATH, or cufile.log in logging.dir, or empty (no log, unless one is requested).
  std::string log_file;
  std::uint64_t log_max_bytes = 0;  // UINT64_MAX: no limit

  deny_lists denied;
  bool posix_unaligned_writes = false;
  // Values that differ from NVIDIA's defaults, as text, by key name. The engine follows only these, not the defaults.
  std::map<std::string_view, std::string> changed;

  [[nodiscard]] std::size_t operator[](CUFileSizeTConfigParameter_t parameter) const { return sizes[parameter]; }
  [[nodiscard]] bool operator[](CUFileBoolConfigParameter_t parameter) const { return flags[parameter]; }
  [[nodiscard]] const std::string& operator[](CUFileStringConfigParameter_t parameter) const { return words[parameter]; }
  [[nodiscard]] log_level level() const noexcept;
  [[nodiscard]] slab_array& slabs(slab_pool pool) { return pool == slab_pool::posix ? posix_pool : gpu_bounce; }
  [[nodiscard]] const slab_array& slabs(slab_pool pool) const { return pool == slab_pool::posix ? posix_pool : gpu_bounce; }
};

enum class key_kind : std::uint8_t {
  size,         // a whole number in range
  limit,        // a whole number in range, or -1 for no limit
  flag,         // true or false
  word,         // a string
  list,         // a list of strings
  addresses,    // a list of IP addresses
  table,        // an object of objects with the user's own keys
  number,       // a whole number, or a string containing one, "0x1f"
  slab_sizes,   // whole numbers
  slab_counts,  // whole numbers
};

// least and most as returned by cuFileGetParameterMinMaxValue; most 0: unbounded.
struct size_range {
  std::size_t least = 0;
  std::size_t most = 0;
  [[nodiscard]] bool holds(std::size_t value) const noexcept { return value >= least && (most == 0 || value <= most); }
};

// What a key affects: Penstock; NVIDIA's library on the direct path, which reads the same file; or nothing.
enum class key_role : std::uint8_t { idle = 0, below, acts };

// One key of cufile.json.
struct key {
  std::string_view name;  // "properties.io_batchsize"
  key_kind kind = key_kind::flag;
  std::string_view standard{};  // the default, as written in an environment variable; slab arrays as "4 1024"
  size_range range{};
  std::size_t step = 1;                       // sizes must be multiples of this
  std::string_view choices{};                 // the allowed words, "low high"; empty: any
  std::array<std::string_view, 2> aliases{};  // other names of the key; the main name wins if both are set
  const char* variable = nullptr;             // the environment variable that overrides it
  int parameter = -1;                         // its CUFile...ConfigParameter_t, depending on the kind; -1: none
  key_role role = key_role::idle;
  std::string_view effect{};  // its effect in Penstock, or why it has none
  bool is_handed = false;     // a non-default value is passed to NVIDIA's library, regardless of where it was set
};

// An environment variable that has no corresponding key.
struct lone_variable {
  const char* name;
  key_kind kind;  // size or flag
  size_range range{};
  std::string_view effect{};
};

// All known variables, each once.
std::span<const lone_variable> all_lone_variables() noexcept;

// All known keys, each once.
std::span<const key> all_keys() noexcept;

}  // namespace penstock::cufile
