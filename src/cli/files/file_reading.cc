#include "cli/files/file_reading.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <vector>

#include "cli/common/plain_file.hpp"

namespace penstock::cli {
namespace {

constexpr std::uint64_t piece = std::uint64_t{4} << 20;
constexpr std::size_t pieces_ahead = 4;

// Reads the pieces of one file in order and keeps several reads in flight.
class ahead_reader {
 public:
  static result<std::unique_ptr<ahead_reader>> open(const engine& owner, const std::string& path) {
    auto handle = owner.open(path);
    if (!handle) return handle.error();
    auto size = handle->size();
    if (!size) return size.error();
    std::unique_ptr<ahead_reader> made(new ahead_reader(*std::move(handle), *size));
    if (*size > 0 || is_url(path)) return made;
    made->plain_ = owned_fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (made->plain_.get() < 0) return status::from_errno(errno, fmt::format("open {}", path));
    return made;
  }
  ahead_reader(const ahead_reader&) = delete;
  ahead_reader& operator=(const ahead_reader&) = delete;
  ~ahead_reader() {
    for (slot& each : slots_) each.under_way.cancel();
    for (slot& each : slots_) each.under_way.wait();
  }

  [[nodiscard]] std::uint64_t size() const { return size_; }  // for a file without a reported size, the bytes read so far
  // Returns the next piece, valid until the next call; empty at the end.
  result<std::span<const std::byte>> next() {
    if (plain_.get() >= 0) return next_plainly();
    while (asked_ < size_ && asked_ < taken_ + slots_.size() * piece) ask();
    if (taken_ >= size_) return std::span<const std::byte>();
    slot& now = slot_of(taken_);
    const std::uint64_t want = std::min(piece, size_ - taken_);
    const io_result done = now.under_way.wait();
    if (!done.ok()) return done.error;
    if (done.bytes_done < want) return status(errc::io, fmt::format("{} was truncated while being read", handle_.path()));
    taken_ += want;
    return std::span<const std::byte>(now.memory.data(), want);
  }

 private:
  struct slot {
    std::vector<std::byte> memory;
    operation under_way;
  };
  ahead_reader(file handle, std::uint64_t size) : handle_(std::move(handle)), size_(size), slots_(pieces_ahead) {}
  // Files with a reported size of 0, such as those in /proc, may have data.
  result<std::span<const std::byte>> next_plainly() {
    std::vector<std::byte>& memory = slots_.front().memory;
    std::size_t filled = 0;
    while (filled < piece) {
      if (filled == memory.size()) memory.resize(std::clamp<std::size_t>(memory.size() * 2, 4096, piece));
      const ssize_t count = ::pread(plain_.get(), memory.data() + filled, memory.size() - filled, static_cast<off_t>(taken_ + filled));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) return status::from_errno(errno, fmt::format("read at {} of {}", taken_ + filled, handle_.path()));
      if (count == 0) break;
      filled += static_cast<std::size_t>(count);
    }
    taken_ += filled;
    size_ = taken_;
    return std::span<const std::byte>(memory).first(filled);
  }
  slot& slot_of(std::uint64_t offset) { return slots_[offset / piece % slots_.size()]; }
  // Starts the next read. The caller still uses the piece before taken_; its slot is reused only by the next call.
  void ask() {
    slot& each = slot_of(asked_);
    const std::uint64_t length = std::min(piece, size_ - asked_);
    each.memory.resize(std::max<std::size_t>(each.memory.size(), length));
    each.under_way = handle_.read_async(each.memory.data(), length, static_cast<std::int64_t>(asked_));
    asked_ += length;
  }

  file handle_;
  std::uint64_t size_;
  std::vector<slot> slots_;
  owned_fd plain_;  // open if the reported size is 0
  std::uint64_t asked_ = 0, taken_ = 0;
};

bool asks_to_stop(const reading_progress& progress, std::uint64_t done) { return progress && progress(done); }

status stopped_reading(const std::string& path) { return {errc::cancelled, fmt::format("interrupted while reading {}", path)}; }

}  // namespace

status read_in_order(const engine& owner, const std::string& path, const std::function<void(std::span<const std::byte>)>& take,
                     const reading_progress& progress) {
  auto reader = ahead_reader::open(owner, path);
  if (!reader) return reader.error();
  for (std::uint64_t done = 0;;) {
    if (asks_to_stop(progress, done)) return stopped_reading(path);
    auto bytes = (*reader)->next();
    if (!bytes) return bytes.error();
    if (bytes->empty()) return {};
    take(*bytes);
    done += bytes->size();
  }
}

result<std::optional<file_difference>> first_difference(const engine& owner, const std::string& one, const std::string& other,
                                                        const reading_progress& progress) {
  auto left = ahead_reader::open(owner, one);
  if (!left) return left.error();
  auto right = ahead_reader::open(owner, other);
  if (!right) return right.error();
  file_difference found;
  while (true) {
    if (asks_to_stop(progress, found.offset)) return stopped_reading(one);
    auto a = (*left)->next();
    if (!a) return a.error();
    auto b = (*right)->next();
    if (!b) return b.error();
    const std::size_t both = std::min(a->size(), b->size());
    const auto differs = std::mismatch(a->begin(), a->begin() + static_cast<std::ptrdiff_t>(both), b->begin()).first;
    found.offset += static_cast<std::uint64_t>(differs - a->begin());
    found.sizes[0] = (*left)->size();
    found.sizes[1] = (*right)->size();
    if (static_cast<std::size_t>(differs - a->begin()) < both || a->size() != b->size()) return std::optional(found);
    if (both == 0) return std::optional<file_difference>();
  }
}

}  // namespace penstock::cli
