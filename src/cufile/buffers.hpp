// Memory that callers registered. It is checked, remembered, and used to catch transfers that leave the registered range; device memory is
// registered with the engine, and so with NVIDIA's libcufile where transfers are GPU-direct. Thread-safe.
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

// What a registered buffer takes. cuFile's own calls register for both; Python's documented module tells one from the other.
enum class buffer_use : std::uint8_t { both, reads_of_files, writes_to_files };

struct buffer_range {
  const void* base;  // as it was registered, where it was
  std::int64_t offset;
  std::size_t length;
};

class buffers {
 public:
  // Errors: INVALID_VALUE (empty range), MEMORY_ALREADY_REGISTERED (the same base), CUDA_POINTER_RANGE_ERROR (past the allocation),
  // CUDA_MEMORY_TYPE_INVALID (host memory where host_allowed is false).
  // gpu: whose memory it is; -1: of none.
  CUfileError_t add(const engine& owner, const void* base, std::size_t length, buffer_use use, bool host_allowed, int& gpu);
  // Errors: INVALID_VALUE (null), MEMORY_NOT_REGISTERED.
  CUfileError_t remove(const void* base, int& gpu);
  void clear();

  // Why a transfer may not use a range; SUCCESS where it may. INVALID_MAPPING_RANGE: base was registered, and the range does not lie inside
  // of it. PERMISSION_DENIED: a buffer that holds the range takes no transfers of this direction.
  [[nodiscard]] CUfileOpError fault(const buffer_range& asked, bool is_write) const;
  // Registered now, of memory of each GPU.
  [[nodiscard]] std::array<std::uint64_t, counters::most_gpus> bytes_by_gpu() const;

 private:
  struct entry {
    std::size_t length;
    registration kept;  // by the engine; of device memory only
    int gpu;
    buffer_use use;
  };
  [[nodiscard]] bool forbids_locked(const buffer_range& asked, bool is_write) const;

  std::atomic<std::size_t> count_{0};
  mutable std::shared_mutex lock_;  // guards what follows
  std::size_t one_way_ = 0;         // entries of one direction: nearly always none, and then no entry but base's is looked at
  std::map<const void*, entry> entries_;
};

}  // namespace penstock::cufile
