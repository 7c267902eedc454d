// Checks whether addresses from callers are valid memory. A program that passes a file descriptor, a small number or freed memory as an
// address gets an error instead of a signal. Queries the kernel without changing any memory. Thread-safe; one system call of 0.2 us per
// page.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace penstock::cufile {

// Linux maps nothing below this address (vm.mmap_min_addr).
inline constexpr std::uintptr_t lowest_address = 1 << 16;

// For the hot path: returns true if the value could be an address. Makes no system call.
inline bool may_be_address(const void* pointer) noexcept { return reinterpret_cast<std::uintptr_t>(pointer) >= lowest_address; }

bool is_readable(const void* from, std::size_t bytes) noexcept;
bool is_writable(const void* to, std::size_t bytes) noexcept;  // and readable
template <class T>
bool is_readable(const T* from) noexcept {
  return is_readable(from, sizeof(T));
}
template <class T>
bool is_writable(const T* to) noexcept {
  return is_writable(to, sizeof(T));
}

// Returns the string at an address, without its terminating NUL. Returns nothing if the memory ends first, or if there is no NUL within 1
// MiB.
std::optional<std::string> text_at(const char* from);

}  // namespace penstock::cufile
