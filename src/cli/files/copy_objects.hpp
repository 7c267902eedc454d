// Copies many files from or to a server. Small ones are copied in parallel, because each waits for a response. Large ones, which already
// have many pieces in flight, are copied one at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>

namespace penstock::cli {

// Calls copy(i) for each file, on several threads for small ones. sizes: of the files; nullopt: unknown. Stops early after an interrupt.
void copy_with_server(std::span<const std::optional<std::uint64_t>> sizes, const std::function<void(std::size_t)>& copy);

}  // namespace penstock::cli
