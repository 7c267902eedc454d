// The values of cuFile's settings, and the keys that they are read from. Plain data.
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

// A log of one level writes the lines of that level and of those before it.
enum class log_level : std::uint8_t { notice = 0, error, warn, info, debug, trace };
inline constexpr int log_level_count = 6;

// "ERROR"
std::string_view to_string(log_level level) noexcept;
// Inverse of to_string, in any case.
std::optional<log_level> parse_log_level(std::string_view word) noexcept;

inline constexpr std::size_t size_parameter_count = CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS + 1;
inline constexpr std::size_t flag_parameter_count = CUFILE_PARAM_GDS_FALLBACK_IO + 1;
inline constexpr std::size_t word_parameter_count = CUFILE_PARAM_RDMA_TRANSPORT + 1;

// A pool of staging buffers as cuFile describes it: counts[i] buffers of sizes_kb[i] KiB. Both have the same length.
struct slab_array {
  std::vector<std::size_t> sizes_kb;
  std::vector<std::size_t> counts;
};

enum class slab_pool : std::uint8_t { posix = 0, gpu_bounce };

// denylist: what is not to be GPU-direct.
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

  // True when words[CUFILE_PARAM_ENV_LOGFILE_PATH] came from somewhere; it may be empty all the same.
  bool log_path_given = false;
  // Where to log: CUFILE_LOGFILE_PATH, or else cufile.log below logging.dir, or else empty: no log unless one is asked for.
  std::string log_file;
  std::uint64_t log_max_bytes = 0;  // UINT64_MAX: no limit

  deny_lists denied;
  bool posix_unaligned_writes = false;
  // What has another value than NVIDIA's default, as text, by the names of the keys: the engine follows these, and no defaults.
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
  limit,        // a whole number in range, or -1 for none
  flag,         // true or false
  word,         // a text
  list,         // texts
  addresses,    // a list of IP addresses
  table,        // an object of objects, whose keys are the user's
  number,       // a whole number, or a text of one, "0x1f"
  slab_sizes,   // whole numbers
  slab_counts,  // whole numbers
};

// least and most as cuFileGetParameterMinMaxValue answers them; a most of 0 is no bound.
struct size_range {
  std::size_t least = 0;
  std::size_t most = 0;
  [[nodiscard]] bool holds(std::size_t value) const noexcept { return value >= least && (most == 0 || value <= most); }
};

// Who obeys a key: Penstock; NVIDIA's library on the direct path, which reads the same file; or nobody.
enum class key_role : std::uint8_t { idle = 0, below, acts };

// One key of cufile.json.
struct key {
  std::string_view name;  // "properties.io_batchsize"
  key_kind kind = key_kind::flag;
  std::string_view standard{};  // the default, written as in an environment variable; slab arrays as "4 1024"
  size_range range{};
  std::size_t step = 1;                       // sizes are multiples of it
  std::string_view choices{};                 // the words that there are, "low high"; empty: any
  std::array<std::string_view, 2> aliases{};  // other places of the same key; the name wins where both are given
  const char* variable = nullptr;             // the environment variable that overrides it
  int parameter = -1;                         // its CUFile...ConfigParameter_t, which the kind tells; or none
  key_role role = key_role::idle;
  std::string_view effect{};  // what it does here, or why nothing
  bool is_handed = false;     // a value other than the default goes to NVIDIA's library, whoever has set it
};

// A variable of the environment that stands for no key.
struct lone_variable {
  const char* name;
  key_kind kind;  // size or flag
  size_range range{};
  std::string_view effect{};
};

// Those that Penstock knows, each once.
std::span<const lone_variable> all_lone_variables() noexcept;

// Every key that Penstock knows, each once.
std::span<const key> all_keys() noexcept;

}  // namespace penstock::cufile
