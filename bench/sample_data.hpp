// Pseudo-random bytes, and files made of them, which the destructor removes. One thread per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "bench/verify.hpp"
#include "penstock/status.hpp"

namespace penstock::bench {

// The same seed yields the same bytes, regardless of the pieces in which they are requested (pieces of a multiple of 8 bytes).
class random_bytes {
 public:
  explicit random_bytes(std::uint64_t seed) : state_(seed) {}
  void fill(std::span<std::byte> target);
  std::uint64_t next();

 private:
  std::uint64_t state_;
};

// Returns the bytes free to this user on the file system of the directory. Errors: os errors.
result<std::uint64_t> free_space(const std::string& directory);

// Fills device or host memory with random bytes and returns their hash. Blocks. Errors: those of engine::copy; cancelled.
result<std::uint64_t> fill_memory(const engine& owner, void* memory, std::uint64_t length, std::uint64_t seed,
                                  const stop_function& stop = {});
// Fills memory with zeros.
status clear_memory(const engine& owner, void* memory, std::uint64_t length);

// A file of random bytes, flushed to disk.
class sample_file {
 public:
  // Creates a file with a unique name in the directory. The destructor removes it, as does a failure. Blocks.
  // Errors: os errors; no_space, before anything is written, if the free space is too small; cancelled.
  static result<sample_file> create_temporary(const std::string& directory, std::uint64_t bytes, std::uint64_t seed,
                                              const stop_function& stop = {});
  // Creates the file under this name, which must not exist. The file is kept unless its creation fails.
  static result<sample_file> create_kept(const std::string& path, std::uint64_t bytes, std::uint64_t seed, const stop_function& stop = {});
  // Uses an existing file of the user, which is only read and never removed. Its hash() is 0.
  static sample_file existing(std::string path, std::uint64_t bytes);

  sample_file(sample_file&& other) noexcept;
  sample_file& operator=(sample_file&& other) noexcept;
  ~sample_file();
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t size() const { return bytes_; }
  // Returns the xxHash64 of the bytes as written.
  [[nodiscard]] std::uint64_t hash() const { return hash_; }

 private:
  sample_file(std::string path, std::uint64_t bytes, bool temporary) : path_(std::move(path)), bytes_(bytes), temporary_(temporary) {}
  status write(int fd, std::uint64_t seed, const stop_function& stop);
  static result<sample_file> make(sample_file file, int fd, std::uint64_t seed, const stop_function& stop);
  void remove() noexcept;
  std::string path_;
  std::uint64_t bytes_ = 0;
  std::uint64_t hash_ = 0;
  bool temporary_ = false;
};

}  // namespace penstock::bench
