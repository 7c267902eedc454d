// Memory registered by callers. Validates it, and detects transfers that extend past a registered range. Also registers device memory with
// the engine, and through it with NVIDIA's libcufile for GPU-direct transfers. Thread-safe.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <shared_mutex>

#include "cufile/counters.hpp"
#include "cufile/cufile.h"
#include "penstock/engine.hpp"

namespace penstock::cufile {

// The transfers allowed for a registered buffer. cuFile's own calls register for both directions; the documented Python module
// distinguishes them.
enum class buffer_use : std::uint8_t { both, reads_of_files, writes_to_files };

struct buffer_range {
  const void* base;  // the registered base, if the memory is registered
  std::int64_t offset;
  std::size_t length;
};

class buffers {
 public:
  // Errors: INVALID_VALUE (empty range), MEMORY_ALREADY_REGISTERED (the same base), CUDA_POINTER_RANGE_ERROR (past the allocation),
  // CUDA_MEMORY_TYPE_INVALID (host memory, and host_allowed is false). Sets gpu to the GPU that owns the memory; -1: none.
  CUfileError_t add(const engine& owner, const void* base, std::size_t length, buffer_use use, bool host_allowed, int& gpu);
  // Errors: INVALID_VALUE (null), MEMORY_NOT_REGISTERED.
  CUfileError_t remove(const void* base, int& gpu);
  void clear();

  // Returns why a transfer may not use a range; SUCCESS if it may. INVALID_MAPPING_RANGE: base is registered, but the range extends past
  // the registered range. PERMISSION_DENIED: a buffer that contains the range does not allow this direction.
  [[nodiscard]] CUfileOpError fault(const buffer_range& asked, bool is_write) const;
  // Returns the currently registered bytes on each GPU.
  [[nodiscard]] std::array<std::uint64_t, counters::most_gpus> bytes_by_gpu() const;

 private:
  struct entry {
    std::size_t length;
    registration kept;  // the registration with the engine; device memory only
    int gpu;
    buffer_use use;
  };
  [[nodiscard]] bool forbids_locked(const buffer_range& asked, bool is_write) const;

  std::atomic<std::size_t> count_{0};
  mutable std::shared_mutex lock_;  // guards the members below
  std::size_t one_way_ = 0;         // entries for one direction only. Almost always 0; then only base's entry is checked
  std::map<const void*, entry> entries_;
};

}  // namespace penstock::cufile
