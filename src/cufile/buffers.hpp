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

class buffers {
 public:
  // Errors: INVALID_VALUE (empty range), MEMORY_ALREADY_REGISTERED (the same base), CUDA_POINTER_RANGE_ERROR (past the allocation),
  // CUDA_MEMORY_TYPE_INVALID (host memory where host_allowed is false).
  // gpu: whose memory it is; -1: of none.
  CUfileError_t add(const engine& owner, const void* base, std::size_t length, bool host_allowed, int& gpu);
  // Errors: INVALID_VALUE (null), MEMORY_NOT_REGISTERED.
  CUfileError_t remove(const void* base, int& gpu);
  void clear();

  // False when base was registered and the range does not lie inside of it.
  [[nodiscard]] bool may_use(const void* base, std::int64_t offset, std::size_t length) const;
  // Registered now, of memory of each GPU.
  [[nodiscard]] std::array<std::uint64_t, counters::most_gpus> bytes_by_gpu() const;

 private:
  struct entry {
    std::size_t length;
    registration kept;  // by the engine; of device memory only
    int gpu;
  };
  std::atomic<std::size_t> count_{0};
  mutable std::shared_mutex lock_;  // guards entries_
  std::map<const void*, entry> entries_;
};

}  // namespace penstock::cufile
