// A descriptor that other threads can make readable: an eventfd, or a pipe if eventfd is not available. Thread-safe.
#pragma once

#include <fcntl.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>

#include "base/refused_call.hpp"
#include "penstock/status.hpp"
#include "sys/peer.hpp"

namespace penstock::sys {

class wake_up {
 public:
  wake_up() = default;  // has no descriptor

  // Errors: io (errno).
  static result<wake_up> make() {
    wake_up made;
    made.readable_ = owned_descriptor(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (made.descriptor() >= 0) return made;
    if (!is_refused_call(errno)) return status::from_errno(errno, "eventfd");
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return status::from_errno(errno, "pipe2, because eventfd is not available");
    made.readable_ = owned_descriptor(ends[0]);
    made.pipe_ = owned_descriptor(ends[1]);
    return made;
  }

  // Returns the descriptor, to be polled for reading. This object owns it.
  [[nodiscard]] int descriptor() const noexcept { return readable_.get(); }

  // Makes the descriptor readable. Does not block.
  void wake() const noexcept {
    const std::uint64_t one = 1;
    (void)!::write(pipe_.get() >= 0 ? pipe_.get() : readable_.get(), &one, sizeof(one));  // if it is full, it is readable
  }

  // Makes the descriptor unreadable until the next wake(). Does not block.
  void clear() const noexcept {
    std::array<std::uint64_t, 64> calls;
    while (::read(readable_.get(), calls.data(), sizeof(calls)) == static_cast<ssize_t>(sizeof(calls))) {
    }
  }

 private:
  owned_descriptor readable_;
  owned_descriptor pipe_;  // the write end
};

}  // namespace penstock::sys
