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

namespace penstock::cufile {

namespace {

using nlohmann::json;
using enum key_kind;

// --- the keys -----------------------------------------------------------------------------------------------------------------

template <class Member>
constexpr key with(key changed, Member key::*member, std::type_identity_t<Member> value) {
  changed.*member = value;
  return changed;
}

// Writes a key as one row of the table.
struct row : key {
  constexpr explicit row(const key& other) : key(other) {}
  constexpr row(key_kind its_kind, std::string_view its_name, std::string_view its_standard = {}) : key{its_name, its_kind, its_standard} {}
  constexpr row in(std::size_t least, std::size_t most) const { return row(with(*this, &key::range, {least, most})); }
  constexpr row also(std::string_view one, std::string_view other = {}) const { return row(with(*this, &key::aliases, {one, other})); }
  constexpr row from(const char* its_variable) const { return row(with(*this, &key::variable, its_variable)); }
  constexpr row sets(int its_parameter) const { return row(with(*this, &key::parameter, its_parameter)); }
  constexpr row does(std::string_view its_effect) const { return row(with(*this, &key::effect, its_effect)); }
};

// Where the guides and NVIDIA's library differ, the default is what the library (1.17) answers.
constexpr key keys[] = {
    row(word, "logging.dir")
        .sets(CUFILE_PARAM_LOG_DIR)
        .does("the log is cufile.log in this directory, unless CUFILE_LOGFILE_PATH is set; without either there is no log"),
    row(word, "logging.level", "ERROR").from("CUFILE_LOGGING_LEVEL").sets(CUFILE_PARAM_LOGGING_LEVEL).does("what the log holds"),
    row(limit, "logging.max_file_size_mb", "32")
        .in(1, 4096)
        .from("CUFILE_LOGFILE_MAX_SIZE_MB")
        .does("the log starts again from empty at this size"),

    row(flag, "profile.nvtx", "false").from("CUFILE_NVTX").sets(CUFILE_PARAM_PROFILE_NVTX),
    row(size, "profile.cufile_stats", "0")
        .in(0, 3)
        .from("CUFILE_STATS_LEVEL")
        .sets(CUFILE_PARAM_PROFILE_STATS)
        .does("the level of the statistics"),

    row(size, "execution.max_io_queue_depth", "128").in(1, 256).sets(CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH),
    row(size, "execution.max_io_threads", "4")
        .in(0, 32)
        .sets(CUFILE_PARAM_EXECUTION_MAX_IO_THREADS)
        .does("0 switches stream-ordered reads and writes off; any other number changes nothing"),
    row(flag, "execution.parallel_io", "true")
        .sets(CUFILE_PARAM_EXECUTION_PARALLEL_IO)
        .does("false switches stream-ordered reads and writes off"),
    row(size, "execution.min_io_threshold_size_kb", "8192").in(4, 4294967295).sets(CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB),
    row(size, "execution.max_request_parallelism", "4").in(0, 8).sets(CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM),

    row(size, "properties.max_direct_io_size_kb", "1024").in(64, 16384).sets(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB),
    row(size, "properties.max_device_cache_size_kb", "131072").sets(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB),
    row(size, "properties.per_buffer_cache_size_kb", "1024").in(64, 16384).sets(CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB),
    row(slab_sizes, "properties.gpu_bounce_buffer_slab_config.slab_size_kb", "1024 8192 16384 65536")
        .also("properties.gpu_bounce_buffer_slab_size_kb")
        .sets(CUFILE_PARAM_GPU_BOUNCE_BUFFER_SLAB_SIZE_KB),
    row(slab_counts, "properties.gpu_bounce_buffer_slab_config.slab_count", "128 8 4 2")
        .also("properties.gpu_bounce_buffer_slab_count")
        .sets(CUFILE_PARAM_GPU_BOUNCE_BUFFER_SLAB_COUNT),
    row(size, "properties.max_device_pinned_mem_size_kb", "33554432").in(64, 0).sets(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB),
    row(slab_sizes, "properties.posix_pool_slab_size_kb", "4 1024 16384").sets(CUFILE_PARAM_POSIX_POOL_SLAB_SIZE_KB),
    row(slab_counts, "properties.posix_pool_slab_count", "128 64 64").sets(CUFILE_PARAM_POSIX_POOL_SLAB_COUNT),
    row(flag, "properties.use_poll_mode", "false").sets(CUFILE_PARAM_PROPERTIES_USE_POLL_MODE),
    row(size, "properties.poll_mode_max_size_kb", "4").in(4, 18014398509481980).sets(CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB),
    row(flag, "properties.use_pci_p2pdma", "false").from("CUFILE_USE_PCIP2PDMA").sets(CUFILE_PARAM_USE_PCIP2PDMA),
    row(flag, "properties.allow_compat_mode", "true")
        .also("properties.use_compat_mode")
        .from("CUFILE_ALLOW_COMPAT_MODE")
        .sets(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE)
        .does("false refuses files that the direct path cannot serve"),
    row(flag, "properties.force_compat_mode", "false")
        .from("CUFILE_FORCE_COMPAT_MODE")
        .sets(CUFILE_PARAM_FORCE_COMPAT_MODE)
        .does("true keeps every request off the direct path"),
    row(flag, "properties.vanilla_posix_io_mode", "false").sets(CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE),
    row(flag, "properties.gds_fallback_io", "false").sets(CUFILE_PARAM_GDS_FALLBACK_IO),
    row(flag, "properties.allow_system_memory", "true").sets(CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY).does("false refuses host memory"),
    row(flag, "properties.force_odirect_mode", "false").sets(CUFILE_PARAM_FORCE_ODIRECT_MODE),
    row(flag, "properties.prefer_iouring", "false").sets(CUFILE_PARAM_PREFER_IO_URING),
    row(flag, "properties.compat_odirect_unaligned_read_split", "false"),
    row(size, "properties.compat_odirect_unaligned_read_split_min_size_kb", "128"),
    row(size, "properties.io_batchsize", "128")
        .in(1, 256)
        .also("properties.max_batch_io_size", "profile.io_batchsize")
        .sets(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE)
        .does("the most requests of one batch"),
    row(size, "properties.max_batch_io_timeout_msecs", "5")
        .in(1, 1000)
        .sets(CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS)
        .does("the timeout that the driver's properties tell"),
    row(word, "properties.io_priority", "default"),
    row(flag, "properties.gds_rdma_write_support", "true"),
    row(list, "properties.rdma_dev_addr_list"),
    row(word, "properties.rdma_load_balancing_policy", "RoundRobin").also("properties.rdma_peer_affinity_policy"),
    row(flag, "properties.rdma_dynamic_routing", "false"),
    row(list, "properties.rdma_dynamic_routing_order", "GPU_MEM_NVLINKS GPU_MEM SYS_MEM P2P"),
    row(word, "properties.rdma_peer_type", "peer_mem"),
    row(word, "properties.rdma_transport_type", "DC_V1").sets(CUFILE_PARAM_RDMA_TRANSPORT),
    row(anything, "properties.rdma_dc_key", "0xffeeddcc"),
    row(anything, "properties.rdma_access_mask", "0x1f"),
    row(anything, "properties.rdma_topN_ranks", "1"),
    row(flag, "properties.allow_rdma_token_reset", "false"),
    row(anything, "properties.rdma_multipath_enabled"),
    row(anything, "properties.rdma_multipath_max_backup_devices"),
    row(anything, "properties.rdma_multipath_io_retry_count"),
    row(anything, "properties.rdma_multipath_io_retry_delay_ms"),
    row(anything, "properties.rdma_multipath_failback_enabled"),
    row(anything, "properties.rdma_multipath_failback_delay_ms"),
    row(anything, "properties.rdma_multipath_health_check_interval_ms"),
    row(anything, "properties.rdma_multipath_async_event_monitoring"),
    row(anything, "properties.rdma_multipath_unhealthy_threshold"),

    row(size, "misc.rdma_token_reset_timeout_secs", "30").also("miscellaneous.rdma_token_reset_timeout_secs"),

    row(size, "sparse.min_p2pdma_threshold_kb", "8"),
    row(flag, "sparse.p2p_compat_enable", "true"),

    row(flag, "fs.generic.posix_unaligned_writes", "false"),
    row(size, "fs.lustre.posix_gds_min_kb", "0"),
    row(list, "fs.lustre.rdma_dev_addr_list"),
    row(table, "fs.lustre.mount_table"),
    row(flag, "fs.lustre.use_pci_p2pdma", "false"),
    row(size, "fs.beegfs.posix_gds_min_kb", "0"),
    row(list, "fs.beegfs.rdma_dev_addr_list"),
    row(table, "fs.beegfs.mount_table"),
    row(flag, "fs.beegfs.use_pci_p2pdma", "false"),
    row(size, "fs.scatefs.posix_gds_min_kb", "0"),
    row(list, "fs.scatefs.rdma_dev_addr_list"),
    row(table, "fs.scatefs.mount_table"),
    row(flag, "fs.scatefs.use_pci_p2pdma", "false"),
    row(list, "fs.nfs.rdma_dev_addr_list"),
    row(table, "fs.nfs.mount_table"),
    row(flag, "fs.nfs.use_pci_p2pdma", "false"),
    row(flag, "fs.weka.rdma_write_support", "false"),
    row(list, "fs.weka.rdma_dev_addr_list"),
    row(table, "fs.weka.mount_table"),
    row(flag, "fs.weka.use_pci_p2pdma", "false"),
    row(flag, "fs.gpfs.gds_write_support", "false"),
    row(flag, "fs.gpfs.gds_async_support", "true"),
    row(list, "fs.gpfs.rdma_dev_addr_list"),
    row(table, "fs.gpfs.mount_table"),
    row(flag, "fs.gpfs.use_pci_p2pdma", "false"),
    row(flag, "fs.virtiofs.use_pci_p2pdma", "false"),

    row(flag, "block.nvme.use_pci_p2pdma", "false"),
    row(flag, "block.nvmeof.use_pci_p2pdma", "false"),
    row(flag, "block.raid.use_pci_p2pdma", "false"),
    row(flag, "block.raid1.use_pci_p2pdma", "false"),
    row(flag, "block.raid10.use_pci_p2pdma", "false"),

    row(list, "denylist.drivers").also("blacklist.drivers"),
    row(list, "denylist.devices").also("blacklist.devices"),
    row(list, "denylist.mounts").also("blacklist.mounts"),
    row(list, "denylist.filesystems").also("blacklist.filesystems"),

    row(flag, "miscellaneous.api_check_aggressive", "false").sets(CUFILE_PARAM_FS_MISC_API_CHECK_AGGRESSIVE),
    row(flag, "miscellaneous.skip_topology_detection", "false")
        .from("CUFILE_SKIP_TOPOLOGY_DETECTION")
        .sets(CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION),
    row(flag, "miscellaneous.stream_memops_bypass", "false").sets(CUFILE_PARAM_STREAM_MEMOPS_BYPASS),
    row(flag, "miscellaneous.enable_static_routing", "false"),
    row(word, "miscellaneous.static_routing_filepath", "/etc/topology.json"),
};

constexpr const char* log_path_variable = "CUFILE_LOGFILE_PATH";

bool called(const key& candidate, std::string_view name) {
  return candidate.name == name || std::ranges::find(candidate.aliases, name) != candidate.aliases.end();
}

const key* find_key(std::string_view name) {
  const auto found = std::ranges::find_if(keys, [&](const key& candidate) { return called(candidate, name); });
  return name.empty() || found == std::end(keys) ? nullptr : &*found;
}

const key* find_key(key_kind kind, int parameter) {
  const auto found =
      std::ranges::find_if(keys, [&](const key& candidate) { return candidate.kind == kind && candidate.parameter == parameter; });
  return found == std::end(keys) ? nullptr : &*found;
}

bool is_below(std::string_view name, std::string_view section) {
  return name.size() > section.size() && name.starts_with(section) && name[section.size()] == '.';
}

// "fs.lustre": what known keys begin with.
bool is_section(std::string_view name) {
  return std::ranges::any_of(keys, [&](const key& candidate) {
    return is_below(candidate.name, name) || std::ranges::any_of(candidate.aliases, [&](auto alias) { return is_below(alias, name); });
  });
}

// --- storing one value --------------------------------------------------------------------------------------------------------

// Why a value was not taken; empty when it was.
using refusal = std::string;

constexpr std::size_t max_slabs = 64;

std::string expected_size(const key& where) {
  if (where.range.most == 0) return fmt::format("expected a whole number from {}", where.range.least);
  return fmt::format("expected a whole number from {} to {}", where.range.least, where.range.most);
}

refusal store_size(const key& where, std::size_t value, settings& target) {
  if (!where.range.holds(value)) return expected_size(where);
  if (where.parameter >= 0) target.sizes[static_cast<std::size_t>(where.parameter)] = value;
  return {};
}

// The only limit there is: that of the log, in MiB.
refusal store_limit(const key& where, std::optional<std::size_t> value, settings& target) {
  if (value && !where.range.holds(*value)) return expected_size(where) + ", or -1";
  target.log_max_bytes = value ? std::uint64_t{*value} << 20 : std::numeric_limits<std::uint64_t>::max();
  return {};
}

refusal store_flag(const key& where, bool value, settings& target) {
  if (where.parameter >= 0) target.flags[static_cast<std::size_t>(where.parameter)] = value;
  return {};
}

refusal store_word(const key& where, std::string value, settings& target) {
  if (value.find('\0') != std::string::npos) return "expected a text without a zero byte";
  if (where.parameter == CUFILE_PARAM_LOGGING_LEVEL && !parse_log_level(value)) {
    return "expected NOTICE, ERROR, WARN, INFO, DEBUG or TRACE";
  }
  if (where.parameter >= 0) target.words[static_cast<std::size_t>(where.parameter)] = std::move(value);
  return {};
}

refusal store_list(const key& where, std::vector<std::string> value, settings& target) {
  if (where.name == "denylist.mounts") target.deny_mounts = std::move(value);
  if (where.name == "denylist.filesystems") target.deny_filesystems = std::move(value);
  return {};
}

slab_pool pool_of(const key& where) {
  const bool posix = where.parameter == CUFILE_PARAM_POSIX_POOL_SLAB_SIZE_KB || where.parameter == CUFILE_PARAM_POSIX_POOL_SLAB_COUNT;
  return posix ? slab_pool::posix : slab_pool::gpu_bounce;
}

refusal store_slabs(const key& where, std::vector<std::size_t> value, settings& target) {
  if (value.empty() || value.size() > max_slabs) return fmt::format("expected 1 to {} whole numbers", max_slabs);
  slab_array& slabs = target.slabs(pool_of(where));
  (where.kind == slab_sizes ? slabs.sizes_kb : slabs.counts) = std::move(value);
  return {};
}

// --- values as text: defaults and the environment -----------------------------------------------------------------------------

std::optional<std::size_t> parse_size(std::string_view text) {
  std::size_t value = 0;
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (problem != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

bool same_word(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::ranges::equal(a, b, {}, lower, lower);
}

std::optional<bool> parse_flag(std::string_view text) {
  for (const std::string_view yes : {"true", "1", "yes", "on"}) {
    if (same_word(text, yes)) return true;
  }
  for (const std::string_view no : {"false", "0", "no", "off"}) {
    if (same_word(text, no)) return false;
  }
  return {};
}

std::vector<std::size_t> parse_sizes(std::string_view text) {
  std::vector<std::size_t> sizes;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    sizes.push_back(parse_size(text.substr(0, end)).value_or(0));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return sizes;
}

refusal store_text(const key& where, std::string_view text, settings& target) {
  switch (where.kind) {
    case size:
      if (const auto value = parse_size(text)) return store_size(where, *value, target);
      return expected_size(where);
    case limit:
      if (text == "-1") return store_limit(where, {}, target);
      return store_limit(where, parse_size(text).value_or(0), target);
    case flag:
      if (const auto value = parse_flag(text)) return store_flag(where, *value, target);
      return "expected true or false";
    case word:
      return store_word(where, std::string(text), target);
    case slab_sizes:
    case slab_counts:
      return store_slabs(where, parse_sizes(text), target);
    case list:
    case table:
    case anything:
      return {};  // nothing is kept of their defaults, and no variable sets them
  }
  return {};
}

// --- values as JSON -----------------------------------------------------------------------------------------------------------

// The library's get() would throw on another type.
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
    if (!value.is_array() || text == nullptr) return "expected a list of texts";
    words.push_back(*text);
  }
  return value.is_array() ? store_list(where, std::move(words), target) : "expected a list of texts";
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
      return value.is_string() ? store_word(where, *value.get_ptr<const json::string_t*>(), target) : "expected a text";
    case list:
      return store_json_list(where, value, target);
    case table:
      return value.is_object() ? refusal() : "expected an object";
    case slab_sizes:
    case slab_counts:
      return store_json_slabs(where, value, target);
    case anything:
      return {};
  }
  return {};
}

// --- a file -------------------------------------------------------------------------------------------------------------------

// Deeper nesting could exhaust the stack of the library's functions that walk a document.
constexpr int max_depth = 256;

// Looks for the first error of a text, without building anything and without exceptions.
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
    // "[json.exception.parse_error.101] parse error at line 3, column 5: syntax error while ...": the last part is ours to keep.
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

result<json> parse(std::string_view text) {
  if (text.empty()) return json::object();  // an empty file, or /dev/null, asks for nothing
  syntax_check check(text);
  if (!json::sax_parse(text, &check, json::input_format_t::json, true, true)) {
    return status(errc::invalid_argument, fmt::format("not a cufile.json: {}", check.problem()));
  }
  json document = json::parse(text, nullptr, false, true);
  if (!document.is_object()) return status(errc::invalid_argument, "not a cufile.json: expected an object of sections");
  return document;
}

// Fit for a line of a log or a terminal, whatever a file holds.
std::string printable(std::string text) {
  constexpr std::size_t longest = 120;
  if (text.size() > longest) text = text.substr(0, longest) + "...";
  std::ranges::replace_if(
      text, [](char c) { return (c >= 0 && c < ' ') || c == 0x7f; }, '?');
  return text;
}

std::string value_text(const json& value) { return printable(value.dump(-1, ' ', true, json::error_handler_t::replace)); }

// A leaf of the document.
struct found_value {
  std::string name;
  const key* where = nullptr;
  const json* value = nullptr;
};

void collect(const std::string& section, const json& object, std::vector<found_value>& found) {
  for (const auto& [own_name, value] : object.items()) {
    const std::string name = section.empty() ? own_name : fmt::format("{}.{}", section, own_name);
    const bool plain = own_name.find('.') == std::string::npos;  // {"logging.dir": ...} is not the dir of logging
    if (plain && value.is_object() && is_section(name)) {
      collect(name, value, found);
    } else {
      found.push_back({name, plain ? find_key(name) : nullptr, &value});
    }
  }
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
  } else if (line.remark.empty()) {
    line.fate = key_fate::without_effect;
    line.remark = "accepted without effect";
  }
  return line;
}

