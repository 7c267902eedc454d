#include "core/decide.hpp"

#include <algorithm>

#include <fmt/format.h>

#include "base/checked.hpp"
#include "core/mount.hpp"
#include "path/file_io.hpp"

namespace penstock::core {

namespace {

constexpr std::uint64_t tmpfs_magic = 0x01021994;

void remark(plan& told, runtime& with, file_core& file, const staging::place& place, const transfer& what) {
  const auto& view = file.view();
  if (const auto cached = with.kernel().resident_bytes(file.any_descriptor(), what.offset, what.length)) told.cached_bytes = *cached;
  if (place.on_device()) {
    if (place.emulated()) told.remarks.push_back(fmt::format("no GPU: {}", with.memory().cuda_status().message()));
    for (const auto kind : {path_kind::direct, path_kind::mapped}) {
      if (auto why = with.path(kind).refuses({&view, &place, what.is_write, what.offset, what.length})) {
        told.remarks.push_back(fmt::format("{} is not used: {}", to_string(kind), *why));
      }
    }
  }
  if (!file.direct_problem().ok()) told.remarks.push_back(fmt::format("no direct I/O: {}", file.direct_problem().message()));
  if (!file.cached_problem().ok()) told.remarks.push_back(fmt::format("no page cache: {}", file.cached_problem().message()));
  if (auto rings = file.mount().disk().available(); !rings.ok()) {
    told.remarks.push_back(
        fmt::format("io_uring cannot be used ({}): direct reads go by plain system calls, with more CPU time", rings.message()));
  }
  if (with.few_cores())
    told.remarks.push_back(fmt::format("this process may use {} cores: copies through the CPU are bound by them", with.cores()));
}

}  // namespace

result<reach> readable(runtime& with, file_core& file, const transfer& what) {
  const auto size = with.kernel().file_size(file.any_descriptor());
  if (!size) return size.error();
  if (*size > what.offset) return reach{std::min(what.length, *size - what.offset), false};
  const auto ends = path::ends_at(with.kernel(), file.view(), what.offset);
  if (!ends) return ends.error();
  return reach{*ends ? 0 : std::min<std::uint64_t>(what.length, staging::mib), true};  // one piece
}

result<std::vector<planned_piece>> decide(runtime& with, file_core& file, const transfer& what, const transfer& whole,
                                          const staging::place& place, const io_options& options, const cutting& how) {
  const auto& view = file.view();
  plan_input input;
  input.offset = what.offset;
  input.length = what.length;
  input.continues = what.offset > whole.offset;
  input.is_continued = what.offset + what.length < whole.offset + whole.length && what.length == section_bytes;
  input.is_write = what.is_write;
  input.on_device = place.on_device();
  input.emulated_device = place.emulated();
  input.direct_writes = file.wants_direct_writes();
  input.has_cached = view.cached_fd >= 0;
  input.has_direct = view.direct_fd >= 0;
  input.forced = with.forced_path(options);
  input.prefer = options.prefer != preference::automatic ? options.prefer : with.options().prefer;
  input.lanes = how.lanes;
  input.shared_link = how.shared_link;
  input.few_cores = with.few_cores();
  input.memory_file_system = file.facts().filesystem_magic == tmpfs_magic;
  input.most_bytes = staging::large_slab_bytes;
  input.refuses = [&](path_kind kind) -> std::optional<std::string> {
    if (kind == path_kind::direct && !options.gpu_direct) return "this request asks not to be GPU-direct";
    return with.path(kind).refuses({&view, &place, what.is_write, what.offset, what.length});
  };
  input.resident = [&](std::uint64_t offset, std::uint64_t length) -> std::optional<std::uint64_t> {
    const auto bytes = with.kernel().resident_bytes(view.cached_fd, offset, length);
    return bytes ? std::optional(*bytes) : std::nullopt;
  };
  return make_plan(input);
}

result<plan> explain(runtime& with, file_core& file, memory_kind memory, const transfer& what, const io_options& options) {
  if (auto problem = check_range(static_cast<std::int64_t>(what.offset), what.length); !problem.ok()) return problem;
  const auto use = file.use();  // a question: the file need not be open for it
  if (!use) return use.error();
  const auto place = memory == memory_kind::device ? with.memory().any_device_place() : staging::place{};
  transfer part = what;
  if (!what.is_write) {
    const auto size = with.kernel().file_size(file.any_descriptor());
    if (!size) return in_context(size.error(), what, file);
    part.length = *size > what.offset ? std::min(what.length, *size - what.offset) : 0;
  }
  auto pieces = decide(with, file, part, part, place, options, {with.lane_count(), false});
  plan told;
  if (pieces) {
    for (const auto& piece : *pieces) {
      const auto reason = core::describe(piece.reason);
      if (!told.parts.empty() && told.parts.back().path == piece.path && told.parts.back().reason == reason) {
        told.parts.back().length += piece.length;
      } else {
        told.parts.push_back({piece.offset, piece.length, piece.path, reason});
      }
    }
    remark(told, with, file, place, what);
  }
  if (!pieces) return in_context(pieces.error(), what, file);
  return told;
}

}  // namespace penstock::core
