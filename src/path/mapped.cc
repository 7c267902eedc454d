// Reads without CPU copies: pages of the page cache are mapped read-only, registered with the driver, and copied from there by the GPU.
// Registering a GiB takes a thread 20 ms if its pages are in 2 MiB folios, and 50 to 100 ms if they are small. Unregistering takes 8 or 20
// ms (driver 580, H100), so the pages are unregistered later (kept_pages). The path reaches 49 or 21 GB/s at a seventh or a third of the
// staged path's CPU time, and the next read of the same pages runs at link speed without CPU time. While the driver registers pages, it
// lets few other copies start; if there are any, another path transfers the rest of the read. Truncating the file during the read is
// harmless, because registered pages stay pinned. Pages that the user has pinned are copied in the same way. A job uses one thread, which
// mostly sleeps.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "device/owned.hpp"
#include "path/data_path.hpp"
#include "path/kept_pages.hpp"
#include "path/pinned_pages.hpp"
#include "staging/worker.hpp"
#include "sys/thread_clock.hpp"

namespace penstock::path {

extern const declaration declared_mapped;

namespace {

// Registered and unregistered as a unit, at file offsets that are multiples of this size.
constexpr std::uint64_t piece_bytes = std::uint64_t{64} << 20;
// Registering a small range costs as much as copying it (4 MiB pieces reach 14 GB/s, 64 MiB pieces 23).
constexpr std::uint64_t least_bytes = std::uint64_t{1} << 20;
constexpr std::uint64_t least_kept_bytes = std::uint64_t{8} << 20;
// The maximum number of bytes in one read that are registered without being kept.
constexpr std::uint64_t most_passing_bytes = 4 * piece_bytes;
// From pages that are already registered, one job has most_copies copies of this size in flight. Each uses its own stream, so that copies
// on other streams get their turn (staging/feeder.hpp).
constexpr std::uint64_t copied_bytes = std::uint64_t{8} << 20;
constexpr std::size_t most_copies = 2;
// Short compared with the time that the copies in flight take.
constexpr std::chrono::nanoseconds paced_nap = std::chrono::microseconds(100);
constexpr std::uint64_t watched_bytes = std::uint64_t{4} << 20;
constexpr int most_looks = 100;
constexpr const char* too_slow = "registering its pages takes longer than copying them";

// The last file whose pages were slow to register, as small pages are. It is remembered for some seconds, because the staged path serves it
// better unless the request asked to save CPU time. Thread-safe.
class slow_file {
 public:
  // cpu_ns: CPU time to register the bytes. Elapsed time is unsuitable: it also grows while cores are busy, which is when registering is
  // most useful.
  void note(const source::source& file, std::uint64_t bytes, std::int64_t cpu_ns) noexcept {
    constexpr std::int64_t least_bytes_per_us = 12000;
    constexpr std::chrono::seconds stays{5};
    if (bytes < least_kept_bytes || static_cast<std::int64_t>(bytes) * 1000 >= cpu_ns * least_bytes_per_us) return;
    file_.store(name_of(file), std::memory_order_relaxed);
    until_.store((clock::now() + stays).time_since_epoch().count(), std::memory_order_relaxed);
  }
  [[nodiscard]] bool is(const source::source& file) const noexcept {
    return file_.load(std::memory_order_relaxed) == name_of(file) &&
           clock::now().time_since_epoch().count() < until_.load(std::memory_order_relaxed);
  }

 private:
  using clock = std::chrono::steady_clock;
  // If two files share a key, one of them is copied unnecessarily.
  static std::uint64_t name_of(const source::source& file) noexcept {
    return (file.facts().device << 40 | file.facts().device >> 24) ^ file.facts().inode;
  }

  std::atomic<std::uint64_t> file_{0};
  std::atomic<std::int64_t> until_{0};  // in ticks of the clock
};

class mapped final : public data_path {
 public:
  explicit mapped(const services& with) : pinned_(with.pinned), kept_(with.kept), ended_requests_(with.ended_requests) {}

  [[nodiscard]] const declaration& declared() const override { return declared_mapped; }

  [[nodiscard]] std::optional<std::string> refuses(const question& asked) override {
    if (asked.is_write) return "only reads can be mapped: the driver refuses writable file mappings";
    if (!asked.memory->on_device()) return "host memory needs no mapping";
    if (asked.file->descriptors().cached < 0) return "the file has no descriptor that uses the page cache";
    if (asked.length < least_bytes) return "registering so few pages costs more than copying them";
    if (pinned_ == nullptr) return "registered pages are not tracked";
    if (!asked.spares_cpu && !asked.memory->emulated() && slow_.is(*asked.file)) return std::string(too_slow);
    return std::nullopt;
  }

