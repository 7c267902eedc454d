#include "core/explain.hpp"

#include <algorithm>
#include <span>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/checked.hpp"
#include "core/mount.hpp"
#include "core/request/ahead_call.hpp"
#include "core/request/decide.hpp"
#include "path/refusals.hpp"

namespace penstock::core {

namespace {

// A sparse file can have any size. So can an object, if its server says so. Only this much is inspected; the rest is planned like the end
// of that part. Without cachestat(2), inspecting this many bytes takes a second or two.
constexpr std::uint64_t most_looked_at = std::uint64_t{256} << 30;

// Returns only neighbours that are already known, because explaining must not create a context.
std::string neighbours_in_use(runtime& with, const staging::place& place, const transfer& what, const io_options& options) {
  std::string names;
  const auto links = with.links_of(options);
  if (place.via == nullptr || what.is_write || links == 1) return names;
  for (std::size_t i = 0; i < place.via->neighbour_count() && (links == 0 || i + 1 < links); ++i) {
    if (auto* const each = place.via->neighbour(i)) names += (names.empty() ? "" : ", ") + name_of({place.type, each});
  }
  return names;
}

std::string of_ahead(runtime& with, file_core& file, const staging::place& place, const io_options& options) {
  if (const auto why = ahead_call::refuses(with, file, place, options)) return fmt::format("immutable, but not read ahead: {}", *why);
  return fmt::format(
      "immutable: sequential blocking reads of up to {} MiB are served from up to {} MiB that is read ahead, if it is in the page cache",
      source::read_ahead::most_call_bytes >> 20, file.ahead()->room() >> 20);
}

void add_limits(plan& told, runtime& with, const file_core& file) {
  constexpr const char* text = "limited to {} bytes per second by the {}: pieces wait until the limit admits them";
  if (const auto* const limit = file.rate_limit(); limit != nullptr)
    told.remarks.push_back(fmt::format(text, limit->bytes_per_second(), "file"));
  if (const auto* const limit = with.rate_limit(); limit != nullptr)
    told.remarks.push_back(fmt::format(text, limit->bytes_per_second(), "engine"));
}

std::string of_answers(const file_core& file) {
  using verdict = staging::answer_times::verdict;
  const bool timed_past_cache = file.answer_times()->advise() != verdict::unknown;
  const auto& times = timed_past_cache ? *file.answer_times() : *file.thread_answer_times();
  const auto read_ms = static_cast<double>(times.read_ns()) / 1e6;
  switch (times.advise()) {
    case verdict::unknown:
      return "a server provides the bytes: the first uncached read measures how slowly it answers";
    case verdict::prompt:
      return fmt::format("a server provides the bytes and answers promptly: a read takes {:.2f} ms", read_ms);
    case verdict::late:
      break;
  }
  return fmt::format("this file system answers slowly: a read takes {:.1f} ms, so up to {} are in flight at once", read_ms,
                     times.at_once());
}

// Adds remarks about bytes that pass through the page cache although they should not stay there.
void add_uncached(plan& told, file_core& file, const staging::place& place, const transfer& what, const io_options& options) {
  auto& from = file.source();
  const bool goes_past = place.on_device() && from.direct_problem().ok();
  const auto asked = cache_of(file.asked_cache(options), what.is_write, what.length, &place);
  if (goes_past || !spares_cache(file, what.is_write, what.length, asked)) return;
  const auto stays = from.uncached_problem();
  told.remarks.push_back(stays.ok() ? "bytes that pass through the page cache do not stay there if the kernel can drop them"
                                    : fmt::format("bytes that pass through the page cache stay there: {}", stays.message()));
}

void remark(plan& told, runtime& with, file_core& file, const staging::place& place, const transfer& what, const io_options& options) {
  auto& from = file.source();
  if (const auto cached = from.resident_bytes(what.offset, std::min(what.length, most_looked_at))) told.cached_bytes = *cached;
  if (what.length > most_looked_at) {
    told.remarks.push_back(
        fmt::format("only the first {} GiB were inspected: the rest is planned like the end of that part", most_looked_at >> 30));
  }
  if (file.ahead() != nullptr && place.on_device() && !what.is_write) told.remarks.push_back(of_ahead(with, file, place, options));
  if (place.on_device()) {
    const auto cuda = with.memory().cuda_status();
    const bool has_no_gpu = place.emulated() && !cuda.ok();
    if (has_no_gpu) told.remarks.push_back(fmt::format("no GPU: {}", cuda.message()));
    for (const auto kind : with.paths().by_rank()) {
      const auto& declared = with.paths().of(kind);
      if (!declared.of_device || declared.carries == path::portion::everything) continue;
      if (std::any_of(told.parts.begin(), told.parts.end(), [&](const plan_part& part) { return part.path == kind; })) continue;
      auto why = with.path(kind).refuses({&from, &place, what.is_write, what.offset, what.length});
      if (why && !(has_no_gpu && *why == path::no_gpu_memory)) {
        told.remarks.push_back(fmt::format("{} is not used: {}", declared.name, *why));
      }
    }
  }
  if (const auto names = neighbours_in_use(with, place, what, options); !names.empty()) {
    told.remarks.push_back(fmt::format("also over the links of {}: the bytes pass through up to {} MiB of memory on each", names,
                                       staging::unpacker::room_count * staging::unpacker::room_bytes >> 20));
  }
  if (const auto gone = with.pinned_pages().problem_of(from); !gone.ok())
    told.remarks.push_back(fmt::format("pages of this file are no longer pinned: {}", gone.message()));
  if (from.facts().in_memory && with.pinned_pages().holds(from))
    told.remarks.push_back("pinned, but GPUs copy from tmpfs at only 14 to 18 GB/s: used only to save CPU time");
  add_limits(told, with, file);
  if (options.priority == request_priority::background) {
    told.remarks.push_back(
        fmt::format("in the background: while other requests use this file system, a piece starts every {} ms; direct I/O uses plain "
                    "system calls",
                    staging::right_of_way::pace / std::chrono::milliseconds(1)));
  }
  add_uncached(told, file, place, what, options);
  if (auto served = from.told(); !served.empty()) told.remarks.push_back(std::move(served));
  if (!from.direct_problem().ok()) told.remarks.push_back(fmt::format("no direct I/O: {}", from.direct_problem().message()));
  if (!from.cached_problem().ok()) told.remarks.push_back(fmt::format("no page cache: {}", from.cached_problem().message()));
  if (file.answer_times() != nullptr && !what.is_write) told.remarks.push_back(of_answers(file));
  if (auto rings = file.mount().disk().available(); !rings.ok()) {
    told.remarks.push_back(
        fmt::format("io_uring cannot be used ({}): direct reads use plain system calls, which take more CPU time", rings.message()));
  }
  if (const auto hidden = with.stats().board_problem(); !hidden.ok()) {
    told.remarks.push_back(fmt::format("penstock stats cannot see this process: {}", hidden.message()));
  }
  if (with.few_cores())
    told.remarks.push_back(fmt::format("this process may use {} cores, which limits copies through the CPU", with.cores()));
  if (spares_busy_cores(with, file, what, place, options))
    told.remarks.emplace_back("other processes keep the cores busy, so the GPU copies cached bytes; prefer=speed disables this");
}

// Adjacent pieces with the same path and reason, in file order.
struct planned_run {
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  path_kind path = path_kind::automatic;
  plan_reason reason = plan_reason::resident;
};

void add(std::vector<planned_run>& runs, const planned_piece& piece) {
  if (!runs.empty() && runs.back().path == piece.path && runs.back().reason == piece.reason) {
    runs.back().length += piece.length;
  } else {
    runs.push_back({piece.offset, piece.length, piece.path, piece.reason});
  }
}

// Returns true if the reason depends on the page cache.
bool is_of_cache(plan_reason reason) {
  switch (reason) {
    case plan_reason::resident:
    case plan_reason::partly_resident:
    case plan_reason::not_resident:
    case plan_reason::kept:
    case plan_reason::kept_as_asked:
    case plan_reason::bypass_as_asked:
    case plan_reason::bypass_as_lent:
    case plan_reason::bypass_shared_memory:
    case plan_reason::bypass_at_random:
    case plan_reason::bypass_memory_unknown:
    case plan_reason::bypass_no_room:
    case plan_reason::bypass_faster:
    case plan_reason::bypass_tried:
    case plan_reason::bypass_late:
    case plan_reason::bypass_untimed:
      return true;
    default:
      return false;
  }
}

bool is_in_cache(plan_reason reason) { return reason == plan_reason::resident || reason == plan_reason::partly_resident; }

// "104 of 256 MiB in the page cache, in 21 runs; the rest: direct I/O".
std::string describe(std::span<const planned_run> runs, std::uint64_t cached, std::uint64_t length, const path::declaration& path) {
  constexpr auto in_mib = [](std::uint64_t bytes) { return (bytes + (std::uint64_t{1} << 19)) >> 20; };
  const auto in_cache = std::ranges::count_if(runs, is_in_cache, &planned_run::reason);
  auto text =
      fmt::format("{} of {} MiB in the page cache, in {} {}", in_mib(cached), in_mib(length), in_cache, in_cache == 1 ? "run" : "runs");
  std::vector<std::string> ways;
  for (const auto& each : runs) {
    if (is_in_cache(each.reason)) continue;
    const auto whole = core::describe(each.reason, path);
    auto way = whole.substr(whole.find(": ") + 2);
    if (std::ranges::count(ways, way) == 0) ways.push_back(std::move(way));
  }
  return ways.empty() ? text : fmt::format("{}; the rest: {}", text, fmt::join(ways, "; "));
}

// Merges many runs that differ only in what is cached into one part, because the total amount is more useful than a long list.
void tell(plan& told, runtime& with, source::source& from, std::span<const planned_run> runs) {
  constexpr std::size_t most_listed = 4;
  while (!runs.empty()) {
    const auto& first = runs.front();
    const auto& path = with.paths().of(first.path);
    const auto ends =
        std::ranges::find_if(runs, [&](const planned_run& each) { return each.path != first.path || !is_of_cache(each.reason); });
    auto group = runs.first(static_cast<std::size_t>(ends - runs.begin()));
    const auto length = group.empty() ? 0 : group.back().offset + group.back().length - first.offset;
    const auto looked_at = std::min(length, most_looked_at);
    const auto cached = group.size() > most_listed ? from.resident_bytes(first.offset, looked_at) : result<std::uint64_t>(0);
    if (group.size() > most_listed && cached) {
      told.parts.push_back({first.offset, length, first.path, std::string(path.name), describe(group, *cached, length, path)});
    } else {
      group = group.empty() ? runs.first(1) : group;
      for (const auto& each : group)
        told.parts.push_back({each.offset, each.length, each.path, std::string(path.name), core::describe(each.reason, path)});
    }
    runs = runs.subspan(group.size());
  }
}

// Plans section by section, as a request does.
status find_runs(std::vector<planned_run>& runs, runtime& with, file_core& file, const transfer& what, const staging::place& place,
                 const io_options& options) {
  const auto asked = find_route(with, file, what.is_write, what.offset, what.length, &place, options, asker::waits);
  if (what.length > 0 && place.on_device() && asked.by == carrier::caller) {
    const bool past_cache = asked.cache == cache_use::bypass && !what.is_write;
    const bool direct = with.paths().of(asked.path).gpu_direct;
    const auto untold = past_cache ? plan_reason::small_request_bypass : plan_reason::small_request;
    add(runs, {what.offset, what.length, asked.path, path::way::cached, direct ? plan_reason::declared : untold});
    return writable(file, what, place);
  }
  auto rest = what;
  const auto unseen_bytes = what.length - std::min(what.length, most_looked_at);
  cutting how{options.priority == request_priority::background ? 1 : with.lane_count(options), false};
  how.short_pieces = options.priority == request_priority::background || file.is_limited();
  do {
    const auto pieces = decide(with, file, rest, what, place, options, asked.cache, how);
    if (!pieces) return pieces.error();
    for (const auto& piece : *pieces) {
      add(runs, piece);
      how.has_tried = how.has_tried || piece.reason == plan_reason::bypass_tried;
    }
    rest.offset += length_of(*pieces);
    rest.length -= length_of(*pieces);
  } while (rest.length > unseen_bytes);
  if (rest.length > 0) runs.back().length += rest.length;
  return {};
}

}  // namespace

result<plan> explain(runtime& with, file_core& file, std::string_view device, const transfer& what, const io_options& options) {
  if (auto problem = check_range(static_cast<std::int64_t>(what.offset), what.length); !problem.ok()) return problem;
  const auto use = file.use();  // explaining needs no read or write permission
  if (!use) return use.error();
  const auto known = with.memory().place_on(device);
  if (!known) return in_context(known.error(), what, file);
  const auto& place = *known;
  transfer part = what;
  if (!what.is_write) {
    const auto size = file.source().size();
    if (!size) return in_context(size.error(), what, file);
    part.length = *size > what.offset ? std::min(what.length, *size - what.offset) : 0;
  }
  plan told;
  std::vector<planned_run> runs;
  if (auto problem = find_runs(runs, with, file, part, place, options); !problem.ok()) return in_context(problem, what, file);
  tell(told, with, file.source(), runs);
  remark(told, with, file, place, what, options);
  return told;
}

}  // namespace penstock::core
