// Counters of one engine. Any thread counts at any time; a snapshot is not a moment in time, each counter is right by itself. They lie in
// memory of the engine's own until it joins a board, and there from then on.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/spin_lock.hpp"
#include "path/registry.hpp"
#include "penstock/facts.hpp"
#include "staging/right_of_way.hpp"
#include "staging/slab_pool.hpp"
#include "stats/board.hpp"
#include "stats/counters.hpp"

namespace penstock::stats {

class book final : public staging::slab_waits, public staging::background_waits {
 public:
  // Outlived by the table. on: null for none.
  book(const path::path_table& table, std::shared_ptr<board> on);
  book(const book&) = delete;
  book& operator=(const book&) = delete;
  ~book();
  // From its first request on the engine is on the board. What it counted before is in its own snapshots only.
  [[nodiscard]] bool begun() const noexcept { return begun_.load(std::memory_order_acquire); }
  void begin(board_teller& engine) noexcept;
  // The engine is about to end: it is asked no more.
  void end_telling() noexcept;
  // The engine has so many lanes for each file system.
  void set_lanes(unsigned lanes) noexcept { now().usage.lanes.store(lanes, relaxed); }
  // Why it is on no board; ok where it is, where it has not begun, and where none is wanted.
  [[nodiscard]] status board_problem() const;

  // A piece of `bytes` bytes was carried (or failed) by a path from one time of the engine's clock to another.
  struct span {
    std::int64_t began_ns;
    std::int64_t ended_ns;
  };
  void count_piece(path_kind path, bool is_write, std::uint64_t bytes, span when, bool failed);
  void count_fallback(path_kind path, std::string_view why);
  // Requests have ended, on memory of a device (device_index()).
  // Several that ended well, at once: the counters are shared by all cores.
  void count_requests(bool is_write, std::size_t device, std::uint64_t requests, std::uint64_t bytes);
  void count_request(bool is_write, std::size_t device, const io_result& outcome);
  // Requests that have ended, of memory of all devices.
  [[nodiscard]] std::uint64_t ended_on_devices() noexcept;

  // --- what advise() looks at
  // What usage_stats counts by three numbers, by their places in counter_table.
  struct use {
    std::size_t count, bytes, ns;
  };
  void count_use(const use& of, std::uint64_t bytes, std::int64_t nanoseconds) noexcept;
  // A blocking call of less than 64 KiB went on where the thread's last had ended (sequential); or any other that counts as lone.
  void count_small_call(bool is_write, bool sequential, std::uint64_t bytes, std::int64_t nanoseconds) noexcept;
  // Read in whole blocks, `extra` bytes more than were asked for.
  void count_blocks(std::uint64_t bytes, std::uint64_t extra, std::int64_t nanoseconds) noexcept;
  // Read past the page cache, `again` of these bytes not for the first time.
  void count_cold(std::uint64_t bytes, std::uint64_t again, span when) noexcept;
  // Read through the page cache, where it was not yet.
  void count_kept(std::uint64_t bytes, span when) noexcept;
  // From a file system that answers late.
  void count_late(std::uint64_t bytes, span when) noexcept;
  // A registration has ended that served so many requests.
  void count_registration(std::int64_t nanoseconds, std::uint64_t requests) noexcept;
  void waited(std::int64_t began_ns, std::int64_t ended_ns) noexcept override;
  // Requests in the background have ended.
  void count_background(std::uint64_t requests, std::uint64_t bytes) noexcept;
  void let_others_go(std::int64_t began_ns, std::int64_t ended_ns) noexcept override;
  // Went through the page cache, in which they did not stay.
  void count_uncached(std::uint64_t bytes) noexcept { now().usage.each[place_of(&usage_stats::uncached_bytes)].fetch_add(bytes, relaxed); }
  // A limit of bytes a second held a piece back.
  void count_held(std::uint64_t bytes, span when) noexcept;

  // What usage_stats counts by one number, by its place in counter_table.
  void count_one(std::size_t place) noexcept { now().usage.each[place].fetch_add(1, relaxed); }
  // The same about servers.
  void count_remote(std::size_t place, std::uint64_t by) noexcept { now().usage.each[place].fetch_add(by, relaxed); }
  // A server puts a request off, from one time to another.
  void count_put_off(span when) noexcept;
  // A thread received over TLS as fast as its core can.
  void count_tls_bound(span when) noexcept;
  // The reads of a server waited for pinned memory.
  void count_memory_wait(span when) noexcept;

  // Tensors of a pipe have gone or come by the channel of that name, which is there for good. more: its name is not looked at.
  void count_channel(std::string_view name, const channel_stats& more) noexcept;

  [[nodiscard]] engine_stats snapshot() const;

 private:
  [[nodiscard]] board_layout::engine_section& now() noexcept { return *counting_.load(std::memory_order_acquire); }

  const path::path_table& table_;
  const std::shared_ptr<board> board_;
  const std::unique_ptr<board_layout::engine_section> own_;
  std::atomic<board_layout::engine_section*> counting_;  // own_, or on the board
  std::atomic<bool> begun_;
  mutable std::mutex begin_lock_;  // guards board_problem_
  status board_problem_;
  mutable spin_lock lock_;  // guards what follows, and writing it to the board
  std::vector<std::string> last_fallback_;
  std::array<std::string_view, board_layout::most_channels> channel_names_;  // by their places
};

inline constexpr book::use sequential_reads{place_of(&usage_stats::sequential_reads), place_of(&usage_stats::sequential_read_bytes),
                                            place_of(&usage_stats::sequential_read_ns)};
inline constexpr book::use sequential_writes{place_of(&usage_stats::sequential_writes), place_of(&usage_stats::sequential_write_bytes),
                                             place_of(&usage_stats::sequential_write_ns)};
inline constexpr book::use lone_reads{place_of(&usage_stats::lone_reads), place_of(&usage_stats::lone_read_bytes),
                                      place_of(&usage_stats::lone_read_ns)};
inline constexpr book::use unaligned_pieces{place_of(&usage_stats::unaligned_pieces), place_of(&usage_stats::unaligned_bytes),
                                            place_of(&usage_stats::unaligned_ns)};
inline constexpr book::use near_pieces{place_of(&usage_stats::near_pieces), place_of(&usage_stats::near_bytes),
                                       place_of(&usage_stats::near_ns)};
inline constexpr book::use far_pieces{place_of(&usage_stats::far_pieces), place_of(&usage_stats::far_bytes),
                                      place_of(&usage_stats::far_ns)};

// What sections of a board say, added to what is there.
void add_section(engine_stats& to, const board_layout::engine_section& from);

}  // namespace penstock::stats
