#include "cufile/settings.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cufile/settings_keys.hpp"

namespace penstock::cufile {

namespace {

using nlohmann::json;
using enum key_kind;

constexpr const char* log_path_variable = "CUFILE_LOGFILE_PATH";

// --- values as JSON -----------------------------------------------------------------------------------------------------------

// Makes text from a file safe for log lines and terminals.
std::string printable(std::string text) {
  constexpr std::size_t longest = 120;
  if (text.size() > longest) text = text.substr(0, longest) + "...";
  std::ranges::replace_if(
      text, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == 0x7f; }, '?');
  return text;
}

std::string value_text(const json& value) { return printable(value.dump(-1, ' ', true, json::error_handler_t::replace)); }

// Returns null for a different type, where json::get() would throw.
const std::uint64_t* whole_number(const json& value) { return value.get_ptr<const json::number_unsigned_t*>(); }

refusal store_json_limit(const key& where, const json& value, settings& target) {
  const auto* negative = value.get_ptr<const json::number_integer_t*>();
  if (negative != nullptr && *negative == -1) return store_limit(where, {}, target);
  const auto* number = whole_number(value);
  return store_limit(where, number != nullptr ? *number : 0, target);
}

refusal store_json_list(const key& where, const json& value, settings& target) {
  std::vector<std::string> words;
  for (const json& item : value) {
    const auto* text = item.get_ptr<const json::string_t*>();
    if (!value.is_array() || text == nullptr) return "expected a list of strings";
    words.push_back(*text);
  }
  if (!value.is_array()) return "expected a list of strings";
  return where.kind == addresses ? store_addresses(where, words, target) : store_list(where, std::move(words), target);
}

refusal store_json_slabs(const key& where, const json& value, settings& target) {
  std::vector<std::size_t> numbers;
  for (const json& item : value) {
    const auto* number = whole_number(item);
    if (!value.is_array() || number == nullptr) return "expected a list of whole numbers";
    numbers.push_back(*number);
  }
  return value.is_array() ? store_slabs(where, std::move(numbers), target) : "expected a list of whole numbers";
}

refusal store_json_table(const key& where, const json& value, settings& target) {
  const bool fits = value.is_object() && std::ranges::all_of(value, [](const json& each) { return each.is_object(); });
  if (!fits) return "expected an object of objects";
  return store_table(where, value.empty() ? std::string() : value_text(value), target);
}

refusal store_json_number(const key& where, const json& value, settings& target) {
  if (const auto* number = whole_number(value)) return store_number(where, fmt::format("{}", *number), target);
  const auto* text = value.get_ptr<const json::string_t*>();
  return text != nullptr ? store_number(where, *text, target) : "expected a whole number";
}

refusal store_json(const key& where, const json& value, settings& target) {
  switch (where.kind) {
    case size:
      if (const auto* number = whole_number(value)) return store_size(where, *number, target);
      return expected_size(where);
    case limit:
      return store_json_limit(where, value, target);
    case flag:
      return value.is_boolean() ? store_flag(where, *value.get_ptr<const bool*>(), target) : "expected true or false";
    case word:
      return value.is_string() ? store_word(where, *value.get_ptr<const json::string_t*>(), target) : "expected a string";
    case list:
    case addresses:
      return store_json_list(where, value, target);
    case table:
      return store_json_table(where, value, target);
    case number:
      return store_json_number(where, value, target);
    case slab_sizes:
    case slab_counts:
      return store_json_slabs(where, value, target);
  }
  return {};
}

// --- a file -------------------------------------------------------------------------------------------------------------------

// Deeper nesting could exhaust the stack in the JSON library's recursive functions.
constexpr int max_depth = 256;

// Finds the first error in a text without building a document or throwing exceptions.
class syntax_check final : public nlohmann::json_sax<json> {
 public:
  explicit syntax_check(std::string_view text) : text_(text) {}

