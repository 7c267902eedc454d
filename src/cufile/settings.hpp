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

#include "cufile/settings_data.hpp"
#include "penstock/status.hpp"

namespace penstock::cufile {

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

  // DRIVER_UNSUPPORTED_LIMIT: out of the range of the parameter, or no multiple of its step.
  CUfileOpError set(CUFileSizeTConfigParameter_t parameter, std::size_t value);
  // Any other value is taken; open() looks at it.
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
