// The counters of one engine. Any thread may count at any time. A snapshot is not taken at a single moment, but each counter is correct by
// itself. The counters are in private memory until the engine joins a board, and then on the board.
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
  // table must outlive this object. on: null for no board.
  book(const path::path_table& table, std::shared_ptr<board> on);
  book(const book&) = delete;
  book& operator=(const book&) = delete;
  ~book();
  // The engine joins the board with its first request. Earlier counts appear only in its own snapshots, except for those of files and
  // buffers registered by cuFile programs.
  [[nodiscard]] bool begun() const noexcept { return begun_.load(std::memory_order_acquire); }
  void begin(board_teller& engine) noexcept;
  // Called before the engine is destroyed. The board no longer queries it.
  void end_telling() noexcept;
  // Sets the number of lanes per file system.
  void set_lanes(unsigned lanes) noexcept { now().usage.lanes.store(lanes, relaxed); }
  // Returns why the engine is not on a board. Returns ok if it is, if it has not started, or if no board is requested.
  [[nodiscard]] status board_problem() const;

  // Records a piece that a path transferred or failed to transfer. Times use the engine's clock.
  struct span {
    std::int64_t began_ns;
    std::int64_t ended_ns;
  };
  void count_piece(path_kind path, bool is_write, std::uint64_t bytes, span when, bool failed);
  void count_fallback(path_kind path, std::string_view why);
  // Counts completed requests on a device's memory (device_index()). The first function counts several successful requests at once, because
  // all cores share the counters.
  void count_requests(bool is_write, std::size_t device, std::uint64_t requests, std::uint64_t bytes);
  void count_request(bool is_write, std::size_t device, const io_result& outcome);
  // Returns the number of completed requests on memory of all devices.
  [[nodiscard]] std::uint64_t ended_on_devices() noexcept;

  // --- counters for advise()
  // Indexes in counter_table for a count, its bytes and its time.
  struct use {
    std::size_t count, bytes, ns;
  };
  void count_use(const use& of, std::uint64_t bytes, std::int64_t nanoseconds) noexcept;
  // Counts a blocking call. sequential: it was shorter than 64 KiB and started where the thread's last call had ended. Otherwise it is a
  // lone call.
  void count_small_call(bool is_write, bool sequential, std::uint64_t bytes, std::int64_t nanoseconds) noexcept;
  // Counts a read in whole blocks, which included `extra` bytes that were not requested.
  void count_blocks(std::uint64_t bytes, std::uint64_t extra, std::int64_t nanoseconds) noexcept;
  // Counts a read past the page cache. `again` of its bytes had been read that way before.
  void count_cold(std::uint64_t bytes, std::uint64_t again, span when) noexcept;
  // Counts a read of uncached bytes through the page cache.
  void count_kept(std::uint64_t bytes, span when) noexcept;
  // Counts a read from a file system that answers slowly.
  void count_late(std::uint64_t bytes, span when) noexcept;
  // Counts a completed registration, with the number of requests that it served.
  void count_registration(std::int64_t nanoseconds, std::uint64_t requests) noexcept;
  void waited(std::int64_t began_ns, std::int64_t ended_ns) noexcept override;
  // Counts completed background requests.
  void count_background(std::uint64_t requests, std::uint64_t bytes) noexcept;
  void let_others_go(std::int64_t began_ns, std::int64_t ended_ns) noexcept override;
  // Counts bytes that passed through the page cache and did not stay there.
  void count_uncached(std::uint64_t bytes) noexcept { now().usage.each[place_of(&usage_stats::uncached_bytes)].fetch_add(bytes, relaxed); }
  // Counts a piece that a rate limit held back.
  void count_held(std::uint64_t bytes, span when) noexcept;

  // Adds one to the counter at an index in counter_table.
  void count_one(std::size_t place) noexcept { now().usage.each[place].fetch_add(1, relaxed); }
  // Adds to one of the counters about servers.
  void count_remote(std::size_t place, std::uint64_t by) noexcept { now().usage.each[place].fetch_add(by, relaxed); }
  // Counts the time during which a server delayed a request.
  void count_put_off(span when) noexcept;
  // Counts the time during which a thread received over TLS as fast as its core can.
  void count_tls_bound(span when) noexcept;
  // Counts the time during which a server's reads waited for pinned memory.
  void count_memory_wait(span when) noexcept;

  // Counts a pipe's tensors on a channel. name must remain valid forever. The name in `more` is ignored.
  void count_channel(std::string_view name, const channel_stats& more) noexcept;

  [[nodiscard]] engine_stats snapshot() const;

 private:
  [[nodiscard]] board_layout::engine_section& now() noexcept { return *counting_.load(std::memory_order_acquire); }

  const path::path_table& table_;
  const std::shared_ptr<board> board_;
  const std::unique_ptr<board_layout::engine_section> own_;
  std::atomic<board_layout::engine_section*> counting_;  // own_, or a section on the board
  std::atomic<bool> begun_;
  mutable std::mutex begin_lock_;  // guards board_problem_
  status board_problem_;
  mutable spin_lock lock_;  // guards the members below, and copying them to the board
  std::vector<std::string> last_fallback_;
  std::array<std::string_view, board_layout::most_channels> channel_names_;  // by slot
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

// Adds the counters of one section of a board.
void add_section(engine_stats& to, const board_layout::engine_section& from);

}  // namespace penstock::stats
