// Limits how much memory one kind of buffer may take. A pure function of what the kernel reports; thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/no_memory.hpp"
#include "sys/kernel.hpp"

namespace penstock::sys {

// Returns the bytes that buffers of one kind may take if wanted_bytes would be best: at most a quarter of the memory of the machine or its
// container, because buffers count towards the container's limit and the kernel cannot drop them. Never less than least_bytes, below which
// the buffers are useless.
inline std::uint64_t share_of_memory(kernel& of, std::uint64_t wanted_bytes, std::uint64_t least_bytes = 0) noexcept {
  constexpr std::uint64_t part = 4;
  const auto memory = or_no_memory([&] { return of.memory_now(); });
  if (!memory) return wanted_bytes;
  return std::min(wanted_bytes, std::max(memory->total_bytes / part, least_bytes));
}

}  // namespace penstock::sys
