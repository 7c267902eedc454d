// The exported calls for the library as a whole: opening, closing, versions, properties.
#include <algorithm>
#include <string>

#include "cufile/addresses.hpp"
#include "cufile/cufile.h"
#include "cufile/driver.hpp"
#include "cufile/errors.hpp"

#undef cuFileDriverClose

namespace {

using penstock::cufile::answer;
using penstock::cufile::driver;
using penstock::cufile::guarded;
using penstock::cufile::is_writable;
using penstock::cufile::size_range;

// nvidia_fs_major: 0 if nvidia-fs is not loaded; GPU-direct transfers then use PCI P2PDMA.
unsigned features(unsigned nvidia_fs_major) {
  unsigned found = 1U << CU_FILE_BATCH_IO_SUPPORTED | 1U << CU_FILE_PARALLEL_IO_SUPPORTED;
  if (driver::current().allows_streams()) found |= 1U << CU_FILE_STREAMS_SUPPORTED;
  if (nvidia_fs_major == 0 && driver::current().may_be_direct()) found |= 1U << CU_FILE_P2P_SUPPORTED;
  return found;
}

// nvfs is filled as in NVIDIA's library: zeros if the kernel module is not loaded or not used.
CUfileDrvProps_t properties() {
  const auto now = driver::current().settings().values();
  const auto module = driver::current().nvidia_fs();
  CUfileDrvProps_t out{};
  out.nvfs.major_version = module.major_version;
  out.nvfs.minor_version = module.minor_version;
  out.nvfs.dstatusflags = module.storage;
  out.nvfs.poll_thresh_size = now[CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB];
  out.nvfs.max_direct_io_size = now[CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB];
  if (now[CUFILE_PARAM_PROPERTIES_USE_POLL_MODE]) out.nvfs.dcontrolflags |= 1U << CU_FILE_USE_POLL_MODE;
  if (now[CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE]) out.nvfs.dcontrolflags |= 1U << CU_FILE_ALLOW_COMPAT_MODE;
  if (now[CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE]) out.nvfs.dcontrolflags |= 1U << CU_FILE_VANILLA_POSIX_IO_MODE;
  out.fflags = features(module.major_version);
  out.max_device_cache_size = static_cast<unsigned>(now[CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB]);
  out.per_buffer_cache_size = static_cast<unsigned>(now[CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB]);
  out.max_device_pinned_mem_size = static_cast<unsigned>(now[CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB]);
  out.max_batch_io_size = static_cast<unsigned>(now[CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE]);
  out.max_batch_io_timeout_msecs = static_cast<unsigned>(now[CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS]);
  return out;
}

// In an open library the values stay unchanged and these calls still succeed, as documented in NVIDIA's newer guides.
CUfileError_t taken(CUfileOpError outcome, const char* call) {
  if (outcome != CU_FILE_DRIVER_ALREADY_OPEN) return answer(outcome);
  driver::current().warn(std::string(call) + ": no effect because the library is already open; call it before cuFileDriverOpen");
  return answer(CU_FILE_SUCCESS);
}

// The older way to set a size. It validates the size immediately.
CUfileError_t set_size(const char* call, CUFileSizeTConfigParameter_t parameter, std::size_t value, size_range range, std::size_t step) {
  return guarded([&] {
    if (!range.holds(value) || value % step != 0) return answer(CU_FILE_DRIVER_UNSUPPORTED_LIMIT);
    return taken(driver::current().settings().set(parameter, value), call);
  });
}

constexpr std::size_t gpu_page_kb = 64;
constexpr size_range any_size{};

}  // namespace

// Marks this library as not NVIDIA's, for Penstock's direct path, which searches for NVIDIA's.
extern "C" PENSTOCK_CUFILE_API void penstock_cufile_marker() {}

CUfileError_t cuFileDriverOpen() {
  return guarded([] { return driver::current().open(); });
}

CUfileError_t cuFileDriverClose() {
  return guarded([] { return driver::current().close(); });
}

CUfileError_t cuFileDriverClose_v2() { return cuFileDriverClose(); }

long cuFileUseCount() { return driver::current().uses(); }

CUfileError_t cuFileGetVersion(int* version) {
  if (!is_writable(version)) return answer(CU_FILE_INVALID_VALUE);
  return guarded([&] {
    *version = driver::current().version();
    return answer(CU_FILE_SUCCESS);
  });
}

CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t* out) {
  return guarded([&] {
    if (!is_writable(out)) return answer(CU_FILE_INVALID_VALUE);
    if (const auto opened = driver::current().open_if_closed(); opened.err != CU_FILE_SUCCESS) return opened;
    *out = properties();
    return answer(CU_FILE_SUCCESS);
  });
}

CUfileError_t cuFileDriverSetPollMode(bool poll, size_t largest_polled_kb) {
  return guarded([&] {
    auto& book = driver::current().settings();
    const auto outcome = book.set(CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB, largest_polled_kb);
    if (outcome == CU_FILE_SUCCESS) (void)book.set(CUFILE_PARAM_PROPERTIES_USE_POLL_MODE, poll);
    return taken(outcome, "cuFileDriverSetPollMode");
  });
}

CUfileError_t cuFileDriverSetMaxDirectIOSize(size_t size_kb) {
  return set_size("cuFileDriverSetMaxDirectIOSize", CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB, size_kb, {64, 16384}, gpu_page_kb);
}

CUfileError_t cuFileDriverSetMaxCacheSize(size_t size_kb) {
  return set_size("cuFileDriverSetMaxCacheSize", CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB, size_kb, any_size, gpu_page_kb);
}

CUfileError_t cuFileDriverSetMaxPinnedMemSize(size_t size_kb) {
  return set_size("cuFileDriverSetMaxPinnedMemSize", CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB, size_kb, any_size, 1);
}
