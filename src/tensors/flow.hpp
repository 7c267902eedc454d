// Reads items in order, a bounded number of bytes at a time. model_flow is its public interface.
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "penstock/model.hpp"

namespace penstock::tensors {

// Counts the bytes that arrive in each memory. Any thread may add to it.
class arrival_counter {
 public:
  explicit arrival_counter(std::size_t memories) : counts_(memories) {}
  void add(std::size_t memory, std::uint64_t bytes) noexcept;
  [[nodiscard]] std::vector<load_progress> seen() const;

 private:
  using clock = std::chrono::steady_clock;
  struct counts {
    std::atomic<std::uint64_t> bytes{0};
    std::atomic<std::int64_t> last{0};
  };
  clock::time_point start_ = clock::now();
  std::vector<counts> counts_;
};

// Thread-safe. Reads are started by the threads that add, take and drop items, and by the engine's callbacks, one thread at a time and
// without the lock.
class flow {
 public:
  flow(const engine& with, const flow_options& options) : engine_(with.core()), options_(options) {}
  flow(const flow&) = delete;
  flow& operator=(const flow&) = delete;
  ~flow();

  [[nodiscard]] bool forked() const noexcept { return ::getpid() != process_; }
  status add(const model_layout& layout, std::span<void* const> memory);
  result<std::size_t> add(const file& from, std::span<const file_range> ranges, std::span<void* const> memory, io_callback ended);
  [[nodiscard]] std::size_t size() noexcept;

  // An item's error, and the index of the memory that it occurred in.
  struct failure {
    status error;
    std::size_t memory = 0;
  };
  failure take(std::size_t number);
  failure wait();  // of the first item that failed
  bool wait_for(std::size_t number, std::chrono::nanoseconds timeout);
  bool wait_for(std::chrono::nanoseconds timeout);
  result<std::vector<io_result>> results(std::size_t number);
  std::vector<load_progress> progress();
  void drop(std::size_t number) noexcept;
  void cancel() noexcept;

 private:
  using lock = std::unique_lock<std::mutex>;
  using memories = std::vector<std::byte*>;

  static constexpr std::size_t no_piece = ~std::size_t{0};

  struct piece {
    const file* from = nullptr;
    file_range range{};
    std::size_t item = 0;
    std::uint64_t done = 0;  // bytes, in the memory that received the fewest
  };
  struct item {
    model_tensor tensor{};            // empty for ranges of a file
    std::size_t first = 0, last = 0;  // pieces
    const memories* into = nullptr;
    std::uint64_t start = 0, end = 0;  // offset in the window, plus the window's size for each earlier use of it
    std::size_t unread = 0;            // pieces that have not ended
    std::size_t in_flight = 0;         // pieces
    enum class state : std::uint8_t { waiting, ending, ended } now = state::waiting;
    bool is_dropped = false;
    std::size_t failed_piece = no_piece;  // the first one
    failure failed{};                     // ok if that piece is short
    io_callback callback{};
    item* next_ending = nullptr;
  };
  // Consecutive pieces that are read in one batch.
  struct group {
    std::size_t first = 0, last = 0;
    std::uint64_t bytes = 0;
    std::vector<io_request> requests;
    std::vector<io_result> results;
    std::optional<batch> work;  // empty until submit() has returned
    bool is_cancelled = false;
  };

  const memories& add_memory(std::span<void* const> memory);
  void add_tensors(const model_layout& layout, std::span<const model_range> ranges, const memories& into);
  void start_more() noexcept;
  std::shared_ptr<group> next_group() noexcept;
  std::shared_ptr<group> make_group(std::size_t last, std::uint64_t bytes);
  void start(const std::shared_ptr<group>& next) noexcept;
  void group_ended(group& which) noexcept;
  void record(const group& which) noexcept;
  void end_if_read(item& of) noexcept;
  void end_unread(item& of, const status& why) noexcept;
  void end_all(const status& why) noexcept;
  void tell_ended(lock& guard) noexcept;
  void cancel_unwanted(lock& guard) noexcept;
  [[nodiscard]] item& item_of(std::size_t piece) noexcept { return items_[pieces_[piece].item]; }
  [[nodiscard]] const item& item_of(std::size_t piece) const noexcept { return items_[pieces_[piece].item]; }
  [[nodiscard]] static bool is_wanted(const item& each) noexcept { return each.now == item::state::waiting && !each.is_dropped; }
  [[nodiscard]] std::uint64_t group_bytes() const noexcept;
  [[nodiscard]] bool has_room_for(const item& next) const noexcept;
  [[nodiscard]] bool may_start(std::uint64_t bytes) const noexcept;
  void ask_for(std::size_t number, lock& guard) noexcept;
  [[nodiscard]] bool is_blocked(const item& wanted) const noexcept;
  [[nodiscard]] bool is_unwanted(const group& which) const noexcept;
  [[nodiscard]] status blocked() const;
  [[nodiscard]] failure outcome(const item& of) const;
  [[nodiscard]] static status named(const item& of, const status& error);
  [[nodiscard]] io_result total(const item& of) const noexcept;

  const pid_t process_ = ::getpid();
  const engine engine_;
  const flow_options options_;
  const status cancelled_{errc::cancelled, "the read was cancelled"};
  std::mutex lock_;  // guards all members below
  std::condition_variable changed_;
  std::deque<memories> memories_;
  std::deque<item> items_;
  std::deque<piece> pieces_;
  std::unique_ptr<arrival_counter> arrived_;
  std::vector<std::shared_ptr<group>> running_;
  std::size_t next_ = 0;         // the first piece that has not been started
  std::size_t wanted_ = 0;       // one past the last item that take() asked for
  std::size_t first_held_ = 0;   // the first item whose memory is in use
  std::size_t ended_ = 0;        // items
  std::uint64_t window_ = 0;     // bytes; 0 if no layout was added
  std::uint64_t in_flight_ = 0;  // bytes
  item* ending_ = nullptr;       // items whose callbacks have not been called
  bool is_starting_ = false;
  bool is_cancelled_ = false;
};

}  // namespace penstock::tensors