setting_report apply_value(const found_value& found, std::span<const found_value> all, settings& target) {
  if (found.where == nullptr) return unknown_report(found);
  const std::string_view name = found.where->name;
  if (found.name != name && std::ranges::find(all, name, &found_value::name) != all.end()) {
    return {found.name, value_text(*found.value), key_fate::refused, fmt::format("{} is given too, and counts", name)};
  }
  return stored_report(found, store_json(*found.where, *found.value, target));
}

// Sizes without as many counts say nothing, so both go back to what they were.
void settle_slabs(slab_pool pool, const settings& before, settings& target, std::span<const found_value> found,
                  std::vector<setting_report>& lines) {
  if (target.slabs(pool).sizes_kb.size() == target.slabs(pool).counts.size()) return;
  target.slabs(pool) = before.slabs(pool);
  for (std::size_t i = 0; i < found.size(); ++i) {
    const key* where = found[i].where;
    if (where == nullptr || (where->kind != slab_sizes && where->kind != slab_counts) || pool_of(*where) != pool) continue;
    lines[i].fate = key_fate::refused;
    lines[i].remark = "expected as many sizes as counts";
  }
}

result<std::string> read_descriptor(int fd) {
  std::string text(max_settings_file_bytes + 1, '\0');
  std::size_t length = 0;
  while (length < text.size()) {
    const ssize_t got = ::read(fd, text.data() + length, text.size() - length);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return status::from_errno(errno, "read");
    if (got == 0) break;
    length += static_cast<std::size_t>(got);
  }
  if (length > max_settings_file_bytes) return status(errc::invalid_argument, "larger than 1 MiB: not a cufile.json");
  text.resize(length);
  return text;
}

