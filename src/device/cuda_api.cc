#include "device/cuda_api.hpp"

#include <dlfcn.h>
#include <fmt/format.h>
#include <link.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace penstock::device::cuda {
namespace {

// Tried after the normal search: places where containers and WSL install the library without registering it with the linker.
constexpr const char* library_names[] = {"libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"};

errc code_for(code error, errc invalid_value) {
  switch (error) {
    case error_invalid_value:
      return invalid_value;
    case error_out_of_memory:
      return errc::out_of_memory;
    case error_no_device:
    case error_invalid_device:
    case error_not_found:
      return errc::not_found;
    case error_invalid_handle:
    case error_host_memory_already_registered:
    case error_host_memory_not_registered:
      return errc::invalid_argument;
    case error_not_supported:
      return errc::unsupported;
    default:
      return errc::device;
  }
}

void* open_library(std::string& reason) {
  for (const char* name : library_names) {
    if (void* opened = ::dlopen(name, RTLD_NOW | RTLD_LOCAL)) return opened;
    const char* said = ::dlerror();
    if (reason.empty()) reason = said != nullptr ? said : name;
  }
  return nullptr;
}

// Fills a table of functions and keeps the name of the first missing one.
class loader {
 public:
  explicit loader(void* opened) : library_(opened) {}
  template <class Function>
  loader& optional(Function& target, const char* name) {
    target = reinterpret_cast<Function>(::dlsym(library_, name));
    return *this;
  }
  template <class Function>
  loader& need(Function& target, const char* name) {
    optional(target, name);
    if (target == nullptr && missing_ == nullptr) missing_ = name;
    return *this;
  }
  [[nodiscard]] const char* missing() const { return missing_; }

 private:
  void* library_;
  const char* missing_ = nullptr;
};

const char* find_functions(void* opened, functions& api) {
  loader from(opened);
  from.need(api.init, "cuInit").need(api.get_error_name, "cuGetErrorName");
  from.need(api.device_get_count, "cuDeviceGetCount")
      .need(api.device_get, "cuDeviceGet")
      .need(api.device_get_name, "cuDeviceGetName")
      .need(api.device_get_pci_bus_id, "cuDeviceGetPCIBusId")
      .optional(api.ctx_get_current, "cuCtxGetCurrent")
      .optional(api.ctx_get_device, "cuCtxGetDevice")
      .optional(api.device_get_uuid, "cuDeviceGetUuid")
      .need(api.device_total_mem, "cuDeviceTotalMem_v2")
      .need(api.device_get_attribute, "cuDeviceGetAttribute");
  from.need(api.primary_ctx_retain, "cuDevicePrimaryCtxRetain")
      .need(api.primary_ctx_release, "cuDevicePrimaryCtxRelease_v2")
      .need(api.primary_ctx_get_state, "cuDevicePrimaryCtxGetState")
      .need(api.ctx_push_current, "cuCtxPushCurrent_v2")
      .need(api.ctx_pop_current, "cuCtxPopCurrent_v2");
  from.need(api.mem_alloc, "cuMemAlloc_v2")
      .need(api.mem_free, "cuMemFree_v2")
      .need(api.mem_host_register, "cuMemHostRegister_v2")
      .need(api.mem_host_unregister, "cuMemHostUnregister")
      .need(api.pointer_get_attributes, "cuPointerGetAttributes")
      .optional(api.device_can_access_peer, "cuDeviceCanAccessPeer")
      .optional(api.ctx_enable_peer_access, "cuCtxEnablePeerAccess")
      .need(api.mem_get_address_range, "cuMemGetAddressRange_v2")
      .optional(api.mem_get_handle_for_address_range, "cuMemGetHandleForAddressRange")
      .optional(api.mem_export, "cuMemExportToShareableHandle")
      .optional(api.mem_import, "cuMemImportFromShareableHandle")
      .optional(api.mem_address_reserve, "cuMemAddressReserve")
      .optional(api.mem_address_free, "cuMemAddressFree")
      .optional(api.mem_map, "cuMemMap")
      .optional(api.mem_unmap, "cuMemUnmap")
      .optional(api.mem_set_access, "cuMemSetAccess")
      .optional(api.ipc_get_mem_handle, "cuIpcGetMemHandle")
      .optional(api.ipc_open_mem_handle, "cuIpcOpenMemHandle_v2")
      .optional(api.ipc_close_mem_handle, "cuIpcCloseMemHandle")
      .optional(api.stream_create_with_priority, "cuStreamCreateWithPriority")
      .optional(api.ctx_get_stream_priority_range, "cuCtxGetStreamPriorityRange");
  from.need(api.stream_create, "cuStreamCreate")
      .need(api.stream_destroy, "cuStreamDestroy_v2")
      .need(api.stream_synchronize, "cuStreamSynchronize")
      .need(api.stream_query, "cuStreamQuery")
      .optional(api.stream_get_id, "cuStreamGetId")
      .need(api.stream_wait_event, "cuStreamWaitEvent")
      .optional(api.stream_wait_value32, "cuStreamWaitValue32_v2")
      .optional(api.stream_write_value32, "cuStreamWriteValue32_v2")
      .optional(api.stream_batch_mem_op, "cuStreamBatchMemOp_v2")
      .optional(api.mem_retain_allocation_handle, "cuMemRetainAllocationHandle")
      .optional(api.mem_release, "cuMemRelease");
  from.need(api.event_create, "cuEventCreate")
      .need(api.event_destroy, "cuEventDestroy_v2")
      .need(api.event_record, "cuEventRecord")
      .need(api.event_query, "cuEventQuery")
      .need(api.event_synchronize, "cuEventSynchronize");
  from.need(api.memcpy_async, "cuMemcpyAsync")
      .need(api.launch_host_func, "cuLaunchHostFunc")
      .need(api.launch_kernel, "cuLaunchKernel")
      .need(api.module_load_data_ex, "cuModuleLoadDataEx")
      .need(api.module_unload, "cuModuleUnload")
      .need(api.module_get_function, "cuModuleGetFunction");
  return from.missing();
}

}  // namespace

