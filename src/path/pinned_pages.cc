#include "path/pinned_pages.hpp"

#include <time.h>

#include <algorithm>
#include <thread>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "sys/page_size.hpp"

namespace penstock::path {

namespace {

// File system clocks tick every 4 ms (10 on old kernels). A second change within a tick looks the same as the first.
constexpr std::int64_t settled_after_ns = 20'000'000;
// Pages that no user requested must be older, because direct I/O sets the time when it starts and may change blocks long afterwards.
constexpr std::int64_t quiet_after_ns = 5'000'000'000;
constexpr int most_version_looks = 10;

std::int64_t wall_clock_ns() noexcept {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Negative if the file's times are ahead of this machine's clock, which can happen if they come from another machine.
std::int64_t age_ns(const file_version& version) noexcept { return wall_clock_ns() - std::max(version.modified_ns, version.changed_ns); }

status changed(const source::source& file) {
  return {errc::unsupported, fmt::format("{} has changed since its pages were registered", file.name())};
}

}  // namespace

// --- pages

status pinned_pages::pages::map(int descriptor) {
  skip_ = offset_ % sys::page_size();
  const std::size_t bytes = sys::page_up(skip_ + length_);
  const auto base = owner_.kernel_.map_file(descriptor, offset_ - skip_, bytes);
  if (!base) return base.error();
  base_ = static_cast<std::byte*>(*base);
  mapped_bytes_ = bytes;
  return {};
}

status pinned_pages::pages::register_for(const pinning_session& by) {
  const std::lock_guard guard(lock_);
  auto& registered = registered_[by.emulated ? 1 : 0];
  if (registered != nullptr) return {};
  auto pinned = by.session->pin(base_, mapped_bytes_, true);
  if (pinned.ok()) registered = by.session;
  return pinned;
}

status pinned_pages::pages::check(source::source& file) const {
  const auto now = owner_.version_of(file);
  if (!now) return now.error();
  return *now == version_ ? status() : changed(file);
}

void pinned_pages::pages::unregister() noexcept {
  const std::lock_guard guard(lock_);
  for (auto*& session : registered_) {
    if (session != nullptr) (void)or_no_memory([&] { return session->unpin(base_); });
    session = nullptr;
  }
}

// In a forked child nothing is unregistered, because the registration belongs to the parent.
pinned_pages::pages::~pages() {
  if (owner_.fork_.forked()) return;
  unregister();
  if (base_ != nullptr) (void)or_no_memory([&] { return owner_.kernel_.unmap(base_, mapped_bytes_); });
  owner_.used_bytes_.fetch_sub(length_, std::memory_order_relaxed);
}

// --- entries

std::uint64_t pinned_pages::entry::registered_bytes() const noexcept {
  const std::lock_guard guard(lock_);
  return held_ == nullptr ? 0 : length_;
}

std::shared_ptr<pinned_pages::pages> pinned_pages::entry::held() const noexcept {
  const std::lock_guard guard(lock_);
  return held_;
}

status pinned_pages::entry::problem() const {
  const std::lock_guard guard(lock_);
  return problem_;
}

bool pinned_pages::entry::is_of(const source::source& file) const noexcept {
  return device_ == file.facts().device && inode_ == file.facts().inode;
}

// --- pinning

result<file_version> pinned_pages::version_of(source::source& file) const {
  const int descriptor = file.descriptors().cached;
  if (descriptor < 0)
    return file.cached_problem().ok() ? status(errc::unsupported, "the file has no file descriptor") : file.cached_problem();
  const auto seen = kernel_.describe(descriptor);
  if (!seen) return seen.error().with_context(file.name());
  if (seen->type != sys::file_type::regular) return status(errc::unsupported, fmt::format("{} is not a regular file", file.name()));
  return file_version{seen->device, seen->inode, seen->size_bytes, seen->modified_ns, seen->changed_ns};
}

// Returns a version whose next change will be detected, because the last one is some ticks old. (Times ahead of this machine's clock come
// from another machine; waiting for them is pointless.)
result<file_version> pinned_pages::settled_version_of(source::source& file) const {
  for (int looks = 0; looks < most_version_looks; ++looks) {
    auto seen = version_of(file);
    if (!seen) return seen;
    const auto age = age_ns(*seen);
    if (age < 0 || age >= settled_after_ns) return seen;
    std::this_thread::sleep_for(std::chrono::nanoseconds(settled_after_ns - age));
  }
  return status(errc::would_block, fmt::format("{} keeps changing", file.name()));
}

std::shared_ptr<pinned_pages::pages> pinned_pages::shared_with(const file_version& version, std::uint64_t offset,
                                                               std::uint64_t length) const {
  const std::lock_guard guard(lock_);
  for (const auto& each : entries_) {
    const std::lock_guard inner(each->lock_);
    if (each->held_ != nullptr && each->held_->hold(version, offset, length)) return each->held_;
  }
  return nullptr;
}

status pinned_pages::reserve(std::uint64_t bytes, std::uint64_t most_bytes, const std::string& name) {
  auto used = used_bytes_.load(std::memory_order_relaxed);
  do {
    if (bytes <= most_bytes && used <= most_bytes - bytes) continue;
    return {
        errc::out_of_memory,
        fmt::format(
            "{} bytes of {} cannot be pinned: the budget is {} MiB (pinned_file_budget_bytes, PENSTOCK_PINNED_FILE_MIB), and {} MiB are "
            "in use",
            bytes, name, most_bytes >> 20, used >> 20)};
  } while (!used_bytes_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
  return {};
}

result<std::shared_ptr<pinned_pages::entry>> pinned_pages::pin(source::source& file, std::uint64_t offset, std::uint64_t length,
                                                               std::uint64_t most_bytes, std::span<const pinning_session> by) {
  auto made = std::make_shared<entry>();
  std::shared_ptr<pages> held;
  for (int looks = 0; held == nullptr; ++looks) {
    const auto version = settled_version_of(file);
    if (!version) return version.error();
    if (looks == most_version_looks) return status(errc::would_block, fmt::format("{} keeps changing", file.name()));
    if (offset >= version->size_bytes || length == 0) {
      return status(errc::invalid_argument, fmt::format("pin {} at {}: {} has {} bytes", length, offset, file.name(), version->size_bytes));
    }
    made->device_ = version->device;
    made->inode_ = version->inode;
    made->offset_ = offset;
    made->length_ = std::min(length, version->size_bytes - offset);
    held = shared_with(*version, offset, made->length_);
    if (held != nullptr) break;
    if (auto full = reserve(made->length_, most_bytes, file.name()); !full.ok()) return full;
    struct reservation {
      std::atomic<std::uint64_t>& used;
      std::uint64_t bytes;
      ~reservation() { used.fetch_sub(bytes, std::memory_order_relaxed); }
    } reserved{used_bytes_, made->length_};
    held = std::make_shared<pages>(*this, *version, offset, made->length_);
    reserved.bytes = 0;  // the pages release it
    const auto mapped = map(*held, file, by);
    // If pages were added or removed since then, a mapping could contain two versions of the file. Truncated pages cannot be registered at
    // all.
    const auto unchanged = held->check(file);
    if (unchanged.code() == errc::unsupported) held = nullptr;
    if (held == nullptr) continue;
    if (!unchanged.ok()) return unchanged;
    if (!mapped.ok()) return mapped.with_context(fmt::format("pin {} at {} of {}", made->length_, offset, file.name()));
  }
  held->is_pinned_.store(true, std::memory_order_relaxed);
  made->held_ = std::move(held);
  const std::lock_guard guard(lock_);
  entries_.push_back(made);
  count_.fetch_add(1, std::memory_order_release);
  return made;
}

// --- keeping

status pinned_pages::map(pages& held, source::source& file, std::span<const pinning_session> by) const {
  auto mapped = held.map(file.descriptors().cached);
  for (const auto& each : by) {
    if (mapped.ok()) mapped = held.register_for(each);
  }
  return mapped;
}

result<pinned_pages::made_pages> pinned_pages::make(source::source& file, std::uint64_t offset, std::uint64_t length,
                                                    const pinning_session& by) {
  const auto version = version_of(file);
  if (!version) return version.error();
  auto held = std::make_shared<pages>(*this, *version, offset, length);
  used_bytes_.fetch_add(length, std::memory_order_relaxed);  // the pages release it
  auto mapped = map(*held, file, {&by, 1});
  if (!mapped.ok()) return mapped;
  const auto age = age_ns(*version);
  return made_pages{held, age >= quiet_after_ns && held->check(file).ok()};
}

std::shared_ptr<pinned_pages::entry> pinned_pages::keep(std::shared_ptr<pages> held) {
  auto made = std::make_shared<entry>();
  made->is_kept_ = true;
  made->device_ = held->version_.device;
  made->inode_ = held->version_.inode;
  made->offset_ = held->offset_;
  made->length_ = held->length_;
  made->held_ = std::move(held);
  const std::lock_guard guard(lock_);
  entries_.push_back(made);
  count_.fetch_add(1, std::memory_order_release);
  return made;
}

void pinned_pages::release(const std::shared_ptr<entry>& done) noexcept {
  std::shared_ptr<pages> gone;  // unregistered after the locks are released
  const std::lock_guard guard(lock_);
  std::erase(entries_, done);
  const std::lock_guard inner(done->lock_);
  gone = std::move(done->held_);
  if (gone != nullptr) count_.fetch_sub(1, std::memory_order_release);
}

// --- lookup

pinned_pages::part pinned_pages::find(source::source& file, std::uint64_t offset, std::uint64_t length) {
  const std::uint64_t end = offset + length;
  for (;;) {
    part first{end, 0};
    std::shared_ptr<pages> by;
    {
      const std::lock_guard guard(lock_);
      for (const auto& each : entries_) {
        const std::lock_guard inner(each->lock_);
        const auto begins = std::max(offset, each->offset_);
        const auto ends = std::min(end, each->offset_ + each->length_);
        if (each->held_ == nullptr || !each->is_of(file) || begins >= ends) continue;
        if (begins > first.offset || (begins == first.offset && ends - begins <= first.length)) continue;
        first = {begins, ends - begins};
        by = each->held_;
      }
    }
    if (by == nullptr) return first;
    const auto problem = by->check(file);
    if (problem.ok()) return first;
    drop(*by, problem);
  }
}

std::shared_ptr<pinned_pages::pages> pinned_pages::find_whole(source::source& file, std::uint64_t offset, std::uint64_t length) {
  const std::lock_guard guard(lock_);
  for (const auto& each : entries_) {
    const std::lock_guard inner(each->lock_);
    if (each->held_ == nullptr || !each->is_of(file) || offset < each->offset_) continue;
    if (length <= each->length_ && offset - each->offset_ <= each->length_ - length) return each->held_;
  }
  return nullptr;
}

status pinned_pages::problem_of(source::source& file) const {
  const std::lock_guard guard(lock_);
  for (const auto& each : entries_) {
    const std::lock_guard inner(each->lock_);
    if (!each->problem_.ok() && each->is_of(file)) return each->problem_;
  }
  return {};
}

bool pinned_pages::holds(source::source& file) const {
  const std::lock_guard guard(lock_);
  return std::any_of(entries_.begin(), entries_.end(), [&](const auto& each) {
    const std::lock_guard inner(each->lock_);
    return each->held_ != nullptr && !each->is_kept_ && each->is_of(file);
  });
}

// --- dropping

// Drops one entry at a time, so that nothing is unregistered with a lock held and no list must be allocated.
template <class Gone>
void pinned_pages::drop_where(Gone gone, const status& why) noexcept {
  for (bool any = true; any;) {
    any = false;
    std::shared_ptr<pages> dropped;
    const std::lock_guard guard(lock_);
    for (const auto& each : entries_) {
      const std::lock_guard inner(each->lock_);
      if (each->held_ == nullptr || !gone(*each->held_)) continue;
      dropped = std::move(each->held_);
      if (!each->is_kept_) {
        each->problem_ = why;
        drops_.fetch_add(1, std::memory_order_relaxed);
      }
      count_.fetch_sub(1, std::memory_order_release);
      any = true;
      break;
    }
  }
}

void pinned_pages::drop(const pages& gone, const status& why) noexcept {
  drop_where([&](const pages& held) { return &held == &gone; }, why);
}

void pinned_pages::drop_all(const status& why) noexcept {
  drop_where([](const pages&) { return true; }, why);
}

void pinned_pages::unregister_all() noexcept {
  const std::lock_guard guard(lock_);
  for (const auto& each : entries_) {
    if (const auto held = each->held()) held->unregister();
  }
}

}  // namespace penstock::path
