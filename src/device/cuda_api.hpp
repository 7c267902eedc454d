// The part of the CUDA driver interface that Penstock uses, and the library that provides it. libcuda.so.1 is opened at run time, so
// building needs no CUDA toolkit and running needs no GPU. Numbers and signatures are taken from the CUDA Driver API reference. Versioned
// symbols (_v2) are looked up by name, and "default stream" always means the legacy one. A library object belongs to one driver and is
// thread-safe. It never unloads libcuda, because libcuda's threads may outlive everything else.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>

#include "penstock/status.hpp"

namespace penstock::device::cuda {

using code = int;                    // CUresult
using device_id = int;               // CUdevice
using address = unsigned long long;  // CUdeviceptr
using handle = void*;                // CUcontext, CUstream, CUevent, CUmodule, CUfunction
using host_function = void (*)(void*);

// CUipcMemHandle
struct ipc_handle {
  std::array<char, 64> bytes;
};

// CUresult
inline constexpr code success = 0;
inline constexpr code error_invalid_value = 1;
inline constexpr code error_out_of_memory = 2;
inline constexpr code error_not_initialized = 3;
inline constexpr code error_no_device = 100;
inline constexpr code error_invalid_device = 101;
inline constexpr code error_invalid_image = 200;
inline constexpr code error_peer_access_already_enabled = 704;
inline constexpr code error_no_binary_for_gpu = 209;
inline constexpr code error_invalid_ptx = 218;
inline constexpr code error_jit_compiler_not_found = 221;
inline constexpr code error_unsupported_ptx_version = 222;
inline constexpr code error_jit_compilation_disabled = 223;
inline constexpr code error_invalid_handle = 400;
inline constexpr code error_not_found = 500;
inline constexpr code error_not_ready = 600;
inline constexpr code error_host_memory_already_registered = 712;
inline constexpr code error_host_memory_not_registered = 713;
inline constexpr code error_not_supported = 801;
inline constexpr code error_operating_system = 304;

// CUpointer_attribute
inline constexpr int pointer_context = 1;
inline constexpr int pointer_memory_type = 2;
inline constexpr int pointer_buffer_id = 7;
inline constexpr int pointer_is_managed = 8;
inline constexpr int pointer_device_ordinal = 9;
inline constexpr int pointer_is_ipc_capable = 10;
inline constexpr int pointer_range_start = 11;
inline constexpr int pointer_range_size = 12;
inline constexpr int pointer_allowed_handle_types = 14;

// CUmemAllocationHandleType
inline constexpr int handle_type_descriptor = 1;

// CUmemAccessDesc
struct access_description {
  int location_type = 1;  // CU_MEM_LOCATION_TYPE_DEVICE
  int device = 0;
  unsigned flags = 3;  // read and write
};

// CUmemorytype; stays 0 for memory unknown to the driver
inline constexpr unsigned memory_is_host = 1;
inline constexpr unsigned memory_is_device = 2;

// CUdevice_attribute
inline constexpr int attribute_integrated = 18;
inline constexpr int attribute_host_pointer_usable_when_registered = 91;
inline constexpr int attribute_dma_buf_supported = 124;

// CUmemRangeHandleType
inline constexpr int range_is_dma_buf = 1;

// Flags for cuStreamCreate, cuEventCreate, cuMemHostRegister, cuStreamWaitValue32
inline constexpr unsigned stream_non_blocking = 0x1;
inline constexpr unsigned event_disable_timing = 0x2;
inline constexpr unsigned register_portable = 0x1;
inline constexpr unsigned register_read_only = 0x8;
inline constexpr unsigned wait_value_geq = 0x0;
inline constexpr unsigned write_value_default = 0x0;  // after all earlier writes on the stream, system-wide
inline constexpr unsigned ipc_lazy_peer_access = 0x1;

// CUstreamBatchMemOpParams, reduced to the parts in use.
struct stream_operation {
  static constexpr unsigned wait_value32 = 1;
  static constexpr unsigned write_value32 = 2;
  unsigned operation = 0;
  alignas(8) address word = 0;
  std::uint64_t value = 0;
  unsigned flags = 0;
  alignas(8) address alias = 0;
  std::uint64_t reserved = 0;
};
static_assert(sizeof(stream_operation) == 48);

// The functions, named as in the reference but without the prefix cu. Optional ones may be null.
struct functions {
  code (*init)(unsigned flags);
  code (*get_error_name)(code error, const char** name);

  code (*device_get_count)(int* count);
  code (*device_get)(device_id* device, int ordinal);
  code (*device_get_name)(char* name, int length, device_id device);
  code (*device_get_pci_bus_id)(char* name, int length, device_id device);
  code (*device_get_uuid)(std::array<std::uint8_t, 16>* uuid, device_id device);  // optional: CUDA 9.2
  code (*device_total_mem)(std::size_t* bytes, device_id device);
  code (*device_get_attribute)(int* value, int attribute, device_id device);

  code (*primary_ctx_retain)(handle* context, device_id device);
  code (*primary_ctx_release)(device_id device);
  code (*primary_ctx_get_state)(device_id device, unsigned* flags, int* active);
  code (*ctx_push_current)(handle context);
  code (*ctx_pop_current)(handle* context);
  code (*ctx_get_current)(handle* context);   // optional
  code (*ctx_get_device)(device_id* device);  // optional

  code (*device_can_access_peer)(int* can, device_id from, device_id to);  // optional
  code (*ctx_enable_peer_access)(handle other, unsigned flags);            // optional

