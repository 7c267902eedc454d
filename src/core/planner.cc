#include "core/planner.hpp"

#include <algorithm>
#include <bit>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

namespace penstock::core {

namespace {

constexpr std::uint64_t kib = 1024;
constexpr std::uint64_t mib = 1024 * kib;
constexpr std::uint64_t least_direct_write = mib;
// An edge of a GPU-direct body is a separate job, which costs about as much as staging this many bytes (18 us).
constexpr std::uint64_t least_body_beside_edges = 64 * kib;
// Page cache lookups and pieces end at file offsets that are multiples of this.
constexpr std::uint64_t granule = 4 * mib;

constexpr std::uint64_t round_down(std::uint64_t value, std::uint64_t unit) { return value / unit * unit; }

using path::way;

class planner {
 public:
  explicit planner(const plan_input& input) : in_(input), end_(input.offset + input.length) {}

  result<std::vector<planned_piece>> make() {
    if (in_.length == 0) return std::move(pieces_);
    if (in_.forced != path_kind::automatic) {
      if (auto refusal = take(in_.forced)) {
        return status(errc::unsupported, fmt::format("path {} was requested, but {}", in_.paths->name(in_.forced), *refusal));
      }
    } else {
      for (const auto kind : in_.paths->by_rank()) {
        if (pieces_.empty() && serves(kind, path::portion::whole_requests)) (void)take_whole(kind);
      }
    }
    if (!pieces_.empty()) return std::move(pieces_);
    if (in_.far_piece > 0) {
      cut_far();
    } else if (!in_.on_device && in_.late_piece > 0) {
      read_late_into_host();
    } else if (!in_.on_device) {
      cut(in_.offset, in_.length, base(), way::cached, plan_reason::host_memory);
    } else if (in_.is_write) {
      write();
    } else {
      read();
    }
    if (!in_.is_write) {
      if (cold_ && cold_->most_bytes < ~std::uint64_t{0}) end_after_cold(cold_->most_bytes);
    }
    return std::move(pieces_);
  }

 private:
  [[nodiscard]] path_kind base() const { return in_.paths->base(in_.on_device); }
  [[nodiscard]] bool serves(path_kind kind, path::portion of_it) const {
    const auto& declared = in_.paths->of(kind);
    return declared.carries == of_it && declared.of_device == in_.on_device;
  }

  // Without a cached descriptor, there are no pages whose write-back could undo a direct write.
  [[nodiscard]] std::uint64_t write_unit() const {
    return in_.has_cached ? std::max(path::direct_alignment, in_.cache_page_bytes) : path::direct_alignment;
  }

  // Plans the whole range for the requested path, unless its pieces are cut below. Returns the reason if the path cannot serve it.
  std::optional<std::string> take(path_kind kind) {
    if (!in_.paths->has(kind)) return "there is no such path";
    const auto carries = in_.paths->of(kind).carries;
    if (carries == path::portion::whole_requests) return take_whole(kind);
    if (auto why = in_.refuses(kind, in_.offset, in_.length)) return why;
    if (carries == path::portion::cached_ranges) whole(in_.offset, in_.length, kind, plan_reason::forced);
    return {};
  }

