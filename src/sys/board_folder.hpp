// A board is shared memory that contains one process's counters, so that other processes can read them. This interface creates, finds and
// reads boards. The memory is a System V segment: it cannot be shortened (truncating a mapped file would kill the writer with SIGBUS), and
// like a file it remains if its process is killed. The last mark_bytes of the segment identify the folder that it belongs to. The file
// /dev/shm/penstock-UID/PID refers to the segment: it contains the start of the board, then the segment's number (segment_number). Only its
// owner can access the folder. All other code uses this interface, so tests can use another folder, or none. Every call is thread-safe. If
// a system call fails, its errno is returned as a status that names the call.
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
  // How long a board is kept after its process is first seen to have exited, and how many such boards are kept.
  static constexpr std::chrono::seconds kept_for{600};
  static constexpr std::size_t most_kept = 16;

  // The segment number that a file contains after the start of its board.
  using segment_number = std::int64_t;
  static constexpr std::size_t most_start_bytes = 4096;
  static constexpr std::size_t mark_bytes = 8;

  virtual ~board_folder() = default;
  // Allocates zeroed memory for this process's board, plus mark_bytes. Other processes cannot find it yet. Creates the folder if it does
  // not exist. Errors: permission_denied (the folder belongs to another user, is accessible to other users or is not a folder; or a seccomp
  // profile denies the call), no_space (the limit on segments), io.
  virtual result<shared_region> make(std::size_t bytes) = 0;
  // Makes the board visible to other processes. Replaces a board that an earlier process with the same PID left behind. start: the first
  // bytes of the board, which never change; at most most_start_bytes. On failure the memory is removed. Errors: those of make(), and
  // unsupported (another copy of this library in the process has a board).
  virtual status publish(std::span<const std::byte> start) = 0;
  // Removes this process's board, unless another board has replaced it.
  virtual void remove() noexcept = 0;
  // Returns the PIDs of the processes that have boards; none if there is no folder. Errors: those of make().
  virtual result<std::vector<int>> list() = 0;
  // Fills all of `into` with the current contents of a board while its process continues to write to it. Errors: not_found,
  // invalid_argument (the board has a different size, its file is truncated, or its memory no longer exists), permission_denied (the file
  // belongs to another user or is not a regular file).
  virtual status read(int pid, std::span<std::byte> into) = 0;
  // Reads the start of a board from its file, up to the size of `into`. Returns the number of bytes read.
  virtual result<std::size_t> read_start(int pid, std::span<std::byte> into) = 0;
  // Increments the word at offset `asked`, wakes the threads that sleep on it, and waits up to `most` for the word at offset `answered` to
  // reach the new value. Errors: timed_out, and those of read().
  virtual status ask(int pid, std::size_t asked, std::size_t answered, std::chrono::milliseconds most) = 0;
  // Returns false only if the process certainly does not write to this board, for example after exec(). Reads the process's list of
  // mappings.
  virtual bool is_mapped_by(int pid) noexcept = 0;
  // Records that the board's process has exited. Removes the board if kept_for has passed since the first such call.
  virtual void note_gone(int pid) noexcept = 0;
  // Removes the oldest of these boards until only most_kept are left.
  virtual void tidy(std::span<const int> gone) noexcept = 0;
  [[nodiscard]] virtual const std::string& name() const noexcept = 0;
};

// parent: the directory that contains the folder.
std::shared_ptr<board_folder> make_board_folder(const std::string& parent = "/dev/shm");

// Sleeps until any process changes the word to something other than value. May return early.
void sleep_on_shared(std::atomic<std::uint32_t>& word, std::uint32_t value) noexcept;
void wake_shared(std::atomic<std::uint32_t>& word) noexcept;

}  // namespace penstock::sys