  bool run(job& item) override {
    const auto size = reach_of(item);
    if (!size) {
      item.owner->finished(item, 0, size.error().with_context("mapped"));
      return true;
    }
    auto reach = *size;
    status stop;
    item.moved = 0;
    const auto refusal = with_line(item.place.via->session(), [&](line& on) { return passage(*this, on, item).carry(reach, stop); });
    ended_jobs_.fetch_add(1, std::memory_order_relaxed);
    if (!refusal.ok()) {
      hand_over(item, refusal, reach - item.moved);
    } else if (stop.ok() && item.moved < item.length) {
      end_short(item);
    } else {
      item.owner->finished(item, item.moved, std::move(stop));
    }
    return true;
  }

 private:
  // All copies into a device context take turns on the same streams. Each job records its own events on them.
  using streams = std::array<device::owned_stream, most_copies>;
  struct line {
    device::session* session = nullptr;
    const streams* on = nullptr;
    std::array<device::owned_event, most_copies> arrived;
  };

  // The file may contain bytes past the size that the kernel reports. If it does, the next path continues reading.
  static void end_short(job& item) {
    const auto ended = item.file->ends_at(item.offset + item.moved);
    if (ended && *ended) {
      item.owner->finished(item, item.moved, {});
    } else {
      const status why = ended ? status(errc::unsupported, "the file continues past the size that the kernel reports") : ended.error();
      hand_over(item, why, item.length - item.moved);
    }
  }

  // bytes: the number to read next.
  static void hand_over(job& item, const status& why, std::uint64_t bytes) {
    auto told = why.with_context(fmt::format("mapped: read {} at {} of {}", bytes, item.offset + item.moved, item.file->name()));
    item.owner->hand_over(item, std::move(told));
  }

  std::shared_ptr<pinned_pages::pages> pinned_at(source::source& file, std::uint64_t offset, std::uint64_t length) {
    return pinned_ == nullptr || pinned_->empty() ? nullptr : pinned_->find_whole(file, offset, length);
  }

  // Returns how many bytes of the job are within the file's reported size. Pages past it cannot be registered.
  result<std::uint64_t> reach_of(const job& item) {
    const auto size = item.file->size();
    if (!size) return size.error();
    return *size > item.offset ? std::min(item.length, *size - item.offset) : 0;
  }

  // Call with spare_lock_ held.
  result<line> make_line(device::session& session) {
    auto& on = streams_[&session];
    for (auto& stream : on) {
      if (stream) continue;
      auto made = device::owned_stream::make(session);
      if (!made) return made.error();
      stream = *std::move(made);
    }
    line added{&session, &on, {}};
    for (auto& each : added.arrived) {
      auto made = device::owned_event::make(session);
      if (!made) return made.error();
      each = *std::move(made);
    }
    return added;
  }

  // Takes a line for one job. with_line() later returns it to the spare ones.
  result<line> take_line(device::session& session) {
    const std::lock_guard guard(spare_lock_);
    const auto spare = std::find_if(spare_lines_.begin(), spare_lines_.end(), [&](const line& each) { return each.session == &session; });
    if (spare != spare_lines_.end()) {
      line taken = std::move(*spare);
      spare_lines_.erase(spare);
      return taken;
    }
    spare_lines_.reserve(lines_made_ + 1);
    auto made = make_line(session);
    if (made) ++lines_made_;
    return made;
  }

  // Calls use(line) with a line that no other job uses during the call.
  template <class Use>
  status with_line(device::session& session, Use use) {
    auto line = take_line(session);
    if (!line) return line.error();
    auto outcome = use(*line);
    const std::lock_guard guard(spare_lock_);
    spare_lines_.push_back(*std::move(line));  // has capacity for all lines
    return outcome;
  }

  // The state of one job. It registers one piece after another, unless they are already registered, while the copies of earlier pieces
  // continue.
  class passage {
   public:
    passage(mapped& of, line& on, job& item) noexcept : of_(of), on_(on), item_(item), occupies_(*item.place.via) {
      of_.running_.fetch_add(1, std::memory_order_relaxed);
    }
    passage(const passage&) = delete;
    passage& operator=(const passage&) = delete;
    ~passage() {
      if (!held_.empty()) synchronize();  // copies may still be queued if memory ran out
      of_.running_.fetch_sub(1, std::memory_order_relaxed);
    }

    // Transfers the job and counts the bytes that have arrived in item.moved. reach: bytes of the job that the file contains. It is reduced
    // if the file was truncated, which is not a failure. stop: why the owner stopped the job. Returns why the path cannot transfer the
    // rest.
    status carry(std::uint64_t& reach, status& stop) {
      for (;;) {
        auto refusal = carry_to(reach, stop);
        if (refusal.ok()) return refusal;
        if (std::exchange(dropped_kept_, false)) {
          finds_ = false;  // the file may change again
          continue;
        }
        const auto now = of_.reach_of(item_);
        if (!now || *now >= reach) return refusal;
        reach = std::max(*now, item_.moved);
      }
    }

