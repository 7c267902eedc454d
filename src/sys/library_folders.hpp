// The folders in which CUDA toolkits and Linux distributions install libraries. Pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace penstock::sys {

// This build's architecture, as reported by uname(2).
#if defined(__aarch64__)
inline constexpr std::string_view own_architecture = "aarch64";
#else
inline constexpr std::string_view own_architecture = "x86_64";
#endif

// Returns the library folders of a toolkit such as /usr/local/cuda: lib64 and those below targets. On aarch64, servers (Grace, DGX Spark)
// use sbsa-linux; Jetson up to JetPack 6 uses aarch64-linux.
std::vector<std::string> toolkit_folders(const std::string& toolkit, std::string_view architecture = own_architecture);

// Returns the library folders that Debian (with the architecture in the name) and other distributions use.
std::vector<std::string> distribution_folders(std::string_view architecture = own_architecture);

}  // namespace penstock::sys
