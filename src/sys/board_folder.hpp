// The door to boards: shared memory, one board for each process, through which others see what it does. The memory is a segment of System
// V: nobody can make one shorter, where whoever counts in a file that is cut off is ended by SIGBUS, and like a file it stays when its
// process is killed. Its last word (mark_bytes) tells which folder it belongs to. A file tells where it is: /dev/shm/penstock-UID/PID, in a
// folder that only its user may enter. It holds the start of the board, and behind that the number of the segment (segment_number).
// Everything above asks this interface, so tests can have a folder elsewhere, or none. Every call is thread-safe. A failed call returns the
// errno of that very call as a status that names it.
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
  // How long the board of a process that is gone stays, from when it was first seen to be gone, and how many of them stay.
  static constexpr std::chrono::seconds kept_for{600};
  static constexpr std::size_t most_kept = 16;

  // Of what a file holds behind the start of its board.
  using segment_number = std::int64_t;
  static constexpr std::size_t most_start_bytes = 4096;
  static constexpr std::size_t mark_bytes = 8;

  virtual ~board_folder() = default;
  // Makes the memory of this process's board, of zeros, and mark_bytes more. Nobody finds it yet. Makes the folder first, where it is
  // missing. Errors: permission_denied (the folder is another user's, is open to others, or is no folder; a seccomp profile), no_space (the
  // limit of segments), io.
  virtual result<shared_region> make(std::size_t bytes) = 0;
  // From now on others find it, in place of one that an earlier process of its number has left. start: its first bytes, at most
  // most_start_bytes, which stay as they are. An error takes it back: of make(), and unsupported (a second copy of this library in the
  // process has one).
  virtual status publish(std::span<const std::byte> start) = 0;
  // The board of this process, if it is still the one that was made.
  virtual void remove() noexcept = 0;
  // The numbers of processes with boards. Where there is no folder, there are none. Errors: as of make().
  virtual result<std::vector<int>> list() = 0;
  // Fills all of `into` from a board, as it is now; whoever writes it goes on. Errors: not_found, invalid_argument (it has another size,
  // its file is cut off, or its memory is gone), permission_denied (it is another user's, or no file).
  virtual status read(int pid, std::span<std::byte> into) = 0;
  // As much of its beginning as there is.
  virtual result<std::size_t> read_start(int pid, std::span<std::byte> into) = 0;
  // Adds one to the word at `asked`, wakes who sleeps on it, and waits until the word at `answered` has the sum, at most so long.
  // Errors: timed_out, and as of read().
  virtual status ask(int pid, std::size_t asked, std::size_t answered, std::chrono::milliseconds most) = 0;
  // False where this process certainly counts elsewhere: it has become another program (exec), say. Reads a list of all that it has mapped.
  virtual bool is_mapped_by(int pid) noexcept = 0;
  // The process of this board is gone: the board goes too, once it has been known to be gone for kept_for.
  virtual void note_gone(int pid) noexcept = 0;
  // Of those that are gone the oldest go, until there are most_kept.
  virtual void tidy(std::span<const int> gone) noexcept = 0;
  [[nodiscard]] virtual const std::string& name() const noexcept = 0;
};

// parent: where the folder is made.
std::shared_ptr<board_folder> make_board_folder(const std::string& parent = "/dev/shm");

// Sleeps until the word has another value than this, in whichever process; may return before.
void sleep_on_shared(std::atomic<std::uint32_t>& word, std::uint32_t value) noexcept;
void wake_shared(std::atomic<std::uint32_t>& word) noexcept;

}  // namespace penstock::sys