   private:
    status carry_to(std::uint64_t reach, status& stop) {
      status refusal;
      queued_ = item_.moved;
      while (refusal.ok() && queued_ < reach) {
        stop = item_.owner->stopped();
        if (!stop.ok()) break;
        const std::uint64_t at = item_.offset + queued_;
        const std::uint64_t bytes = std::min(piece_bytes - at % piece_bytes, reach - queued_);
        refusal = send(at, bytes);
        if (!refusal.ok()) break;
        queued_ += bytes;
        if (passing_bytes_ >= most_passing_bytes) refusal = arrive();
      }
      auto arrived = arrive();
      return refusal.ok() ? arrived : refusal;
    }

    status send(std::uint64_t offset, std::uint64_t bytes) {
      auto found = find(offset, bytes);
      if (found == nullptr && gave_up_pinned_ && !item_.is_forced) return {errc::unsupported, "it is no longer pinned"};
      const bool is_registered = found != nullptr;
      if (!is_registered) {
        auto made = register_pages(offset, bytes);
        if (!made) return made.error();
        found = *std::move(made);
      }
      held_.push_back(std::move(found));  // also on failure, because a part may have been queued
      return queue(item_.memory + queued_, held_.back()->at(offset), bytes, is_registered);
    }

    // Returns pages of the range that are already registered and valid. The file is checked before and after the copy.
    std::shared_ptr<pinned_pages::pages> find(std::uint64_t offset, std::uint64_t bytes) {
      auto pages = finds_ ? of_.pinned_at(*item_.file, offset, bytes) : nullptr;
      if (pages == nullptr) {
        gave_up_pinned_ = gave_up_pinned_ || item_.way == way::pinned;
        return nullptr;
      }
      auto usable = pages->check(*item_.file);
      if (usable.ok()) usable = pages->register_for({on_.session, item_.place.emulated()});
      if (!usable.ok()) {
        drop(*pages, usable);
        return nullptr;
      }
      pages->note_use();
      found_.push_back(pages);
      return pages;
    }

    void drop(pinned_pages::pages& gone, const status& why) {
      (gone.is_pinned() ? gave_up_pinned_ : dropped_kept_) = true;
      of_.pinned_->drop(gone, why);
    }

    result<std::shared_ptr<pinned_pages::pages>> register_pages(std::uint64_t offset, std::uint64_t bytes) {
      if (may_give_up() && of_.slow_.is(*item_.file)) return status(errc::unsupported, too_slow);
      if (!item_.is_forced && others_copy()) return status(errc::unsupported, "registering more of it would delay other copies");
      // One piece at a time in the process, because the driver registers pieces sequentially, and threads that wait for it waste CPU time.
      const std::lock_guard one_at_a_time(of_.busy_);
      if (auto meanwhile = find(offset, bytes); meanwhile != nullptr) return meanwhile;
      const auto began = sys::thread_cpu_ns();
      auto made = of_.pinned_->make(*item_.file, offset, bytes, {on_.session, item_.place.emulated()});
      if (!made) return made.error();
      of_.slow_.note(*item_.file, bytes, sys::thread_cpu_ns() - began);
      if (!made->lasting || !keep(made->held, offset, bytes)) passing_bytes_ += bytes;
      return std::move(made->held);
    }

    // The host device registers nothing, so its speed is not meaningful.
    [[nodiscard]] bool may_give_up() const { return !item_.is_forced && !item_.spares_cpu && !item_.place.emulated(); }

    // Does not keep a range that overlaps kept pages, because those would be kept twice.
    bool keep(const std::shared_ptr<pinned_pages::pages>& made, std::uint64_t offset, std::uint64_t bytes) {
      if (of_.kept_ == nullptr || bytes < least_kept_bytes) return false;
      return of_.pinned_->find(*item_.file, offset, bytes).length == 0 && of_.kept_->keep(made);
    }

    // Sleeps briefly, so that copies delayed by the driver can continue, and then checks whether other requests have completed.
    [[nodiscard]] bool others_copy() {
      if (queued_ == 0 && item_.length < piece_bytes) return false;
      if (item_.place.via->feeder().pending() > 0) return true;
      staging::nap();
      return of_.others_ended() > others_at_start_;
    }

    void synchronize() noexcept {
      for (const auto& each : *on_.on) (void)on_.session->synchronize(each.get());
    }

