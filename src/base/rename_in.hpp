// Giving a file in a folder another name, also where a sandbox refuses renameat(2).
#pragma once

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>

#include "base/refused_call.hpp"

namespace penstock {

// As renameat(2) with one folder. By the newer call where that one is refused; glibc's renameat2() would make the older one of it.
inline int rename_in(int folder, const char* from, const char* to) noexcept {
  if (::renameat(folder, from, folder, to) == 0) return 0;
  const int error = errno;
  if (is_refused_call(error) && ::syscall(SYS_renameat2, folder, from, folder, to, 0U) == 0) return 0;
  errno = error;
  return -1;
}

}  // namespace penstock
