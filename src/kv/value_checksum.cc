#include "kv/value_checksum.hpp"

#include "kv/checksum.hpp"

namespace penstock::kv {

std::optional<std::uint64_t> checksum_of(const engine& with, std::span<const memory_piece> pieces) {
  checksum sum;
  for (const memory_piece& each : pieces) {
    const auto at = with.cpu_address(each.memory, each.length);
    if (!at) return std::nullopt;
    sum.add({static_cast<const std::byte*>(*at), each.length});
  }
  return sum.value();
}

}  // namespace penstock::kv
