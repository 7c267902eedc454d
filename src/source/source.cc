#include "source/source.hpp"

#include <fmt/format.h>

namespace penstock::source {

status source::can_drain(const std::byte* memory, std::uint64_t length, std::uint64_t offset) {
  if (aligned(memory, length, offset) || cached_problem().ok()) return {};
  return {errc::invalid_argument,
          fmt::format("the descriptor is O_DIRECT and could not be opened without it, so memory, length and offset must be multiples of {}",
                      direct_alignment)};
}

}  // namespace penstock::source
