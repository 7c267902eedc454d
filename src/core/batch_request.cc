#include "core/batch_request.hpp"

#include <algorithm>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "core/request.hpp"
#include "core/small_requests.hpp"

namespace penstock::core {

namespace {

constexpr std::size_t least_ranges_per_job = 32;  // a copy of them costs 7 us (H200), reading one 1 us
// The kernel looks at 4 GiB of a file's page cache in 1.5 ms (H200 machine), at one range in half a microsecond.
constexpr std::uint64_t most_asked_per_range = std::uint64_t{512} << 10;

}  // namespace

// Ranges that may travel together: of files of one file system, same device context (or the host's memory), same direction.
struct batch_request::group {
  share* on = nullptr;
  staging::place place;
  bool is_write = false;
  path::job* open = nullptr;
  std::uint64_t room = 0;
};

pending* batch_request::begin(core::runtime& with, std::span<const io_request> requests,
                              const std::vector<std::shared_ptr<file_core>>& files, const io_options& options, io_callback& callback,
                              item_callback& each) {
  auto* made = new batch_request(with.shared_from_this(), requests.size());
  made->each_ = std::move(each);  // from here on their ends are told by calling back
  made->set_deadline(options.deadline);
  made->set_callback(std::move(callback));
  made->retain();
  made->start(requests, files, options);
  return made;
}

batch_request::batch_request(std::shared_ptr<core::runtime> with, std::size_t count) : pending(std::move(with)), admitted_(count) {
  items_.resize(count);
}

batch_request::~batch_request() {
  for (auto* single : singles_) single->release();
}

void batch_request::cancel_all() {
  cancel();
  for (auto* single : singles_) single->cancel();
}

void batch_request::end_queued() {
  for (auto& each : shares_) path::end_queued(each.queues);
}

void batch_request::start(std::span<const io_request> requests, const std::vector<std::shared_ptr<file_core>>& files,
                          const io_options& options) noexcept {
  remaining_.fetch_add(requests.size());
  ranges_per_job_ = std::clamp(requests.size() / (std::size_t{4} * runtime().lane_count()), least_ranges_per_job, most_ranges_per_job);
  for (std::uint32_t i = 0; i < requests.size(); ++i) {
    auto problem = or_no_memory([&] { return add(requests[i], files[i], options, i); });
    if (!problem.ok()) item_ended(i, {0, std::move(problem)});
  }
  // Where there is no memory for asking, each range is asked for when it is read.
  (void)or_no_memory([this]() -> status {
    ask_residency();
    return {};
  });
  // Nothing below allocates. A deadline that nobody can watch is asked for by each job all the same.
  (void)watch_deadline();
  const auto now = now_ns();
  for (auto& item : jobs_) {
    item.started_ns = now;
    auto& on = *static_cast<share*>(item.context);
    (on.last == nullptr ? on.first : on.last->next_work) = &item;
    on.last = &item;
    ++on.count;
  }
  for (auto& on : shares_) {
    if (on.first != nullptr)
      (void)on.queues.lanes->push(on.queues.cpu_works, *on.first, *on.last, on.count);  // threads were ready in add()
  }
  if (!stop_reason().ok()) end_queued();
  ended(1);
}

void batch_request::help() {
  for (auto& each : shares_) {
    while (!runtime().forked() && !done() && each.queues.lanes->help(each.queues.cpu_works)) runtime().feeders().pump();
  }
}

// An error is the outcome of this request.
status batch_request::add(const io_request& asked, const std::shared_ptr<file_core>& file, const io_options& options, std::uint32_t index) {
  if (file == nullptr) return {errc::closed, "the file of this request is closed"};
  const transfer what{static_cast<std::byte*>(asked.memory), asked.length, static_cast<std::uint64_t>(asked.offset), asked.is_write};
  auto& admitted = admitted_[index];
  if (auto refused = admitted.enter(runtime(), *file, what, file); !refused.ok()) return refused;
  auto wrong = admitted.check(options);
  if (wrong.ok()) wrong = file->mount().lanes().ready();
  if (wrong.ok()) wrong = locate(admitted, options);
  if (!wrong.ok()) return wrong.with_context(fmt::format("request {} of the batch: {}", index, file->name()));
  if (asked.length == 0) {
    item_ended(index, {});
    return {};
  }
  if (asked.length > small_request_bytes || runtime().forced(options)) return start_single(options, index);
  add_range(group_for(share_on(file->mount()), admitted.place(), asked.is_write),
            {&file->view(), what.offset, what.length, what.memory, index, path::residency::unknown, 0, {}});
  return {};
}

// The default stream of a device is waited for once.
status batch_request::locate(admission& admitted, const io_options& options) {
  if (auto problem = admitted.locate(&seen_); !problem.ok()) return problem;
  if (!admitted.waits_for_default_stream(options)) return {};
  if (auto* const link = admitted.place().via; settled_ != link) {
    settled_problem_ = link->session().synchronize(nullptr);
    settled_ = link;
  }
  return settled_problem_;
}

batch_request::share& batch_request::share_on(mount& on) {
  for (auto& known : shares_) {
    if (known.on == &on) return known;
  }
  auto& made = shares_.emplace_back();
  made.on = &on;
  made.queues.lanes = &on.lanes();
  made.queues.disk = &on.disk();
  return made;
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
    if (item.is_write || !item.place.on_device()) continue;
    for (const auto& range : item.ranges) {
      auto& whole = files[range.file];
      whole.start = std::min(whole.start, range.offset);
      whole.end = std::max(whole.end, range.offset + range.length);
      ++whole.count;
    }
  }
  for (auto& [file, whole] : files) {
    if (file->cached_fd < 0 || file->direct_fd < 0 || whole.end - whole.start > whole.count * most_asked_per_range) continue;
    const auto bytes = runtime().kernel().resident_bytes(file->cached_fd, whole.start, whole.end - whole.start);
    if (!bytes) continue;
    if (*bytes >= whole.end - whole.start) whole.cached = path::residency::resident;
    if (*bytes == 0) whole.cached = path::residency::absent;
  }
  for (auto& item : jobs_) {
    if (item.is_write || !item.place.on_device()) continue;
    for (auto& range : item.ranges) range.cached = files[range.file].cached;
  }
}

