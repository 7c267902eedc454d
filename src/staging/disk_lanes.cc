#include "staging/disk_lanes.hpp"

#include <algorithm>
#include <array>
#include <bitset>
#include <cerrno>
#include <system_error>

#include "base/no_memory.hpp"
#include "staging/worker.hpp"

namespace penstock::staging {

namespace {

// The lane of the current thread, so that work items can call begin() without a pointer to it.
[[gnu::tls_model("initial-exec")]] thread_local void* current_lane = nullptr;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables)

constexpr unsigned max_ring_buffers = 16;
// Includes tasks whose copies came first. They already have slabs, so starting them late gains nothing.
constexpr unsigned most_tasks = 2 * disk_lanes::tasks_in_flight;
constexpr unsigned max_piece_retries = 64;
constexpr unsigned max_failed_reaps = 100;  // consecutive; then the ring is considered dead

void cancel(ring_task& task) {
  for (auto& piece : task.pieces) piece.error = ECANCELED;
}

}  // namespace

status failed_ring() {
  return {errc::unsupported, "this process cannot be frozen: an io_uring ring has stopped answering and stays open; restart the process"};
}

class disk_lanes::lane {
 public:
  lane(disk_lanes& house, std::unique_ptr<sys::ring> ring) : house_(house), ring_(std::move(ring)), slots_(most_depth) {
    for (std::uint32_t i = 0; i < most_depth; ++i) free_slots_.push_back(most_depth - 1 - i);
    buffers_.reserve(max_ring_buffers);
  }

  ~lane();
  lane(const lane&) = delete;
  lane& operator=(const lane&) = delete;

  void loop();
  void begin(ring_task& task) {
    task.next = 0;
    task.outstanding = static_cast<std::uint32_t>(task.pieces.size());
    ++tasks_;
    if (task.pieces.empty()) {
      finish(task);
      return;
    }
    if (dead_) {
      cancel(task);
      finish(task);
      return;
    }
    unqueued_ += task.pieces.size();
    active_.push_back(task);
  }
  // Wakes this lane if it is sleeping in its ring. Thread-safe.
  bool interrupt() {
    if (!in_ring_.load() || !in_ring_.exchange(false)) return false;
    const std::lock_guard guard(ring_lock_);
    if (ring_ != nullptr) ring_->interrupt();
    return true;
  }
  // Without its thread:
  [[nodiscard]] bool is_dead() const noexcept { return dead_; }
  void set_ring(std::unique_ptr<sys::ring> ring) noexcept {
    const std::lock_guard guard(ring_lock_);
    ring_ = std::move(ring);
  }
  // The kernel frees a ring some time after it is closed, but unregisters its memory at once.
  void close_ring() noexcept {
    for (std::size_t i = 0; i < buffers_.size() && ring_ != nullptr; ++i) {
      if (buffers_[i].pool != nullptr && buffers_[i].usable)
        (void)or_no_memory([&] { return ring_->register_buffer(static_cast<unsigned>(i), nullptr, 0); });
    }
    buffers_.clear();
    set_ring(nullptr);
  }

 private:
  struct slot {
    ring_task* task = nullptr;
    std::uint32_t piece = 0;
  };

  [[nodiscard]] bool late() const noexcept { return house_.times_ != nullptr && house_.times_->late(); }
  [[nodiscard]] std::size_t room() const noexcept;
  [[nodiscard]] bool startable() const noexcept;
  bool start_works();
  bool queue_pieces();
  bool queue_piece(ring_task& task, std::uint32_t index);
  bool reap();
  void settle(const sys::ring_completion& event);
  void piece_ended(ring_task& task);
  void finish(ring_task& task);
  void declare_dead();
  int buffer_slot(const ring_task& task);
  void release_trimmed();
  void rest();

  disk_lanes& house_;
  spin_lock ring_lock_;  // held while the ring is replaced, or used by another thread
  std::unique_ptr<sys::ring> ring_;
  std::vector<slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  ring_task_list active_;     // tasks with pieces still to be queued
  std::size_t unqueued_ = 0;  // the number of such pieces
  unsigned tasks_ = 0;        // started and not done
  unsigned in_flight_ = 0;    // pieces in flight
  unsigned failed_reaps_ = 0;
  bool dead_ = false;
  bool refused_ = false;              // the next work item cannot start yet
  unsigned returns_ = 0;              // the value of disk_lanes::returns_ before it was tried
  std::atomic<bool> in_ring_{false};  // sleeps in the ring because there is nothing to start
  // The contents of a slot in the ring's buffer table.
  struct registered {
    slab_pool* pool;  // null: empty
    std::uint32_t chunk;
    std::uint32_t generation;
    bool usable;
  };
  std::vector<registered> buffers_;
  unsigned trims_ = 0;  // the value of disk_lanes::trims_ that this lane has handled
};

