// Pseudo-random bytes, and files made of them that are removed with the object. One thread per object.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "bench/verify.hpp"
#include "penstock/status.hpp"

namespace penstock::bench {

// The same seed gives the same bytes, however they are asked for piece by piece (pieces of a multiple of 8 bytes).
class random_bytes {
 public:
  explicit random_bytes(std::uint64_t seed) : state_(seed) {}
  void fill(std::span<std::byte> target);
  std::uint64_t next();

 private:
  std::uint64_t state_;
};

// Bytes free to this user on the file system of the directory. Errors: os errors.
result<std::uint64_t> free_space(const std::string& directory);

// Fills device or host memory with random bytes and returns their hash. Blocks. Errors: those of engine::copy; cancelled.
result<std::uint64_t> fill_memory(const engine& owner, void* memory, std::uint64_t length, std::uint64_t seed,
                                  const stop_function& stop = {});
// Fills memory with zeros.
status clear_memory(const engine& owner, void* memory, std::uint64_t length);

// A file of random bytes, flushed to the disk.
class sample_file {
 public:
  // Makes a new file with a name of its own in the directory. It is removed by the destructor, and on failure. Blocks.
  // Errors: os errors; no_space before anything is written when the space is seen to be short; cancelled.
  static result<sample_file> create_temporary(const std::string& directory, std::uint64_t bytes, std::uint64_t seed,
                                              const stop_function& stop = {});
  // Makes the file under this name, which must not exist; it is kept, but removed when making it fails.
  static result<sample_file> create_kept(const std::string& path, std::uint64_t bytes, std::uint64_t seed, const stop_function& stop = {});
  // A file that exists and is the user's: only read, never removed. hash() is 0.
  static sample_file existing(std::string path, std::uint64_t bytes);

  sample_file(sample_file&& other) noexcept;
  sample_file& operator=(sample_file&& other) noexcept;
  ~sample_file();
  [[nodiscard]] const std::string& path() const { return path_; }
  [[nodiscard]] std::uint64_t size() const { return bytes_; }
  // xxHash64 of the bytes as they were written.
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