batch_request::group& batch_request::group_for(share& on, const staging::place& place, bool is_write) {
  for (auto& known : groups_) {
    if (known.on == &on && known.place.via == place.via && known.is_write == is_write) return known;
  }
  groups_.push_back({&on, place, is_write, nullptr, 0});
  return groups_.back();
}

void batch_request::add_range(group& to, const path::gather_range& range) {
  const std::uint64_t room = room_of(range.offset, range.length);
  if (to.open != nullptr && (to.room + room > staging::large_slab_bytes || to.open->ranges.size() >= ranges_per_job_)) to.open = nullptr;
  if (to.open == nullptr) {
    std::list<path::job> made(1);
    prepare_gather(made.front(), *this, to.on->queues, runtime(), to.place, to.is_write);
    made.front().context = to.on;
    made.front().ranges.reserve(ranges_per_job_);
    to.open = &made.front();
    to.room = 0;
    jobs_.splice(jobs_.end(), made);
  }
  to.open->ranges.push_back(range);
  to.room += room;
}

status batch_request::start_single(const io_options& options, std::uint32_t index) {
  singles_.reserve(admitted_.size());
  auto* op = new request(runtime().shared_from_this(), std::move(admitted_[index]), options);
  op->set_on_end([this, index](const io_result& outcome) { item_ended(index, outcome); });
  op->retain();
  singles_.push_back(op);
  auto planned = or_no_memory([&] { return op->plan({runtime().lane_count(), false}); });
  if (planned.ok()) {
    op->start(false);
  } else {
    op->fail(std::move(planned));
  }
  return {};
}

void batch_request::item_ended(std::uint32_t index, io_result outcome) noexcept {
  admitted_[index].count(outcome);
  items_[index] = std::move(outcome);
  if (each_) each_(index, items_[index]);
  admitted_[index].let_go();
  ended(1);
}

void batch_request::finished(path::job& ended_job, std::uint64_t bytes, status error) {
  runtime().stats().count_piece(ended_job.path->kind(), bytes, {ended_job.started_ns, now_ns()}, !error.ok());
  const auto count = static_cast<std::uint32_t>(ended_job.ranges.size());
  {
    outcomes counted(ended_job, runtime());
    for (auto& range : ended_job.ranges) items_[range.index] = counted.of(range, error, admitted_[range.index]);
  }
  for (auto& range : ended_job.ranges) {
    if (each_) each_(range.index, items_[range.index]);
    admitted_[range.index].let_go();
  }
  ended(count);
}

void batch_request::hand_over(path::job& refused, status why) { run_again(refused, why, runtime()); }

void batch_request::ended(std::uint32_t count) noexcept {
  if (remaining_.fetch_sub(count, std::memory_order_acq_rel) != count) return;
  io_result total;
  for (const auto& item : items_) {
    total.bytes_done += item.bytes_done;
    if (total.ok()) total.error = item.error;
  }
  complete(std::move(total));
}

}  // namespace penstock::core
