// NVTX ranges, which tools such as Nsight Systems use to show what a program does. When the first range starts, NVIDIA's headers look for a
// tool (NVTX_INJECTION64_PATH) and load it into this process. Without a tool, a range costs one pointer check. Thread-safe.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

namespace penstock::sys {

// Returns true if this build uses those headers. Without them there are no ranges.
bool has_nvtx() noexcept;

// One range in the domain "penstock". It may end on a different thread from the one that started it.
class nvtx_range {
 public:
  nvtx_range() noexcept = default;  // no range
  // Starts a range such as "read 4096 of /data/x". If file is empty, the range has a name such as "batch of 128", for several requests. If
  // memory runs out, there is no range.
  nvtx_range(std::string_view what, std::uint64_t amount, std::string_view file) noexcept;
  nvtx_range(nvtx_range&& other) noexcept : id_(std::exchange(other.id_, 0)) {}
  nvtx_range& operator=(nvtx_range&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~nvtx_range() { end(); }
  void end() noexcept {
    if (id_ != 0) end_it();
  }

 private:
  void end_it() noexcept;
  std::uint64_t id_ = 0;  // 0: no range
};

}  // namespace penstock::sys
