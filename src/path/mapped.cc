// Reads with no CPU copy: pages of the page cache are mapped read-only, registered with the driver and copied from where they are by the
// GPU. Registering a GiB takes a thread 20 ms where its pages lie in folios of 2 MiB and 50 to 100 where they are small, undoing it 8 or 20
// (driver 580, H100), so it is undone later (kept_pages): 49 or 21 GB/s at a seventh or a third of the CPU time of staged, and the next
// read of the same pages runs at the speed of the link for no CPU time. While it registers, the driver lets few copies of others begin:
// where there are some, the rest of a read goes on without it. A file truncated in the meantime is harmless: registered pages stay pinned.
// What the user has pinned is copied from where it is, too. A job takes one thread, which sleeps most of the time.
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

// Registered and undone at once, at multiples of it in the file.
constexpr std::uint64_t piece_bytes = std::uint64_t{64} << 20;
// Registering a small range costs as much as copying it (4 MiB pieces reach 14 GB/s, 64 MiB pieces 23).
constexpr std::uint64_t least_bytes = std::uint64_t{1} << 20;
constexpr std::uint64_t least_kept_bytes = std::uint64_t{8} << 20;
// Of one read, that is not kept.
constexpr std::uint64_t most_passing_bytes = 4 * piece_bytes;
// Of what is registered already so many copies of one job are under way, each on a stream of its own, of so many bytes each: so copies of
// other streams get their turn (staging/feeder.hpp).
constexpr std::uint64_t copied_bytes = std::uint64_t{8} << 20;
constexpr std::size_t most_copies = 2;
// Of the time that the copies still under way take.
constexpr std::chrono::nanoseconds paced_nap = std::chrono::microseconds(100);
constexpr std::uint64_t watched_bytes = std::uint64_t{4} << 20;
constexpr int most_looks = 100;
constexpr const char* too_slow = "registering its pages takes longer than copying them";

// The file whose pages were registered slowly, as small ones are: whoever did not ask for CPU time to be spared is served better by copying
// them. Only the last such file is known, and for some seconds. Thread-safe.
class slow_file {
 public:
  // cpu_ns: CPU time that registering so many bytes took. By the clock it takes longer, too, where cores are busy, and is worth it most.
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
  // Of two files that share it one is copied that need not be.
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
    if (!asked.memory->on_device()) return "the memory is the host's, which needs no mapping";
    if (asked.file->descriptors().cached < 0) return "no descriptor leads to its pages in the page cache";
    if (asked.length < least_bytes) return "registering so few pages costs more than copying them";
    if (pinned_ == nullptr) return "nobody notes what is registered";
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
  // All copies into a device context take turns on the same streams. What one job uses at a time are events on them.
  using streams = std::array<device::owned_stream, most_copies>;
  struct line {
    device::session* session = nullptr;
    const streams* on = nullptr;
    std::array<device::owned_event, most_copies> arrived;
  };

  // What lies beyond the size that the kernel states need not be the end; if not, the next path reads on.
  static void end_short(job& item) {
    const auto ended = item.file->ends_at(item.offset + item.moved);
    if (ended && *ended) {
      item.owner->finished(item, item.moved, {});
    } else {
      const status why = ended ? status(errc::unsupported, "the file goes on past the size that the kernel states") : ended.error();
      hand_over(item, why, item.length - item.moved);
    }
  }

  // bytes: that were to be read next.
  static void hand_over(job& item, const status& why, std::uint64_t bytes) {
    auto told = why.with_context(fmt::format("mapped: read {} at {} of {}", bytes, item.offset + item.moved, item.file->name()));
    item.owner->hand_over(item, std::move(told));
  }

  std::shared_ptr<pinned_pages::pages> pinned_at(source::source& file, std::uint64_t offset, std::uint64_t length) {
    return pinned_ == nullptr || pinned_->empty() ? nullptr : pinned_->find_whole(file, offset, length);
  }