void disk_lanes::lane::loop() {
  become_worker("penstock-disk");
  current_lane = this;
  for (;;) {
    if (trims_ != house_.trims_.load()) release_trimmed();
    const bool started = start_works();
    const bool queued = queue_pieces();
    const bool reaped = reap();
    if (started || queued || reaped) continue;
    if (house_.stopping_.load() && tasks_ == 0 && house_.queue_.size() == 0 && house_.ready_count_.load() == 0) return;
    rest();
  }
}

// Returns how many more pieces may start. All readers of a slow file system share its limit, but each lane may always start one piece.
// Otherwise it would wait for other readers, which do not wake it.
std::size_t disk_lanes::lane::room() const noexcept {
  if (!late()) return depth - std::min(depth, in_flight_);
  const auto asked = house_.times_->under_way();
  const auto most = house_.times_->at_once();
  const std::size_t open = asked < most ? most - asked : 0;
  return std::min(in_flight_ == 0 ? std::max<std::size_t>(open, 1) : open, free_slots_.size());
}

// A work item starts only if at least one of its pieces could be passed to the kernel. Until then it can still be stopped.
bool disk_lanes::lane::startable() const noexcept {
  const bool is_late = late();
  if (unqueued_ >= room() && (unqueued_ > 0 || is_late)) return false;
  const unsigned most_begun = is_late ? most_depth : tasks_in_flight;
  return (tasks_ < std::max(most_tasks, most_begun) && house_.ready_count_.load() > 0) || (tasks_ < most_begun && house_.queue_.size() > 0);
}

bool disk_lanes::lane::start_works() {
  bool progressed = false;
  returns_ = house_.returns_.load();
  if (std::exchange(refused_, false)) house_.refused_.store(false);
  while (startable()) {
    const unsigned most_begun = late() ? most_depth : tasks_in_flight;
    if (ring_task* task = tasks_ < std::max(most_tasks, most_begun) ? house_.take_ready() : nullptr) {
      begin(*task);
      progressed = true;
      continue;
    }
    if (tasks_ >= most_begun) break;
    work_list* from = nullptr;
    work* item = house_.queue_.take(&from);
    if (item == nullptr) break;
    if (!item->run()) {
      house_.queue_.put_back(*from, *item);
      refused_ = true;
      house_.refused_.store(true);
      break;
    }
    progressed = true;
  }
  return progressed;
}

bool disk_lanes::lane::queue_pieces() {
  bool progressed = false;
  while (!active_.empty() && room() > 0) {
    ring_task& task = active_.front();
    if (!queue_piece(task, task.next)) break;
    progressed = true;
    --unqueued_;
    if (++task.next == task.pieces.size()) active_.pop_front();
  }
  return progressed;
}

bool disk_lanes::lane::queue_piece(ring_task& task, std::uint32_t index) {
  const std::uint32_t token = free_slots_.back();
  ring_piece& piece = task.pieces[index];
  std::byte* memory = piece.memory + piece.moved;
  const std::uint32_t length = piece.length - piece.moved;
  const std::uint64_t offset = piece.file_offset + piece.moved;
  const int buffer = buffer_slot(task);
  const bool queued = task.is_write ? ring_->queue_write(piece.fd, memory, length, offset, token, buffer)
                                    : ring_->queue_read(piece.fd, memory, length, offset, token, buffer);
  if (!queued) return false;
  if (task.times != nullptr) piece.timed = task.times->begins(answer_times::clock_ns());
  slots_[token] = {&task, index};
  free_slots_.pop_back();
  ++in_flight_;
  return true;
}

int disk_lanes::lane::buffer_slot(const ring_task& task) {
  if (task.pool == nullptr) return -1;
  const auto generation = task.pool->generation(task.memory.chunk);
  std::size_t index = buffers_.size();
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const auto& each = buffers_[i];
    if (each.pool == task.pool && each.chunk == task.memory.chunk) {
      if (each.generation == generation) return each.usable ? static_cast<int>(i) : -1;
      index = i;  // its chunk was trimmed
      break;
    }
    if (each.pool == nullptr) index = i;
  }
  if (index == max_ring_buffers) return -1;
  if (index == buffers_.size()) buffers_.push_back({});
  const auto memory = task.pool->chunk(task.memory.chunk);
  // A small RLIMIT_MEMLOCK makes registration fail. The reads then use plain buffers.
  const auto slot = static_cast<unsigned>(index);
  const bool usable = or_no_memory([&] { return ring_->register_buffer(slot, memory.data(), memory.size()); }).ok();
  buffers_[index] = {task.pool, task.memory.chunk, generation, usable};
  return usable ? static_cast<int>(index) : -1;
}

