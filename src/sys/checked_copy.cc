#include "sys/checked_copy.hpp"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include <fmt/format.h>

#include "sys/peer.hpp"
#include "sys/uninterrupted.hpp"

namespace penstock::sys {

namespace {

// Copies through a pipe. This is slower, but needs no permission and can write to any memory that pread() can, including device mappings.
result<std::size_t> copy_by_pipe(std::byte* target, const std::byte* source, std::size_t bytes) {
  constexpr std::size_t most_at_once = 4096;  // fits in an empty pipe without blocking
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) return status::from_errno(errno, "pipe2");
  const owned_descriptor from(ends[0]);
  const owned_descriptor to(ends[1]);
  std::size_t done = 0;
  while (done < bytes) {
    const auto put = uninterrupted([&] { return ::write(to.get(), source + done, std::min(bytes - done, most_at_once)); });
    if (put < 0) return status::from_errno(errno, "write to a pipe");
    for (ssize_t left = put; left > 0;) {
      const auto got = uninterrupted([&] { return ::read(from.get(), target + done, static_cast<std::size_t>(left)); });
      if (got <= 0) {
        if (done > 0) return done;
        return status::from_errno(errno, fmt::format("the memory at {} is not writable", static_cast<void*>(target)));
      }
      done += static_cast<std::size_t>(got);
      left -= got;
    }
  }
  return done;
}

}  // namespace

result<std::size_t> copy_checked(void* target, const void* source, std::size_t bytes) {
  auto* const to = static_cast<std::byte*>(target);
  const auto* const from = static_cast<const std::byte*>(source);
  std::size_t done = 0;
  while (done < bytes) {
    const iovec local{const_cast<std::byte*>(from) + done, bytes - done};
    const iovec remote{to + done, bytes - done};
    const ssize_t moved = ::process_vm_writev(::getpid(), &local, 1, &remote, 1, 0);
    if (moved <= 0) break;  // not writable, device memory, or denied by a seccomp profile
    done += static_cast<std::size_t>(moved);
  }
  if (done == bytes) return done;
  const auto rest = copy_by_pipe(to + done, from + done, bytes - done);
  if (rest) return done + *rest;
  return done > 0 ? result<std::size_t>(done) : rest;
}

}  // namespace penstock::sys