    // is_registered: there is nothing to do except copies, so few are in flight at a time. Otherwise, the copies of a piece complete while
    // the next piece is registered.
    status queue(std::byte* target, const std::byte* source, std::uint64_t bytes, bool is_registered) {
      for (std::uint64_t at = 0; at < bytes; at += copied_bytes) {
        const auto& arrived = on_.arrived[copies_ % most_copies];
        const auto stream = (*on_.on)[copies_ % most_copies].get();
        if ((is_registered || at == 0) && unwaited_ >= most_copies) {
          if (auto problem = wait(arrived, copied_bytes, paced_nap); !problem.ok()) return problem;
        }
        is_unrecorded_ = true;
        auto queued = on_.session->copy(target + at, source + at, std::min(copied_bytes, bytes - at), stream);
        if (queued.ok()) queued = on_.session->record(arrived.get(), stream);
        if (!queued.ok()) return queued;
        is_unrecorded_ = false;
        ++copies_;
        ++unwaited_;
      }
      return {};
    }

    // Waits for all queued copies, then releases their pages.
    status arrive() {
      if (held_.empty()) return {};
      status outcome;
      for (auto i = std::min(std::exchange(unwaited_, 0), most_copies); i > 0 && outcome.ok(); --i) {
        outcome = wait(on_.arrived[(copies_ - i) % most_copies], queued_ - item_.moved, {});
      }
      // Even after a failure, the pages must outlive the copies.
      if (!outcome.ok() || std::exchange(is_unrecorded_, false)) synchronize();
      if (outcome.ok()) outcome = check_found();
      found_.clear();
      held_.clear();
      passing_bytes_ = 0;
      if (outcome.ok()) item_.moved = queued_;
      return outcome;
    }

    // Checks that the copied bytes match the file. Drops the pages if the file has changed, but not if a copy failed.
    status check_found() {
      status problem;
      for (const auto& each : found_) {
        if (problem.ok()) problem = each->check(*item_.file);
        if (!problem.ok()) drop(*each, problem);
      }
      return problem;
    }

    status wait(const device::owned_event& arrived, std::uint64_t bytes, std::chrono::nanoseconds least_nap) {
      const auto began = std::chrono::steady_clock::now();
      // Sleeps instead of waiting for an interrupt, which arrives late (21 GB/s; sleeping 24, at the same CPU time). Short copies complete
      // faster than a sleep.
      int looks = bytes <= watched_bytes ? most_looks : 0;
      for (;;) {
        const auto reached = on_.session->reached(arrived.get());
        if (!reached || *reached) return reached.error();
        // The longer the copy takes, and the more jobs take turns on the link, the longer this sleeps. A sleep costs about 10 us of CPU
        // time, and may end 10 us late.
        const auto turns_of_others = (of_.running_.load(std::memory_order_relaxed) - 1) * paced_nap;
        const auto so_far = std::chrono::steady_clock::now() - began;
        looks-- > 0 ? staging::relax() : staging::nap(std::max(least_nap + turns_of_others, so_far / 32));
      }
    }

    mapped& of_;
    line& on_;
    job& item_;
    const staging::link::occupation occupies_;
    std::uint64_t queued_ = 0;
    std::uint64_t passing_bytes_ = 0;  // held pages that are not kept
    const std::int64_t others_at_start_ = of_.others_ended();
    std::size_t copies_ = 0;
    std::size_t unwaited_ = 0;     // copies since the last arrival
    bool gave_up_pinned_ = false;  // gave up using pages that a user has pinned
    bool dropped_kept_ = false;    // dropped other kept pages
    bool finds_ = true;
    bool is_unrecorded_ = false;  // a copy was queued without an event after it
    std::vector<std::shared_ptr<pinned_pages::pages>> held_;
    std::vector<std::shared_ptr<pinned_pages::pages>> found_;  // the held pages that were already registered
  };

  // Returns the number of completed requests, excluding those transferred by this path.
  [[nodiscard]] std::int64_t others_ended() const {
    const auto all = ended_requests_ != nullptr ? ended_requests_() : 0;
    return static_cast<std::int64_t>(all) - ended_jobs_.load(std::memory_order_relaxed);
  }

  pinned_pages* const pinned_;
  kept_pages* const kept_;
  const std::function<std::uint64_t()> ended_requests_;
  std::atomic<std::int64_t> ended_jobs_{0};
  std::atomic<int> running_{0};
  slow_file slow_;
  std::mutex busy_;        // allows one registration at a time
  std::mutex spare_lock_;  // guards the members below
  std::vector<line> spare_lines_;
  std::size_t lines_made_ = 0;
  std::map<device::session*, streams> streams_;  // used by the lines
};

}  // namespace

constinit const declaration declared_mapped{
    .name = "mapped",
    .rank = 20,
    .successor = "staged",
    .carries = portion::cached_ranges,
    .reason = "in the page cache: the GPU copies it from there, which saves CPU time",
    .make = [](const services& with) -> std::unique_ptr<data_path> { return std::make_unique<mapped>(with); },
};

}  // namespace penstock::path