  // Plans the whole range as one piece for a path, with unaligned edges for its successor. Otherwise plans nothing and returns the reason.
  // libcufile writes an edge by reading, changing and writing a whole block. It reads an edge, and any range whose memory cannot be
  // aligned, slowly through its own buffer (GPUDirect Storage best-practice guide). A forced path accepts this for reads, unless it
  // transfers only whole blocks.
  std::optional<std::string> take_whole(path_kind kind) {
    const auto declared = in_.paths->of(kind).alignment;
    const bool moves_edges = !in_.is_write && !in_.paths->of(kind).whole_blocks;
    const auto unit = in_.is_write && declared > 1 ? std::max(declared, write_unit()) : declared;
    const bool is_forced = in_.forced == kind;
    const bool has_edges = unit > 1 && (!moves_edges || (in_.aligned_together && !is_forced));
    const std::uint64_t end = in_.offset + in_.length;
    const std::uint64_t body = has_edges ? std::min(round_down(in_.offset + unit - 1, unit), end) : in_.offset;
    const std::uint64_t body_end = has_edges ? std::max(round_down(end, unit), body) : end;
    const std::uint64_t length = body_end - body;
    if (!is_forced && length < in_.length && length < least_body_beside_edges) return "too little of it is aligned";
    if (auto why = in_.refuses(kind, length > 0 ? body : 0, length)) return why;
    if (has_edges && in_.is_write && !in_.aligned_together) {
      return "no part of it is aligned in both memory and file, so writing whole blocks could undo a concurrent write to adjacent bytes";
    }
    if (has_edges && !in_.aligned_together)
      return "no part of it is aligned in both memory and file, and this path transfers only whole blocks";
    const auto beside = in_.paths->successor(kind);
    const auto edge = in_.is_write ? plan_reason::unaligned_edge : plan_reason::unaligned_read_edge;
    const auto edge_way = in_.is_write ? way::cached : way::past_cache;
    cut(in_.offset, body - in_.offset, beside, edge_way, edge);
    if (length > 0) whole(body, length, kind, in_.device_in_use ? plan_reason::declared : plan_reason::declared_untried);
    cut(body_end, end - body_end, beside, edge_way, edge);
    return {};
  }

  void read() {
    std::uint64_t may_ask = in_.most_asked;
    for (std::uint64_t at = in_.offset; at < end_;) {
      const auto pinned = registered(at);
      const std::uint64_t end = asked_end(at, pinned.offset, may_ask);
      if (end < pinned.offset) end_ = end;
      read_unregistered(at, end - at);
      if (end < pinned.offset) return;
      may_ask -= std::min(may_ask, end - at);
      if (pinned.length > 0) take_registered(pinned.offset, pinned.length);
      at = pinned.offset + pinned.length;
    }
  }

  // Host memory may have any alignment, but only whole blocks of the file can be read past the page cache.
  void read_late_into_host() {
    const std::uint64_t end = in_.offset + in_.length;
    const std::uint64_t body = std::min(round_down(in_.offset + path::direct_alignment - 1, path::direct_alignment), end);
    const std::uint64_t body_end = std::max(round_down(end, path::direct_alignment), body);
    if (!in_.has_cached) return cut(in_.offset, in_.length, base(), way::cached, plan_reason::host_memory);
    const bool has_edges = in_.has_direct;
    const std::uint64_t first = has_edges ? body : in_.offset;
    const std::uint64_t until = has_edges ? body_end : end;
    const std::uint64_t asked = asked_end(first, until, in_.most_asked);
    const std::uint64_t last = std::min(round_down(asked + path::direct_alignment - 1, path::direct_alignment), until);
    if (has_edges) cut(in_.offset, body - in_.offset, base(), way::cached, plan_reason::unaligned_read_edge);
    if (last < until) end_ = last;
    read_unregistered(first, last - first);  // has no effect on an empty range
    if (has_edges && last == body_end) cut(body_end, end - body_end, base(), way::cached, plan_reason::unaligned_read_edge);
  }

  void read_unregistered(std::uint64_t offset, std::uint64_t length) {
    if (length == 0) return;
    if (!in_.has_direct && in_.late_piece > 0) {
      cold_ = cold_way{.keeps = true, .why = plan_reason::no_direct_io, .most_bytes = in_.most_untimed};
      read_by_residency(offset, length);
    } else if (!in_.has_direct) {
      resident_run(offset, length, plan_reason::no_direct_io);
    } else if (!in_.has_cached) {
      cut(offset, length, base(), way::past_cache, plan_reason::not_resident);
    } else {
      read_by_residency(offset, length);
    }
  }

