// Probes for features that a container, a user namespace or an emulator may lack. Returns why a feature is missing, or an empty string.
#pragma once

#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <string>

#include "device/host_pins.hpp"
#include "support/child.hpp"
#include "sys/kernel.hpp"

namespace penstock::testing {

// Reading through process_vm_readv, as the host device reads memory that is mapped read-only.
inline std::string lacks_reads_of_processes() {
  const char there = 0;
  char here = 0;
  return device::host_pins::read_safely(&here, &there, 1).ok() ? "" : "process_vm_readv is missing, by which the host device reads";
}

inline std::string lacks_rings() { return sys::make_kernel()->make_ring(4).ok() ? "" : "there is no io_uring"; }

inline std::string lacks_filters() {
  return run_in_child([] { return deny_system_call(SYS_getppid, EPERM) ? 0 : 1; }) == 0 ? "" : "seccomp filters cannot be set here";
}

// Needs root: other users cannot change their user id.
inline std::string lacks_user_ids() {
  constexpr unsigned nobody = 65534;
  const auto become_nobody = [] { return setresgid(nobody, nobody, nobody) == 0 && setresuid(nobody, nobody, nobody) == 0 ? 0 : 1; };
  return run_in_child(become_nobody) == 0 ? "" : "user ids cannot be set here";
}

#define PENSTOCK_SKIP_IF(lacking) \
  if (const std::string why = lacking; !why.empty()) GTEST_SKIP() << why

}  // namespace penstock::testing
