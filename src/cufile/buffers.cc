#include "cufile/buffers.hpp"

#include <algorithm>
#include <mutex>

#include "cufile/errors.hpp"

namespace penstock::cufile {

namespace {

// Also registers device memory with the engine, which validates it. Accepts host memory unchecked, like NVIDIA's library: an invalid
// address fails on first access.
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

CUfileError_t buffers::add(const engine& owner, const void* base, std::size_t length, buffer_use use, bool host_allowed, int& gpu) {
  gpu = counters::no_gpu;
  if (base == nullptr || length == 0) return answer(CU_FILE_INVALID_VALUE);
  {
    const std::shared_lock guard(lock_);
    if (entries_.contains(base)) return answer(CU_FILE_MEMORY_ALREADY_REGISTERED);
  }
  auto kept = keep(owner, base, length, host_allowed, gpu);
  if (!kept) return answer(code_for(kept.error()));
  const std::unique_lock guard(lock_);
  if (!entries_.try_emplace(base, entry{length, std::move(*kept), gpu, use}).second) return answer(CU_FILE_MEMORY_ALREADY_REGISTERED);
  if (use != buffer_use::both) ++one_way_;
  count_.fetch_add(1, std::memory_order_release);
  return answer(CU_FILE_SUCCESS);
}

CUfileError_t buffers::remove(const void* base, int& gpu) {
  gpu = counters::no_gpu;
  if (base == nullptr) return answer(CU_FILE_INVALID_VALUE);
  registration ending;  // destroyed after the lock is released, because destruction waits for GPU-direct transfers
  const std::unique_lock guard(lock_);
  const auto found = entries_.find(base);
  if (found == entries_.end()) return answer(CU_FILE_MEMORY_NOT_REGISTERED);
  gpu = found->second.gpu;
  ending = std::move(found->second.kept);
  if (found->second.use != buffer_use::both) --one_way_;
  entries_.erase(found);
  count_.fetch_sub(1, std::memory_order_release);
  return answer(CU_FILE_SUCCESS);
}

void buffers::clear() {
  const std::unique_lock guard(lock_);
  entries_.clear();
  one_way_ = 0;
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

CUfileOpError buffers::fault(const buffer_range& asked, bool is_write) const {
  if (count_.load(std::memory_order_acquire) == 0) return CU_FILE_SUCCESS;
  const std::shared_lock guard(lock_);
  if (const auto found = entries_.find(asked.base); found != entries_.end()) {
    const auto start = static_cast<std::uint64_t>(asked.offset);
    const std::size_t room = found->second.length;
    if (asked.length > room || start > room - asked.length) return CU_FILE_INVALID_MAPPING_RANGE;
  }
  return one_way_ > 0 && forbids_locked(asked, is_write) ? CU_FILE_PERMISSION_DENIED : CU_FILE_SUCCESS;
}

// Checks every entry, because entries may overlap.
bool buffers::forbids_locked(const buffer_range& asked, bool is_write) const {
  const auto forbidding = is_write ? buffer_use::reads_of_files : buffer_use::writes_to_files;
  const auto begin = reinterpret_cast<std::uintptr_t>(asked.base) + static_cast<std::uint64_t>(asked.offset);
  return std::ranges::any_of(entries_, [&](const auto& each) {
    const auto& [base, known] = each;
    const auto first = reinterpret_cast<std::uintptr_t>(base);
    return known.use == forbidding && first <= begin && begin - first <= known.length && asked.length <= known.length - (begin - first);
  });
}

}  // namespace penstock::cufile
