// Computes the checksum of a value in memory, if the CPU can access all of it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "penstock/engine.hpp"
#include "penstock/kv.hpp"

namespace penstock::kv {

// Returns nothing if part of it is GPU memory.
[[nodiscard]] std::optional<std::uint64_t> checksum_of(const engine& with, std::span<const memory_piece> pieces);

}  // namespace penstock::kv
