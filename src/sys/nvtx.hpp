// Ranges of NVTX, by which tools such as Nsight Systems show what a program was at: by NVIDIA's headers, which look for a tool
// (NVTX_INJECTION64_PATH) when the first range begins, and load it into this process. Without a tool a range costs a look at a pointer.
// Thread-safe.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>

namespace penstock::sys {

// Whether this build has those headers; without them there are no ranges.
bool has_nvtx() noexcept;

// One range, in the domain "penstock"; may end on another thread than it began.
class nvtx_range {
 public:
  nvtx_range() noexcept = default;  // none
  // "read 4096 of /data/x"; of several requests "batch of 128", with file empty. Where there is no memory for that, there is no range.
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
  std::uint64_t id_ = 0;  // 0: nobody is told
};

}  // namespace penstock::sys
