// One open file: its source, its mount, and the count of requests that use it. Thread-safe.
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

namespace penstock::core {

class file_core;
class mount;

// A use of a file. It keeps the file from being closed. The file must outlive it. For one thread at a time.
class file_use {
 public:
  file_use() noexcept = default;  // refers to no file
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

// Several uses of one file. The destructor ends all of them with a single write to the file's counter.
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

// The mount that serves a file, and the parts of it that the file itself uses. The answer times are null if the file system has no server.
struct mount_parts {
  core::mount* whole;
  staging::lanes* lanes;
  staging::waiting_lanes* waiting;
  core::cold_speeds* cold_speeds;
  staging::answer_times* answer_times;
  staging::answer_times* thread_answer_times;
};

class file_core : public std::enable_shared_from_this<file_core> {
 public:
  static std::shared_ptr<file_core> make(std::shared_ptr<core::runtime> with, const mount_parts& on, std::unique_ptr<source::source> from,
                                         const open_options& options, std::string not_direct);
  file_core(const file_core&) = delete;
  file_core& operator=(const file_core&) = delete;
  ~file_core();

  // Starts a use of the file. Errors name the file: closed; forked; permission_denied if the file is not open for that kind of request.
  [[nodiscard]] result<file_use> use();
  [[nodiscard]] result<file_use> use(bool is_write);

  [[nodiscard]] source::source& source() const noexcept { return *source_; }
  [[nodiscard]] const std::string& name() const noexcept { return source_->name(); }
  [[nodiscard]] core::runtime& runtime() const noexcept { return *runtime_; }
  // The mount that serves this file.
  [[nodiscard]] core::mount& mount() const noexcept { return *mount_.whole; }

  // Why the user excluded this file from GPU-direct transfers; empty if they are allowed.
  [[nodiscard]] const std::string& not_direct() const noexcept { return not_direct_; }
  // The read-ahead for blocking reads; null if the file was not declared immutable.
  [[nodiscard]] source::read_ahead* ahead() const noexcept { return ahead_.get(); }

  // The turnstile for fills from a remote source; null for any other source.
  [[nodiscard]] source::turnstile* turns() const noexcept { return turns_.get(); }
  // The turnstile for one request. If the request has a deadline, bytes from a file system with a server also pass through it, so that the
  // request can complete without waiting for them.
  [[nodiscard]] source::turnstile* turns(const io_options& options) const noexcept {
    return (options.deadline == deadline_clock::time_point::max() ? turns_ : turns_by_deadline_).get();
  }

  // True if a limit in bytes per second applies to requests on this file: its own, the engine's, or both.
  [[nodiscard]] bool is_limited() const noexcept { return is_limited_; }
  // The file's own limit; null if it has none.
  [[nodiscard]] core::rate_limit* rate_limit() const noexcept { return rate_limit_.get(); }
  // Takes this many bytes from the limits if they admit them now. Otherwise returns false.
  bool try_pass(std::uint64_t bytes) noexcept;
  // Takes this many bytes from the limits, even if that exceeds them.
  void charge(std::uint64_t bytes) noexcept;

  // The speeds and answer times of the mount. The answer times are null if the file system has no server.
  [[nodiscard]] core::cold_speeds& cold_speeds() const noexcept { return *mount_.cold_speeds; }
  [[nodiscard]] staging::answer_times* answer_times() const noexcept { return mount_.answer_times; }
  [[nodiscard]] staging::answer_times* thread_answer_times() const noexcept { return mount_.thread_answer_times; }
  // How promptly the file system answers, if known; prompt if it has no server.
  [[nodiscard]] staging::answer_times::verdict answers() const noexcept {
    if (mount_.answer_times == nullptr) return staging::answer_times::verdict::prompt;
    const auto known = mount_.answer_times->advise();
    return known != staging::answer_times::verdict::unknown ? known : mount_.thread_answer_times->advise();
  }
  [[nodiscard]] bool answers_late() const noexcept { return answers() == staging::answer_times::verdict::late; }

