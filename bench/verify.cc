#include "bench/verify.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace penstock::bench {

struct hasher::state {
  XXH64_state_t xxh{};
};

hasher::hasher() : state_(std::make_unique<state>()) { XXH64_reset(&state_->xxh, 0); }
hasher::hasher(hasher&&) noexcept = default;
hasher& hasher::operator=(hasher&&) noexcept = default;
hasher::~hasher() = default;

void hasher::update(const void* bytes, std::size_t count) { XXH64_update(&state_->xxh, bytes, count); }

std::uint64_t hasher::value() const { return XXH64_digest(&state_->xxh); }

namespace {

// A read-only descriptor, closed at the end of its scope.
class plain_file {
 public:
  explicit plain_file(const std::string& path) : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC)) {}
  plain_file(const plain_file&) = delete;
  plain_file& operator=(const plain_file&) = delete;
  ~plain_file() {
    if (fd_ >= 0) ::close(fd_);
  }
  [[nodiscard]] int fd() const { return fd_; }

 private:
  int fd_;
};

// Fills the buffer from the file, and continues after short reads.
status read_exactly(int fd, std::byte* target, std::uint64_t length, std::uint64_t offset, const std::string& path) {
  while (length > 0) {
    const ssize_t count = ::pread(fd, target, length, static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return status::from_errno(errno, fmt::format("check: read {} at {} of {}", length, offset, path));
    if (count == 0) return {errc::io, fmt::format("check: {} ends at {}, before the range to compare does", path, offset)};
    target += count;
    offset += static_cast<std::uint64_t>(count);
    length -= static_cast<std::uint64_t>(count);
  }
  return {};
}

status interrupted() { return {errc::cancelled, "check: interrupted"}; }

}  // namespace

status hash_file(hasher& into, const std::string& path, std::uint64_t offset, std::uint64_t length, const stop_function& stop) {
  const plain_file file(path);
  if (file.fd() < 0) return status::from_errno(errno, fmt::format("check: open {}", path));
  std::vector<std::byte> buffer(std::min(length, piece_bytes));
  while (length > 0) {
    if (stop && stop()) return interrupted();
    const std::uint64_t count = std::min<std::uint64_t>(length, buffer.size());
    if (status error = read_exactly(file.fd(), buffer.data(), count, offset, path); !error.ok()) return error;
    into.update(buffer.data(), count);
    offset += count;
    length -= count;
  }
  return {};
}

status hash_memory(hasher& into, const engine& owner, const void* memory, std::uint64_t length, const stop_function& stop) {
  std::vector<std::byte> buffer(std::min(length, piece_bytes));
  const auto* from = static_cast<const std::byte*>(memory);
  while (length > 0) {
    if (stop && stop()) return interrupted();
    const std::uint64_t count = std::min<std::uint64_t>(length, buffer.size());
    if (status error = owner.copy(buffer.data(), from, count); !error.ok()) return error.with_context("check: copy back");
    into.update(buffer.data(), count);
    from += count;
    length -= count;
  }
  return {};
}

result<std::uint64_t> hash_of_file(const std::string& path, std::uint64_t offset, std::uint64_t length, const stop_function& stop) {
  hasher hash;
  if (status error = hash_file(hash, path, offset, length, stop); !error.ok()) return error;
  return hash.value();
}

result<std::uint64_t> hash_of_memory(const engine& owner, const void* memory, std::uint64_t length, const stop_function& stop) {
  hasher hash;
  if (status error = hash_memory(hash, owner, memory, length, stop); !error.ok()) return error;
  return hash.value();
}

}  // namespace penstock::bench
