#include "sys/page_size.hpp"

#include <unistd.h>

namespace penstock::sys {

std::size_t page_size() noexcept {
  static const auto bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

}  // namespace penstock::sys
