#include "stats/board.hpp"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "penstock/version.hpp"
#include "staging/worker.hpp"
#include "sys/process_identity.hpp"

namespace penstock::stats {

namespace {

// All boards of the process; tests have several. A fork takes the lock, so that no child finds it locked. The only blocking operation under
// it is creating the shared memory file.
std::mutex boards_lock;        // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): see above
board* first_board = nullptr;  // NOLINT(cppcoreguidelines-avoid-non-const-global-variables): see above

void add(counter& to, const counter& from) noexcept { to.fetch_add(from.load(relaxed), relaxed); }

void add_path(board_layout::path_counters& to, const board_layout::path_counters& from) noexcept {
  add(to.operations, from.operations);
  add(to.read_bytes, from.read_bytes);
  add(to.written_bytes, from.written_bytes);
  add(to.errors, from.errors);
  add(to.fallbacks, from.fallbacks);
  add(to.busy_ns, from.busy_ns);
  add(to.active_ns, from.active_ns);
  for (std::size_t i = 0; i < to.sizes.size(); ++i) {
    add(to.sizes[i], from.sizes[i]);
    add(to.latencies[i], from.latencies[i]);
  }
  const auto name = from.name.get();
  if (name != to.name.get()) to.name.set(name);
  if (from.last_fallback.changes.load(relaxed) > 0) to.last_fallback.set(from.last_fallback.get());
}

// Engines keep channels in different orders. If there is no slot left, counts are added to the last one.
void add_channel(board_layout::engine_section& to, const board_layout::channel_counters& from) noexcept {
  const auto name = from.name.get();
  if (name.empty()) return;
  auto place = std::find_if(to.channels.begin(), to.channels.end() - 1, [&](const auto& each) {
    const auto known = each.name.get();
    return known.empty() || known == name;
  });
  if (place->name.get().empty()) place->name.set(name);
  add(place->sent_tensors, from.sent_tensors);
  add(place->sent_bytes, from.sent_bytes);
  add(place->received_tensors, from.received_tensors);
  add(place->received_bytes, from.received_bytes);
  add(place->pushed_tensors, from.pushed_tensors);
}

void add_to_ended(board_layout::engine_section& to, const board_layout::engine_section& from) noexcept {
  add(to.failed, from.failed);
  add(to.cancelled, from.cancelled);
  add(to.timed_out, from.timed_out);
  add(to.pinned_file_drops, from.pinned_file_drops);
  const auto peak = from.pinned_peak_bytes.load(relaxed);
  if (peak > to.pinned_peak_bytes.load(relaxed)) to.pinned_peak_bytes.store(peak, relaxed);
  for (std::size_t i = 0; i < to.paths.size(); ++i) add_path(to.paths[i], from.paths[i]);
  for (std::size_t i = 0; i < to.devices.size(); ++i) {
    add(to.devices[i].reads, from.devices[i].reads);
    add(to.devices[i].writes, from.devices[i].writes);
    add(to.devices[i].read_bytes, from.devices[i].read_bytes);
    add(to.devices[i].written_bytes, from.devices[i].written_bytes);
  }
  for (std::size_t i = 0; i < to.usage.each.size(); ++i) add(to.usage.each[i], from.usage.each[i]);
  for (const auto& each : from.channels) add_channel(to, each);
  if (const auto lanes = from.usage.lanes.load(relaxed); lanes > 0) to.usage.lanes.store(lanes, relaxed);
}

// Copies whole words, which other threads may be counting in.
void copy_counters(std::byte* to, std::byte* from, std::size_t bytes) noexcept {
  using word = std::uint64_t;
  for (std::size_t at = 0; at + sizeof(word) <= bytes; at += sizeof(word)) {
    const auto value = std::atomic_ref(*reinterpret_cast<word*>(from + at)).load(relaxed);
    std::memcpy(to + at, &value, sizeof value);
  }
}
static_assert(sizeof(board_layout::page) % sizeof(std::uint64_t) == 0);

}  // namespace

std::size_t device_index(bool known, bool on_device, bool emulated, int ordinal) noexcept {
  if (!known) return 0;
  if (!on_device) return 1;
  if (emulated) return 2;
  return std::min<std::size_t>(3 + static_cast<std::size_t>(std::max(ordinal, 0)), board_layout::most_devices - 1);
}

std::string device_name_at(std::size_t index) {
  return index == 0 ? "" : index == 1 ? "host" : index == 2 ? "host:0" : fmt::format("cuda:{}", index - 3);
}

board::board(std::shared_ptr<sys::board_folder> folder) : folder_(std::move(folder)) {
  static const int watched = pthread_atfork(&before_fork, &after_fork_in_parent, &after_fork_in_child);
  (void)watched;  // if that fails, a child's counts are added to its parent's board
  const std::lock_guard guard(boards_lock);
  next_ = std::exchange(first_board, this);
}

board::~board() {
  std::thread ended;
  {
    const std::lock_guard guard(boards_lock);
    auto** at = &first_board;
    while (*at != this) at = &(*at)->next_;
    *at = next_;
    ended = end_answering();
    if (page_ != nullptr) folder_->remove();
  }
  if (ended.joinable()) ended.join();
}

std::shared_ptr<board> board::of_process() {
  // Never destroyed, because engines in static objects keep counting until the very end.
  static auto* const own = [] {
    auto* made = new std::shared_ptr<board>(std::make_shared<board>(sys::make_board_folder()));
    (void)std::atexit([] { of_process()->close(); });
    return made;
  }();
  return *own;
}

void board::close() noexcept {
  const std::lock_guard guard(boards_lock);
  if (page_ != nullptr) folder_->remove();
}

// --- join and leave

status board::open() {
  const auto self = sys::identify_own_process();
  if (!self) return self.error();
  if (const auto others = folder_->list(); others.ok()) {  // each process that creates a board cleans up
    std::vector<int> gone;
    for (const int pid : *others) {
      std::array<std::byte, sizeof(board_layout::head)> bytes{};
      board_layout::head head;
      const auto count = folder_->read_start(pid, bytes);
      std::memcpy(&head, bytes.data(), sizeof head);
      const bool elsewhere =
          count.ok() && *count == sizeof head && head.magic == board_layout::magic && head.namespace_inode != self->namespace_inode;
      const auto now = sys::identify_process(pid);
      const bool is_gone = !elsewhere && (now.error().code() == errc::not_found ||
                                          (now.ok() && head.magic == board_layout::magic && head.start_ticks != now->start_ticks));
      if (!is_gone || pid == self->pid) continue;
      folder_->note_gone(pid);
      gone.push_back(pid);
    }
    folder_->tidy(gone);
  }
  auto made = folder_->make(sizeof(board_layout::page));
  if (!made) return made.error();
  auto* const page = new (made->data()) board_layout::page;
  page->program.set(sys::program_name(self->pid));
  auto& head = page->head;
  head.magic = board_layout::magic;
  head.version = board_layout::layout_version;
  head.pid = self->pid;
  head.size_bytes = sizeof(board_layout::page);
  head.start_ticks = self->start_ticks;
  head.namespace_inode = self->namespace_inode;
  (void)version().copy(head.penstock_version.data(), head.penstock_version.size() - 1);
  if (auto problem = folder_->publish(std::as_bytes(std::span(&head, 1))); !problem.ok()) return problem;
  memory_ = std::move(*made);
  page_ = page;
  return {};
}

void board::rest() noexcept {
  std::thread ended;
  {
    const std::lock_guard guard(boards_lock);
    if (page_ == nullptr || is_resting_ || page_->head.pid != getpid()) return;
    const auto size = memory_.size();
    auto* const own = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (own == MAP_FAILED) return;
    ended = end_answering();
    copy_counters(static_cast<std::byte*>(own), memory_.data(), size);
    is_resting_ = mremap(own, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, memory_.data()) != MAP_FAILED;
    if (is_resting_) {
      folder_->remove();
    } else {
      (void)munmap(own, size);
    }
  }
  if (ended.joinable()) ended.join();
}

void board::wake() noexcept {
  const std::lock_guard guard(boards_lock);
  if (page_ == nullptr || page_->head.pid != getpid()) return;
  share_again();
  if (!members_.empty()) begin_answering();
}

// If no shared memory is available, the counters stay private, and other processes no longer see them. No thread may be answering, because
// it would wait on the page that is replaced here.
void board::share_again() noexcept {
  if (!std::exchange(is_resting_, false)) return;
  (void)or_no_memory([&]() -> status {
    auto made = folder_->make(sizeof(board_layout::page));
    if (!made) return made.error();
    if (const auto self = sys::identify_own_process(); self) page_->head.start_ticks = self->start_ticks;  // new after a restore
    const auto size = memory_.size();
    copy_counters(made->data(), memory_.data(), size);
    if (mremap(made->data(), size, size, MREMAP_MAYMOVE | MREMAP_FIXED, memory_.data()) != MAP_FAILED)
      (void)new (&*made) sys::shared_region;  // it is part of memory_ now
    return folder_->publish(std::as_bytes(std::span(&page_->head, 1)));
  });
}

result<board_layout::engine_section*> board::join(board_teller& engine) {
  const std::lock_guard guard(boards_lock);
  return or_no_memory([&]() -> result<board_layout::engine_section*> {
    if (page_ == nullptr) {
      if (auto problem = open(); !problem.ok()) return problem;
    }
    if (page_->head.pid != getpid()) return status(errc::forked, "the board belongs to the parent process");
    share_again();  // all engines that were put to rest may have been destroyed since
    members_.reserve(members_.size() + 1);
    for (std::size_t i = 1; i < page_->engines.size(); ++i) {
      auto& section = page_->engines[i];
      if (section.used.load(relaxed) != 0) continue;
      begin_answering();
      section.used.store(1, relaxed);
      members_.push_back({&section, &engine});
      return &section;
    }
    return status(errc::unsupported, fmt::format("this process has more than {} engines at a time", board_layout::most_engines));
  });
}

void board::forget(const board_layout::engine_section* section) noexcept {
  const std::lock_guard asking(asking_);
  const std::lock_guard guard(boards_lock);
  for (auto& each : members_) {
    if (each.section == section) each.engine = nullptr;
  }
}

void board::leave(board_layout::engine_section* section) noexcept {
  std::thread ended;
  {
    const std::lock_guard asking(asking_);
    const std::lock_guard guard(boards_lock);
    const auto known = std::find_if(members_.begin(), members_.end(), [&](const member& each) { return each.section == section; });
    if (known == members_.end()) return;  // belongs to one of the parent process's boards
    members_.erase(known);
    page_->changes.fetch_add(1, relaxed);
    std::atomic_thread_fence(std::memory_order_release);  // on ARM, later stores may be reordered before a fetch_add, whatever its memory
                                                          // order
    add_to_ended(page_->engines[0], *section);
    section->~engine_section();
    new (section) board_layout::engine_section;
    page_->changes.fetch_add(1, std::memory_order_release);
    if (members_.empty()) ended = end_answering();
  }
  if (!ended.joinable()) return;
  // An object listed in an answer may have been the last to keep the engine alive.
  ended.get_id() == std::this_thread::get_id() ? ended.detach() : ended.join();
}

// --- answers

// If no thread can be started, readers do not get the table.
void board::begin_answering() {
  if (thread_ != nullptr) return;
  try {
    const auto number = thread_number_.load(relaxed);
    thread_ = std::make_unique<std::thread>([self = shared_from_this(), page = page_, number] {
      staging::become_worker("penstock-board");
      auto seen = page->asked.load(std::memory_order_acquire);
      while (self->thread_number_.load(std::memory_order_acquire) == number) {
        sys::sleep_on_shared(page->asked, seen);
        const auto now = page->asked.load(std::memory_order_acquire);
        if (now == seen || self->thread_number_.load(std::memory_order_acquire) != number) continue;
        seen = now;
        self->answer(*page);
        page->answered.store(now, std::memory_order_release);
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // limits a reader that sends requests continuously
      }
    });
  } catch (const std::exception&) {  // system_error or bad_alloc
    thread_.reset();
  }
}

std::thread board::end_answering() noexcept {
  if (thread_ == nullptr) return {};
  thread_number_.fetch_add(1, std::memory_order_release);
  page_->asked.fetch_add(1, std::memory_order_release);
  sys::wake_shared(page_->asked);
  auto ended = std::move(*thread_);
  thread_.reset();
  return ended;
}

board_teller* board::teller_of(const board_layout::engine_section* section) noexcept {
  const std::lock_guard guard(boards_lock);
  const auto known = std::find_if(members_.begin(), members_.end(), [&](const member& each) { return each.section == section; });
  return known == members_.end() ? nullptr : known->engine;
}

void board::answer(board_layout::page& page) {
  (void)or_no_memory([&]() -> status {
    const std::lock_guard asking(asking_);
    std::vector<board_layout::engine_section*> sections;
    {
      const std::lock_guard guard(boards_lock);
      sections.reserve(members_.size());
      for (const auto& each : members_) sections.push_back(each.section);
    }
    std::size_t shown = 0;
    std::uint64_t not_shown = 0;
    for (auto* const section : sections) {
      auto* const engine = teller_of(section);
      if (engine == nullptr) continue;
      const auto told = engine->tell();
      if (teller_of(section) == nullptr) continue;  // its answer destroyed the engine
      section->pinned_bytes.store(told.pinned_bytes, relaxed);
      section->pinned_peak_bytes.store(told.pinned_peak_bytes, relaxed);
      section->pinned_file_bytes.store(told.pinned_file_bytes, relaxed);
      section->pinned_file_drops.store(told.pinned_file_drops, relaxed);
      for (const auto& each : told.requests) {
        if (shown == page.requests.size()) {
          ++not_shown;
          continue;
        }
        auto& line = page.requests[shown++];
        line.file.set(std::string_view(each.file).substr(each.file.size() - std::min<std::size_t>(each.file.size(), 120)));
        line.offset.store(static_cast<std::uint64_t>(each.offset), relaxed);
        line.length.store(each.length, relaxed);
        line.since_ns.store(static_cast<std::uint64_t>(each.since_ns), relaxed);
        line.is_write.store(each.is_write ? 1 : 0, relaxed);
        line.of_pipe.store(each.of_pipe ? 1 : 0, relaxed);
        line.is_background.store(each.priority == request_priority::background ? 1 : 0, relaxed);
        line.device.set(each.device);
      }
    }
    page.request_count.store(static_cast<std::uint32_t>(shown), relaxed);
    page.requests_not_shown.store(not_shown, relaxed);
    return {};
  });
}

// --- fork

void board::before_fork() { boards_lock.lock(); }
void board::after_fork_in_parent() { boards_lock.unlock(); }

// The child's copies of engines continue to count in private memory. New engines in the child create their own board.
void board::after_fork_in_child() {
  for (auto* each = first_board; each != nullptr; each = each->next_) {
    if (each->page_ == nullptr) continue;
    auto* own = mmap(each->memory_.data(), each->memory_.size(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    if (own == MAP_FAILED) std::abort();  // otherwise the child would count on its parent's board
    new (&each->memory_) sys::shared_region;
    each->page_ = nullptr;
    each->is_resting_ = false;
    if (!each->members_.empty()) new (&each->members_) std::vector<member>;  // their memory belongs to the parent
    (void)each->thread_.release();                                           // the thread is not in this process
    new (&each->asking_) std::recursive_mutex;                               // that thread may hold the lock
  }
  boards_lock.unlock();
}

}  // namespace penstock::stats