// Non-blocking, so that a pipe in the place of a file cannot hold the program up.
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

// Callers in C can pass any number.
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

std::span<const key> all_keys() noexcept { return keys; }

settings::settings() {
  for (const key& where : keys) {
    const refusal why = store_text(where, where.standard, *this);
    assert((where.kind == anything || why.empty()) && "a default that is no value of its key");
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
  if (live_) return {};  // another thread was faster
  stage_over(*values, staged_, &report.remarks);
  staged_ = {};
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
    report.remarks.push_back(fmt::format("{}; the defaults hold", lines.error().message()));
  } else {
    report.problem = lines.error();
  }
}

void settings_book::read_environment(settings& target, std::vector<std::string>& remarks) const {
  for (const key& where : keys) {
    const char* text = where.variable == nullptr ? nullptr : lookup_(where.variable);
    if (text == nullptr || *text == '\0') continue;
    const refusal why = store_text(where, text, target);
    if (!why.empty()) remarks.push_back(fmt::format("environment variable {}={}: {}", where.variable, printable(text), why));
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

// A staged number or word over what is there: as it is, or, with remarks, only when its key takes it.
template <class Value, class Store>
void stage_one(const Value& value, Value& slot, const key* where, Store store, settings& target, std::vector<std::string>* remarks) {
  if (remarks == nullptr || where == nullptr) {
    slot = value;
    return;
  }
  const refusal why = store(*where, value, target);
  if (!why.empty()) remarks->push_back(fmt::format("{} = {}, set by the program: {}", where->name, value, why));
}

}  // namespace

void settings_book::stage_over(settings& target, const staged_values& staged, std::vector<std::string>* remarks) {
  for (std::size_t i = 0; i < size_parameter_count; ++i) {
    if (!staged.sizes[i]) continue;
    stage_one(*staged.sizes[i], target.sizes[i], find_key(size, static_cast<int>(i)), store_size, target, remarks);
  }
  for (std::size_t i = 0; i < flag_parameter_count; ++i) target.flags[i] = staged.flags[i].value_or(target.flags[i]);
  for (std::size_t i = 0; i < word_parameter_count; ++i) {
    if (!staged.words[i]) continue;
    stage_one(*staged.words[i], target.words[i], find_key(word, static_cast<int>(i)), store_word, target, remarks);
  }
  target.log_path_given = target.log_path_given || staged.words[CUFILE_PARAM_ENV_LOGFILE_PATH].has_value();
  for (const slab_pool pool : {slab_pool::posix, slab_pool::gpu_bounce}) {
    const auto& slabs = staged.slabs[static_cast<std::size_t>(pool)];
    if (slabs) target.slabs(pool) = *slabs;
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

CUfileOpError settings_book::set(CUFileSizeTConfigParameter_t parameter, std::size_t value) {
  return known(parameter, staged_.sizes) ? stage(staged_.sizes[parameter], value) : CU_FILE_INVALID_VALUE;
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
