#include "cli/files/copy_objects.hpp"

#include <algorithm>
#include <vector>

#include "cli/common/at_once.hpp"
#include "cli/common/interrupt.hpp"
#include "cli/files/copy_file.hpp"

namespace penstock::cli {

void copy_with_server(std::span<const std::optional<std::uint64_t>> sizes, const std::function<void(std::size_t)>& copy) {
  constexpr std::size_t most_at_once = 64;
  constexpr std::uint64_t copies_in_memory = 2;  // of a small file: as read, and in the upload
  std::vector<std::size_t> small, large;
  std::uint64_t largest = 0;  // bytes of the largest small file
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const auto size = sizes[i].value_or(small_object);
    (size < small_object ? small : large).push_back(i);
    if (size < small_object) largest = std::max(largest, size);
  }
  run_at_once(small.size(), steps_at_once(copies_in_memory * largest, most_at_once), [&](std::size_t i) { copy(small[i]); });
  for (const std::size_t i : large) {
    if (interrupted()) return;
    copy(i);
  }
}

}  // namespace penstock::cli
