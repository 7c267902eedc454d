// Reads with no CPU copy: pages of the page cache are mapped read-only, registered with the driver and copied from where they are
// by the GPU. Half the speed of staged at a fifth of its CPU time, so it is for machines with few cores and for prefer = cpu. One range at
// a time in a process: registering holds the driver's lock, and waits for copies under way (driver 580), so there is nothing to
// gain from doing two at once. A file truncated in the meantime is harmless: registered pages stay pinned.
// What the user has pinned (pinned_pages) is copied from there at the speed of the link, several ranges at a time.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "device/owned.hpp"
#include "path/data_path.hpp"
#include "path/link_pace.hpp"
#include "path/pinned_pages.hpp"
#include "staging/worker.hpp"

namespace penstock::path {

extern const declaration declared_mapped;

namespace {

constexpr std::uint64_t page_bytes = 4096;
constexpr std::uint64_t pinned_piece = std::uint64_t{64} << 20;
constexpr std::uint64_t mapped_piece_bytes = std::uint64_t{256} << 20;
// Registering a small range costs as much as copying it (4 MiB pieces reach 14 GB/s, 64 MiB pieces 23).
constexpr std::uint64_t least_bytes = std::uint64_t{1} << 20;
constexpr std::uint64_t watched_bytes = std::uint64_t{4} << 20;
constexpr int most_looks = 100;
// A wait that is expected to be shorter is not slept through at once.
constexpr std::chrono::nanoseconds least_slept = std::chrono::microseconds(160);

class mapped final : public data_path {
 public:
  explicit mapped(const services& with) : kernel_(with.kernel), pinned_(with.pinned) {}

  [[nodiscard]] const declaration& declared() const override { return declared_mapped; }

  [[nodiscard]] std::optional<std::string> refuses(const question& asked) override {
    if (asked.is_write) return "only reads can be mapped: the driver refuses writable file mappings";
    if (!asked.memory->on_device()) return "the memory is the host's, which needs no mapping";
    if (asked.file->descriptors().cached < 0) return "no descriptor leads to its pages in the page cache";
    if (asked.length < least_bytes) return "registering so few pages costs more than copying them";
    return std::nullopt;
  }

  bool run(job& item) override {
    if (const auto pinned = pinned_of(item); pinned != nullptr) return run_registered(item, *pinned);
    if (item.registered) {
      hand_over(item, {errc::unsupported, "it is not pinned any more"}, item.length);
      return true;
    }
    const std::lock_guard one_at_a_time(busy_);
    auto reach = reach_of(item);
    if (!reach) {
      item.owner->finished(item, 0, reach.error().with_context("mapped"));
      return true;
    }
    status stop;
    for (item.moved = 0; item.moved < *reach;) {
      stop = item.owner->stopped();
      if (!stop.ok()) break;
      const std::uint64_t bytes = std::min(mapped_piece_bytes, *reach - item.moved);
      auto carried = carry(item, item.offset + item.moved, item.memory + item.moved, bytes);
      if (!carried.ok()) {
        // Where the file has become shorter meanwhile, its new end is no failure.
        auto now = reach_of(item);
        if (now && *now < *reach) {
          reach = std::move(now);
          continue;
        }
        hand_over(item, carried, bytes);
        return true;
      }
      item.moved += bytes;
    }
    if (stop.ok() && item.moved < item.length) return end_short(item);
    item.owner->finished(item, item.moved, std::move(stop));
    return true;
  }

 private:
  // A stream of a device context, and an event, for one copy at a time; and the pace of all such copies of pinned pages there.
  struct line {
    device::session* session = nullptr;
    device::owned_stream stream;
    device::owned_event arrived;
    link_pace* pace = nullptr;
  };

  // What lies beyond the size that the kernel states need not be the end; if not, the next path reads on.
  bool end_short(job& item) {
    const auto ended = item.file->ends_at(item.offset + item.moved);
    if (ended && *ended) {
      item.owner->finished(item, item.moved, {});
    } else {
      const status why = ended ? status(errc::unsupported, "the file goes on past the size that the kernel states") : ended.error();
      hand_over(item, why, item.length - item.moved);
    }
    return true;
  }

  // bytes: that were to be read next.
  static void hand_over(job& item, const status& why, std::uint64_t bytes) {
    auto told = why.with_context(fmt::format("mapped: read {} at {} of {}", bytes, item.offset + item.moved, item.file->name()));
    item.owner->hand_over(item, std::move(told));
  }

  // --- what is pinned

  std::shared_ptr<pinned_pages::pages> pinned_of(const job& item) {
    if (pinned_ == nullptr || pinned_->empty() || item.is_write) return nullptr;
    return pinned_->find_whole(*item.file, item.offset, item.length);
  }