  // Returns the first registered part at or after offset, if it is worth using; otherwise an empty part at the end. GPUs copy from tmpfs at
  // a third of the staged path's speed, so there it is used only to save CPU time.
  plan_input::part registered(std::uint64_t offset) {
    const plan_input::part none{end_, 0};
    if (!in_.registered || !registered_path() || (in_.memory_file_system && !spares_cpu())) return none;
    for (auto from = offset; from < end_;) {
      const auto found = registered_run(from);
      if (found.length >= least_registered_bytes || found.length == 0) return found;
      from = found.offset + found.length;
    }
    return none;
  }
  // Returns the first registered part at or after offset, extended by the registered parts directly after it.
  plan_input::part registered_run(std::uint64_t offset) {
    auto run = in_.registered(offset, end_ - offset);
    while (run.length > 0 && run.offset + run.length < end_) {
      const auto next = in_.registered(run.offset + run.length, end_ - run.offset - run.length);
      if (next.length == 0 || next.offset != run.offset + run.length) break;
      run.length += next.length;
    }
    return run;
  }

  [[nodiscard]] std::optional<path_kind> registered_path() const {
    const auto kinds = in_.paths->by_rank();
    const auto found = std::find_if(kinds.begin(), kinds.end(), [&](path_kind kind) { return serves(kind, path::portion::cached_ranges); });
    if (found == kinds.end() || (in_.forced != path_kind::automatic && in_.forced != *found)) return std::nullopt;
    return *found;
  }

  // Extends the previous piece if it is also registered: one thread transfers it and uses no CPU time.
  void take_registered(std::uint64_t offset, std::uint64_t length) {
    if (!pieces_.empty() && pieces_.back().way == way::pinned) {
      pieces_.back().length += length;
    } else {
      pieces_.push_back(
          {.offset = offset, .length = length, .path = *registered_path(), .way = way::pinned, .reason = plan_reason::registered});
    }
  }

  [[nodiscard]] bool spares_cpu() const {
    const bool has_little = (in_.few_cores || in_.busy_cores) && !in_.emulated_device;
    return in_.prefer == preference::cpu || (in_.prefer == preference::automatic && has_little);
  }

  // Returns how far to look up a part in the page cache: to its end, or to a multiple of the granule (of a smaller unit if `most` is
  // smaller). Returns the end if no lookup is needed, if there is only one lane, which would be idle during the lookup, or if the whole
  // part may be mapped at once.
  [[nodiscard]] std::uint64_t asked_end(std::uint64_t offset, std::uint64_t end, std::uint64_t most) const {
    const bool asks = in_.has_cached && (in_.has_direct || in_.late_piece > 0);
    if (!asks || in_.lanes <= 1 || end - offset <= most || spares_cpu()) return end;
    if (most == 0) return offset;
    const std::uint64_t limit = offset + most;
    const std::uint64_t on_granule = round_down(limit, std::min(granule, std::bit_floor(most)));
    return on_granule > offset ? on_granule : limit;
  }

  [[nodiscard]] bool is_continued() const { return in_.is_continued || end_ < in_.offset + in_.length; }
  [[nodiscard]] bool follows_others(std::uint64_t offset) const { return in_.continues && offset == in_.offset; }
  [[nodiscard]] bool precedes_others(std::uint64_t end) const { return is_continued() && end == end_; }
  // Returns the length of the run of similar pieces around a part of the request, if known.
  [[nodiscard]] std::uint64_t run_length(std::uint64_t offset, std::uint64_t length) const {
    return follows_others(offset) || precedes_others(offset + length) ? std::max(in_.whole_length, length) : length;
  }

  // Splits the range until each part is wholly cached, wholly uncached, or one granule.
  void read_by_residency(std::uint64_t offset, std::uint64_t length) {
    const auto resident = in_.resident(offset, length);
    if (!resident && !in_.spares_cache && in_.late_piece == 0) {
      resident_run(offset, length, plan_reason::residency_unknown);
    } else if (!resident) {
      cut_cold(offset, length, plan_reason::residency_unknown);
    } else if (*resident >= length) {
      resident_run(offset, length, plan_reason::resident);
    } else if (*resident == 0) {
      cut_cold(offset, length, plan_reason::not_resident);
    } else if (const auto middle = round_down(offset + length / 2, granule); length > granule && middle > offset) {
      read_by_residency(offset, middle - offset);
      read_by_residency(middle, offset + length - middle);
    } else if (*resident * 2 >= length && !in_.spares_cache) {
      resident_run(offset, length, plan_reason::partly_resident);
    } else {
      cut_cold(offset, length, plan_reason::partly_resident);
    }
  }