// If the kernel rejects this, the slot keeps its contents until it is reused.
void disk_lanes::lane::release_trimmed() {
  trims_ = house_.trims_.load();
  for (std::size_t i = 0; i < buffers_.size() && ring_ != nullptr; ++i) {
    auto& each = buffers_[i];
    if (each.pool == nullptr || each.pool->generation(each.chunk) == each.generation) continue;
    const auto slot = static_cast<unsigned>(i);
    if (!each.usable || or_no_memory([&] { return ring_->register_buffer(slot, nullptr, 0); }).ok()) each = {};
  }
}

bool disk_lanes::lane::reap() {
  if (in_flight_ == 0) return false;
  std::array<sys::ring_completion, most_depth> events;
  // Blocks if there is nothing to start. Other threads then handle the copies, and return the slab that a refused work item needs. (Polling
  // here would cost many small submissions: 4 KiB reads at depth 128 fell from 150,000/s to 87,000/s.)
  bool wait = (refused_ || !startable()) && (active_.empty() || room() == 0);
  if (wait && late() && (!active_.empty() || house_.queue_.size() > 0)) house_.times_->held_back();
  if (wait) {
    in_ring_.store(true);
    // A thread that pushed or returned a slab before in_ring_ was set does not wake this lane.
    wait = (refused_ && returns_ == house_.returns_.load()) || !startable();
  }
  auto count = or_no_memory([&] { return ring_->reap(events, wait); });
  in_ring_.store(false);
  if (!count) {
    if (++failed_reaps_ < max_failed_reaps) {
      nap();
    } else {
      declare_dead();
    }
    return true;
  }
  failed_reaps_ = 0;
  for (std::size_t i = 0; i < *count; ++i) settle(events[i]);
  return *count > 0;
}

void disk_lanes::lane::settle(const sys::ring_completion& event) {
  const slot done = std::exchange(slots_[event.token], {});
  free_slots_.push_back(static_cast<std::uint32_t>(event.token));
  --in_flight_;
  ring_task& task = *done.task;
  ring_piece& piece = task.pieces[done.piece];
  if (task.times != nullptr) task.times->ended(piece.timed, answer_times::clock_ns(), event.result > 0);
  if (event.result == -EINTR || event.result == -EAGAIN) {
    if (piece.retries++ < max_piece_retries && queue_piece(task, done.piece)) return;
    piece.error = EAGAIN;
  } else if (event.result < 0) {
    piece.error = -event.result;
  } else {
    piece.moved += static_cast<std::uint32_t>(event.result);
    // A short count that preserves the alignment means end of file or an interruption. Only another attempt shows which.
    const bool again = event.result > 0 && piece.moved < piece.length && piece.moved % sys::direct_alignment == 0;
    if (again) {
      if (queue_piece(task, done.piece)) return;
      piece.error = EAGAIN;
    }
    if (event.result == 0 && task.is_write) piece.error = EIO;
  }
  piece_ended(task);
}

void disk_lanes::lane::piece_ended(ring_task& task) {
  if (--task.outstanding == 0) finish(task);
}

void disk_lanes::lane::finish(ring_task& task) {
  --tasks_;
  task.done(task);
}

// Called after the ring has failed many times in a row, so that the state of its pieces is unknown. They fail, and the slabs to which the
// kernel may still be writing are never used again.
void disk_lanes::lane::declare_dead() {
  dead_ = true;
  house_.working_.fetch_sub(1);
  auto begun = std::move(active_);
  unqueued_ = 0;
  while (ring_task* task = begun.pop_front()) {
    // Its queued pieces, if any, fail below. The last of them finishes the task.
    const auto unqueued = static_cast<std::uint32_t>(task->pieces.size()) - task->next;
    for (; task->next < task->pieces.size(); ++task->next) task->pieces[task->next].error = ECANCELED;
    task->outstanding -= unqueued;
    if (task->outstanding == 0) finish(*task);
  }
  for (auto& entry : slots_) {
    const slot lost = std::exchange(entry, {});
    if (lost.task == nullptr) continue;
    --in_flight_;
    if (lost.task->times != nullptr) lost.task->times->ended(lost.task->pieces[lost.piece].timed, answer_times::clock_ns(), false);
    lost.task->pieces[lost.piece].error = ECANCELED;
    if (lost.task->memory) {
      lost.task->pool->abandon(lost.task->memory);
      lost.task->memory = {};
    }
    piece_ended(*lost.task);
  }
  const std::lock_guard guard(ring_lock_);
  (void)ring_.release();  // not freed, because requests may still be in flight
}

disk_lanes::lane::~lane() = default;

void disk_lanes::lane::rest() {
  if (in_flight_ > 0 || refused_) {
    if (!house_.copies_.pump()) nap();
    return;
  }
  std::unique_lock guard(house_.lock_);
  house_.sleepers_.fetch_add(1);
  house_.alarm_.wait(guard, [this] {
    return house_.queue_.size() > 0 || house_.ready_count_.load() > 0 || house_.stopping_.load() || house_.trims_.load() != trims_;
  });
  house_.sleepers_.fetch_sub(1);
}

