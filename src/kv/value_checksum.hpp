// The checksum of a value in memory, where the CPU can reach all of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "penstock/engine.hpp"
#include "penstock/kv.hpp"

namespace penstock::kv {

// Nothing: some of it is memory of a GPU.
[[nodiscard]] std::optional<std::uint64_t> checksum_of(const engine& with, std::span<const memory_piece> pieces);

}  // namespace penstock::kv