status failure(const functions& api, code error, std::string_view what, errc invalid_value) {
  const char* name = nullptr;
  if (api.get_error_name(error, &name) != success || name == nullptr) name = "unknown error";
  // The driver does not say which system call failed.
  const auto* const hint = error == error_operating_system ? "; the process may have reached its limit of file descriptors or memory" : "";
  return {code_for(error, invalid_value), fmt::format("{}: {} (cuda {}){}", what, name, error, hint), error_domain::cuda, error};
}

const functions* library::load() {
  const std::lock_guard guard(loading_);
  if (state_.load(std::memory_order_relaxed) == unknown) {
    error_ = open_and_init();
    state_.store(error_.ok() ? ready : failed, std::memory_order_release);
  }
  return peek();
}

namespace {

// Counts the threads that are in the dynamic loader. The C library does not reset the loader's lock in a forked child (glibc 2.36), so if
// another thread holds it during fork(), the child hangs forever. Therefore a fork waits until no thread is in the loader, and threads that
// try to enter it during the fork wait.
class loader_askers {
 public:
  void begin() noexcept {
    for (;;) {
      inside_.fetch_add(1);
      if (forks_.load() == 0) return;
      inside_.fetch_sub(1);
      if (wait_for(forks_)) continue;
      inside_.fetch_add(1);
      return;
    }
  }
  void end() noexcept { inside_.fetch_sub(1); }

  void before_fork() noexcept {
    forks_.fetch_add(1);
    (void)wait_for(inside_);
  }
  void in_parent() noexcept { forks_.fetch_sub(1); }
  void in_child() noexcept {
    forks_.store(0);
    inside_.store(0);
  }

 private:
  // Waits until the count is zero. Gives up after a second and returns false, because another fork handler may be waiting for a lock that a
  // waiting thread holds.
  [[nodiscard]] static bool wait_for(const std::atomic<unsigned>& others) noexcept {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(1);
    while (others.load() > 0) {
      if (std::chrono::steady_clock::now() > until) return false;
      std::this_thread::yield();
    }
    return true;
  }

  std::atomic<unsigned> inside_{0};
  std::atomic<unsigned> forks_{0};
};

// One per process, like the loader's lock.
loader_askers askers;

// Registered when this library is loaded. A local variable initialized on first use could be half initialized in a child forked at that
// moment, and the child's next user would wait forever. If registration fails, a forked child may hang.
[[maybe_unused]] const int watched_forks =
    pthread_atfork([] { askers.before_fork(); }, [] { askers.in_parent(); }, [] { askers.in_child(); });

// Returns how many libraries this process has loaded so far. Fast.
unsigned long long opened_so_far() noexcept {
  unsigned long long count = 0;
  const auto first = [](dl_phdr_info* info, std::size_t, void* told) {
    *static_cast<unsigned long long*>(told) = info->dlpi_adds;
    return 1;
  };
  askers.begin();
  ::dl_iterate_phdr(first, &count);
  askers.end();
  return count;
}

}  // namespace

// Before cuInit, every function returns CUDA_ERROR_NOT_INITIALIZED.
bool library::is_initialized() noexcept {
  auto* ask = device_get_count_.load();
  if (ask == nullptr) {
    const auto opened = opened_so_far();
    if (opened == libraries_seen_.load()) return false;
    void* const found = ::dlopen(library_names[0], RTLD_NOW | RTLD_NOLOAD);  // never closed
    if (found != nullptr) ask = reinterpret_cast<decltype(ask)>(::dlsym(found, "cuDeviceGetCount"));
    if (ask == nullptr) {
      libraries_seen_.store(opened);
      return false;
    }
    device_get_count_.store(ask);
  }
  int count = 0;
  return ask(&count) != error_not_initialized;
}

status library::open_and_init() {
  std::string reason;
  void* opened = open_library(reason);
  if (opened == nullptr && reason.find("No such file") != std::string::npos) return {errc::not_found, "no NVIDIA driver"};
  if (opened == nullptr) return {errc::not_found, fmt::format("no NVIDIA driver can be loaded: {}", reason)};
  if (const char* missing = find_functions(opened, functions_)) {
    return {errc::unsupported, fmt::format("libcuda.so.1 lacks {}: the NVIDIA driver is too old", missing)};
  }
  const code error = functions_.init(0);
  return error == success ? status() : failure(functions_, error, "cuInit");
}

}  // namespace penstock::device::cuda
