#include "bench/sample_data.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

namespace penstock::bench {
namespace {

status write_exactly(int fd, const std::byte* source, std::uint64_t length, const std::string& path) {
  while (length > 0) {
    const ssize_t count = ::write(fd, source, length);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return status::from_errno(errno, fmt::format("write {} to {}", length, path));
    source += count;
    length -= static_cast<std::uint64_t>(count);
  }
  return {};
}

std::string directory_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

status require_space(const std::string& directory, std::uint64_t bytes) {
  auto space = free_space(directory);
  if (!space) return space.error();
  if (*space >= bytes) return {};
  return {errc::no_space, fmt::format("{} has {} MiB free, {} MiB are needed", directory, *space >> 20, bytes >> 20)};
}

}  // namespace

// splitmix64: fast, and its output is incompressible.
std::uint64_t random_bytes::next() {
  std::uint64_t z = (state_ += 0x9e3779b97f4a7c15ULL);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

void random_bytes::fill(std::span<std::byte> target) {
  while (!target.empty()) {
    const std::uint64_t word = next();
    const std::size_t count = std::min(target.size(), sizeof word);
    std::memcpy(target.data(), &word, count);
    target = target.subspan(count);
  }
}

result<std::uint64_t> free_space(const std::string& directory) {
  struct statvfs info {};
  if (statvfs(directory.c_str(), &info) != 0) return status::from_errno(errno, fmt::format("free space of {}", directory));
  return static_cast<std::uint64_t>(info.f_bavail) * info.f_frsize;
}

result<std::uint64_t> fill_memory(const engine& owner, void* memory, std::uint64_t length, std::uint64_t seed, const stop_function& stop) {
  random_bytes source(seed);
  hasher hash;
  std::vector<std::byte> buffer(std::min(length, piece_bytes));
  auto* target = static_cast<std::byte*>(memory);
  for (std::uint64_t done = 0; done < length;) {
    if (stop && stop()) return status(errc::cancelled, "interrupted");
    const std::uint64_t count = std::min<std::uint64_t>(length - done, buffer.size());
    source.fill({buffer.data(), count});
    hash.update(buffer.data(), count);
    if (status error = owner.copy(target + done, buffer.data(), count); !error.ok()) return error;
    done += count;
  }
  return hash.value();
}

status clear_memory(const engine& owner, void* memory, std::uint64_t length) {
  const std::vector<std::byte> zeros(std::min(length, piece_bytes));
  auto* target = static_cast<std::byte*>(memory);
  for (std::uint64_t done = 0; done < length;) {
    const std::uint64_t count = std::min<std::uint64_t>(length - done, zeros.size());
    if (status error = owner.copy(target + done, zeros.data(), count); !error.ok()) return error;
    done += count;
  }
  return {};
}

status sample_file::write(int fd, std::uint64_t seed, const stop_function& stop) {
  random_bytes source(seed);
  hasher hash;
  std::vector<std::byte> buffer(std::min(bytes_, piece_bytes));
  for (std::uint64_t done = 0; done < bytes_;) {
    if (stop && stop()) return {errc::cancelled, fmt::format("interrupted while making {}", path_)};
    const std::uint64_t count = std::min<std::uint64_t>(bytes_ - done, buffer.size());
    source.fill({buffer.data(), count});
    hash.update(buffer.data(), count);
    if (status error = write_exactly(fd, buffer.data(), count, path_); !error.ok()) return error;
    done += count;
  }
  // Dirty pages cannot be dropped from the page cache, and their writeback would disturb later measurements.
  if (::fsync(fd) != 0) return status::from_errno(errno, fmt::format("fsync {}", path_));
  hash_ = hash.value();
  return {};
}

result<sample_file> sample_file::make(sample_file file, int fd, std::uint64_t seed, const stop_function& stop) {
  const status error = file.write(fd, seed, stop);
  ::close(fd);
  if (error.ok()) return file;
  file.temporary_ = true;  // remove an incomplete file
  return error;
}

result<sample_file> sample_file::create_temporary(const std::string& directory, std::uint64_t bytes, std::uint64_t seed,
                                                  const stop_function& stop) {
  if (status error = require_space(directory, bytes); !error.ok()) return error;
  std::string path = directory + "/penstock-XXXXXX";
  const int fd = ::mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) return status::from_errno(errno, fmt::format("make a file in {}", directory));
  return make(sample_file(std::move(path), bytes, true), fd, seed, stop);
}

result<sample_file> sample_file::create_kept(const std::string& path, std::uint64_t bytes, std::uint64_t seed, const stop_function& stop) {
  if (status error = require_space(directory_of(path), bytes); !error.ok()) return error;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (fd < 0) return status::from_errno(errno, fmt::format("make {}", path));
  return make(sample_file(path, bytes, false), fd, seed, stop);
}

sample_file sample_file::existing(std::string path, std::uint64_t bytes) { return {std::move(path), bytes, false}; }

sample_file::sample_file(sample_file&& other) noexcept
    : path_(std::move(other.path_)), bytes_(other.bytes_), hash_(other.hash_), temporary_(std::exchange(other.temporary_, false)) {}

sample_file& sample_file::operator=(sample_file&& other) noexcept {
  if (this == &other) return *this;
  remove();
  path_ = std::move(other.path_);
  bytes_ = other.bytes_;
  hash_ = other.hash_;
  temporary_ = std::exchange(other.temporary_, false);
  return *this;
}

sample_file::~sample_file() { remove(); }

void sample_file::remove() noexcept {
  if (temporary_) ::unlink(path_.c_str());
  temporary_ = false;
}

}  // namespace penstock::bench
