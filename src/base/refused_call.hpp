// Recognizes the errors of system calls that are not available.
#pragma once

#include <cerrno>

namespace penstock {

// Returns true for errors that an older kernel (ENOSYS), a seccomp filter or sandbox (EPERM, ENOSYS), or a file system without support for
// the call or its flags (EOPNOTSUPP, EINVAL) returns. The caller then falls back to an older call, or does without. Some of these errors
// can also be caused by the file itself; the older call then fails too, and its error is the one to report.
[[nodiscard]] constexpr bool is_refused_call(int error) noexcept {
  return error == ENOSYS || error == EPERM || error == EOPNOTSUPP || error == EINVAL;
}

}  // namespace penstock
