// One open file: its source, what serves it, and how many requests use it. Thread-safe.
#pragma once

#include <atomic>
#include <cassert>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "base/spin_lock.hpp"
#include "base/thread_number.hpp"
#include "core/cache/cold_reads.hpp"
#include "core/cache/late_ahead.hpp"
#include "core/runtime.hpp"
#include "penstock/facts.hpp"
#include "source/read_ahead.hpp"
#include "source/source.hpp"

namespace penstock {
struct adopt_options;
struct remote_options;
}  // namespace penstock

namespace penstock::core {

class file_core;
class mount;

// One use of a file: as long as it lives, the file is not closed. The file outlives it. For one thread at a time.
class file_use {
 public:
  file_use() noexcept = default;  // of no file
  file_use(file_use&& other) noexcept : file_(std::exchange(other.file_, nullptr)) {}
  file_use& operator=(file_use&& other) noexcept {
    std::swap(file_, other.file_);
    return *this;
  }
  ~file_use();

 private:
  friend class file_core;
  friend class file_uses;
  explicit file_use(file_core& file) noexcept;
  file_core* file_ = nullptr;
};

// Uses of one file that end together, when this does: the file's word for them is written once.
class file_uses {
 public:
  file_uses() noexcept = default;
  file_uses(const file_uses&) = delete;
  file_uses& operator=(const file_uses&) = delete;
  ~file_uses();
  void add(file_use ended) noexcept {
    assert(file_ == nullptr || file_ == ended.file_);
    file_ = std::exchange(ended.file_, nullptr);
    ++count_;
  }

 private:
  file_core* file_ = nullptr;
  std::uint64_t count_ = 0;
};

class file_core : public std::enable_shared_from_this<file_core> {
 public:
  // Local files, and objects on servers by their URL.
  static result<std::shared_ptr<file_core>> open(std::shared_ptr<core::runtime> with, const std::string& path, const open_options& options);
  static result<std::shared_ptr<file_core>> adopt(std::shared_ptr<core::runtime> with, int descriptor, const adopt_options& options);
  static result<std::shared_ptr<file_core>> open_remote(std::shared_ptr<core::runtime> with, const std::string& url,
                                                        const remote_options& how, const open_options& options);
  // A file over any source.
  static std::shared_ptr<file_core> make(std::shared_ptr<core::runtime> with, std::unique_ptr<source::source> from,
                                         cache_use cache = cache_use::automatic, bool immutable = false, std::uint64_t bytes_per_second = 0,
                                         std::string not_direct = {});
  file_core(const file_core&) = delete;
  file_core& operator=(const file_core&) = delete;
  ~file_core();

  // To be held while the file is used. An error names the file: closed, or of the parent process; for a request also not open for this.
  [[nodiscard]] result<file_use> use();
  [[nodiscard]] result<file_use> use(bool is_write);

  [[nodiscard]] source::source& source() const noexcept { return *source_; }
  [[nodiscard]] const std::string& name() const noexcept { return source_->name(); }
  [[nodiscard]] core::runtime& runtime() const noexcept { return *runtime_; }
  // What serves this file.
  [[nodiscard]] core::mount& mount() const noexcept { return *mount_; }

  // Why it is never GPU-direct, as its user says; empty: it may be.
  [[nodiscard]] const std::string& not_direct() const noexcept { return not_direct_; }
  // What is read ahead of blocking reads; null where the file was not declared immutable.
  [[nodiscard]] source::read_ahead* ahead() const noexcept { return ahead_.get(); }

  // What fills of a far source pass; null of any other.
  [[nodiscard]] source::turnstile* turns() const noexcept { return turns_.get(); }
  // The same for a request: with a deadline, what its server brings passes it too, so that it can be left behind.
  [[nodiscard]] source::turnstile* turns(const io_options& options) const noexcept {
    return (options.deadline == deadline_clock::time_point::max() ? turns_ : turns_by_deadline_).get();
  }

  // Whether there is a limit of bytes a second for its requests: the file's own, the engine's, or both.
  [[nodiscard]] bool is_limited() const noexcept { return is_limited_; }
  // Its own; null: it has none.
  [[nodiscard]] core::rate_limit* rate_limit() const noexcept { return rate_limit_.get(); }
  // True where so many bytes may flow now: they count as having done so.
  bool try_pass(std::uint64_t bytes) noexcept;
  // They flow, whether they may or not.
  void charge(std::uint64_t bytes) noexcept;

  // Of that mount.
  [[nodiscard]] core::cold_speeds& cold_speeds() const noexcept { return *cold_speeds_; }
  // Likewise; null where the file system has no server.
  [[nodiscard]] staging::answer_times* answer_times() const noexcept { return answer_times_; }
  [[nodiscard]] staging::answer_times* thread_answer_times() const noexcept { return thread_answer_times_; }
  // How its file system answers, as far as is known; prompt where it has no server.
  [[nodiscard]] staging::answer_times::verdict answers() const noexcept {
    if (answer_times_ == nullptr) return staging::answer_times::verdict::prompt;
    const auto known = answer_times_->advise();
    return known != staging::answer_times::verdict::unknown ? known : thread_answer_times_->advise();
  }
  [[nodiscard]] bool answers_late() const noexcept { return answers() == staging::answer_times::verdict::late; }

