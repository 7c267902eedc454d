// Reads with no CPU copy: pages of the page cache are mapped read-only, registered with the driver and copied from where they are
// by the GPU. Half the speed of staged at a fifth of its CPU time, so it is for machines with few cores and for prefer = cpu. One range at
// a time in a process: registering holds the driver's lock, and waits for copies under way (driver 580), so there is nothing to
// gain from doing two at once. A file truncated in the meantime is harmless: registered pages stay pinned.
#include <algorithm>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "device/owned.hpp"
#include "path/data_path.hpp"
#include "staging/worker.hpp"

namespace penstock::path {

extern const declaration declared_mapped;

namespace {

constexpr std::uint64_t page_bytes = 4096;
constexpr std::uint64_t mapped_piece_bytes = std::uint64_t{256} << 20;
// Registering a small range costs as much as copying it (4 MiB pieces reach 14 GB/s, 64 MiB pieces 23).
constexpr std::uint64_t least_bytes = std::uint64_t{1} << 20;

class mapped final : public data_path {
 public:
  explicit mapped(const services& with) : kernel_(with.kernel) {}

  [[nodiscard]] const declaration& declared() const override { return declared_mapped; }

  [[nodiscard]] std::optional<std::string> refuses(const question& asked) override {
    if (asked.is_write) return "only reads can be mapped: the driver refuses writable file mappings";
    if (!asked.memory->on_device()) return "the memory is the host's, which needs no mapping";
    if (asked.file->descriptors().cached < 0) return "no descriptor leads to its pages in the page cache";
    if (asked.length < least_bytes) return "registering so few pages costs more than copying them";
    return std::nullopt;
  }

  bool run(job& item) override {
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
        item.owner->hand_over(
            item, carried.with_context(fmt::format("mapped: read {} at {} of {}", bytes, item.offset + item.moved, item.file->name())));
        return true;
      }
      item.moved += bytes;
    }
    if (stop.ok() && item.moved < item.length) return end_short(item);
    item.owner->finished(item, item.moved, std::move(stop));
    return true;
  }

 private:
  // One stream and event for each device context.
  struct line {
    device::session* session = nullptr;
    device::owned_stream stream;
    device::owned_event arrived;
  };

  // What lies beyond the size that the kernel states need not be the end; if not, the next path reads on.
  bool end_short(job& item) {
    const auto ended = item.file->ends_at(item.offset + item.moved);
    if (ended && *ended) {
      item.owner->finished(item, item.moved, {});
    } else {
      const status why = ended ? status(errc::unsupported, "the file goes on past the size that the kernel states") : ended.error();
      item.owner->hand_over(item, why.with_context(fmt::format("mapped: read {} at {} of {}", item.length - item.moved,
                                                               item.offset + item.moved, item.file->name())));
    }
    return true;
  }

  // Bytes of the job that the file has, by its stated size: pages past that cannot be registered.
  result<std::uint64_t> reach_of(const job& item) {
    const auto size = item.file->size();
    if (!size) return size.error();
    return *size > item.offset ? std::min(item.length, *size - item.offset) : 0;
  }

  result<const line*> line_of(device::session& session) {
    for (const auto& known : lines_) {
      if (known.session == &session) return &known;
    }
    auto stream = device::owned_stream::make(session);
    if (!stream) return stream.error();
    auto arrived = device::owned_event::make(session);
    if (!arrived) return arrived.error();
    lines_.push_back({&session, *std::move(stream), *std::move(arrived)});
    return &lines_.back();
  }

  status carry(job& item, std::uint64_t offset, std::byte* target, std::uint64_t bytes) {
    auto& session = item.place.via->session();
    auto line = line_of(session);
    if (!line) return line.error();
    const std::uint64_t skip = offset % page_bytes;
    const std::size_t length = (skip + bytes + page_bytes - 1) / page_bytes * page_bytes;
    auto pages = kernel_->map_file(item.file->descriptors().cached, offset - skip, length);
    if (!pages) return pages.error();
    auto outcome = session.pin(*pages, length, true);
    if (outcome.ok()) {
      outcome = copy(**line, target, static_cast<const std::byte*>(*pages) + skip, bytes);
      if (auto unpinned = session.unpin(*pages); outcome.ok()) outcome = std::move(unpinned);
    }
    if (auto unmapped = kernel_->unmap(*pages, length); outcome.ok()) outcome = std::move(unmapped);
    return outcome;
  }

  static status copy(const line& on, std::byte* target, const std::byte* source, std::uint64_t bytes) {
    auto& session = *on.session;
    if (auto problem = session.copy(target, source, bytes, on.stream.get()); !problem.ok()) return problem;
    auto problem = session.record(on.arrived.get(), on.stream.get());
    // Naps: an interrupt would come late (21 GB/s; napping 24, at the same CPU time).
    for (bool arrived = false; problem.ok() && !arrived;) {
      const auto reached = session.reached(on.arrived.get());
      problem = reached.error();
      arrived = reached.value_or(false);
      if (problem.ok() && !arrived) staging::nap();
    }
    // The pages may not go before the copy has ended, however that failed.
    if (!problem.ok()) (void)session.synchronize(on.stream.get());
    return problem;
  }

  std::shared_ptr<sys::kernel> kernel_;
  std::mutex busy_;  // guards lines_, and keeps registrations apart
  std::vector<line> lines_;
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
