// The board of this process: counters of its engines in shared memory, where `penstock stats` and `penstock top` read them without asking.
// What costs something, the table of requests under way, is filled when a reader asks, by a thread that sleeps otherwise. The one thing
// of this room that belongs to the process and not to an engine, as its name does. Thread-safe. In a forked child there is a new one.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "penstock/facts.hpp"
#include "stats/board_layout.hpp"
#include "sys/board_folder.hpp"

namespace penstock::stats {

// What an engine tells when a reader asks, on the thread that answers.
class board_teller {
 public:
  struct answer {
    std::uint64_t pinned_bytes = 0, pinned_peak_bytes = 0, pinned_file_bytes = 0, pinned_file_drops = 0;
    std::vector<request_info> requests;
  };
  virtual answer tell() = 0;

 protected:
  ~board_teller() = default;
};

// Made by std::make_shared.
class board : public std::enable_shared_from_this<board> {
 public:
  explicit board(std::shared_ptr<sys::board_folder> folder);
  board(const board&) = delete;
  board& operator=(const board&) = delete;
  ~board();

  // The process's own, under /dev/shm. It goes when the process ends normally.
  static std::shared_ptr<board> of_process();

  // Where an engine counts from now on, until leave(). Makes the board first, where there is none. The engine is asked until forget().
  // Errors: of board_folder::make(), and unsupported (most_engines have joined).
  result<board_layout::engine_section*> join(board_teller& engine);
  // The engine of that section is asked no more; waits for an answer of its that is under way. An answer never keeps an engine: it would
  // end on the thread that answers, later than its user thinks.
  void forget(const board_layout::engine_section* section) noexcept;
  // What the engine has counted stays in the sum of the process. Nobody counts there any more.
  void leave(board_layout::engine_section* section) noexcept;
  // No more readers: the file goes, and who counts goes on in memory that nobody sees.
  void close() noexcept;

 private:
  struct member {
    board_layout::engine_section* section = nullptr;
    board_teller* engine = nullptr;  // null: it is asked no more
  };

  status open();
  void answer(board_layout::page& page);
  [[nodiscard]] board_teller* teller_of(const board_layout::engine_section* section) noexcept;  // null: it is asked no more
  void begin_answering();
  std::thread end_answering() noexcept;
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

  // Held while engines are asked, and taken before the lock of all boards. Recursive: what an engine lists for its answer may be the last
  // that keeps it, or another one.
  std::recursive_mutex asking_;
  const std::shared_ptr<sys::board_folder> folder_;
  sys::shared_region memory_;
  board_layout::page* page_ = nullptr;  // in memory_; null: there is none
  std::vector<member> members_;
  std::unique_ptr<std::thread> thread_;
  std::atomic<std::uint32_t> thread_number_{0};  // of the thread that is to answer
  board* next_ = nullptr;                        // in the list of boards
};

// Which of board_layout::devices.
[[nodiscard]] std::size_t device_index(bool known, bool on_device, bool emulated, int ordinal) noexcept;
// As in device_info::name, or "host"; empty for [0].
[[nodiscard]] std::string device_name_at(std::size_t index);

}  // namespace penstock::stats
