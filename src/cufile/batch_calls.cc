// The exported calls for batches.
#include <cerrno>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "cufile/addresses.hpp"
#include "cufile/batch.hpp"
#include "cufile/cufile.h"
#include "cufile/driver.hpp"
#include "cufile/errors.hpp"
#include "cufile/raw.hpp"

namespace {

using penstock::io_request;
using penstock::cufile::answer;
using penstock::cufile::batch_state;
using penstock::cufile::buffer_range;
using penstock::cufile::buffers;
using penstock::cufile::counted;
using penstock::cufile::counters;
using penstock::cufile::driver;
using penstock::cufile::guarded;
using penstock::cufile::is_aligned;
using penstock::cufile::is_readable;
using penstock::cufile::is_writable;
using penstock::cufile::may_be_address;
using penstock::cufile::raw;
using penstock::cufile::registered_file;
using penstock::cufile::slots;

CUfileError_t set_up(CUfileBatchHandle_t* batch, unsigned capacity) {
  if (!is_writable(batch)) return answer(CU_FILE_INVALID_VALUE);
  auto& library = driver::current();
  if (const auto opened = library.open_if_closed(); opened.err != CU_FILE_SUCCESS) return opened;
  if (capacity == 0 || capacity > library.most_batch_entries()) return answer(CU_FILE_INVALID_VALUE);
  *batch = library.batches().add(std::make_unique<batch_state>(capacity, library.stats(), library.lines()));
  return answer(*batch == nullptr ? CU_FILE_NOMEM_ERROR : CU_FILE_SUCCESS);
}

// The entries as engine requests. refused[i] is nonzero if entry i fails before it starts.
struct prepared {
  std::vector<slots<registered_file>::user> files;  // kept open until submitted
  std::vector<io_request> requests;
  std::vector<int> refused;
  std::vector<counters::subject> abouts;  // empty unless per-GPU statistics are on
};

// Returns the error for an event; like NVIDIA's library, EIO for a range that extends past the registered one.
int fault_of(const buffers& memory, const buffer_range& asked, bool is_write) {
  const auto fault = memory.fault(asked, is_write);
  return fault == CU_FILE_INVALID_MAPPING_RANGE ? EIO : fault;
}

// Returns false if any entry has an error that must fail the whole batch.
bool prepare(driver& library, std::span<const CUfileIOParams_t> entries, prepared& out) {
  out.files.reserve(entries.size());
  for (const auto& entry : entries) {
    auto used = library.find_file(entry.fh);
    const int opcode = raw(entry.opcode);
    if (raw(entry.mode) != CUFILE_BATCH || !used) return false;
    const auto& [base, file_offset, memory_offset, size] = entry.u.batch;
    int refused = 0;
    if (base == nullptr || memory_offset < 0 || file_offset < 0) refused = EINVAL;
    if (opcode != CUFILE_READ && opcode != CUFILE_WRITE) refused = EIO;
    if (refused == 0) refused = fault_of(library.memory(), {base, memory_offset, size}, opcode == CUFILE_WRITE);
    if (refused == 0 && library.refuses(base)) refused = CU_FILE_CUDA_MEMORY_TYPE_INVALID;
    out.requests.push_back({refused == 0 ? used->target.get() : nullptr, static_cast<std::byte*>(base) + (refused == 0 ? memory_offset : 0),
                            size, file_offset, opcode == CUFILE_WRITE});
    out.refused.push_back(refused);
    if (library.stats().counts_by_gpu()) {
      const auto& made = out.requests.back();
      const bool aligned = is_aligned(made.memory, made.length, made.offset);
      out.abouts.push_back({library.stats().gpu_of(library.owner(), made.memory), made.is_write, aligned});
    }
    out.files.push_back(std::move(used));
  }
  return true;
}

CUfileError_t submit(CUfileBatchHandle_t batch, unsigned count, const CUfileIOParams_t* entries, unsigned flags) {
  auto& library = driver::current();
  const auto used = library.batches().find(batch);
  const bool fits = count > 0 && count <= library.most_batch_entries();
  if (!used || !fits || !is_readable(entries, count * sizeof *entries)) return answer(CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
  if (flags != 0) return answer(CU_FILE_INVALID_VALUE);
  const auto began = counters::clock::now();
  prepared made;
  const std::span all(entries, count);
  if (!prepare(library, all, made) || !used->submit(library.owner(), all, made.requests, made.refused, library.options(), made.abouts)) {
    return answer(CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
  }
  library.stats().count_submitted(count, began);
  return answer(CU_FILE_SUCCESS);
}

// Null and invalid times mean no timeout: some clients pass the address of a smaller object.
std::optional<batch_state::clock::duration> limit_of(const timespec* timeout) {
  constexpr long second = 1'000'000'000;
  constexpr time_t longest = 1'000'000'000;
  if (timeout == nullptr || timeout->tv_nsec < 0 || timeout->tv_nsec >= second || timeout->tv_sec < 0 || timeout->tv_sec > longest)
    return {};
  return std::chrono::seconds(timeout->tv_sec) + std::chrono::nanoseconds(timeout->tv_nsec);
}

CUfileError_t get_status(CUfileBatchHandle_t batch, unsigned at_least, unsigned* count, CUfileIOEvents_t* events, const timespec* timeout) {
  const auto used = driver::current().batches().find(batch);
  if (!used) return answer(CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR);
  if (!may_be_address(count) || (timeout != nullptr && !may_be_address(timeout))) return answer(CU_FILE_INVALID_VALUE);
  if ((!may_be_address(events) && *count > 0) || at_least > *count) return answer(CU_FILE_INVALID_VALUE);
  *count = static_cast<unsigned>(used->collect(at_least, std::span(events, *count), limit_of(timeout)));
  return answer(CU_FILE_SUCCESS);
}

}  // namespace

CUfileError_t cuFileBatchIOSetUp(CUfileBatchHandle_t* batch, unsigned capacity) {
  return guarded([&] { return driver::current().counted_as(counted::batch_setup, set_up(batch, capacity)); });
}

CUfileError_t cuFileBatchIOSubmit(CUfileBatchHandle_t batch, unsigned count, CUfileIOParams_t* entries, unsigned flags) {
  return guarded([&] { return driver::current().counted_as(counted::batch_submit, submit(batch, count, entries, flags)); });
}

CUfileError_t cuFileBatchIOGetStatus(CUfileBatchHandle_t batch, unsigned at_least, unsigned* count, CUfileIOEvents_t* events,
                                     struct timespec* timeout) {
  return guarded([&] { return get_status(batch, at_least, count, events, timeout); });
}

CUfileError_t cuFileBatchIOCancel(CUfileBatchHandle_t batch) {
  return guarded([&] {
    if (const auto used = driver::current().batches().find(batch)) used->cancel();
    return driver::current().counted_as(counted::batch_cancel, answer(CU_FILE_SUCCESS));
  });
}

void cuFileBatchIODestroy(CUfileBatchHandle_t batch) {
  (void)guarded([&] {
    auto& library = driver::current();
    library.stats().count(counted::batch_destroy, library.destroy_batch(batch));
    return answer(CU_FILE_SUCCESS);
  });
}
