// How many descriptors this process has open, the one that is needed to look included.
#pragma once

#include <cstddef>
#include <filesystem>
#include <iterator>

namespace penstock::testing {

inline std::size_t open_descriptors() {
  return static_cast<std::size_t>(std::distance(std::filesystem::directory_iterator("/proc/self/fd"), {}));
}

}  // namespace penstock::testing
