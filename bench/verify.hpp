// Independent checks of bytes: hashes of what lies in a file, read plainly, and of what lies in device memory, copied back.
// Nothing here reads a file through the library. One thread per object; the free functions are safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "penstock/engine.hpp"

namespace penstock::bench {

// xxHash64 of bytes given piece by piece.
class hasher {
 public:
  hasher();
  hasher(hasher&&) noexcept;
  hasher& operator=(hasher&&) noexcept;
  ~hasher();
  void update(const void* bytes, std::size_t count);
  [[nodiscard]] std::uint64_t value() const;

 private:
  struct state;
  std::unique_ptr<state> state_;
};

// Asked before each piece of the work; true ends it with errc::cancelled. May be empty.
inline constexpr std::uint64_t piece_bytes = std::uint64_t{16} << 20;
using stop_function = std::function<bool()>;

// Adds length bytes at offset of the file, read by pread(2) through the page cache, to the hash. Blocks.
// Errors: os errors; io when the file ends early; cancelled.
status hash_file(hasher& into, const std::string& path, std::uint64_t offset, std::uint64_t length, const stop_function& stop = {});
result<std::uint64_t> hash_of_file(const std::string& path, std::uint64_t offset, std::uint64_t length, const stop_function& stop = {});

// Adds bytes of memory of any kind, copied back to the host, to the hash. Blocks. Errors: those of engine::copy; cancelled.
status hash_memory(hasher& into, const engine& owner, const void* memory, std::uint64_t length, const stop_function& stop = {});
result<std::uint64_t> hash_of_memory(const engine& owner, const void* memory, std::uint64_t length, const stop_function& stop = {});

}  // namespace penstock::bench
