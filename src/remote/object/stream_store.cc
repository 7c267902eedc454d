#include "remote/object/stream_store.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include <fmt/format.h>

namespace penstock::source::remote {

status stream_store::put(std::span<const std::byte> bytes, std::uint64_t offset) {
  const auto there = std::min<std::uint64_t>(bytes.size(), size() - std::min(offset, size()));
  if (auto other = compare(bytes.first(there), offset); !other.ok()) return other;
  return append(bytes.subspan(there));
}

status stream_store::compare(std::span<const std::byte> bytes, std::uint64_t offset) const {
  std::array<std::byte, 16384> known{};
  for (std::uint64_t at = 0; at < bytes.size();) {
    const auto count = std::min<std::uint64_t>(known.size(), bytes.size() - at);
    if (auto problem = read(known.data(), count, offset + at); !problem.ok()) return problem;
    if (std::memcmp(known.data(), bytes.data() + at, count) != 0)
      return {errc::io, "the object was replaced while it was being read; open it again"};
    at += count;
  }
  return {};
}

status stream_store::append(std::span<const std::byte> bytes) {
  if (blocks_ == nullptr) blocks_ = std::make_unique<std::unique_ptr<std::byte[]>[]>(most_blocks);
  while (!bytes.empty()) {
    const auto end = size();
    if (end >= most_memory) return append_to_file(bytes);
    auto& block = blocks_[end / block_bytes];
    if (block == nullptr) block = std::make_unique_for_overwrite<std::byte[]>(block_bytes);
    const auto count = std::min<std::uint64_t>(bytes.size(), block_bytes - end % block_bytes);
    std::memcpy(block.get() + end % block_bytes, bytes.data(), count);
    size_.store(end + count, std::memory_order_release);
    bytes = bytes.subspan(count);
  }
  return {};
}

status stream_store::append_to_file(std::span<const std::byte> bytes) {
  if (!file_) {
    auto made = sys::temporary_file::make(folder_);
    if (!made) return made.error().with_context("store the data from a server without ranges (to use another folder, set TMPDIR)");
    const std::lock_guard guard(lock_);
    file_.emplace(*std::move(made));
  }
  if (auto full = file_->append(bytes.data(), bytes.size()); !full.ok())
    return full.with_context("store the data from a server without ranges (to use another folder, set TMPDIR)");
  size_.store(size() + bytes.size(), std::memory_order_release);
  return {};
}

status stream_store::read(std::byte* target, std::uint64_t length, std::uint64_t offset) const {
  while (length > 0 && offset < most_memory) {
    const auto count = std::min(length, block_bytes - offset % block_bytes);
    std::memcpy(target, blocks_[offset / block_bytes].get() + offset % block_bytes, count);
    target += count;
    offset += count;
    length -= count;
  }
  return length == 0 ? status() : file_->read(target, length, offset - most_memory);
}

std::string stream_store::told() const {
  const std::lock_guard guard(lock_);
  return file_ ? fmt::format("in memory and in a temporary file in {}", file_->folder()) : std::string("in memory");
}

}  // namespace penstock::source::remote
