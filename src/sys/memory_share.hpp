// Limits how much memory one kind of buffer may use. The result depends only on what the kernel reports. Thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/no_memory.hpp"
#include "sys/kernel.hpp"

namespace penstock::sys {

// Returns how many bytes of memory buffers of one kind may use, given an ideal amount of wanted_bytes: at most a quarter of the machine's
// or container's memory, because buffers count towards the container's limit and the kernel cannot drop them. Never less than least_bytes,
// below which the buffers would be useless.
inline std::uint64_t share_of_memory(kernel& of, std::uint64_t wanted_bytes, std::uint64_t least_bytes = 0) noexcept {
  constexpr std::uint64_t part = 4;
  const auto memory = or_no_memory([&] { return of.memory_now(); });
  if (!memory) return wanted_bytes;
  return std::min(wanted_bytes, std::max(memory->total_bytes / part, least_bytes));
}

}  // namespace penstock::sys
