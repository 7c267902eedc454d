// The settings of cuFile: what a cufile.json, the environment and the cuFileSetParameter... calls ask for, and what of it counts.
// Names, defaults and ranges are those of NVIDIA's cuFile (configuration guide; live values of 1.17). Penstock's engine decides
// by itself how bytes move, so most keys are read, checked and reported back to whoever asks, and have no effect: all_keys() says
// which. A settings value is plain data; a settings_book is owned by the driver and may be used from any thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cufile/cufile.h"
#include "penstock/status.hpp"

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

  std::vector<std::string> deny_mounts;
  std::vector<std::string> deny_filesystems;

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
  table,        // an object whose keys are the user's
  slab_sizes,   // whole numbers
  slab_counts,  // whole numbers
  anything,     // not looked into
};

// least and most as cuFileGetParameterMinMaxValue answers them; a most of 0 is no bound.
struct size_range {
  std::size_t least = 0;
  std::size_t most = 0;
  [[nodiscard]] bool holds(std::size_t value) const noexcept { return value >= least && (most == 0 || value <= most); }
};

// One key of cufile.json.
struct key {
  std::string_view name;  // "properties.io_batchsize"
  key_kind kind = key_kind::flag;
  std::string_view standard{};  // the default, written as in an environment variable; slab arrays as "4 1024"
  size_range range{};
  std::array<std::string_view, 2> aliases{};  // other places of the same key; the name wins where both are given
  const char* variable = nullptr;             // the environment variable that overrides it
  int parameter = -1;                         // its CUFile...ConfigParameter_t, which the kind tells; or none
  std::string_view effect{};                  // what it does here; empty: accepted without effect
};

// Every key that Penstock knows, each once.
std::span<const key> all_keys() noexcept;

enum class key_fate : std::uint8_t { obeyed = 0, without_effect, unknown, refused };

// What became of one key that was found in a file.
struct setting_report {
  std::string key;    // "properties.io_batchsize", as the file has it
  std::string value;  // as JSON, shortened
  key_fate fate = key_fate::unknown;
  std::string remark;  // the effect, or "accepted without effect", "unknown key", or why it was refused
};

// Files above this size are refused.
inline constexpr std::size_t max_settings_file_bytes = std::size_t{1} << 20;

// Writes to target what the text of a cufile.json (JSON with // and /* */ comments) says, and reports every key that it holds. A
// value of a wrong type or out of range is refused: target keeps what it has. Nothing at all in the text is no error. Does not
// throw on any text. Errors: invalid_argument (not JSON, with line and byte; nested too deep; not an object): target is unchanged.
result<std::vector<setting_report>> apply_text(std::string_view text, settings& target);

// What a driver that opens with this file would make of it. Blocks. Errors: those of apply_text, naming the file; not_found,
// permission_denied, io; not_a_file (a directory, pipe or socket).
result<std::vector<setting_report>> report(const std::string& path);

// getenv, or what a test puts in its place.
using environment_lookup = std::function<const char*(const char*)>;

struct opening {
  status problem;                    // the file that was named could not be used, and the defaults stand in its place
  std::vector<std::string> remarks;  // values and keys that were not taken, one sentence each; at most max_remarks and a closing one
};
inline constexpr std::size_t max_remarks = 64;

// The settings of the one driver: closed, it collects ("stages") what the cuFileSetParameter... calls say; open, it holds the live
// values. Thread-safe; only open() blocks, to read the file. Codes are those of cuFile 1.17:
//   CU_FILE_INVALID_VALUE        no such parameter, or nothing to read
//   CU_FILE_DRIVER_ALREADY_OPEN  set() of an open book
class settings_book {
 public:
  settings_book();  // getenv and /etc/cufile.json
  // default_file is read when CUFILE_ENV_PATH_JSON names none.
  settings_book(environment_lookup lookup, std::string default_file);

  // Makes values live: staged ones before the environment's, before the file's, before the defaults. A value that is not valid is
  // passed over for the next in that order. Staged values are consumed. A missing file is no problem, and the one in /etc may be
  // unreadable too. After a problem the book is open all the same, without the file, so that the caller can log the problem;
  // a caller that refuses to go on closes it. Opening an open book does nothing.
  opening open();
  // Back to the defaults, with nothing staged. Closing a closed book drops what is staged.
  void close();
  [[nodiscard]] bool is_open() const;

  // A copy of the live values; of a closed book the defaults with what is staged, not yet checked.
  [[nodiscard]] settings values() const;

  // As values(); on failure value is unchanged. A closed book does not look into the file. The log file's path can be read when it
  // was set or its variable exists, empty or not.
  CUfileOpError get(CUFileSizeTConfigParameter_t parameter, std::size_t& value) const;
  CUfileOpError get(CUFileBoolConfigParameter_t parameter, bool& value) const;
  CUfileOpError get(CUFileStringConfigParameter_t parameter, std::string& value) const;
  // The spans must have the very length of the arrays, or it is CU_FILE_INVALID_VALUE.
  CUfileOpError get(slab_pool pool, std::span<std::size_t> sizes_kb, std::span<std::size_t> counts) const;

  // Any value is taken; open() looks at it.
  CUfileOpError set(CUFileSizeTConfigParameter_t parameter, std::size_t value);
  CUfileOpError set(CUFileBoolConfigParameter_t parameter, bool value);
  CUfileOpError set(CUFileStringConfigParameter_t parameter, std::string value);
  // sizes_kb and counts of one length, not empty.
  CUfileOpError set(slab_pool pool, slab_array value);

  // The range of a parameter; CUFILE_PARAM_PROFILE_STATS has none that can be asked for.
  static CUfileOpError range(CUFileSizeTConfigParameter_t parameter, size_range& value);

 private:
  struct staged_values {
    std::array<std::optional<std::size_t>, size_parameter_count> sizes;
    std::array<std::optional<bool>, flag_parameter_count> flags;
    std::array<std::optional<std::string>, word_parameter_count> words;
    std::array<std::optional<slab_array>, 2> slabs;
  };

  static void stage_over(settings& target, const staged_values& staged, std::vector<std::string>* remarks);
  void read_file(settings& target, opening& report) const;
  void read_environment(settings& target, std::vector<std::string>& remarks) const;
  void read_log_path(settings& target) const;
  [[nodiscard]] settings values_locked() const;
  template <class Slot, class Value>
  CUfileOpError stage(Slot& slot, Value&& value);

  const environment_lookup lookup_;
  const std::string default_file_;
  mutable std::mutex mutex_;  // guards what follows; never held while reading files
  staged_values staged_;
  std::unique_ptr<const settings> live_;  // null: closed
};

}  // namespace penstock::cufile