  // Bytes of the job that the file has, by its stated size: pages past that cannot be registered.
  result<std::uint64_t> reach_of(const job& item) {
    const auto size = item.file->size();
    if (!size) return size.error();
    return *size > item.offset ? std::min(item.length, *size - item.offset) : 0;
  }

  // Under spare_lock_.
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

  // For one job; then it goes to the spare ones.
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

  // use(line), which nobody else has meanwhile.
  template <class Use>
  status with_line(device::session& session, Use use) {
    auto line = take_line(session);
    if (!line) return line.error();
    auto outcome = use(*line);
    const std::lock_guard guard(spare_lock_);
    spare_lines_.push_back(*std::move(line));  // has room for all that were made
    return outcome;
  }

  // What one job does: it registers piece after piece, unless they are, while the copies of those before go on.
  class passage {
   public:
    passage(mapped& of, line& on, job& item) noexcept : of_(of), on_(on), item_(item), occupies_(*item.place.via) {}
    passage(const passage&) = delete;
    passage& operator=(const passage&) = delete;
    ~passage() {
      if (!held_.empty()) synchronize();  // where memory ran out
    }

    // item.moved is what has arrived. reach: bytes of the job that the file has; fewer where it has become shorter meanwhile, which is
    // no failure. stop: why the owner wants no more. Returns why the path can carry no more of it.
    status carry(std::uint64_t& reach, status& stop) {
      for (;;) {
        auto refusal = carry_to(reach, stop);
        if (refusal.ok()) return refusal;
        if (std::exchange(dropped_kept_, false)) {
          finds_ = false;  // whoever changes the file may do so again
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
      if (found == nullptr && gave_up_pinned_ && !item_.is_forced) return {errc::unsupported, "it is not pinned any more"};
      const bool is_registered = found != nullptr;
      if (!is_registered) {
        auto made = register_pages(offset, bytes);
        if (!made) return made.error();
        found = *std::move(made);
      }
      held_.push_back(std::move(found));  // whatever becomes of it: some of it may have been queued
      return queue(item_.memory + queued_, held_.back()->at(offset), bytes, is_registered);
    }

    // What is registered of it already, and good: the file is looked at before and after it is copied.
    std::shared_ptr<pinned_pages::pages> find(std::uint64_t offset, std::uint64_t bytes) {
      auto pages = finds_ ? of_.pinned_at(*item_.file, offset, bytes) : nullptr;
      if (pages == nullptr) {
        gave_up_pinned_ = gave_up_pinned_ || item_.registered;
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
      if (!item_.is_forced && others_copy()) return status(errc::unsupported, "registering more of it would hold up the copies of others");
      // One piece at a time in the process: the driver registers one after the other, and burns CPU time in those that wait.
      const std::lock_guard one_at_a_time(of_.busy_);
      if (auto meanwhile = find(offset, bytes); meanwhile != nullptr) return meanwhile;
      const auto began = sys::thread_cpu_ns();
      auto made = of_.pinned_->make(*item_.file, offset, bytes, {on_.session, item_.place.emulated()});
      if (!made) return made.error();
      of_.slow_.note(*item_.file, bytes, sys::thread_cpu_ns() - began);
      if (!made->lasting || !keep(made->held, offset, bytes)) passing_bytes_ += bytes;
      return std::move(made->held);
    }

    // The host device registers nothing, so its pace says nothing.
    [[nodiscard]] bool may_give_up() const { return !item_.is_forced && !item_.spares_cpu && !item_.place.emulated(); }

    // What overlaps something that is kept would be kept twice.
    bool keep(const std::shared_ptr<pinned_pages::pages>& made, std::uint64_t offset, std::uint64_t bytes) {
      if (of_.kept_ == nullptr || bytes < least_kept_bytes) return false;
      return of_.pinned_->find(*item_.file, offset, bytes).length == 0 && of_.kept_->keep(made);
    }

    // A nap, in which what the driver held up goes on, shows whether requests of others end.
    [[nodiscard]] bool others_copy() {
      if (queued_ == 0 && item_.length < piece_bytes) return false;
      if (item_.place.via->feeder().pending() > 0) return true;
      staging::nap();
      return of_.others_ended() > others_at_start_;
    }

    void synchronize() noexcept {
      for (const auto& each : *on_.on) (void)on_.session->synchronize(each.get());
    }

    // is_registered: nothing but copies is to be done, so few are under way at a time. Else those of a piece end while the next is
    // registered.
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

    // All that was sent, after which nothing of it is held.
    status arrive() {
      if (held_.empty()) return {};
      status outcome;
      for (auto i = std::min(std::exchange(unwaited_, 0), most_copies); i > 0 && outcome.ok(); --i) {
        outcome = wait(on_.arrived[(copies_ - i) % most_copies], queued_ - item_.moved, {});
      }
      // The pages may not go before the copies have ended, however that failed.
      if (!outcome.ok() || std::exchange(is_unrecorded_, false)) synchronize();
      if (outcome.ok()) outcome = check_found();
      found_.clear();
      held_.clear();
      passing_bytes_ = 0;
      if (outcome.ok()) item_.moved = queued_;
      return outcome;
    }

    // Whether what was copied from them is what the file holds. They are given up where it has changed, and not where a copy failed.
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
      // Naps: an interrupt would come late (21 GB/s; napping 24, at the same CPU time). What is short is over sooner than a nap.
      int looks = bytes <= watched_bytes ? most_looks : 0;
      for (;;) {
        const auto reached = on_.session->reached(arrived.get());
        if (!reached || *reached) return reached.error();
        // Longer ones the longer it takes: a nap costs about 10 us of CPU time, and may end so much late.
        looks-- > 0 ? staging::relax() : staging::nap(std::max(least_nap, (std::chrono::steady_clock::now() - began) / 32));
      }
    }

    mapped& of_;
    line& on_;
    job& item_;
    const staging::link::occupation occupies_;
    std::uint64_t queued_ = 0;
    std::uint64_t passing_bytes_ = 0;  // of those held, that are not kept
    const std::int64_t others_at_start_ = of_.others_ended();
    std::size_t copies_ = 0;
    std::size_t unwaited_ = 0;     // of these, since the last arrival
    bool gave_up_pinned_ = false;  // of what a user has pinned
    bool dropped_kept_ = false;    // of the rest
    bool finds_ = true;
    bool is_unrecorded_ = false;  // a copy that no event stands behind
    std::vector<std::shared_ptr<pinned_pages::pages>> held_;
    std::vector<std::shared_ptr<pinned_pages::pages>> found_;  // of these, what was registered before
  };

  // Requests that have ended, but for those that came here.
  [[nodiscard]] std::int64_t others_ended() const {
    const auto all = ended_requests_ != nullptr ? ended_requests_() : 0;
    return static_cast<std::int64_t>(all) - ended_jobs_.load(std::memory_order_relaxed);
  }

  pinned_pages* const pinned_;
  kept_pages* const kept_;
  const std::function<std::uint64_t()> ended_requests_;
  std::atomic<std::int64_t> ended_jobs_{0};
  slow_file slow_;
  std::mutex busy_;        // keeps registrations apart
  std::mutex spare_lock_;  // guards what follows
  std::vector<line> spare_lines_;
  std::size_t lines_made_ = 0;
  std::map<device::session*, streams> streams_;  // that lines use
};

}  // namespace

constinit const declaration declared_mapped{
    .name = "mapped",
    .rank = 20,
    .successor = "staged",
    .carries = portion::cached_ranges,
    .reason = "in the page cache, and CPU time is to be saved: the GPU copies it from there",
    .make = [](const services& with) -> std::unique_ptr<data_path> { return std::make_unique<mapped>(with); },
};

}  // namespace penstock::path
