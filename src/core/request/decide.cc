#include "core/request/decide.hpp"

#include <algorithm>

#include "core/cache/cache_policy.hpp"
#include "core/request/route.hpp"

namespace penstock::core {

namespace {

constexpr std::uint64_t section_unit = std::uint64_t{16} << 20;

// Starts small, so that pieces run soon, and grows, so that the lanes stay busy while the next part is looked up. A part shorter than 2 MiB
// would complete before the next one is planned.
std::uint64_t most_asked(const transfer& rest, const transfer& whole) {
  constexpr std::uint64_t least = std::uint64_t{2} << 20;
  const std::uint64_t before = rest.offset - whole.offset;
  return before == 0 ? std::clamp(whole.length / 4, least, 8 * least) : 3 * before;
}

// Sections end at multiples of every piece's length.
std::uint64_t section_length(const transfer& rest, bool is_short) {
  const auto most = is_short ? section_unit : section_bytes;
  if (rest.length <= most) return rest.length;
  return (rest.offset + most) / section_unit * section_unit - rest.offset;
}

// Uses the current size of the file, as if the whole file had to fit into the page cache.
cold_way cold_way_of(runtime& with, file_core& file, const transfer& rest, const transfer& whole, cache_use asked, bool has_tried,
                     bool of_shared_memory) {
  // Tries the other way only in a section after this offset in its request. Near the start, the pieces in flight have only just started.
  constexpr std::uint64_t tried_from = std::uint64_t{64} << 20;
  using verdict = cold_speeds::verdict;
  cache_question question{.asked = asked, .shared_memory = of_shared_memory, .lent_past_cache = file.source().facts().lent_past_cache};
  if (asked == cache_use::automatic) {
    question.file_bytes = file.source().size().value_or(rest.offset + rest.length);
    question.request_bytes = whole.length;
    question.in_order = file.in_order(whole.offset);
    question.memory = with.memory_left().at(about_now_ns());
    question.answers = file.answers();
    auto& speeds = question.speeds = file.cold_speeds().advise();
    const bool measured = whole.length >= cold_speeds::least_request_bytes;
    const bool tries = !has_tried && rest.offset - whole.offset >= tried_from;
    if (speeds == verdict::unknown && !measured) speeds = verdict::keep;
    if (speeds == verdict::try_direct_now && (has_tried || !measured)) speeds = verdict::keep;
    if (speeds == verdict::try_direct && !tries) speeds = verdict::keep;
  }
  return choose_cold_way(question);
}

// For a read whose bytes come from a server, unless the server is known to answer promptly.
void add_answers(plan_input& input, const file_core& file, const transfer& rest, const staging::place& place) {
  using verdict = staging::answer_times::verdict;
  const auto answers = file.answers();
  if (rest.is_write || answers == verdict::prompt) return;
  const auto& times = *file.answer_times();
  input.late_piece = times.piece_bytes();
  if (answers == verdict::unknown) input.most_untimed = staging::answer_times::untimed_bytes;
  if (place.on_device() || input.aligned_together) return;
  input.late_piece = path::late_piece_into_any_memory(input.late_piece);
  if (times.wants_aligned() && input.has_cached) input.has_direct = false;
}

}  // namespace

result<reach> readable(source::source& from, const transfer& what) {
  const auto size = from.size();
  if (!size) return size.error();
  if (*size > what.offset) return reach{std::min(what.length, *size - what.offset), false};
  const auto ends = from.ends_at(what.offset);
  if (!ends) return ends.error();
  return reach{*ends ? 0 : std::min<std::uint64_t>(what.length, staging::mib), true};  // one piece
}

status writable(file_core& file, const transfer& whole, const staging::place& place) {
  if (!whole.is_write) return {};
  const auto* const memory = place.on_device() ? nullptr : whole.memory;  // bytes from a device pass through aligned slabs
  return file.source().can_drain(memory, whole.length, whole.offset);
}

const path::declaration* carrier_of_whole(runtime& with, file_core& file, const staging::place& place, std::uint64_t offset,
                                          std::uint64_t length, const io_options& options) {
  for (const auto kind : with.paths().by_rank()) {
    const auto& declared = with.paths().of(kind);
    if (declared.carries != path::portion::whole_requests || !declared.of_device) continue;
    if (with.path(kind).serves_nothing()) continue;
    if (declared.gpu_direct && (!options.gpu_direct || !file.not_direct().empty())) continue;
    if (!with.path(kind).refuses({&file.source(), &place, false, offset, length})) return &declared;
  }
  return nullptr;
}

std::uint32_t neighbours_of(runtime& with, const transfer& what, const staging::place& place, const io_options& options) {
  constexpr std::uint64_t least_bytes = std::uint64_t{64} << 20;
  const auto links = with.links_of(options);
  if (links == 1 || !place.on_device() || place.via == nullptr || what.is_write || what.length < least_bytes) return 0;
  if (links == 0 && !with.feeds_several_links()) return 0;
  return with.memory().find_neighbours(*place.via, links == 0 ? 0 : links - 1);
}

bool spares_busy_cores(runtime& with, const file_core& file, const transfer& whole, const staging::place& place,
                       const io_options& options) {
  const bool may_be_mapped = !whole.is_write && place.on_device() && !place.emulated() && whole.length >= least_mapped_bytes &&
                             !file.source().facts().in_memory && !with.forced(options);
  return may_be_mapped && with.preference_of(options) == preference::automatic && !with.few_cores() && with.has_busy_cores();
}

std::uint64_t length_of(std::span<const planned_piece> pieces) noexcept {
  return pieces.empty() ? 0 : pieces.back().offset + pieces.back().length - pieces.front().offset;
}

result<std::vector<planned_piece>> decide(runtime& with, file_core& file, const transfer& rest, const transfer& whole,
                                          const staging::place& place, const io_options& options, cache_use asked, const cutting& how) {
  auto& from = file.source();
  if (auto refused = writable(file, whole, place); !refused.ok()) return refused;
  plan_input input;
  input.offset = rest.offset;
  input.length = section_length(rest, how.short_pieces);
  input.whole_length = whole.length;
  input.continues = rest.offset > whole.offset;
  input.is_continued = input.length < rest.length;
  input.most_asked = most_asked(rest, whole);
  input.is_write = rest.is_write;
  input.on_device = place.on_device();
  input.emulated_device = place.emulated();
  input.direct_writes = from.facts().direct_writes;
  input.has_cached = from.cached_problem().ok();
  input.has_direct = from.direct_problem().ok();
  if (comes_from_far(file, rest.is_write, options)) input.far_piece = file.turns(options)->piece_bytes(whole.length, options.lanes);
  input.paths = &with.paths();
  input.forced = with.forced_path(options, place.on_device());
  input.device_in_use = place.via != nullptr;
  input.prefer = with.preference_of(options);
  input.lanes = how.lanes;
  input.shared_link = how.shared_link;
  input.few_cores = with.few_cores();
  input.busy_cores = spares_busy_cores(with, file, whole, place, options);
  input.memory_file_system = from.facts().in_memory;
  // explain() has no address, so it assumes an aligned one.
  input.aligned_together =
      rest.memory == nullptr || (reinterpret_cast<std::uintptr_t>(rest.memory) - rest.offset) % path::direct_alignment == 0;
  add_answers(input, file, rest, place);
  input.refuses = [&](path_kind kind, std::uint64_t offset, std::uint64_t length) -> std::optional<std::string> {
    // refuses() would take a lock and allocate, and its message is not used here. explain() does call it.
    if (kind != input.forced && with.path(kind).serves_nothing()) return "serves nothing";
    if (with.paths().of(kind).gpu_direct && !options.gpu_direct) return "GPU-direct is disabled for this request";
    if (with.paths().of(kind).gpu_direct && !file.not_direct().empty()) return file.not_direct();
    if (how.row && kind != with.paths().base(true)) return "its bytes go to several destinations";
    const bool spares_cpu = input.prefer == preference::cpu || kind == input.forced;
    return with.path(kind).refuses({&from, &place, rest.is_write, offset, length, spares_cpu});
  };
  input.resident = [&](std::uint64_t offset, std::uint64_t length) -> std::optional<std::uint64_t> {
    const auto bytes = from.resident_bytes(offset, length);
    return bytes ? std::optional(*bytes) : std::nullopt;
  };
  if (!rest.is_write && !how.row && place.on_device() && !with.pinned_pages().empty()) {
    with.give_up_pinned_pages_where_short();
    input.registered = [&](std::uint64_t offset, std::uint64_t length) -> plan_input::part {
      const auto found = with.pinned_pages().find(from, offset, length);
      return {found.offset, found.length};
    };
  }
  input.spares_cache = asked == cache_use::bypass;
  const bool of_shared_memory = place.shares_host_memory() && file.asked_cache(options) == cache_use::automatic;
  input.cold = [&] { return cold_way_of(with, file, rest, whole, asked, how.has_tried, of_shared_memory); };
  return make_plan(input);
}

}  // namespace penstock::core
