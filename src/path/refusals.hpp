// Refusals of paths that other code recognizes by their text. Constants.
#pragma once

#include <string_view>

namespace penstock::path {

// The refusal of a path that needs a GPU. Plans omit it if they already say that there is none.
inline constexpr std::string_view no_gpu_memory = "the memory is on the host device, which is not a GPU";

}  // namespace penstock::path
