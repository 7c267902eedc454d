// This machine's page size, for memory, mappings and the page cache. 4096 bytes on x86-64; 4, 16 or 64 KiB on aarch64, depending on the
// kernel build. The direct I/O alignment is separate (file_info, direct_alignment) and is 512 or 4096 on aarch64 too. Thread-safe.
#pragma once

#include <cstddef>

namespace penstock::sys {

// Queries the kernel once and caches the result.
[[nodiscard]] std::size_t page_size() noexcept;

// Round a value down or up to a multiple of the page size.
[[nodiscard]] inline std::size_t page_down(std::size_t value) noexcept { return value / page_size() * page_size(); }
[[nodiscard]] inline std::size_t page_up(std::size_t value) noexcept { return page_down(value + page_size() - 1); }

}  // namespace penstock::sys
