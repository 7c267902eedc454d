#include "core/explain.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/checked.hpp"
#include "core/ahead_call.hpp"
#include "core/mount.hpp"

namespace penstock::core {

namespace {

// Those that have been found, so that asking makes no context.
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
      "immutable: blocking reads of up to {} MiB that each begin where the last one ended are served from up to {} MiB of it "
      "that are read ahead, as far as it is in the page cache",
      source::read_ahead::most_call_bytes >> 20, file.ahead()->room() >> 20);
}

void remark(plan& told, runtime& with, file_core& file, const staging::place& place, const transfer& what, const io_options& options) {
  auto& from = file.source();
  if (const auto cached = from.resident_bytes(what.offset, what.length)) told.cached_bytes = *cached;
  if (file.ahead() != nullptr && place.on_device() && !what.is_write) told.remarks.push_back(of_ahead(with, file, place, options));
  if (place.on_device()) {
    if (const auto cuda = with.memory().cuda_status(); place.emulated() && !cuda.ok()) {
      told.remarks.push_back(fmt::format("no GPU: {}", cuda.message()));
    }
    for (const auto kind : with.paths().by_rank()) {
      const auto& declared = with.paths().of(kind);
      if (!declared.of_device || declared.carries == path::portion::everything) continue;
      if (std::any_of(told.parts.begin(), told.parts.end(), [&](const plan_part& part) { return part.path == kind; })) continue;
      if (auto why = with.path(kind).refuses({&from, &place, what.is_write, what.offset, what.length})) {
        told.remarks.push_back(fmt::format("{} is not used: {}", declared.name, *why));
      }
    }
  }
  if (const auto names = neighbours_in_use(with, place, what, options); !names.empty()) {
    told.remarks.push_back(fmt::format("over the links of {} too: the bytes pass through up to {} MiB of the memory of each", names,
                                       staging::unpacker::room_count * staging::unpacker::room_bytes >> 20));
  }
  if (const auto gone = with.kept().problem_of(from); !gone.ok())
    told.remarks.push_back(fmt::format("what was kept registered of it has been given up: {}", gone.message()));
  if (from.facts().in_memory && with.kept().keeps(from))
    told.remarks.push_back(
        "kept registered, but GPUs copy from tmpfs at 14 to 18 GB/s: read from there only where CPU time is to be spared");
  if (!from.direct_problem().ok()) told.remarks.push_back(fmt::format("no direct I/O: {}", from.direct_problem().message()));
  if (!from.cached_problem().ok()) told.remarks.push_back(fmt::format("no page cache: {}", from.cached_problem().message()));
  if (auto rings = file.mount().disk().available(); !rings.ok()) {
    told.remarks.push_back(
        fmt::format("io_uring cannot be used ({}): direct reads go by plain system calls, with more CPU time", rings.message()));
  }
  if (const auto hidden = with.stats().board_problem(); !hidden.ok()) {
    told.remarks.push_back(fmt::format("penstock stats cannot see this process: {}", hidden.message()));
  }
  if (with.few_cores())
    told.remarks.push_back(fmt::format("this process may use {} cores: copies through the CPU are bound by them", with.cores()));
}

// Neighbours of one path and for one reason are one part.
void add(plan& told, runtime& with, const planned_piece& piece) {
  const auto& path = with.paths().of(piece.path);
  auto reason = core::describe(piece.reason, path);
  if (!told.parts.empty() && told.parts.back().path == piece.path && told.parts.back().reason == reason) {
    told.parts.back().length += piece.length;
  } else {
    told.parts.push_back({piece.offset, piece.length, piece.path, std::string(path.name), std::move(reason)});
  }
}

// Section by section, as a request is carried.
status add_pieces(plan& told, runtime& with, file_core& file, const transfer& what, const staging::place& place,
                  const io_options& options) {
  if (what.length > 0 && place.on_device() && caller_carries(with, what.length, place, options)) {
    add(told, with, {what.offset, what.length, with.paths().base(true), false, plan_reason::small_request});
    return writable(file, what, place);
  }
  auto rest = what;
  cutting how{with.lane_count(), false};
  do {
    const auto pieces = decide(with, file, rest, what, place, options, how);
    if (!pieces) return pieces.error();
    for (const auto& piece : *pieces) {
      add(told, with, piece);
      how.has_tried = how.has_tried || piece.reason == plan_reason::bypass_tried;
    }
    rest.offset += length_of(*pieces);
    rest.length -= length_of(*pieces);
  } while (rest.length > 0);
  return {};
}

}  // namespace

result<plan> explain(runtime& with, file_core& file, std::string_view device, const transfer& what, const io_options& options) {
  if (auto problem = check_range(static_cast<std::int64_t>(what.offset), what.length); !problem.ok()) return problem;
  const auto use = file.use();  // a question: the file need not be open for it
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
  if (auto problem = add_pieces(told, with, file, part, place, options); !problem.ok()) return in_context(problem, what, file);
  remark(told, with, file, place, what, options);
  return told;
}

}  // namespace penstock::core