  // How a blocking call relates to the previous call on this file.
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
  // Called when a blocking read starts on a file system that answers slowly. Fetches the bytes that the next reads will need into the page
  // cache.
  void fetch_ahead(std::uint64_t offset, std::uint64_t length) noexcept;
  // The cache option that applies to a read of this file; automatic if the user set none.
  [[nodiscard]] cache_use asked_cache(const io_options& options) const noexcept {
    if (options.cache != cache_use::automatic) return options.cache;
    return cache_ != cache_use::automatic ? cache_ : runtime_->options().cache;
  }
  // Returns true if a long read starts near the end of the previous one, or near the start of the file. Threads that share the work on a
  // file arrive slightly out of order.
  [[nodiscard]] bool in_order(std::uint64_t offset) const noexcept {
    constexpr std::uint64_t about = std::uint64_t{16} << 20;
    const auto end = planned_end_.load(std::memory_order_relaxed);
    return offset > end ? offset - end <= about : end - offset <= about;
  }
  // Records that a long read has been planned up to this offset.
  void planned(std::uint64_t end) noexcept { planned_end_.store(end, std::memory_order_relaxed); }
  // Records that a range was read past the page cache. Returns how many of its bytes are known to have been read that way before.
  std::uint64_t read_past_cache(std::uint64_t offset, std::uint64_t length) noexcept;
  // Called when the file is written. Later reads return new bytes, so the record of past reads is reset.
  void written() noexcept {
    if (has_cold_reads_.load(std::memory_order_acquire)) forget_cold_reads();
  }

  status sync();
  // Queries the source for the current size. Detects that a block device has grown.
  [[nodiscard]] result<std::uint64_t> size();
  status truncate(std::uint64_t size);
  [[nodiscard]] result<int> descriptor();
  // Blocks until every use has ended.
  status close();

 private:
  static void destroy(file_core* file) noexcept;
  file_core(std::shared_ptr<core::runtime> with, const mount_parts& on, std::unique_ptr<source::source> from, const open_options& options,
            std::string not_direct);
  [[nodiscard]] status usable() const;
  void end(std::uint64_t uses) noexcept;
  void forget_cold_reads() noexcept;
  void read_ahead();
  friend class file_use;
  friend class file_uses;

  static constexpr std::uint64_t closed_bit = std::uint64_t{1} << 63;

  const std::shared_ptr<core::runtime> runtime_;  // outlives the source, which uses its kernel
  const std::unique_ptr<source::source> source_;
  const mount_parts mount_;
  const cache_use cache_;  // from the open options
  const std::string not_direct_;
  const owned_rate_limit rate_limit_;
  const bool is_limited_;
  std::shared_ptr<source::turnstile> turns_;
  std::shared_ptr<source::turnstile> turns_by_deadline_;  // for a source with a server; otherwise the same as turns_
  std::unique_ptr<source::read_ahead> ahead_;             // set before the file is published
  // The number of uses combined with closed_bit. They share one word so that, when a file is closing, exactly one thread finds that it
  // ended the last use.
  std::atomic<std::uint64_t> uses_{0};
  // Hints from one blocking call to the next. They are on the cache line that each call already writes. If two threads overwrite each
  // other's hints, the only effect is that a thread's sequential reads are not detected.
  std::atomic<std::uint64_t> last_end_{0};
  std::atomic<unsigned> last_thread_{0};  // thread number + 1; 0: no thread
  std::atomic<std::uint64_t> planned_end_{0};
  std::atomic<bool> has_cold_reads_{false};
  late_ahead late_ahead_;
  spin_lock cold_reads_lock_;  // guards cold_reads_
  std::shared_ptr<cold_reads::record> cold_reads_;
  std::mutex lock_;  // ensures that close() does not miss a notification of quiet_ between checking uses_ and sleeping
  std::condition_variable quiet_;
};

inline file_use::~file_use() {
  if (file_ != nullptr) file_->end(1);
}

inline file_uses::~file_uses() {
  if (file_ != nullptr) file_->end(count_);
}

}  // namespace penstock::core
