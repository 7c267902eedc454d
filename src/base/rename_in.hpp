// Renames a file within a folder, even if a sandbox refuses renameat(2).
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/refused_call.hpp"

namespace penstock {

// Like renameat(2) within one folder. If that call is not available, invokes the renameat2 system call directly, because glibc's
// renameat2() would call renameat.
inline int rename_in(int folder, const char* from, const char* to) noexcept {
  if (::renameat(folder, from, folder, to) == 0) return 0;
  const int error = errno;
  if (is_refused_call(error) && ::syscall(SYS_renameat2, folder, from, folder, to, 0U) == 0) return 0;
  errno = error;
  return -1;
}

}  // namespace penstock
