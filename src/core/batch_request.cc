#include "core/batch_request.hpp"

#include <algorithm>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "core/engine_core.hpp"

namespace penstock::core {

namespace {

constexpr std::size_t least_ranges_per_job = 32;  // a copy of them costs 7 us (H200), reading one 1 us
// The kernel looks at 4 GiB of a file's page cache in 1.5 ms (H200 machine), at one range in half a microsecond.
constexpr std::uint64_t most_asked_per_range = std::uint64_t{512} << 10;

}  // namespace

// Ranges that may travel together: same device context (or the host's memory), same direction.
struct batch_request::group {
  path::memory_view place;
  bool is_write = false;
  path::job* open = nullptr;
  std::uint64_t room = 0;
};

batch_request::batch_request(std::shared_ptr<engine_core> engine, std::size_t count) : pending(std::move(engine)) {
  items_.resize(count);
  entries_.resize(count);
}

batch_request::~batch_request() {
  for (auto* single : singles_) single->release();
}

void batch_request::cancel_all() noexcept {
  cancel();
  for (auto* single : singles_) single->cancel();
}

void batch_request::start(std::span<const io_request> requests, const std::vector<std::shared_ptr<file_core>>& files,
                          const io_options& options) {
  remaining_.fetch_add(requests.size());
  ranges_per_job_ = std::clamp(requests.size() / (std::size_t{4} * engine().lanes().count()), least_ranges_per_job, most_ranges_per_job);
  const auto threads = engine().forked() ? status() : engine().lanes().ready();
  for (std::uint32_t i = 0; i < requests.size(); ++i) {
    threads.ok() ? add(requests[i], files[i], options, i) : settle(i, {0, threads});
  }
  for (auto& each : groups_) close_group(each);
  ask_residency();
  const auto now = engine_core::now_ns();
  staging::work* first = nullptr;
  staging::work* last = nullptr;
  for (auto& item : jobs_) {
    item.started_ns = now;
    (last == nullptr ? first : last->next_work) = &item;
    last = &item;
  }
  if (first != nullptr && !engine().lanes().push(cpu_works, *first, *last, jobs_.size()).ok()) {
    for (auto& item : jobs_) (void)item.run();
  }
  ended(1);
}

void batch_request::help(deadline_clock::time_point until) {
  while (!engine().forked() && !done() && deadline_clock::now() < until && engine().lanes().help(cpu_works)) engine().feeders().pump();
}

void batch_request::add(const io_request& asked, const std::shared_ptr<file_core>& file, const io_options& options, std::uint32_t index) {
  const transfer what{static_cast<std::byte*>(asked.memory), asked.length, static_cast<std::uint64_t>(asked.offset), asked.is_write};
  status problem = file == nullptr ? status(errc::closed, "the file of this request is closed") : file->begin(asked.is_write);
  if (!problem.ok()) {
    settle(index, {0, std::move(problem)});
    return;
  }
  entries_[index] = {file, asked.is_write};
  problem = engine().check(what, options);
  const auto place = problem.ok() && asked.length > 0 ? engine().place_of(asked.memory, asked.length, &seen_)
                                                      : result<path::memory_view>(path::memory_view{});
  if (problem.ok()) problem = place.error();
  if (problem.ok() && asked.length > 0 && asked.is_write && place->session != settled_) {
    problem = engine_core::settle(*place, asked.is_write, options);
    settled_ = place->session;
  }
  if (!problem.ok() || asked.length == 0) {
    if (!problem.ok()) problem = problem.with_context(fmt::format("request {} of the batch: {}", index, file->name()));
    settle(index, {0, std::move(problem)});
    return;
  }
  if (asked.length > small_request_bytes || engine().forced(options)) {
    start_single(asked, file, *place, options, index);
    return;
  }
  add_range(group_for(*place, asked.is_write),
            {&file->view(), what.offset, what.length, what.memory, index, path::residency::unknown, 0, {}});
}

// One question for all ranges of a file, where they lie close enough that it costs less than one for each, and where the answer is the same
// for all; else each is asked for when it is read.
void batch_request::ask_residency() {
  struct span {
    std::uint64_t start = ~std::uint64_t{0};
    std::uint64_t end = 0;
    std::uint64_t count = 0;
    path::residency cached = path::residency::unknown;
  };
  std::map<const path::file_view*, span> files;
  for (const auto& item : jobs_) {
    if (item.is_write || !item.memory_place.on_device()) continue;
    for (const auto& range : item.ranges) {
      auto& whole = files[range.file];
      whole.start = std::min(whole.start, range.offset);
      whole.end = std::max(whole.end, range.offset + range.length);
      ++whole.count;
    }
  }
  for (auto& [file, whole] : files) {
    if (file->cached_fd < 0 || file->direct_fd < 0 || whole.end - whole.start > whole.count * most_asked_per_range) continue;
    const auto bytes = engine().kernel().resident_bytes(file->cached_fd, whole.start, whole.end - whole.start);
    if (!bytes) continue;
    if (*bytes >= whole.end - whole.start) whole.cached = path::residency::resident;
    if (*bytes == 0) whole.cached = path::residency::absent;
  }
  for (auto& item : jobs_) {
    if (item.is_write || !item.memory_place.on_device()) continue;
    for (auto& range : item.ranges) range.cached = files[range.file].cached;
  }
}

batch_request::group& batch_request::group_for(const path::memory_view& place, bool is_write) {
  for (auto& known : groups_) {
    if (known.place.session == place.session && known.is_write == is_write) return known;
  }
  groups_.push_back({place, is_write, nullptr, 0});
  return groups_.back();
}

void batch_request::add_range(group& to, const path::gather_range& range) {
  const std::uint64_t room = room_of(range.offset, range.length);
  if (to.open != nullptr && (to.room + room > staging::large_slab_bytes || to.open->ranges.size() >= ranges_per_job_)) close_group(to);
  if (to.open == nullptr) {
    to.open = &jobs_.emplace_back();
    prepare_gather(*to.open, *this, engine(), to.place, to.is_write);
    to.open->ranges.reserve(ranges_per_job_);
  }
  to.open->ranges.push_back(range);
  to.room += room;
}

void batch_request::close_group(group& done) {
  done.open = nullptr;
  done.room = 0;
}

void batch_request::start_single(const io_request& asked, const std::shared_ptr<file_core>& file, const path::memory_view& place,
                                 const io_options& options, std::uint32_t index) {
  const transfer what{static_cast<std::byte*>(asked.memory), asked.length, static_cast<std::uint64_t>(asked.offset), asked.is_write};
  auto* op = engine().make_request(*file, file, what, place, options);
  op->never_begun();  // the batch began the file's use, and ends it
  op->set_on_end([this, index](const io_result& outcome) { settle(index, outcome); });
  op->retain();
  singles_.push_back(op);
  auto pieces = engine().plan_request(*file, what, place, options, engine().lanes().count());
  if (pieces) {
    op->start(*pieces, false);
  } else {
    op->fail(pieces.error());
  }
}

void batch_request::settle(std::uint32_t index, io_result outcome) {
  auto& entry = entries_[index];
  items_[index] = std::move(outcome);
  if (each_) each_(index, items_[index]);
  if (entry.file != nullptr) entry.file->end();
  ended(1);
}

void batch_request::finished(path::job& ended_job, std::uint64_t bytes, status error) {
  engine().stats().count_piece(ended_job.path->kind(), bytes, {ended_job.started_ns, engine_core::now_ns()}, !error.ok());
  const auto count = static_cast<std::uint32_t>(ended_job.ranges.size());
  for (auto& range : ended_job.ranges) {
    items_[range.index] = outcome_of(range, ended_job, error, engine(), *entries_[range.index].file);
    if (each_) each_(range.index, items_[range.index]);
    entries_[range.index].file->end();
  }
  ended(count);
}

void batch_request::hand_over(path::job& refused, status why) { run_again(refused, why, engine()); }

void batch_request::ended(std::uint32_t count) {
  if (remaining_.fetch_sub(count, std::memory_order_acq_rel) != count) return;
  io_result total;
  for (const auto& item : items_) {
    total.bytes_done += item.bytes_done;
    if (total.ok()) total.error = item.error;
  }
  complete(std::move(total));
}

}  // namespace penstock::core