  // Plans a part that is partly or wholly uncached.
  void cut_cold(std::uint64_t offset, std::uint64_t length, plan_reason found) {
    if (!cold_) cold_ = in_.cold ? in_.cold() : cold_way{};
    if (!cold_->keeps) {
      cut(offset, length, base(), way::past_cache, cold_->why == plan_reason::not_resident ? found : cold_->why);
      return;
    }
    const std::uint64_t tried = std::min(cold_->tried_bytes, length);
    cold_->tried_bytes -= tried;  // the next such part continues with the rest
    cut(offset, tried, base(), way::past_cache, plan_reason::bypass_tried);
    cut(offset + tried, length - tried, base(), way::filling, cold_->why);
  }

  void end_after_cold(std::uint64_t bytes) {
    const auto last = std::find_if(pieces_.begin(), pieces_.end(), [&](const planned_piece& each) {
      if (each.way == way::filling || each.way == way::past_cache) bytes -= std::min(bytes, each.length);
      return bytes == 0;
    });
    if (last != pieces_.end()) pieces_.erase(last + 1, pieces_.end());
  }

  void resident_run(std::uint64_t offset, std::uint64_t length, plan_reason reason) {
    if (reason == plan_reason::resident && spares_cpu() && !in_.memory_file_system && length >= least_mapped_bytes &&
        in_.forced == path_kind::automatic) {
      for (const auto kind : in_.paths->by_rank()) {
        if (!serves(kind, path::portion::cached_ranges) || in_.refuses(kind, in_.offset, in_.length)) continue;
        whole(offset, length, kind, plan_reason::declared);
        return;
      }
    }
    cut(offset, length, base(), way::cached, reason);
  }

  void write() {
    const std::uint64_t end = in_.offset + in_.length;
    const std::uint64_t body = round_down(in_.offset + write_unit() - 1, write_unit());
    const std::uint64_t body_end = round_down(end, write_unit());
    const bool direct =
        in_.has_direct && (in_.direct_writes || !in_.has_cached) && body_end > body && body_end - body >= least_direct_write;
    if (!direct) {
      const bool for_edges = in_.has_direct && in_.direct_writes && in_.length >= least_direct_write;
      const auto why = for_edges ? plan_reason::too_little_aligned : plan_reason::buffered_write;
      cut(in_.offset, in_.length, base(), way::cached, why);
      return;
    }
    cut(in_.offset, body - in_.offset, base(), way::cached, plan_reason::unaligned_edge);
    cut(body, body_end - body, base(), way::past_cache, plan_reason::direct_write);
    cut(body_end, end - body_end, base(), way::cached, plan_reason::unaligned_edge);
  }

  // Adds one piece, or extends the previous one if it is of the same kind.
  void whole(std::uint64_t offset, std::uint64_t length, path_kind path, plan_reason reason) {
    if (!pieces_.empty() && pieces_.back().path == path && pieces_.back().way != way::pinned) {
      pieces_.back().length += length;
    } else {
      pieces_.push_back({offset, length, path, way::cached, reason});
    }
  }

  // Cuts a range as its path requires, for paths that transfer parts of requests.
  void cut(std::uint64_t offset, std::uint64_t length, path_kind kind, way by, plan_reason reason) {
    if (length == 0) return;
    const path::range_to_cut range{offset,
                                   length,
                                   run_length(offset, length),
                                   by,
                                   in_.is_write,
                                   follows_others(offset),
                                   precedes_others(offset + length),
                                   in_.lanes,
                                   in_.shared_link,
                                   in_.late_piece};
    cuts_.assign(1, {length});
    if (const auto by = in_.paths->of(kind).cut; by != nullptr) {
      cuts_.clear();
      by(range, cuts_);
    }
    add_cuts({.offset = offset, .path = kind, .way = by, .reason = reason, .waits = in_.late_piece > 0 && reason != plan_reason::resident});
  }

