// Independent checks of bytes: hashes of files, read without the library, and of device memory, copied back to the host. One thread per
// object; the free functions are safe from any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "penstock/engine.hpp"

namespace penstock::bench {

// xxHash64 of bytes that are added piece by piece.
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

inline constexpr std::uint64_t piece_bytes = std::uint64_t{16} << 20;
// Called before each piece of the work; if it returns true, the work ends with errc::cancelled. May be empty.
using stop_function = std::function<bool()>;

// Adds length bytes at offset of the file to the hash, read by pread(2) through the page cache. Blocks.
// Errors: os errors; io if the file ends early; cancelled.
status hash_file(hasher& into, const std::string& path, std::uint64_t offset, std::uint64_t length, const stop_function& stop = {});
result<std::uint64_t> hash_of_file(const std::string& path, std::uint64_t offset, std::uint64_t length, const stop_function& stop = {});

// Adds bytes of any kind of memory to the hash, copied back to the host. Blocks. Errors: those of engine::copy; cancelled.
status hash_memory(hasher& into, const engine& owner, const void* memory, std::uint64_t length, const stop_function& stop = {});
result<std::uint64_t> hash_of_memory(const engine& owner, const void* memory, std::uint64_t length, const stop_function& stop = {});

}  // namespace penstock::bench
