// Recognizes from its error that a system call is not available.
#pragma once

#include <cerrno>

namespace penstock {

// True for the errors of an older kernel (ENOSYS), of a seccomp filter or sandbox (EPERM, ENOSYS), and of a file system that lacks the call
// or its flags (EOPNOTSUPP, EINVAL). The caller then uses an older call, or does without. Some of these errors may also concern the file
// itself; the older call then fails too, and its error is the one to report.
[[nodiscard]] constexpr bool is_refused_call(int error) noexcept {
  return error == ENOSYS || error == EPERM || error == EOPNOTSUPP || error == EINVAL;
}

}  // namespace penstock