  // Cuts the range into fills of a remote source.
  void cut_far() {
    path::cut_at_multiples({.offset = in_.offset, .length = in_.length}, in_.far_piece, cuts_);
    add_cuts({.offset = in_.offset, .path = base(), .way = way::far, .reason = plan_reason::far});
  }

  // Adds one piece per cut; the pieces differ only in length and wave.
  void add_cuts(planned_piece next) {
    for (const auto& each : cuts_) {
      next.length = each.length;
      next.wave = each.wave;
      pieces_.push_back(next);
      next.offset += each.length;
    }
  }

  const plan_input& in_;
  std::uint64_t end_;             // end of the plan
  std::optional<cold_way> cold_;  // set at the first query
  std::vector<planned_piece> pieces_;
  std::vector<path::cut_piece> cuts_;  // the current range
};

}  // namespace

result<std::vector<planned_piece>> make_plan(const plan_input& input) { return planner(input).make(); }

std::string describe(plan_reason reason, const path::declaration& path) {
  switch (reason) {
    case plan_reason::host_memory:
      return "the buffer is in host memory";
    case plan_reason::small_request:
      return "at most 128 KiB: transferred on the caller's thread, through the page cache";
    case plan_reason::small_request_bypass:
      return "at most 128 KiB: transferred on the caller's thread, past the page cache unless fully cached, as requested";
    case plan_reason::declared:
      return std::string(path.reason);
    case plan_reason::declared_untried:
      return fmt::format("{} may serve this file: this is known only once memory on this device is used", path.name);
    case plan_reason::resident:
      return "in the page cache";
    case plan_reason::not_resident:
      return "not in the page cache: direct I/O";
    case plan_reason::partly_resident:
      return "partly in the page cache";
    case plan_reason::kept:
      return "not fully in the page cache: read through it in file order, so that the next read finds it there";
    case plan_reason::kept_as_asked:
      return "not fully in the page cache: read through it, as requested";
    case plan_reason::bypass_as_asked:
      return "not fully in the page cache: direct I/O, as requested";
    case plan_reason::bypass_as_lent:
      return "not in the page cache: direct I/O, because its descriptor was opened with O_DIRECT";
    case plan_reason::bypass_shared_memory:
      return "not fully in the page cache: direct I/O, because the device shares the host's memory, which would hold the bytes twice";
    case plan_reason::bypass_at_random:
      return "not in the page cache, and a small out-of-order read: direct I/O";
    case plan_reason::bypass_memory_unknown:
      return "not in the page cache, and the kernel does not report whether memory has room for the file: direct I/O";
    case plan_reason::bypass_no_room:
      return "not in the page cache, and memory has no room for the whole file: direct I/O";
    case plan_reason::bypass_faster:
      return "not in the page cache: direct I/O, which has been faster here than reading through it";
    case plan_reason::registered:
      return "pinned (file::pin), or registered by an earlier read: the GPU copies it from the page cache";
    case plan_reason::bypass_tried:
      return "not in the page cache: direct I/O for a part, to measure which way is faster here";
    case plan_reason::bypass_late:
      return "not in the page cache, and the file system answers slowly: direct I/O, many reads at once";
    case plan_reason::bypass_untimed:
      return "not in the page cache: direct I/O for a part, to measure how slowly the file system answers";
    case plan_reason::residency_unknown:
      return "the kernel does not report whether it is in the page cache";
    case plan_reason::no_direct_io:
      return "the file system does not support direct I/O: through the page cache";
    case plan_reason::far:
      return "the source answers slowly: many pieces are requested at once";
    case plan_reason::buffered_write:
      return "written to the page cache";
    case plan_reason::direct_write:
      return "direct I/O, as requested";
    case plan_reason::unaligned_edge:
      return "an unaligned edge goes through the page cache, so that neighbouring bytes are preserved";
    case plan_reason::too_little_aligned:
      return "too little of it is aligned for direct I/O: written to the page cache";
    case plan_reason::unaligned_read_edge:
      return "an unaligned edge: the path that transfers the rest would pass it through a separate buffer";
    case plan_reason::forced:
      return "this path was requested";
  }
  return {};
}

}  // namespace penstock::core
