// How much memory a kind of buffers may take. Pure function over what the kernel says; thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/no_memory.hpp"
#include "sys/kernel.hpp"

namespace penstock::sys {

// Bytes that buffers of one kind may take where wanted_bytes would be best: a quarter of the machine's memory or of its container's at
// most, since buffers count towards the container's limit and the kernel cannot drop them. Never less than least_bytes, without which they
// are of no use.
inline std::uint64_t share_of_memory(kernel& of, std::uint64_t wanted_bytes, std::uint64_t least_bytes = 0) noexcept {
  constexpr std::uint64_t part = 4;
  const auto memory = or_no_memory([&] { return of.memory_now(); });
  if (!memory) return wanted_bytes;
  return std::min(wanted_bytes, std::max(memory->total_bytes / part, least_bytes));
}

}  // namespace penstock::sys
