// The page size of this machine: of memory, of mappings and of the page cache. 4096 bytes on x86-64; 4, 16 or 64 KiB on aarch64, depending
// on the kernel build. The alignment of direct I/O is separate (file_info, direct_alignment) and is 512 or 4096 there too. Pure;
// thread-safe.
#pragma once

#include <cstddef>

namespace penstock::sys {

// Asks the kernel once and caches the answer.
[[nodiscard]] std::size_t page_size() noexcept;

// Round a value down or up to a multiple of the page size.
[[nodiscard]] inline std::size_t page_down(std::size_t value) noexcept { return value / page_size() * page_size(); }
[[nodiscard]] inline std::size_t page_up(std::size_t value) noexcept { return page_down(value + page_size() - 1); }

}  // namespace penstock::sys