  // The file is looked at before and after: what was copied in between is what it held.
  bool run_registered(job& item, pinned_pages::pages& pinned) {
    const pinning_session by{&item.place.via->session(), item.place.emulated()};
    item.moved = 0;
    auto usable = pinned.check(*item.file);
    if (usable.ok()) usable = pinned.register_for(by);
    auto copied = usable.ok() ? copy_registered(item, pinned.at(item.offset)) : status();
    if (usable.ok() && copied.ok()) usable = pinned.check(*item.file);
    if (!usable.ok()) pinned_->drop(pinned, usable);
    if (usable.ok() && copied.ok()) {
      item.moved = item.length;
      item.owner->finished(item, item.length, {});
    } else {
      hand_over(item, usable.ok() ? copied : usable, item.length);
    }
    return true;
  }

  status copy_registered(const job& item, const std::byte* source) {
    return with_line(item.place.via->session(), [&](const line& on) { return copy(on, item.memory, source, item.length, on.pace); });
  }

  // Bytes of the job that the file has, by its stated size: pages past that cannot be registered.
  result<std::uint64_t> reach_of(const job& item) {
    const auto size = item.file->size();
    if (!size) return size.error();
    return *size > item.offset ? std::min(item.length, *size - item.offset) : 0;
  }

  // Under spare_lock_.
  result<line> make_line(device::session& session) {
    auto stream = device::owned_stream::make(session);
    if (!stream) return stream.error();
    auto arrived = device::owned_event::make(session);
    if (!arrived) return arrived.error();
    return line{&session, *std::move(stream), *std::move(arrived), &paces_[&session]};
  }

  // For one copy; then it goes to the spare ones.
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

  status carry(job& item, std::uint64_t offset, std::byte* target, std::uint64_t bytes) {
    auto& session = item.place.via->session();
    return with_line(session, [&](const line& on) -> status {
      const std::uint64_t skip = offset % page_bytes;
      const std::size_t length = (skip + bytes + page_bytes - 1) / page_bytes * page_bytes;
      auto pages = kernel_->map_file(item.file->descriptors().cached, offset - skip, length);
      if (!pages) return pages.error();
      auto outcome = session.pin(*pages, length, true);
      if (outcome.ok()) {
        outcome = copy(on, target, static_cast<const std::byte*>(*pages) + skip, bytes, nullptr);
        if (auto unpinned = session.unpin(*pages); outcome.ok()) outcome = std::move(unpinned);
      }
      if (auto unmapped = kernel_->unmap(*pages, length); outcome.ok()) outcome = std::move(unmapped);
      return outcome;
    });
  }

  // pace: of the copies that it is one of, several at a time; may be null.
  static status copy(const line& on, std::byte* target, const std::byte* source, std::uint64_t bytes, link_pace* pace) {
    auto& session = *on.session;
    if (auto problem = session.copy(target, source, bytes, on.stream.get()); !problem.ok()) return problem;
    const auto began = link_pace::clock::now();
    const auto under_way = pace != nullptr ? pace->begin(bytes, began) : link_pace::copy{};
    auto problem = session.record(on.arrived.get(), on.stream.get());
    if (problem.ok() && pace != nullptr) {
      if (const auto most = pace->most_of_wait(under_way, began); most >= least_slept) staging::nap(most);
    }
    // Naps: an interrupt would come late (21 GB/s; napping 24, at the same CPU time). What is short is over sooner than a nap.
    int looks = bytes <= watched_bytes ? most_looks : 0;
    for (bool arrived = false; problem.ok() && !arrived;) {
      const auto reached = session.reached(on.arrived.get());
      problem = reached.error();
      arrived = reached.value_or(false);
      // Longer ones the longer it takes: a nap costs about 10 us of CPU time, and may end so much late.
      if (problem.ok() && !arrived) looks-- > 0 ? staging::relax() : staging::nap((link_pace::clock::now() - began) / 32);
    }
    // The pages may not go before the copy has ended, however that failed.
    if (!problem.ok()) (void)session.synchronize(on.stream.get());
    if (pace != nullptr) pace->end(under_way, problem.ok(), link_pace::clock::now());
    return problem;
  }

  std::shared_ptr<sys::kernel> kernel_;
  std::mutex busy_;  // keeps registrations apart
  pinned_pages* const pinned_;
  std::mutex spare_lock_;  // guards what follows
  std::vector<line> spare_lines_;
  std::size_t lines_made_ = 0;
  std::map<device::session*, link_pace> paces_;  // of the sessions that lines were made for
};

}  // namespace

constinit const declaration declared_mapped{
    .name = "mapped",
    .rank = 20,
    .successor = "staged",
    .carries = portion::cached_ranges,
    .reason = "in the page cache, and CPU time is to be saved: the GPU copies it from there",
    .cut = [](const range_to_cut& range, std::vector<cut_piece>& pieces) { cut_at_multiples(range, pinned_piece, pieces); },
    .make = [](const services& with) -> std::unique_ptr<data_path> { return std::make_unique<mapped>(with); },
};

}  // namespace penstock::path
