// Creates files for tests without using the library.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <ios>
#include <span>
#include <sstream>
#include <string>
#include <utility>

#include "support/pattern.hpp"

namespace penstock::testing {

// Creates the file, or replaces its content.
inline void store_file(const std::string& path, std::span<const std::byte> content) {
  std::ofstream to(path, std::ios::binary | std::ios::trunc);
  to.write(reinterpret_cast<const char*>(content.data()), static_cast<std::streamsize>(content.size()));
  to.close();
  EXPECT_TRUE(to.good()) << path;
}

// The same with pattern bytes.
inline void store_pattern(const std::string& path, std::size_t bytes, std::uint64_t seed) { store_file(path, pattern::make(bytes, seed)); }

// Returns the file's content; an empty string if it cannot be read. An istreambuf_iterator would copy it byte by byte.
inline std::string stored_bytes(const std::string& path) {
  std::ostringstream content;
  content << std::ifstream(path, std::ios::binary).rdbuf();
  return std::move(content).str();
}

}  // namespace penstock::testing
