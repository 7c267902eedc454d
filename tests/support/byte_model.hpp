// A model of a file's bytes. Each byte has one possible value, or two after a write that was cut short. One thread at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <vector>

namespace penstock::testing {

class byte_model {
 public:
  void resize(std::size_t size) {
    sure_.resize(size);
    maybe_.resize(size);
  }
  [[nodiscard]] std::size_t size() const { return sure_.size(); }

  // A write past the end grows the file and leaves zeros in the hole.
  void write(std::uint64_t offset, std::span<const std::byte> content) {
    if (content.empty()) return;
    resize(std::max<std::size_t>(size(), offset + content.size()));
    std::memcpy(&sure_[offset], content.data(), content.size());
    std::memcpy(&maybe_[offset], content.data(), content.size());
  }
  // Models a write of which only the first `sure` bytes are certain; each later byte, up to the current end of the file, may be old or new.
  void write_partly(std::uint64_t offset, std::span<const std::byte> content, std::size_t sure, std::size_t new_size) {
    resize(std::max(size(), new_size));
    write(offset, content.first(sure));
    const std::size_t end = std::min<std::size_t>(offset + content.size(), size());
    for (std::size_t at = offset + sure; at < end; ++at) maybe_[at] = content[at - offset];
  }
  [[nodiscard]] bool is_sure(std::uint64_t offset, std::uint64_t length) const {
    const auto end = std::min<std::uint64_t>(offset + length, size());
    return offset >= end || std::memcmp(&sure_[offset], &maybe_[offset], end - offset) == 0;
  }
  // Returns the offset of the first impossible byte. The bytes seen become the only possible values.
  std::optional<std::uint64_t> look(std::uint64_t offset, std::span<const std::byte> seen) {
    for (std::size_t i = 0; i < seen.size(); ++i) {
      auto& sure = sure_[offset + i];
      auto& maybe = maybe_[offset + i];
      if (seen[i] != sure && seen[i] != maybe) return offset + i;
      sure = maybe = seen[i];
    }
    return std::nullopt;
  }

 private:
  std::vector<std::byte> sure_;
  std::vector<std::byte> maybe_;
};

}  // namespace penstock::testing