  code (*mem_alloc)(address* memory, std::size_t bytes);
  code (*mem_free)(address memory);
  code (*mem_host_register)(void* memory, std::size_t bytes, unsigned flags);
  code (*mem_host_unregister)(void* memory);
  code (*mem_retain_allocation_handle)(unsigned long long* allocation, void* memory);  // optional: CUDA 11.0
  code (*mem_release)(unsigned long long allocation);                                  // optional: CUDA 10.2
  code (*mem_get_address_range)(address* base, std::size_t* bytes, address memory);
  // Optional: CUDA 11.7.
  code (*mem_get_handle_for_address_range)(void* made, address memory, std::size_t bytes, int type, unsigned long long flags);
  // Optional, up to mem_set_access: CUDA 10.2.
  code (*mem_export)(void* made, unsigned long long allocation, int type, unsigned long long flags);
  code (*mem_import)(unsigned long long* allocation, void* from, int type);
  code (*mem_address_reserve)(address* memory, std::size_t bytes, std::size_t alignment, address wanted, unsigned long long flags);
  code (*mem_address_free)(address memory, std::size_t bytes);
  code (*mem_map)(address memory, std::size_t bytes, std::size_t offset, unsigned long long allocation, unsigned long long flags);
  code (*mem_unmap)(address memory, std::size_t bytes);
  code (*mem_set_access)(address memory, std::size_t bytes, const access_description* access, std::size_t count);
  code (*ipc_get_mem_handle)(ipc_handle* made, address memory);                     // optional
  code (*ipc_open_mem_handle)(address* memory, ipc_handle opened, unsigned flags);  // optional
  code (*ipc_close_mem_handle)(address memory);                                     // optional
  code (*pointer_get_attributes)(unsigned count, int* attributes, void** values, address memory);

  code (*stream_create)(handle* stream, unsigned flags);
  code (*stream_destroy)(handle stream);
  code (*stream_create_with_priority)(handle* stream, unsigned flags, int priority);  // optional
  code (*ctx_get_stream_priority_range)(int* least, int* greatest);                   // optional
  code (*stream_synchronize)(handle stream);
  code (*stream_query)(handle stream);
  code (*stream_get_id)(handle stream, unsigned long long* id);  // optional: CUDA 12.0
  code (*stream_wait_event)(handle stream, handle event, unsigned flags);
  code (*stream_wait_value32)(handle stream, address flag, std::uint32_t value, unsigned flags);             // optional: CUDA 11.7
  code (*stream_write_value32)(handle stream, address flag, std::uint32_t value, unsigned flags);            // optional: CUDA 11.7
  code (*stream_batch_mem_op)(handle stream, unsigned count, stream_operation* operations, unsigned flags);  // optional: CUDA 11.7
  code (*event_create)(handle* event, unsigned flags);
  code (*event_destroy)(handle event);
  code (*event_record)(handle event, handle stream);
  code (*event_query)(handle event);
  code (*event_synchronize)(handle event);

  code (*memcpy_async)(address target, address source, std::size_t bytes, handle stream);
  code (*launch_host_func)(handle stream, host_function function, void* argument);
  code (*launch_kernel)(handle function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                        unsigned block_z, unsigned shared_bytes, handle stream, void** parameters, void** extra);
  code (*module_load_data_ex)(handle* module, const void* image, unsigned option_count, int* options, void** values);
  code (*module_unload)(handle module);
  code (*module_get_function)(handle* function, handle module, const char* name);
};

// Makes a status in domain cuda: "what: CUDA_ERROR_NO_DEVICE (cuda 100)". invalid_value is the code for CUDA_ERROR_INVALID_VALUE.
status failure(const functions& api, code error, std::string_view what, errc invalid_value = errc::invalid_argument);

class library {
 public:
  // Returns the functions. The first call opens libcuda.so.1 and calls cuInit, which may take seconds. Returns null on failure. The failure
  // is remembered, so later calls return as fast as successful ones.
  const functions* use() {
    const int state = state_.load(std::memory_order_acquire);
    if (state == ready) return &functions_;
    return state == failed ? nullptr : load();
  }
  // Returns the functions if any code in this process has called cuInit. Otherwise loads nothing and returns null, because no GPU memory
  // can exist.
  const functions* use_if_others_do() {
    const int state = state_.load(std::memory_order_acquire);
    if (state == ready) return &functions_;
    return state == failed || !is_initialized() ? nullptr : load();
  }
  // Returns the functions if they are already loaded. Loads nothing.
  [[nodiscard]] const functions* peek() const noexcept { return state_.load(std::memory_order_acquire) == ready ? &functions_ : nullptr; }
  // Returns why use() returned null. Errors: not_found (no library, no device), unsupported (the driver is too old), device.
  [[nodiscard]] const status& error() const noexcept { return error_; }

 private:
  enum : int { unknown, ready, failed };
  const functions* load();
  status open_and_init();
  bool is_initialized() noexcept;

  std::atomic<unsigned long long> libraries_seen_{0};  // number of libraries that the process had loaded when libcuda.so.1 was last found
                                                       // missing
  std::atomic<code (*)(int* count)> device_get_count_{nullptr};  // from the libcuda that other code has opened
  std::mutex loading_;                                           // held while loading
  std::atomic<int> state_{unknown};                              // set (release) after the last write to the two members below
  functions functions_{};
  status error_;
};

}  // namespace penstock::device::cuda
