// Feeds any bytes to the parser of cufile.json, and to the variables that override it. Whatever the input, values stay in their ranges and
// rejected text changes nothing. Built with clang's -fsanitize=fuzzer, or with replay_main.cc for a replay.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "cufile/settings.hpp"

using namespace penstock::cufile;

namespace {

void require(bool truth) {
  if (!truth) std::abort();
}

void check(const settings& values) {
  for (const key& one : all_keys()) {
    if (one.kind != key_kind::size || one.parameter < 0) continue;
    require(one.range.holds(values.sizes[static_cast<std::size_t>(one.parameter)]));
  }
  for (const slab_pool pool : {slab_pool::posix, slab_pool::gpu_bounce}) {
    require(!values.slabs(pool).counts.empty());
    require(values.slabs(pool).sizes_kb.size() == values.slabs(pool).counts.size());
  }
  require(parse_log_level(values[CUFILE_PARAM_LOGGING_LEVEL]).has_value());
  require(values.log_max_bytes > 0);
  for (const std::string& word : values.words) require(word.find('\0') == std::string::npos);
}

void check(const penstock::status& problem, const settings& values) {
  const settings defaults;
  require(!problem.message().empty());
  require(values.sizes == defaults.sizes && values.flags == defaults.flags && values.words == defaults.words);
  require(values.denied.mounts.empty() && values.log_max_bytes == defaults.log_max_bytes);
}

void check(const setting_report& line) {
  require(line.key.size() < 200 && line.value.size() < 200 && !line.remark.empty());
  for (const char c : line.key + line.value) require(static_cast<unsigned char>(c) >= ' ');
}

void read_as_file(std::string_view text) {
  settings values;
  const auto lines = apply_text(text, values);
  check(values);
  if (!lines.ok()) return check(lines.error(), values);
  for (const setting_report& line : *lines) check(line);
}

void read_as_variables(const std::string& text) {
  const auto lookup = [&](const char* name) { return std::string_view(name) == "CUFILE_ENV_PATH_JSON" ? nullptr : text.c_str(); };
  settings_book book(lookup, "");
  require(book.set(CUFILE_PARAM_LOG_DIR, text) == CU_FILE_SUCCESS);
  const opening outcome = book.open();
  require(outcome.problem.ok() && outcome.remarks.size() <= max_remarks + 1);
  check(book.values());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(data, data + size);
  read_as_file(text);
  read_as_variables(text);
  return 0;
}
