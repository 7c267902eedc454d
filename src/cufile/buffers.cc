#include "cufile/buffers.hpp"

#include <mutex>

#include "cufile/errors.hpp"

namespace penstock::cufile {

namespace {

// Device memory is registered with the engine too, which checks it. Host memory is taken as it is, as NVIDIA's library does: whether it may
// be touched shows when it is.
result<registration> keep(const engine& owner, const void* base, std::size_t length, bool host_allowed, int& gpu) {
  const auto facts = owner.describe(base);
  if (!facts) return facts.error();
  gpu = facts->kind == memory_kind::device ? gpu_number(facts->device) : counters::no_gpu;
  if (facts->kind == memory_kind::device) return owner.register_memory(const_cast<void*>(base), length);
  if (!host_allowed) return status(errc::unsupported, "system memory is not allowed");
  return registration();
}

CUfileOpError code_for(const status& problem) {
  if (problem.code() == errc::unsupported) return CU_FILE_CUDA_MEMORY_TYPE_INVALID;
  if (problem.code() == errc::bad_memory) return CU_FILE_CUDA_POINTER_RANGE_ERROR;
  return answer(problem).err;
}

}  // namespace

CUfileError_t buffers::add(const engine& owner, const void* base, std::size_t length, bool host_allowed, int& gpu) {
  gpu = counters::no_gpu;
  if (base == nullptr || length == 0) return answer(CU_FILE_INVALID_VALUE);
  {
    const std::shared_lock guard(lock_);
    if (entries_.contains(base)) return answer(CU_FILE_MEMORY_ALREADY_REGISTERED);
  }
  auto kept = keep(owner, base, length, host_allowed, gpu);
  if (!kept) return answer(code_for(kept.error()));
  const std::unique_lock guard(lock_);
  if (!entries_.try_emplace(base, entry{length, std::move(*kept), gpu}).second) return answer(CU_FILE_MEMORY_ALREADY_REGISTERED);
  count_.fetch_add(1, std::memory_order_release);
  return answer(CU_FILE_SUCCESS);
}

CUfileError_t buffers::remove(const void* base, int& gpu) {
  gpu = counters::no_gpu;
  if (base == nullptr) return answer(CU_FILE_INVALID_VALUE);
  registration ending;  // without the lock: that waits for GPU-direct transfers
  const std::unique_lock guard(lock_);
  const auto found = entries_.find(base);
  if (found == entries_.end()) return answer(CU_FILE_MEMORY_NOT_REGISTERED);
  gpu = found->second.gpu;
  ending = std::move(found->second.kept);
  entries_.erase(found);
  count_.fetch_sub(1, std::memory_order_release);
  return answer(CU_FILE_SUCCESS);
}

void buffers::clear() {
  const std::unique_lock guard(lock_);
  entries_.clear();
  count_.store(0);
}

std::array<std::uint64_t, counters::most_gpus> buffers::bytes_by_gpu() const {
  std::array<std::uint64_t, counters::most_gpus> bytes{};
  const std::shared_lock guard(lock_);
  for (const auto& [base, each] : entries_) {
    if (each.gpu >= 0 && static_cast<std::size_t>(each.gpu) < bytes.size()) bytes[static_cast<std::size_t>(each.gpu)] += each.length;
  }
  return bytes;
}

bool buffers::may_use(const void* base, std::int64_t offset, std::size_t length) const {
  if (count_.load(std::memory_order_acquire) == 0) return true;
  const std::shared_lock guard(lock_);
  const auto found = entries_.find(base);
  if (found == entries_.end()) return true;
  const auto start = static_cast<std::uint64_t>(offset);
  return length <= found->second.length && start <= found->second.length - length;
}

}  // namespace penstock::cufile
