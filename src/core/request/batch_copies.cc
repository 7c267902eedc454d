#include "core/request/batch_copies.hpp"

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

#include "base/no_memory.hpp"
#include "core/mount.hpp"
#include "core/runtime.hpp"
#include "staging/feeder.hpp"
#include "staging/work.hpp"

namespace penstock::core {

namespace {

bool same_range(const io_request& one, const io_request& other) noexcept {
  return one.target == other.target && one.length == other.length && one.offset == other.offset && !one.is_write && !other.is_write;
}

}  // namespace

// When it runs as a work item, it reads the file itself.
class batch_copies::copy final : public staging::work {
 public:
  copy(batch_copies& all, std::uint32_t index, std::uint32_t source) noexcept : all_(all), index_(index), source_(source) {}

  void follow(copy*& first) noexcept { next_ = std::exchange(first, this); }
  [[nodiscard]] copy* next() const noexcept { return next_; }

  void source_lies(const admission& item) noexcept {
    task_.source = item.what().memory;
    from_ = item.place();
  }
  void begin(const admission& item, const io_options& options);
  // Called when one of the two events that it waits for has happened: its own begin(), or the completion of its source.
  void one_came() noexcept;
  void refuse() noexcept {
    refused_ = true;
    one_came();
  }
  void source_ended(const io_result& outcome) noexcept {
    read_ = outcome;
    one_came();
  }
  // The number of copies that still need the source's bytes, kept in the first of them.
  std::atomic<std::uint32_t>& wanted() noexcept { return wanted_; }
  bool run() override;

 private:
  void go() noexcept;
  void ended(status outcome) noexcept;
  void read_alone(const status& why) noexcept;
  void let_source_go() noexcept;

  batch_copies& all_;
  const std::uint32_t index_;
  const std::uint32_t source_;
  copy* next_ = nullptr;
  std::atomic<std::uint32_t> wanted_{0};
  std::atomic<int> awaited_{2};
  bool refused_ = false;
  staging::place from_;
  status unreachable_;
  io_result read_;  // outcome of the source
  io_options options_;
  std::shared_ptr<file_core> file_;
  staging::copy_task task_;
  staging::work_list alone_;
};

void batch_copies::copy::begin(const admission& item, const io_options& options) {
  options_ = options;
  file_ = item.file().shared_from_this();
  task_.target = item.what().memory;
  const auto& to = item.place();
  if (!from_.on_device() || !to.on_device() || from_.emulated() != to.emulated()) {
    unreachable_ = {errc::unsupported, "the file is read again, because the two buffers are not on devices of the same kind"};
  } else if (from_.via != to.via && !from_.via->session().allow_copies_from(to.via->session())) {
    unreachable_ = {errc::unsupported, "the file is read again, because the devices cannot copy to each other directly"};
  }
  one_came();
}

void batch_copies::copy::one_came() noexcept {
  if (awaited_.fetch_sub(1, std::memory_order_acq_rel) == 1) go();
}

void batch_copies::copy::go() noexcept {
  // Also true at the end of the file. Completing here would run the next copy on this stack, and the chain may be arbitrarily long.
  const bool nothing_there = !read_.ok() || read_.bytes_done == 0;
  if (refused_) {
    let_source_go();
  } else if (nothing_there || !unreachable_.ok()) {
    read_alone(nothing_there ? status() : unreachable_);
  } else {
    task_.bytes = read_.bytes_done;
    task_.between_devices = true;
    task_.context = this;
    task_.done = [](staging::copy_task& task, status outcome) { static_cast<copy*>(task.context)->ended(std::move(outcome)); };
    // From here on, other threads may complete this copy, and the batch with it.
    auto& feeders = all_.with_.feeders();
    from_.via->feeder().submit(task_);
    feeders.attend();
  }
}

void batch_copies::copy::ended(status outcome) noexcept {
  if (!outcome.ok()) {
    read_alone(outcome.with_context("copy between devices"));
    return;
  }
  auto& owner = all_.owner_;
  const auto index = index_;
  const auto bytes = read_.bytes_done;
  let_source_go();
  owner.item_ended(index, {bytes, {}});
}

// Not on this thread, which may be the one that handles copies: planning calls the file system.
void batch_copies::copy::read_alone(const status& why) noexcept {
  if (!why.ok()) all_.with_.stats().count_fallback(all_.with_.paths().base(true), why.message());
  let_source_go();
  file_->mount().lanes().push_urgent(alone_, *this);
}

bool batch_copies::copy::run() {
  const auto file = file_;
  const auto options = options_;
  all_.owner_.go_alone(options, file, index_);
  return true;
}

void batch_copies::copy::let_source_go() noexcept {
  if (all_.first_[source_]->wanted().fetch_sub(1, std::memory_order_acq_rel) == 1) all_.owner_.copied_on(source_);
}

// --- all copies in a batch

bool batch_copies::any(std::span<const io_request> requests) noexcept {
  return std::any_of(requests.begin(), requests.end(), [](const io_request& each) { return each.copy_of.has_value(); });
}

batch_copies::batch_copies(runtime& with, part_owner& of, std::span<const io_request> requests)
    : with_(with), owner_(of), copy_of_(requests.size()), first_(requests.size()) {
  for (std::uint32_t i = 0; i < requests.size(); ++i) {
    const auto source = requests[i].copy_of;
    if (!source || *source >= i || requests[i].length == 0 || !same_range(requests[i], requests[*source])) continue;
    copy_of_[i] = &copies_.emplace_back(*this, i, *source);
    copy_of_[i]->follow(first_[*source]);
  }
  for (auto* const first : first_) {
    for (const auto* each = first; each != nullptr; each = each->next()) ++first->wanted();
  }
}

batch_copies::~batch_copies() = default;

void batch_copies::located(std::uint32_t index, const admission& item) noexcept {
  for (auto* each = first_[index]; each != nullptr; each = each->next()) each->source_lies(item);
}

void batch_copies::begin(std::uint32_t index, const admission& item, const io_options& options) { copy_of_[index]->begin(item, options); }

void batch_copies::refused(std::uint32_t index) noexcept { copy_of_[index]->refuse(); }

bool batch_copies::ended(std::uint32_t index, const io_result& outcome) noexcept {
  auto* each = first_[index];
  if (each == nullptr) return false;
  // The last copy of the bytes may complete the batch.
  while (each != nullptr) {
    auto* const next = each->next();
    each->source_ended(outcome);
    each = next;
  }
  return true;
}

}  // namespace penstock::core
