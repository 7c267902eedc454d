// Where NVIDIA's toolkits and the distributions put the libraries of a processor. Pure values.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock::sys {

// As uname(2) names what this was compiled for.
#if defined(__aarch64__)
inline constexpr std::string_view own_architecture = "aarch64";
#else
inline constexpr std::string_view own_architecture = "x86_64";
#endif

// Below a toolkit, such as /usr/local/cuda: lib64, and what is below targets. On aarch64 servers (Grace, DGX Spark) are sbsa-linux, and
// Jetson is aarch64-linux up to JetPack 6.
std::vector<std::string> toolkit_folders(const std::string& toolkit, std::string_view architecture = own_architecture);

// Of the distributions: Debian's, with the processor in its name, and that of the others.
std::vector<std::string> distribution_folders(std::string_view architecture = own_architecture);

}  // namespace penstock::sys
