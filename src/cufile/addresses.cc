#include "cufile/addresses.hpp"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>

namespace penstock::cufile {

namespace {

constexpr std::uintptr_t word_bytes = sizeof(std::uint32_t);

std::uintptr_t page_bytes() noexcept {
  static const auto bytes = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

// A futex wait with a zero timeout, which only reads the word.
bool can_read_word(std::uintptr_t word) noexcept {
  const timespec no_time{};
  return ::syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, 0U, &no_time, nullptr, 0U) == 0 || errno != EFAULT;
}

// An atomic operation that wakes no thread and changes no bit of the word. It fails unless the word is writable.
bool can_write_word(std::uintptr_t word) noexcept {
  const std::uint32_t nobody = 0;
  constexpr unsigned set_no_bit = static_cast<unsigned>(FUTEX_OP_OR) << 28;
  return ::syscall(SYS_futex, &nobody, FUTEX_WAKE_OP_PRIVATE, 0U, 0UL, word, set_no_bit) >= 0 || errno != EFAULT;
}

// Checks one word on each page of the range.
template <class Ask>
bool all_pages(const void* pointer, std::size_t bytes, Ask ask) noexcept {
  const int caller_errno = errno;
  const auto first = reinterpret_cast<std::uintptr_t>(pointer);
  std::uintptr_t end = 0;
  if (first < lowest_address || __builtin_add_overflow(first, bytes, &end)) return false;
  bool good = true;
  for (auto at = first / word_bytes * word_bytes; good && at < end; at = (at / page_bytes() + 1) * page_bytes()) good = ask(at);
  errno = caller_errno;
  return good;
}

}  // namespace

bool is_readable(const void* from, std::size_t bytes) noexcept { return all_pages(from, bytes, can_read_word); }
bool is_writable(const void* to, std::size_t bytes) noexcept { return all_pages(to, bytes, can_write_word); }

std::optional<std::string> text_at(const char* from) {
  constexpr std::size_t longest = std::size_t{1} << 20;
  std::size_t length = 0;
  while (length < longest) {
    const auto here = reinterpret_cast<std::uintptr_t>(from) + length;
    const std::size_t rest_of_page = page_bytes() - here % page_bytes();
    if (!is_readable(from + length, rest_of_page)) return std::nullopt;
    const auto* const end = static_cast<const char*>(std::memchr(from + length, 0, rest_of_page));
    if (end != nullptr) return std::string(from, end);
    length += rest_of_page;
  }
  return std::nullopt;
}

}  // namespace penstock::cufile
