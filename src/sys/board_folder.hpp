// A board is shared memory with the counters of one process, which other processes read. This interface makes, finds and reads boards. The
// memory is a System V segment: nobody can shorten it (a truncated file would end the writer with SIGBUS), and like a file it survives when
// its process is killed. The last mark_bytes of the segment identify the folder that it belongs to. The file /dev/shm/penstock-UID/PID
// leads to the segment: it holds the start of the board, then the segment's number (segment_number). Only its user may enter the folder.
// All other code uses this interface, so tests can use another folder, or none. Every call is thread-safe. A failed call returns the errno
// of that call as a status that names the call.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "penstock/status.hpp"
#include "sys/peer.hpp"

namespace penstock::sys {

class board_folder {
 public:
  // How long the board of an ended process stays after somebody first noticed that the process has ended, and how many such boards stay.
  static constexpr std::chrono::seconds kept_for{600};
  static constexpr std::size_t most_kept = 16;

  // The number that a file holds after the start of its board.
  using segment_number = std::int64_t;
  static constexpr std::size_t most_start_bytes = 4096;
  static constexpr std::size_t mark_bytes = 8;

  virtual ~board_folder() = default;
  // Makes the zeroed memory of this process's board, and mark_bytes more. Other processes cannot find it yet. Makes the folder first if it
  // is missing. Errors: permission_denied (the folder belongs to another user, is open to others or is not a folder; or a seccomp profile),
  // no_space (the limit on segments), io.
  virtual result<shared_region> make(std::size_t bytes) = 0;
  // Makes the board visible to other processes, in place of a board that an earlier process with the same PID left behind. start: the first
  // bytes of the board, at most most_start_bytes, which never change. On failure the memory is removed. Errors: those of make(), and
  // unsupported (a second copy of this library in the process has a board).
  virtual status publish(std::span<const std::byte> start) = 0;
  // Removes this process's board, unless another has replaced it.
  virtual void remove() noexcept = 0;
  // Returns the PIDs that have boards; none if there is no folder. Errors: as make().
  virtual result<std::vector<int>> list() = 0;
  // Fills all of `into` with the current contents of a board; its process keeps writing meanwhile. Errors: not_found, invalid_argument (the
  // board has another size, its file is truncated, or its memory is gone), permission_denied (another user's, or not a file).
  virtual status read(int pid, std::span<std::byte> into) = 0;
  // Reads the start of a board from its file, as much as there is. Returns the number of bytes.
  virtual result<std::size_t> read_start(int pid, std::span<std::byte> into) = 0;
  // Increments the word at `asked`, wakes the threads that sleep on it, and waits up to `most` until the word at `answered` reaches the new
  // value. Errors: timed_out, and those of read().
  virtual status ask(int pid, std::size_t asked, std::size_t answered, std::chrono::milliseconds most) = 0;
  // False only if the process certainly does not write to this board, for example after exec(). Reads the process's list of mappings.
  virtual bool is_mapped_by(int pid) noexcept = 0;
  // Records that the process of this board has ended. Removes the board once kept_for has passed since the first such call.
  virtual void note_gone(int pid) noexcept = 0;
  // Removes the oldest of these boards until most_kept are left.
  virtual void tidy(std::span<const int> gone) noexcept = 0;
  [[nodiscard]] virtual const std::string& name() const noexcept = 0;
};

// parent: the directory of the folder.
std::shared_ptr<board_folder> make_board_folder(const std::string& parent = "/dev/shm");

// Sleeps until the word differs from value, whichever process changes it. May return early.
void sleep_on_shared(std::atomic<std::uint32_t>& word, std::uint32_t value) noexcept;
void wake_shared(std::atomic<std::uint32_t>& word) noexcept;

}  // namespace penstock::sys
