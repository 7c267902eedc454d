// How long a page of this machine is: of memory, of its mappings and of the page cache. 4096 bytes on x86-64; 4, 16 or 64 KiB on aarch64,
// as the kernel was built. What direct I/O demands is another number (file_info, direct_alignment), and stays 512 or 4096 there too. Pure;
// any thread.
#pragma once

#include <cstddef>

namespace penstock::sys {

// Asked of the kernel once.
[[nodiscard]] std::size_t page_size() noexcept;

// The multiple of the page at or below a value, and the one at or above it.
[[nodiscard]] inline std::size_t page_down(std::size_t value) noexcept { return value / page_size() * page_size(); }
[[nodiscard]] inline std::size_t page_up(std::size_t value) noexcept { return page_down(value + page_size() - 1); }

}  // namespace penstock::sys
