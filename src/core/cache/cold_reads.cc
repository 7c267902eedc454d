#include "core/cache/cold_reads.hpp"

#include <algorithm>

namespace penstock::core {

namespace {

constexpr std::uint64_t block_bytes = 4096;

std::uint64_t region_of(std::uint64_t file_bytes) noexcept {
  const std::uint64_t part = (file_bytes + cold_reads::regions - 1) / cold_reads::regions;
  return std::max((part + block_bytes - 1) / block_bytes * block_bytes, block_bytes);
}

}  // namespace

cold_reads::record::record(std::uint64_t file_bytes) noexcept : file_bytes_(file_bytes), region_bytes_(region_of(file_bytes)) {}

std::uint64_t cold_reads::record::add(std::uint64_t offset, std::uint64_t length) noexcept {
  if (offset >= file_bytes_) return 0;
  std::uint64_t again = 0;
  for (const std::uint64_t end = offset + std::min(length, file_bytes_ - offset); offset < end;) {
    const std::uint64_t region = offset / region_bytes_;
    const std::uint64_t room = std::min(region_bytes_, file_bytes_ - region * region_bytes_);
    const std::uint64_t bytes = std::min(end, (region + 1) * region_bytes_) - offset;
    const std::uint64_t sum = read_[region].fetch_add(bytes, std::memory_order_relaxed) + bytes;
    if (sum > room) again += std::min(bytes, sum - room);
    offset += bytes;
  }
  return again;
}

void cold_reads::record::forget() noexcept {
  for (auto& each : read_) each.store(0, std::memory_order_relaxed);
}

std::shared_ptr<cold_reads::record> cold_reads::of(const identity& file, std::uint64_t size_bytes) {
  const std::lock_guard guard(lock_);
  const std::pair key(file.device, file.inode);
  auto known = files_.find(key);
  if (known == files_.end()) {
    if (files_.size() == most_files) {
      files_.erase(std::min_element(files_.begin(), files_.end(),
                                    [](const auto& one, const auto& other) { return one.second.asked < other.second.asked; }));
    }
    known = files_.try_emplace(key).first;
  }
  auto& found = known->second;
  if (found.kept == nullptr || found.modified_ns != file.modified_ns || found.kept->file_bytes_ != size_bytes) {
    found.kept = std::make_shared<record>(size_bytes);
    found.modified_ns = file.modified_ns;
  }
  found.asked = ++questions_;
  return found.kept;
}

}  // namespace penstock::core
