#include "core/file_core.hpp"

#include <fmt/format.h>

#include "base/no_memory.hpp"

namespace penstock::core {

file_core::file_core(std::shared_ptr<core::runtime> with, const mount_parts& on, std::unique_ptr<source::source> from,
                     const open_options& options, std::string not_direct)
    : runtime_(std::move(with)),
      source_(std::move(from)),
      mount_(on),
      cache_(options.cache),
      not_direct_(std::move(not_direct)),
      rate_limit_(options.bytes_per_second > 0 ? new core::rate_limit(options.bytes_per_second, runtime_->deadlines(), runtime_->stats())
                                               : nullptr),
      is_limited_(rate_limit_ != nullptr || runtime_->rate_limit() != nullptr) {
  if (source_->facts().fills_at_once > 0) turns_ = source_->turns(*mount_.lanes, runtime_->far_share());
  turns_by_deadline_ = turns_;
  if (auto* const times = mount_.thread_answer_times; times != nullptr && source_->let_wait(*mount_.waiting, *times)) {
    turns_by_deadline_ = std::make_shared<source::turnstile>(*mount_.lanes, runtime_->far_share(), [times] { return times->at_once(); });
  }
}

file_core::~file_core() {
  if ((uses_.load() & closed_bit) == 0) (void)close();
}

// A forked child closes only the descriptors, because the parent's threads may have been using the rest or waiting for its lock.
void file_core::destroy(file_core* file) noexcept {
  if (file->runtime_->forked()) {
    (void)file->source_->close();
  } else {
    delete file;
  }
}

std::shared_ptr<file_core> file_core::make(std::shared_ptr<core::runtime> with, const mount_parts& on, std::unique_ptr<source::source> from,
                                           const open_options& options, std::string not_direct) {
  std::shared_ptr<file_core> made(new file_core(std::move(with), on, std::move(from), options, std::move(not_direct)), &file_core::destroy);
  if (options.immutable && !made->is_limited()) made->read_ahead();
  return made;
}

// Does nothing for a file of unknown size.
void file_core::read_ahead() {
  const auto size = source_->size().value_or(0);
  const auto slabs = staging::share_ahead(runtime_->options().pinned_budget_bytes) / source::read_ahead::slab_bytes;
  auto made = std::make_unique<source::read_ahead>(*source_, *mount_.lanes, size, slabs);
  runtime_->ahead().add(*made);
  ahead_ = std::move(made);
}

file_use::file_use(file_core& file) noexcept : file_(&file) { file.uses_.fetch_add(1); }

status file_core::usable() const {
  if ((uses_.load() & closed_bit) != 0) return {errc::closed, fmt::format("{} was closed", name())};
  if (runtime_->forked()) {
    return {errc::forked, fmt::format("{} belongs to the parent process; open it again after fork", name())};
  }
  return {};
}

result<file_use> file_core::use() {
  file_use held(*this);
  if (auto problem = usable(); !problem.ok()) return problem;
  return held;
}

result<file_use> file_core::use(bool is_write) {
  auto held = use();
  const auto& facts = source_->facts();
  if (held && !(is_write ? facts.writable : facts.readable)) {
    return status(errc::permission_denied, fmt::format("{} is not open for {}", name(), is_write ? "writing" : "reading"));
  }
  return held;
}

void file_core::end(std::uint64_t uses) noexcept {
  if (uses_.fetch_sub(uses) != (closed_bit | uses)) return;
  const std::lock_guard guard(lock_);
  quiet_.notify_all();
}

std::uint64_t file_core::read_past_cache(std::uint64_t offset, std::uint64_t length) noexcept {
  std::shared_ptr<cold_reads::record> record;
  {
    const std::lock_guard guard(cold_reads_lock_);
    record = cold_reads_;
  }
  if (record == nullptr) {
    const auto& facts = source_->facts();
    if (facts.inode == 0) return 0;
    (void)or_no_memory([&]() -> status {
      const auto size = source_->size();
      if (!size) return size.error();
      record = runtime_->cold_reads().of({facts.device, facts.inode, facts.modified_ns}, *size);
      return {};
    });
    if (record == nullptr) return 0;
    const std::lock_guard guard(cold_reads_lock_);
    cold_reads_ = record;
    has_cold_reads_.store(true, std::memory_order_release);
  }
  return record->add(offset, length);
}

void file_core::fetch_ahead(std::uint64_t offset, std::uint64_t length) noexcept {
  const auto next = late_ahead_.next(offset, length, mount_.answer_times->at_once() * mount_.answer_times->piece_bytes(), now_ns());
  if (next.length > 0) source_->fetch_ahead(next.offset, next.length);
}

void file_core::forget_cold_reads() noexcept {
  const std::lock_guard guard(cold_reads_lock_);
  cold_reads_->forget();
}

bool file_core::try_pass(std::uint64_t bytes) noexcept {
  if (rate_limit_ != nullptr && !rate_limit_->try_pass(bytes)) return false;
  auto* const of_engine = runtime_->rate_limit();
  if (of_engine == nullptr || of_engine->try_pass(bytes)) return true;
  if (rate_limit_ != nullptr) rate_limit_->give_back(bytes);
  return false;
}

void file_core::charge(std::uint64_t bytes) noexcept {
  if (rate_limit_ != nullptr) rate_limit_->charge(bytes);
  if (auto* const of_engine = runtime_->rate_limit(); of_engine != nullptr) of_engine->charge(bytes);
}

status file_core::sync() {
  const auto held = use();
  if (!held) return held.error();
  return source_->sync().with_context(name());
}

result<std::uint64_t> file_core::size() {
  const auto held = use();
  if (!held) return held.error();
  auto bytes = source_->size();
  if (!bytes) return bytes.error().with_context(name());
  return bytes;
}

status file_core::truncate(std::uint64_t size) {
  const auto held = use(true);
  if (!held) return held.error();
  return source_->truncate(size).with_context(name());
}

result<int> file_core::descriptor() {
  const auto held = use();
  if (!held) return held.error();
  const int found = source_->descriptor();
  if (found < 0) return status(errc::unsupported, fmt::format("{} has no file descriptor", name()));
  return found;
}

status file_core::close() {
  if ((uses_.fetch_or(closed_bit) & closed_bit) != 0) return {errc::closed, fmt::format("{} is already closed", name())};
  // A forked child lacks the threads that would finish the requests in flight.
  if (!runtime_->forked()) {
    std::unique_lock guard(lock_);
    quiet_.wait(guard, [this] { return uses_.load() == closed_bit; });
  }
  if (ahead_ != nullptr && !runtime_->forked()) {
    runtime_->ahead().remove(*ahead_);
    ahead_->stop();
  }
  runtime_->forget(*source_);
  return source_->close();
}

}  // namespace penstock::core
