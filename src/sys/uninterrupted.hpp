// A helper for system calls.
#pragma once

#include <cerrno>

namespace penstock::sys {

// Repeats a system call until it is not interrupted by a signal (EINTR).
template <class Call>
auto uninterrupted(Call call) {
  auto outcome = call();
  while (outcome < 0 && errno == EINTR) outcome = call();
  return outcome;
}

}  // namespace penstock::sys