  // How a blocking call of this thread goes on from the last one on this file.
  enum class follows : std::uint8_t { nobody, same_thread, in_order };
  follows follow(std::uint64_t offset, std::uint64_t end) noexcept {
    const auto me = this_thread_number() + 1;
    const auto by = last_thread_.load(std::memory_order_relaxed);
    const auto at = last_end_.load(std::memory_order_relaxed);
    last_end_.store(end, std::memory_order_relaxed);
    if (by == me) return at == offset ? follows::in_order : follows::same_thread;
    last_thread_.store(me, std::memory_order_relaxed);
    return follows::nobody;
  }
  // A blocking read begins, of a file whose file system answers late: what it will want next is fetched into the page cache.
  void fetch_ahead(std::uint64_t offset, std::uint64_t length) noexcept;
  // What the user asks of the page cache for a read of this file; automatic: nothing.
  [[nodiscard]] cache_use asked_cache(const io_options& options) const noexcept {
    if (options.cache != cache_use::automatic) return options.cache;
    return cache_ != cache_use::automatic ? cache_ : runtime_->options().cache;
  }
  // Whether a long read goes on about where the last one ended, or begins about where the file does. Several threads that share out a file
  // come a little out of order.
  [[nodiscard]] bool in_order(std::uint64_t offset) const noexcept {
    constexpr std::uint64_t about = std::uint64_t{16} << 20;
    const auto end = planned_end_.load(std::memory_order_relaxed);
    return offset > end ? offset - end <= about : end - offset <= about;
  }
  // Up to there a long read has been planned.
  void planned(std::uint64_t end) noexcept { planned_end_.store(end, std::memory_order_relaxed); }
  // It was read past the page cache: how many of these bytes had been so before, at least.
  std::uint64_t read_past_cache(std::uint64_t offset, std::uint64_t length) noexcept;
  // It is being written: what is read from now on is new.
  void written() noexcept {
    if (has_cold_reads_.load(std::memory_order_acquire)) forget_cold_reads();
  }

  status sync();
  // As of now; of a block device that has grown, too.
  [[nodiscard]] result<std::uint64_t> size();
  status truncate(std::uint64_t size);
  [[nodiscard]] result<int> descriptor();
  // Waits for every use to end.
  status close();

 private:
  static void destroy(file_core* file) noexcept;
  file_core(std::shared_ptr<core::runtime> with, std::unique_ptr<source::source> from, cache_use cache, std::uint64_t bytes_per_second);
  [[nodiscard]] status usable() const;
  void end(std::uint64_t uses) noexcept;
  void forget_cold_reads() noexcept;
  void read_ahead();
  friend class file_use;
  friend class file_uses;

  static constexpr std::uint64_t closed_bit = std::uint64_t{1} << 63;

  const std::shared_ptr<core::runtime> runtime_;  // outlives the source, which uses its kernel
  const std::unique_ptr<source::source> source_;
  core::mount* const mount_;
  core::cold_speeds* const cold_speeds_;
  staging::answer_times* const answer_times_;
  staging::answer_times* const thread_answer_times_;
  const cache_use cache_;   // as it was opened
  std::string not_direct_;  // set before anybody else has the file
  const owned_rate_limit rate_limit_;
  const bool is_limited_;
  std::shared_ptr<source::turnstile> turns_;
  std::shared_ptr<source::turnstile> turns_by_deadline_;  // of a source with a server; else as turns_
  std::unique_ptr<source::read_ahead> ahead_;             // set before anybody else has the file
  // How many uses there are, and closed_bit. One word, so that exactly one of those who end a use sees that it was the last of a closing
  // file.
  std::atomic<std::uint64_t> uses_{0};
  // What blocking calls leave for the next, beside the word that each of them writes anyway. Two threads may mix these up, which only hides
  // that one of them goes on.
  std::atomic<std::uint64_t> last_end_{0};
  std::atomic<unsigned> last_thread_{0};  // and 1; 0: nobody
  std::atomic<std::uint64_t> planned_end_{0};
  std::atomic<bool> has_cold_reads_{false};
  late_ahead late_ahead_;
  spin_lock cold_reads_lock_;  // guards cold_reads_
  std::shared_ptr<cold_reads::record> cold_reads_;
  std::mutex lock_;  // makes sure that close() does not miss quiet_ between looking at uses_ and sleeping
  std::condition_variable quiet_;
};

inline file_use::~file_use() {
  if (file_ != nullptr) file_->end(1);
}

inline file_uses::~file_uses() {
  if (file_ != nullptr) file_->end(count_);
}

}  // namespace penstock::core
