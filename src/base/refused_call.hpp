// Whether a system call is missing here, as its error says.
#pragma once

#include <cerrno>

namespace penstock {

// True for what an older kernel (ENOSYS), a seccomp filter or a sandbox (EPERM, ENOSYS), and a file system without the call or its flags
// (EOPNOTSUPP, EINVAL) answer. A caller that gets it makes an older call instead, or does without. Some of these errors may also speak of
// the one file: then the older call fails as well, and its error is the one to report.
[[nodiscard]] constexpr bool is_refused_call(int error) noexcept {
  return error == ENOSYS || error == EPERM || error == EOPNOTSUPP || error == EINVAL;
}

}  // namespace penstock
