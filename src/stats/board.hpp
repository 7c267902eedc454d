// The board of this process: the counters of its engines in shared memory, which `penstock stats` and `penstock top` read without calling
// the process. The table of requests in flight costs more. A thread that otherwise sleeps fills it in when a reader requests it. Unlike
// everything else in this folder, the board belongs to the process, not to an engine. Thread-safe. A forked child creates a new one.
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

// Supplies an engine's part of an answer to a reader, on the answering thread.
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

// Must be created with std::make_shared.
class board : public std::enable_shared_from_this<board> {
 public:
  explicit board(std::shared_ptr<sys::board_folder> folder);
  board(const board&) = delete;
  board& operator=(const board&) = delete;
  ~board();

  // The process's own board, under /dev/shm. Removed when the process exits normally.
  static std::shared_ptr<board> of_process();

  // Returns the section in which an engine counts until leave(). Creates the board if there is none. The engine is queried for answers
  // until forget(). Errors: those of board_folder::make(), and unsupported (most_engines have joined).
  result<board_layout::engine_section*> join(board_teller& engine);
  // Stops querying the engine of that section, and waits for an answer in progress. An answer never keeps an engine alive, because the
  // engine would then be destroyed on the answering thread, later than its user expects.
  void forget(const board_layout::engine_section* section) noexcept;
  // Adds the engine's counts to the total of the process. No thread may still be counting in the section.
  void leave(board_layout::engine_section* section) noexcept;
  // Removes the file, so that there are no more readers. Engines continue to count in memory that other processes cannot see.
  void close() noexcept;
  // Stops answering, and moves the counters to private memory at the same address, because shared memory of System V cannot be frozen.
  // wake() moves them back. If memory is short, they stay where they are.
  void rest() noexcept;
  void wake() noexcept;

 private:
  struct member {
    board_layout::engine_section* section = nullptr;
    board_teller* engine = nullptr;  // null: no longer queried
  };

  status open();
  void share_again() noexcept;
  void answer(board_layout::page& page);
  [[nodiscard]] board_teller* teller_of(const board_layout::engine_section* section) noexcept;  // null: no longer queried
  void begin_answering();
  std::thread end_answering() noexcept;
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

  // Held while engines are queried, and taken before the lock of all boards. Recursive, because an object that an engine lists in its
  // answer may be the last to keep that engine, or another one, alive.
  std::recursive_mutex asking_;
  const std::shared_ptr<sys::board_folder> folder_;
  sys::shared_region memory_;
  board_layout::page* page_ = nullptr;  // in memory_; null if there is none
  bool is_resting_ = false;
  std::vector<member> members_;
  std::unique_ptr<std::thread> thread_;
  std::atomic<std::uint32_t> thread_number_{0};  // the number of the current answering thread
  board* next_ = nullptr;                        // in the list of boards
};

// Returns an index into board_layout::devices.
[[nodiscard]] std::size_t device_index(bool known, bool on_device, bool emulated, int ordinal) noexcept;
// Returns a name in the format of device_info::name, or "host"; empty for index 0.
[[nodiscard]] std::string device_name_at(std::size_t index);

}  // namespace penstock::stats
