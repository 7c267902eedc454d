// The binary layout of a board. Any change here requires a new layout_version; the head is the same in all versions. The layout contains
// only words and fixed-size text, with no pointers to follow, because a reader copies another process's board before using it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>

#include "base/printable.hpp"
#include "stats/counters.hpp"

namespace penstock::stats {

using counter = std::atomic<std::uint64_t>;
inline constexpr auto relaxed = std::memory_order_relaxed;
static_assert(counter::is_always_lock_free && sizeof(counter) == 8);

// Text that can be read while it is being written. One writer at a time. A reader in another process copies the board three times and
// accepts the text if `changes` was even and identical in the first and last copy.
template <std::size_t Size>
struct shared_text {
  static_assert(Size % 8 == 0);
  std::atomic<std::uint32_t> changes{0};
  std::uint32_t unused = 0;
  std::array<counter, Size / 8> words{};

  // Truncates text that does not fit.
  void set(std::string_view text) noexcept {
    changes.fetch_add(1, std::memory_order_relaxed);
    std::atomic_thread_fence(std::memory_order_release);
    for (std::size_t i = 0; i < words.size(); ++i) {
      std::uint64_t word = 0;
      if (i * 8 < text.size()) std::memcpy(&word, text.data() + i * 8, std::min<std::size_t>(8, text.size() - i * 8));
      words[i].store(word, std::memory_order_relaxed);
    }
    changes.fetch_add(1, std::memory_order_release);
  }
  // Returns the text as printable UTF-8. Replaces other bytes, including those of a truncated character.
  [[nodiscard]] std::string get() const {
    std::array<char, Size> bytes{};
    for (std::size_t i = 0; i < words.size(); ++i) {
      const auto word = words[i].load(std::memory_order_relaxed);
      std::memcpy(bytes.data() + i * 8, &word, 8);
    }
    return printable_text(std::string(bytes.data(), strnlen(bytes.data(), Size)));
  }
};

namespace board_layout {

inline constexpr std::uint32_t layout_version = 10;
inline constexpr std::array<char, 8> magic{'P', 'N', 'S', 'T', 'K', 'B', 'R', 'D'};
inline constexpr std::size_t most_engines = 8;  // at a time; additional engines count in private memory
inline constexpr std::size_t most_paths = 8;
inline constexpr std::size_t most_devices = 20;
inline constexpr std::size_t most_channels = 12;
inline constexpr std::size_t most_requests = 64;
inline constexpr std::size_t histogram_classes = 24;

// The same in all versions.
struct head {
  std::array<char, 8> magic{};
  std::uint32_t version = 0;
  std::int32_t pid = 0;
  std::uint64_t size_bytes = 0;
  std::uint64_t start_ticks = 0;
  std::uint64_t namespace_inode = 0;
  std::array<char, 24> penstock_version{};
};
static_assert(sizeof(head) == 64);

struct alignas(64) path_counters {
  counter operations{0}, read_bytes{0}, written_bytes{0}, errors{0}, fallbacks{0}, busy_ns{0}, active_ns{0};
  std::atomic<std::int64_t> last_end_ns{0};
  std::array<counter, histogram_classes> sizes{}, latencies{};
  shared_text<16> name;
  shared_text<224> last_fallback;
};

struct alignas(64) device_counters {
  counter reads{0}, writes{0}, read_bytes{0}, written_bytes{0};
};

// [0]: memory in an unknown place; [1]: host; [2]: host:0; from [3]: cuda:0 and so on. The last one also counts all further devices.
using devices = std::array<device_counters, most_devices>;

struct alignas(64) channel_counters {
  counter sent_tensors{0}, sent_bytes{0}, received_tensors{0}, received_bytes{0}, pushed_tensors{0};
  shared_text<24> name;  // empty: the slot is unused
};

struct alignas(64) counted_usage {
  std::array<counter, counter_table.size()> each{};  // in the order of counter_table
  // The latest end of the pieces and waits of each kind, for the counters of the time with at least one of them.
  std::atomic<std::int64_t> last_cold_end_ns{0}, last_wait_end_ns{0}, last_kept_end_ns{0}, last_late_end_ns{0};
  std::atomic<std::int64_t> last_background_wait_end_ns{0}, last_held_end_ns{0};
  std::atomic<std::int64_t> last_put_off_end_ns{0}, last_tls_bound_end_ns{0}, last_memory_wait_end_ns{0};
  counter lanes{0};
};

// The counters of one engine. Section [0] of a board contains the totals of the engines that no longer exist.
struct alignas(64) engine_section {
  std::atomic<std::uint32_t> used{0};
  counter failed{0}, cancelled{0}, timed_out{0};
  counter pinned_bytes{0}, pinned_peak_bytes{0}, pinned_file_bytes{0}, pinned_file_drops{0};  // as of the last answer
  std::array<path_counters, most_paths> paths{};
  stats::board_layout::devices devices{};
  counted_usage usage{};
  std::array<channel_counters, most_channels> channels{};
};

struct alignas(64) request_line {
  shared_text<120> file;  // the end of its name
  counter offset{0}, length{0}, since_ns{0};
  std::atomic<std::uint32_t> is_write{0};
  std::atomic<std::uint32_t> of_pipe{0};
  std::atomic<std::uint32_t> is_background{0};
  std::uint32_t unused = 0;
  shared_text<24> device;
};

struct page {
  board_layout::head head;
  std::atomic<std::uint32_t> asked{0};     // incremented by readers
  std::atomic<std::uint32_t> answered{0};  // the value of asked when the table was filled in
  std::atomic<std::uint32_t> changes{0};   // odd while an engine's counters are being moved
  std::atomic<std::uint32_t> request_count{0};
  counter requests_not_shown{0};
  shared_text<120> program;
  std::array<engine_section, 1 + most_engines> engines{};
  std::array<request_line, most_requests> requests{};
};
static_assert(std::is_standard_layout_v<page>);

}  // namespace board_layout

}  // namespace penstock::stats
