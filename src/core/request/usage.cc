#include "core/request/usage.hpp"

#include "core/request/decide.hpp"

namespace penstock::core {

namespace {

constexpr std::uint64_t tiny_bytes = std::uint64_t{64} << 10;       // smaller requests are tiny
constexpr std::uint64_t least_host_piece = std::uint64_t{1} << 20;  // for host memory, where looking up the NUMA node costs a system call

void note_nodes(stats::book& stats, int node, int wanted, std::uint64_t bytes, std::int64_t nanoseconds) noexcept {
  if (node >= 0 && wanted >= 0) stats.count_use(node == wanted ? stats::near_pieces : stats::far_pieces, bytes, nanoseconds);
}

}  // namespace

void note_call_use(runtime& with, const admission& admitted, std::uint64_t bytes, std::int64_t nanoseconds) noexcept {
  const auto& what = admitted.what();
  if (what.length > small_request_bytes || bytes == 0) return;
  auto& file = admitted.file();
  const auto follows = file.follow(what.offset, what.offset + bytes);
  if (follows != file_core::follows::nobody) {
    const bool sequential = follows == file_core::follows::in_order && what.length < tiny_bytes;
    with.stats().count_small_call(what.is_write, sequential, bytes, nanoseconds);
  }
  const auto& place = admitted.place();
  if (place.on_device() && place.via->numa_node() >= 0)
    note_nodes(with.stats(), with.kernel().current_node(), place.via->numa_node(), bytes, nanoseconds);
}

void note_use(runtime& with, file_core& file, const path::job& ended, std::uint64_t bytes, std::int64_t now) noexcept {
  if (bytes == 0) return;
  auto& stats = with.stats();
  const auto nanoseconds = now - ended.started_ns;
  if (ended.unaligned) stats.count_use(stats::unaligned_pieces, bytes, nanoseconds);
  if (ended.way == path::way::past_cache && !ended.is_write) {
    stats.count_cold(bytes, file.read_past_cache(ended.offset, bytes), {ended.started_ns, now});
    const auto extra = source::blocks_around(ended.offset, ended.length) - ended.length;
    if (extra > 0) stats.count_blocks(bytes, extra, nanoseconds);
  }
  if (ended.waits && file.answers_late()) stats.count_late(bytes, {ended.started_ns, now});
  if (ended.way == path::way::filling) stats.count_kept(bytes, {ended.started_ns, now});
  if (ended.node < 0) return;
  const bool on_device = ended.place.on_device();
  if (!on_device && bytes < least_host_piece) return;
  note_nodes(stats, ended.node, on_device ? ended.place.via->numa_node() : with.kernel().node_of_memory(ended.memory), bytes, nanoseconds);
}

void note_ranges_use(stats::book& stats, const path::job& ended,
                     const std::function<file_core&(const path::gather_range&)>& file_of) noexcept {
  if (ended.is_write) return;
  std::uint64_t bytes = 0;
  std::uint64_t extra = 0;
  std::uint64_t again = 0;
  for (const auto& range : ended.ranges) {
    if (!range.past_cache || !range.error.ok()) continue;
    bytes += range.moved;
    again += file_of(range).read_past_cache(range.offset, range.moved);
    extra += source::blocks_around(range.offset, range.length) - range.length;
  }
  if (bytes == 0) return;
  const auto now = now_ns();
  stats.count_cold(bytes, again, {ended.started_ns, now});
  if (extra > 0) stats.count_blocks(bytes, extra, now - ended.started_ns);
}

}  // namespace penstock::core
