// Refusals of paths that others know by their words. Constants.
#pragma once

#include <string_view>

namespace penstock::path {

// Of a path that needs a GPU. Plans leave it out where they say that there is none.
inline constexpr std::string_view no_gpu_memory = "the memory is that of the host device, which is no GPU";

}  // namespace penstock::path
