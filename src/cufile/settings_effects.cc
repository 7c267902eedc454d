#include "cufile/settings_effects.hpp"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "cufile/settings_keys.hpp"

namespace penstock::cufile {

namespace {

constexpr std::size_t kib = 1024;
// The minimum of engine_options::pinned_budget_bytes.
constexpr std::size_t least_pinned_bytes = std::size_t{36} << 20;

bool differs(const settings& asked, std::string_view key) { return asked.changed.contains(key); }

// Saturates at the maximum, because the numbers come from callers.
std::size_t times(std::size_t a, std::size_t b) {
  std::size_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? std::numeric_limits<std::size_t>::max() : product;
}

std::size_t bytes_of(const slab_array& slabs) {
  std::size_t sum = 0;
  for (std::size_t i = 0; i < std::min(slabs.sizes_kb.size(), slabs.counts.size()); ++i) {
    if (__builtin_add_overflow(sum, times(times(slabs.sizes_kb[i], kib), slabs.counts[i]), &sum))
      return std::numeric_limits<std::size_t>::max();
  }
  return sum;
}

// Sizes below NVIDIA's defaults limit the memory; otherwise there is no limit.
std::size_t most_pinned(const settings& asked) {
  const settings standard;
  std::size_t most = std::numeric_limits<std::size_t>::max();
  const auto bound = [&](std::size_t bytes, std::size_t by_default) {
    if (bytes < by_default) most = std::min(most, bytes);
  };
  constexpr auto cache = CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB;
  bound(times(asked[cache], kib), standard[cache] * kib);
  for (const slab_pool pool : {slab_pool::posix, slab_pool::gpu_bounce}) bound(bytes_of(asked.slabs(pool)), bytes_of(standard.slabs(pool)));
  return std::max(most, least_pinned_bytes);
}

void hand_on(const settings& asked, cufile_parameters& to) {
  for (const key& each : all_keys()) {
    if (!each.is_handed || !differs(asked, each.name)) continue;
    const auto index = static_cast<std::size_t>(each.parameter);
    if (each.kind == key_kind::size) to.sizes.emplace_back(each.parameter, asked.sizes[index]);
    if (each.kind == key_kind::flag) to.flags.emplace_back(each.parameter, asked.flags[index]);
  }
}

// 0: all lanes.
std::uint8_t lanes_of(const settings& asked) {
  if (!asked[CUFILE_PARAM_EXECUTION_PARALLEL_IO]) return 1;
  if (!differs(asked, "execution.max_request_parallelism")) return 0;
  return static_cast<std::uint8_t>(std::clamp<std::size_t>(asked[CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM], 1, 255));
}

}  // namespace

void apply(const settings& asked, engine_options& to) {
  const auto threads = asked[CUFILE_PARAM_EXECUTION_MAX_IO_THREADS];
  if (to.lanes == 0 && threads > 0 && differs(asked, "execution.max_io_threads")) to.lanes = static_cast<unsigned>(threads);
  to.pinned_budget_bytes = std::min(to.pinned_budget_bytes, most_pinned(asked));
  if (differs(asked, "properties.max_direct_io_size_kb"))
    to.gpu_direct_piece_bytes = asked[CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB] * kib;
  to.use_nvtx = to.use_nvtx || asked[CUFILE_PARAM_PROFILE_NVTX];
  hand_on(asked, to.cufile);
}

std::vector<std::string> not_applied(const settings& asked, const engine_options& has) {
  engine_options wanted = has;
  wanted.cufile = {};
  apply(asked, wanted);
  std::vector<std::string> found;
  const auto threads = asked[CUFILE_PARAM_EXECUTION_MAX_IO_THREADS];
  if (differs(asked, "execution.max_io_threads") && threads > 0 && has.lanes != threads)
    found.push_back(fmt::format("execution.max_io_threads is {}, but the engine was created with {} threads", threads, has.lanes));
  if (wanted.pinned_budget_bytes != has.pinned_budget_bytes)
    found.push_back(fmt::format("pinned memory is limited to {} bytes, but the engine was created with a limit of {}",
                                wanted.pinned_budget_bytes, has.pinned_budget_bytes));
  if (wanted.gpu_direct_piece_bytes != has.gpu_direct_piece_bytes)
    found.push_back("properties.max_direct_io_size_kb has no effect: the engine already exists");
  if (wanted.use_nvtx != has.use_nvtx) found.push_back("profile.nvtx has no effect: the engine already exists");
  if (wanted.cufile.sizes != has.cufile.sizes || wanted.cufile.flags != has.cufile.flags)
    found.push_back("the settings for NVIDIA's library have no effect: the engine already exists");
  return found;
}

request_rules rules_of(const settings& asked) {
  request_rules rules;
  const bool vanilla = asked[CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE];
  rules.direct = !asked[CUFILE_PARAM_FORCE_COMPAT_MODE] && !vanilla;
  rules.only_direct = rules.direct && !asked[CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE] && !asked[CUFILE_PARAM_GDS_FALLBACK_IO];
  if (vanilla) rules.cache = cache_use::fill;
  if (asked[CUFILE_PARAM_FORCE_ODIRECT_MODE]) rules.cache = cache_use::bypass;
  const auto priority = asked.changed.find("properties.io_priority");
  rules.background = priority != asked.changed.end() && same_word(priority->second, "low");
  rules.one_link = asked[CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION];
  rules.lanes = lanes_of(asked);
  constexpr std::size_t most = std::numeric_limits<std::uint32_t>::max();
  if (differs(asked, "execution.min_io_threshold_size_kb"))
    rules.unsplit_kib = static_cast<std::uint32_t>(std::min(asked[CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB], most));
  rules.whole_unaligned_writes = asked.posix_unaligned_writes;
  return rules;
}

io_options options_of(const request_rules& rules) noexcept {
  io_options asked;
  asked.cufile.after_default_stream = true;
  asked.gpu_direct = rules.direct;
  asked.cufile.only_gpu_direct = rules.only_direct;
  asked.cache = rules.cache;
  asked.lanes = rules.lanes;
  if (rules.background) asked.priority = request_priority::background;
  if (rules.one_link) asked.links = 1;
  return asked;
}

io_options options_of(const request_rules& rules, std::uint64_t length, bool is_write, bool aligned) noexcept {
  auto asked = options_of(rules);
  if (length <= std::uint64_t{rules.unsplit_kib} * kib) asked.lanes = 1;
  if (is_write && !aligned && rules.whole_unaligned_writes) asked.gpu_direct = asked.cufile.only_gpu_direct = false;
  return asked;
}

bool wants_direct_io(const settings& asked) { return asked[CUFILE_PARAM_FORCE_ODIRECT_MODE]; }

unsigned most_batch_entries(const settings& asked) {
  constexpr unsigned most = 256;
  const bool is_bound = differs(asked, "properties.io_batchsize");
  return is_bound ? static_cast<unsigned>(std::min<std::size_t>(asked[CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE], most)) : most;
}

}  // namespace penstock::cufile
