// cuFile's settings: values from cufile.json, the environment and the cuFileSetParameter... calls, and their precedence. Names, defaults
// and ranges are those of NVIDIA's cuFile (configuration guide; live values of 1.17). Penstock's engine itself chooses how bytes are moved,
// so most keys are read, validated and reported back but have no effect; all_keys() lists which. A settings value is plain data. A
// settings_book is owned by the driver and thread-safe.
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

// The result for one key in a file.
struct setting_report {
  std::string key;    // "properties.io_batchsize", as in the file
  std::string value;  // as JSON, shortened
  key_fate fate = key_fate::unknown;
  std::string remark;  // the effect, "accepted without effect", "unknown key", or why it was rejected
};

// Larger files are rejected.
inline constexpr std::size_t max_settings_file_bytes = std::size_t{1} << 20;

// Applies the text of a cufile.json (JSON with // and /* */ comments) to target, and reports each of its keys. A value of the wrong type or
// out of range is rejected: target keeps its old value. An empty text is valid. No text causes an exception. Errors: invalid_argument (not
// JSON, with line and byte; nested too deep; not an object); target is then unchanged.
result<std::vector<setting_report>> apply_text(std::string_view text, settings& target);

// Reports how a driver opened with this file would treat it. Blocks. Errors: those of apply_text (the message includes the file name);
// not_found, permission_denied, io; not_a_file (a directory, pipe or socket).
result<std::vector<setting_report>> report(const std::string& path);

// getenv, or a replacement for tests.
using environment_lookup = std::function<const char*(const char*)>;

struct opening {
  status problem;                    // the specified file could not be used; the defaults apply instead
  std::vector<std::string> remarks;  // rejected values and keys, one sentence each; at most max_remarks and a closing one
};
inline constexpr std::size_t max_remarks = 64;

// The driver's settings. While closed, it stages the values of cuFileSetParameter... calls; while open, it contains the live values.
// Thread-safe; only open() blocks, to read the file. Codes are those of cuFile 1.17:
//   CU_FILE_INVALID_VALUE        no such parameter, or nothing to read
//   CU_FILE_DRIVER_ALREADY_OPEN  set() of an open book
class settings_book {
 public:
  settings_book();  // uses getenv and /etc/cufile.json
  // Reads default_file if CUFILE_ENV_PATH_JSON does not specify a file.
  settings_book(environment_lookup lookup, std::string default_file);

  // Makes values live. Precedence: staged values, environment, file, defaults; if a value is invalid, the next source is used. Consumes the
  // staged values. A missing file is not an error, and neither is an unreadable one in /etc. After a problem the book is still opened,
  // without the file, so that the caller can log the problem; a caller that does not want to continue closes it. Does nothing if the book
  // is already open.
  opening open();
  // Restores the defaults, with nothing staged. Closing a closed book drops the staged values.
  void close();
  [[nodiscard]] bool is_open() const;

  // Returns a copy of the live values. For a closed book: the defaults with the staged values, not yet validated.
  [[nodiscard]] settings values() const;

  // As for values(); on failure value is unchanged. A closed book does not read the file. The log file's path is available if it was set or
  // its variable exists, even if empty.
  CUfileOpError get(CUFileSizeTConfigParameter_t parameter, std::size_t& value) const;
  CUfileOpError get(CUFileBoolConfigParameter_t parameter, bool& value) const;
  CUfileOpError get(CUFileStringConfigParameter_t parameter, std::string& value) const;
  // Returns CU_FILE_INVALID_VALUE unless the spans have exactly the arrays' length.
  CUfileOpError get(slab_pool pool, std::span<std::size_t> sizes_kb, std::span<std::size_t> counts) const;

  // Returns DRIVER_UNSUPPORTED_LIMIT if the value is out of range or not a multiple of the step.
  CUfileOpError set(CUFileSizeTConfigParameter_t parameter, std::size_t value);
  // Accept any value; open() validates it.
  CUfileOpError set(CUFileBoolConfigParameter_t parameter, bool value);
  CUfileOpError set(CUFileStringConfigParameter_t parameter, std::string value);
  // sizes_kb and counts must have the same length and not be empty.
  CUfileOpError set(slab_pool pool, slab_array value);

  // Returns the range of a parameter; CUFILE_PARAM_PROFILE_STATS has no range.
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
  mutable std::mutex mutex_;  // guards the members below; never held while reading files
  staged_values staged_;
  std::unique_ptr<const settings> live_;  // null: closed
};

}  // namespace penstock::cufile