  [[nodiscard]] const std::string& problem() const { return problem_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool key(string_t&) override { return true; }
  bool start_object(std::size_t) override { return enter(); }
  bool end_object() override { return leave(); }
  bool start_array(std::size_t) override { return enter(); }
  bool end_array() override { return leave(); }

  bool parse_error(std::size_t position, const std::string&, const json::exception& found) override {
    // Of "[json.exception.parse_error.101] parse error at line 3, column 5: syntax error while ...", keeps the last part.
    std::string_view reason = found.what();
    if (const auto colon = reason.find(": "); colon != std::string_view::npos) reason.remove_prefix(colon + 2);
    const std::string_view before = text_.substr(0, position == 0 ? 0 : std::min(position - 1, text_.size()));
    problem_ = fmt::format("line {}, byte {}: {}", 1 + std::ranges::count(before, '\n'), position, reason);
    return false;
  }

 private:
  bool enter() {
    if (++depth_ <= max_depth) return true;
    problem_ = fmt::format("nested deeper than {} levels", max_depth);
    return false;
  }
  bool leave() {
    --depth_;
    return true;
  }

  std::string_view text_;
  std::string problem_;
  int depth_ = 0;
};

status check_syntax(std::string_view text) {
  syntax_check check(text);
  if (json::sax_parse(text, &check, json::input_format_t::json, true, true)) return {};
  return {errc::invalid_argument, fmt::format("not a cufile.json: {}", check.problem())};
}

result<json> parse(std::string_view text) {
  if (text.empty()) return json::object();  // an empty file, such as /dev/null, contains no settings
  // A text with few brackets, like all real ones, cannot be nested deeply; check other texts first.
  const auto opens = std::ranges::count_if(text, [](char each) { return each == '{' || each == '['; });
  if (opens > max_depth) {
    if (auto wrong = check_syntax(text); !wrong.ok()) return wrong;
  }
  json document = json::parse(text, nullptr, false, true);
  if (document.is_discarded()) return check_syntax(text);  // finds the position of the error
  if (!document.is_object()) return status(errc::invalid_argument, "not a cufile.json: expected an object of sections");
  return document;
}

// A leaf of the document.
struct found_value {
  std::string name;
  const key* where = nullptr;
  const json* value = nullptr;
};

void collect(const std::string& section, const json& object, std::vector<found_value>& found) {
  for (const auto& [own_name, value] : object.items()) {
    const std::string name = section.empty() ? own_name : fmt::format("{}.{}", section, own_name);
    const bool plain = own_name.find('.') == std::string::npos;  // {"logging.dir": ...} does not set logging.dir
    if (plain && value.is_object() && is_section(name)) {
      collect(name, value, found);
    } else {
      found.push_back({name, plain ? find_key(name) : nullptr, &value});
    }
  }
}

// Such a key's effect text starts with "nothing".
std::string without_effect(const key& where) {
  return fmt::format("accepted without effect{}", where.effect.substr(std::string_view("nothing").size()));
}

setting_report unknown_report(const found_value& found) {
  if (is_section(found.name)) return {found.name, value_text(*found.value), key_fate::refused, "expected an object"};
  return {printable(found.name), value_text(*found.value), key_fate::unknown, "unknown key"};
}

setting_report stored_report(const found_value& found, const refusal& why) {
  setting_report line{found.name, value_text(*found.value), key_fate::obeyed, std::string(found.where->effect)};
  if (!why.empty()) {
    line.fate = key_fate::refused;
    line.remark = why;
  } else if (found.where->role == key_role::idle) {
    line.fate = key_fate::without_effect;
    line.remark = without_effect(*found.where);
  }
  return line;
}

setting_report apply_value(const found_value& found, std::span<const found_value> all, settings& target) {
  if (found.where == nullptr) return unknown_report(found);
  const std::string_view name = found.where->name;
  if (found.name != name && std::ranges::find(all, name, &found_value::name) != all.end()) {
    return {found.name, value_text(*found.value), key_fate::refused, fmt::format("{} is also set and takes precedence", name)};
  }
  return stored_report(found, store_json(*found.where, *found.value, target));
}

// Restores both arrays if their lengths differ, because sizes are useless without counts.
void settle_slabs(slab_pool pool, const settings& before, settings& target, std::span<const found_value> found,
                  std::vector<setting_report>& lines) {
  if (target.slabs(pool).sizes_kb.size() == target.slabs(pool).counts.size()) return;
  target.slabs(pool) = before.slabs(pool);
  for (const key& where : all_keys()) {
    if ((where.kind == slab_sizes || where.kind == slab_counts) && pool_of(where) == pool) target.changed.erase(where.name);
  }
  for (std::size_t i = 0; i < found.size(); ++i) {
    const key* where = found[i].where;
    if (where == nullptr || (where->kind != slab_sizes && where->kind != slab_counts) || pool_of(*where) != pool) continue;
    lines[i].fate = key_fate::refused;
    lines[i].remark = "the number of sizes must equal the number of counts";
  }
}

// Reads in blocks, because touching the pages of a buffer for the largest allowed file would cost more than reading a typical one.
result<std::string> read_descriptor(int fd) {
  std::string text;
  std::array<char, 32768> block;
  while (text.size() <= max_settings_file_bytes) {
    const ssize_t got = ::read(fd, block.data(), block.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return status::from_errno(errno, "read");
    if (got == 0) return text;
    text.append(block.data(), static_cast<std::size_t>(got));
  }
  return status(errc::invalid_argument, "larger than 1 MiB: not a cufile.json");
}

// Non-blocking, so that a pipe in place of a file cannot block the program.
result<std::string> read_text(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return status::from_errno(errno, fmt::format("open {}", path));
  struct stat about {};
  const bool readable = ::fstat(fd, &about) == 0 && (S_ISREG(about.st_mode) || S_ISCHR(about.st_mode));
  auto text = readable ? read_descriptor(fd) : result<std::string>(status(errc::not_a_file, "not a regular file"));
  ::close(fd);
  if (!text) return text.error().with_context(path);
  return text;
}

result<std::vector<setting_report>> apply_file(const std::string& path, settings& target) {
  const auto text = read_text(path);
  if (!text) return text.error();
  auto lines = apply_text(*text, target);
  if (!lines) return lines.error().with_context(path);
  return lines;
}

// --- the book -----------------------------------------------------------------------------------------------------------------

// C callers can pass any number.
template <class Parameter, class Array>
bool known(Parameter parameter, const Array& values) {
  return static_cast<std::size_t>(parameter) < values.size();
}

void remark_on(std::span<const setting_report> lines, const std::string& path, std::vector<std::string>& remarks) {
  for (const setting_report& line : lines) {
    if (line.fate != key_fate::unknown && line.fate != key_fate::refused) continue;
    remarks.push_back(fmt::format("{}: {} = {}: {}", path, line.key, line.value, line.remark));
  }
}

// Reports keys that have no effect, because users who set one expect an effect.
void remark_on_idle(const settings& values, std::vector<std::string>& remarks) {
  for (const key& where : all_keys()) {
    const auto found = values.changed.find(where.name);
    if (where.role == key_role::idle && found != values.changed.end())
      remarks.push_back(fmt::format("{} = {}: {}", where.name, printable(found->second), without_effect(where)));
  }
}

// Validates such a variable's value.
refusal check_lone(const lone_variable& about, std::string_view text) {
  settings scratch;
  key like{.name = about.name, .kind = about.kind, .range = about.range};
  return store_text(like, text, scratch);
}

void shorten(std::vector<std::string>& remarks) {
  if (remarks.size() <= max_remarks) return;
  const std::size_t more = remarks.size() - max_remarks;
  remarks.resize(max_remarks);
  remarks.push_back(fmt::format("and {} more", more));
}

std::string resolved_log_file(const settings& values) {
  if (const auto& path = values[CUFILE_PARAM_ENV_LOGFILE_PATH]; !path.empty()) return path;
  const std::string& directory = values[CUFILE_PARAM_LOG_DIR];
  if (directory.empty()) return {};
  return directory.ends_with('/') ? directory + "cufile.log" : directory + "/cufile.log";
}

const char* process_environment(const char* name) {
  return std::getenv(name);  // NOLINT(concurrency-mt-unsafe): read only
}

}  // namespace

// --- levels, defaults, files ----------------------------------------------------------------------------------------------------

std::string_view to_string(log_level level) noexcept {
  constexpr std::array<std::string_view, log_level_count> names{"NOTICE", "ERROR", "WARN", "INFO", "DEBUG", "TRACE"};
  return names[static_cast<std::size_t>(level)];
}

std::optional<log_level> parse_log_level(std::string_view word) noexcept {
  for (int i = 0; i < log_level_count; ++i) {
    if (same_word(word, to_string(static_cast<log_level>(i)))) return static_cast<log_level>(i);
  }
  return {};
}

settings::settings() {
  for (const key& where : all_keys()) {
    const refusal why = store_text(where, where.standard, *this);
    assert(why.empty() && "the default is not valid for its key");
    static_cast<void>(why);
  }
}

log_level settings::level() const noexcept { return parse_log_level(words[CUFILE_PARAM_LOGGING_LEVEL]).value_or(log_level::error); }

result<std::vector<setting_report>> apply_text(std::string_view text, settings& target) {
  const auto document = parse(text);
  if (!document) return document.error();
  std::vector<found_value> found;
  collect("", *document, found);
  const settings before = target;
  std::vector<setting_report> lines;
  lines.reserve(found.size());
  for (const found_value& one : found) lines.push_back(apply_value(one, found, target));
  settle_slabs(slab_pool::posix, before, target, found, lines);
  settle_slabs(slab_pool::gpu_bounce, before, target, found, lines);
  return lines;
}

result<std::vector<setting_report>> report(const std::string& path) {
  settings scratch;
  return apply_file(path, scratch);
}

// --- settings_book ------------------------------------------------------------------------------------------------------------

settings_book::settings_book() : settings_book(process_environment, "/etc/cufile.json") {}

settings_book::settings_book(environment_lookup lookup, std::string default_file)
    : lookup_(std::move(lookup)), default_file_(std::move(default_file)) {}

opening settings_book::open() {
  opening report;
  if (is_open()) return report;
  auto values = std::make_unique<settings>();
  read_file(*values, report);
  read_environment(*values, report.remarks);
  const std::lock_guard lock(mutex_);
  if (live_) return {};  // another thread opened it first
  stage_over(*values, staged_, &report.remarks);
  staged_ = {};
  remark_on_idle(*values, report.remarks);
  values->log_file = resolved_log_file(*values);
  live_ = std::move(values);
  shorten(report.remarks);
  return report;
}

void settings_book::close() {
  const std::lock_guard lock(mutex_);
  live_.reset();
  staged_ = {};
}

bool settings_book::is_open() const {
  const std::lock_guard lock(mutex_);
  return live_ != nullptr;
}

void settings_book::read_file(settings& target, opening& report) const {
  const char* named = lookup_("CUFILE_ENV_PATH_JSON");
  const bool is_named = named != nullptr && *named != '\0';
  const std::string path = is_named ? named : default_file_;
  const auto lines = apply_file(path, target);
  if (lines) return remark_on(*lines, path, report.remarks);
  const errc code = lines.error().code();
  if (code == errc::not_found && !is_named) return;
  if (code == errc::not_found || (code == errc::permission_denied && !is_named)) {
    report.remarks.push_back(fmt::format("{}; using the defaults", lines.error().message()));
  } else {
    report.problem = lines.error();
  }
}

void settings_book::read_environment(settings& target, std::vector<std::string>& remarks) const {
  for (const key& where : all_keys()) {
    const char* text = where.variable == nullptr ? nullptr : lookup_(where.variable);
    if (text == nullptr || *text == '\0') continue;
    const refusal why = store_text(where, text, target);
    if (!why.empty()) remarks.push_back(fmt::format("environment variable {}={}: {}", where.variable, printable(text), why));
  }
  for (const lone_variable& about : all_lone_variables()) {
    const char* text = lookup_(about.name);
    if (text == nullptr || *text == '\0') continue;
    const refusal why = check_lone(about, text);
    if (!why.empty()) remarks.push_back(fmt::format("environment variable {}={}: {}", about.name, printable(text), why));
  }
  read_log_path(target);
}

void settings_book::read_log_path(settings& target) const {
  const char* path = lookup_(log_path_variable);
  if (path == nullptr) return;
  target.words[CUFILE_PARAM_ENV_LOGFILE_PATH] = path;
  target.log_path_given = true;
}

settings settings_book::values_locked() const {
  if (live_) return *live_;
  settings values;
  read_log_path(values);
  stage_over(values, staged_, nullptr);
  return values;
}

settings settings_book::values() const {
  const std::lock_guard lock(mutex_);
  return values_locked();
}

namespace {

// Stores a staged value. Without remarks, the value is not checked; with remarks, it is stored only if its key accepts it.
template <class Value, class Store>
void stage_one(const Value& value, Value& slot, const key* where, Store store, settings& target, std::vector<std::string>* remarks) {
  if (remarks == nullptr || where == nullptr) {
    slot = value;
    return;
  }
  const refusal why = store(*where, value, target);
  if (!why.empty()) remarks->push_back(fmt::format("{} = {}, set by the program: {}", where->name, value, why));
}

// Records slab arrays unchecked, as the program set them.
void note_slabs(slab_pool pool, settings& target) {
  for (const key& where : all_keys()) {
    if ((where.kind != slab_sizes && where.kind != slab_counts) || pool_of(where) != pool) continue;
    const auto& numbers = where.kind == slab_sizes ? target.slabs(pool).sizes_kb : target.slabs(pool).counts;
    auto text = fmt::format("{}", fmt::join(numbers, " "));
    if (text != where.standard) target.changed[where.name] = std::move(text);
  }
}

}  // namespace

void settings_book::stage_over(settings& target, const staged_values& staged, std::vector<std::string>* remarks) {
  for (std::size_t i = 0; i < size_parameter_count; ++i) {
    if (!staged.sizes[i]) continue;
    stage_one(*staged.sizes[i], target.sizes[i], find_key(size, static_cast<int>(i)), store_size, target, remarks);
  }
  for (std::size_t i = 0; i < flag_parameter_count; ++i) {
    if (!staged.flags[i]) continue;
    if (const key* where = find_key(flag, static_cast<int>(i))) (void)store_flag(*where, *staged.flags[i], target);
  }
  for (std::size_t i = 0; i < word_parameter_count; ++i) {
    if (!staged.words[i]) continue;
    stage_one(*staged.words[i], target.words[i], find_key(word, static_cast<int>(i)), store_word, target, remarks);
  }
  target.log_path_given = target.log_path_given || staged.words[CUFILE_PARAM_ENV_LOGFILE_PATH].has_value();
  for (const slab_pool pool : {slab_pool::posix, slab_pool::gpu_bounce}) {
    const auto& slabs = staged.slabs[static_cast<std::size_t>(pool)];
    if (!slabs) continue;
    target.slabs(pool) = *slabs;
    note_slabs(pool, target);
  }
}

CUfileOpError settings_book::get(CUFileSizeTConfigParameter_t parameter, std::size_t& value) const {
  const settings now = values();
  if (!known(parameter, now.sizes)) return CU_FILE_INVALID_VALUE;
  value = now[parameter];
  return CU_FILE_SUCCESS;
}

CUfileOpError settings_book::get(CUFileBoolConfigParameter_t parameter, bool& value) const {
  const settings now = values();
  if (!known(parameter, now.flags)) return CU_FILE_INVALID_VALUE;
  value = now[parameter];
  return CU_FILE_SUCCESS;
}

CUfileOpError settings_book::get(CUFileStringConfigParameter_t parameter, std::string& value) const {
  const settings now = values();
  if (!known(parameter, now.words)) return CU_FILE_INVALID_VALUE;
  if (parameter == CUFILE_PARAM_ENV_LOGFILE_PATH && !now.log_path_given) return CU_FILE_INVALID_VALUE;
  value = now[parameter];
  return CU_FILE_SUCCESS;
}

CUfileOpError settings_book::get(slab_pool pool, std::span<std::size_t> sizes_kb, std::span<std::size_t> counts) const {
  const settings now = values();
  const slab_array& slabs = now.slabs(pool);
  if (sizes_kb.size() != slabs.sizes_kb.size() || counts.size() != slabs.counts.size()) return CU_FILE_INVALID_VALUE;
  std::ranges::copy(slabs.sizes_kb, sizes_kb.begin());
  std::ranges::copy(slabs.counts, counts.begin());
  return CU_FILE_SUCCESS;
}

template <class Slot, class Value>
CUfileOpError settings_book::stage(Slot& slot, Value&& value) {
  const std::lock_guard lock(mutex_);
  if (live_) return CU_FILE_DRIVER_ALREADY_OPEN;
  slot = std::forward<Value>(value);
  return CU_FILE_SUCCESS;
}

// Rejects an out-of-range number immediately: open() would drop it after this call had reported success. NVIDIA's library accepts any
// timeout, and cuda-python's tests set 5000 ms.
CUfileOpError settings_book::set(CUFileSizeTConfigParameter_t parameter, std::size_t value) {
  if (!known(parameter, staged_.sizes)) return CU_FILE_INVALID_VALUE;
  settings scratch;
  const key* where = find_key(size, static_cast<int>(parameter));
  const bool is_time = parameter == CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS;
  if (where != nullptr && !is_time && !store_size(*where, value, scratch).empty()) return CU_FILE_DRIVER_UNSUPPORTED_LIMIT;
  return stage(staged_.sizes[parameter], value);
}

CUfileOpError settings_book::set(CUFileBoolConfigParameter_t parameter, bool value) {
  return known(parameter, staged_.flags) ? stage(staged_.flags[parameter], value) : CU_FILE_INVALID_VALUE;
}

CUfileOpError settings_book::set(CUFileStringConfigParameter_t parameter, std::string value) {
  return known(parameter, staged_.words) ? stage(staged_.words[parameter], std::move(value)) : CU_FILE_INVALID_VALUE;
}

CUfileOpError settings_book::set(slab_pool pool, slab_array value) {
  if (value.sizes_kb.empty() || value.sizes_kb.size() != value.counts.size()) return CU_FILE_INVALID_VALUE;
  return stage(staged_.slabs[static_cast<std::size_t>(pool)], std::move(value));
}

CUfileOpError settings_book::range(CUFileSizeTConfigParameter_t parameter, size_range& value) {
  const key* where = parameter == CUFILE_PARAM_PROFILE_STATS ? nullptr : find_key(size, static_cast<int>(parameter));
  if (where == nullptr || where->parameter < 0) return CU_FILE_INVALID_VALUE;
  value = where->range;
  return CU_FILE_SUCCESS;
}

}  // namespace penstock::cufile