disk_lanes::disk_lanes(unsigned count, sys::kernel& kernel, feeders& copies, status refusal, answer_times* times)
    : count_(count), kernel_(kernel), copies_(copies), times_(times), start_problem_(std::move(refusal)) {}

disk_lanes::~disk_lanes() { stop(); }

void disk_lanes::stop() {
  {
    const std::lock_guard guard(lock_);
    stopping_.store(true);
  }
  alarm_.notify_all();
  for (auto& thread : threads_) thread.join();
  threads_.clear();
}

// Call after stop().
status disk_lanes::rest() {
  stop();
  const std::lock_guard guard(lock_);
  status problem;
  for (const auto& each : lanes_) {
    if (each->is_dead()) {
      problem = failed_ring();
    } else {
      each->close_ring();
    }
  }
  stopping_.store(false);
  if (!lanes_.empty()) started_.store(false);
  return problem;
}

// Starts as many lanes as possible. Returns an error if one cannot start. The list of lanes never changes once there is one, because other
// threads read it.
status disk_lanes::start() {
  // The watcher may be the only thread that finishes copies for these reads, and it may also be the thread that destroys the engine.
  if (auto problem = copies_.ready(); !problem.ok()) return problem;
  lanes_.reserve(count_);
  threads_.reserve(count_);
  if (!lanes_.empty()) {
    start_problem_ = {};
    for (const auto& each : lanes_) {
      if (each->is_dead()) continue;
      if (auto problem = start(*each); !problem.ok()) return problem;
    }
    return threads_.empty() ? died_ : status();
  }
  while (start_problem_.ok() && lanes_.size() < count_) {
    auto made = std::make_unique<lane>(*this, nullptr);
    if (auto problem = start(*made); !problem.ok()) return problem;
    lanes_.push_back(std::move(made));
  }
  return start_problem_;
}

status disk_lanes::start(lane& on) {
  auto ring = kernel_.make_ring(2 * most_depth);
  if (!ring) return ring.error();
  on.set_ring(*std::move(ring));
  try {
    threads_.emplace_back(&lane::loop, &on);
  } catch (const std::system_error& problem) {
    return status::from_errno(problem.code().value(), "starting a disk lane");
  }
  return {};
}

status disk_lanes::available() {
  if (started_.load(std::memory_order_acquire)) {
    if (working_.load() > 0) return {};
    const std::lock_guard guard(lock_);
    return start_problem_.ok() ? died_ : start_problem_;
  }
  const std::lock_guard guard(lock_);
  if (started_.load()) return start_problem_;
  start_problem_ = or_no_memory([&] { return start(); });
  if (!threads_.empty()) start_problem_ = {};  // one ring is enough
  working_.store(static_cast<unsigned>(threads_.size()));
  started_.store(true, std::memory_order_release);
  return start_problem_;
}

void disk_lanes::push(work_list& list, work& first, work& last, std::size_t count) {
  queue_.push(list, first, last, count);
  wake();
}

void disk_lanes::push_ready(ring_task& task) {
  {
    const std::lock_guard guard(ready_lock_);
    ready_.push_back(task);
    ready_count_.fetch_add(1);
  }
  wake();
}

ring_task* disk_lanes::take_ready() {
  if (ready_count_.load() == 0) return nullptr;
  const std::lock_guard guard(ready_lock_);
  ring_task* task = ready_.pop_front();
  if (task != nullptr) ready_count_.fetch_sub(1);
  return task;
}

bool disk_lanes::help(work_list& list) {
  work* item = queue_.take_from(list);
  if (item == nullptr) return false;
  (void)item->run();
  return true;
}

void disk_lanes::release_trimmed() {
  {
    const std::lock_guard guard(lock_);
    trims_.fetch_add(1);
  }
  alarm_.notify_all();
}

void disk_lanes::end_ready(const void* group) {
  ring_task_list taken;
  {
    const std::lock_guard guard(ready_lock_);
    taken = ready_.take_if([&](const ring_task& each) { return each.group == group; });
    ready_count_.fetch_sub(taken.size());
  }
  while (ring_task* each = taken.pop_front()) {
    cancel(*each);
    each->done(*each);
  }
}

void disk_lanes::slab_returned() {
  returns_.fetch_add(1);
  if (refused_.load()) wake();
}

void disk_lanes::wake() {
  if (sleepers_.load() > 0) {
    { const std::lock_guard guard(lock_); }
    alarm_.notify_all();
    return;
  }
  for (const auto& each : lanes_) {
    if (each->interrupt()) return;
  }
}

void disk_lanes::begin(ring_task& task) { static_cast<lane*>(current_lane)->begin(task); }

}  // namespace penstock::staging
