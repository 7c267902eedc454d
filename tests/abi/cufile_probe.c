// Prints what a cufile.h declares, one name=value per line: every constant, the size of every type, the offset, size and type of every
// field, and whether every function has the expected type. The output for our header must match that for NVIDIA's. Links nothing: no
// function is called, and no address is taken at run time.
//   -DCUFILE_PROBE_ADDITIONS  instead prints what the versions after 1.17, up to 1.20, added without changing a layout
#include <cufile.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>
#include <time.h>

// clang-format off
#define TYPE_NAME(expression)                                                                                                       \
  _Generic((expression), char: "char", int: "int", unsigned int: "unsigned int", long: "long", unsigned long: "unsigned long",       \
           char*: "char*", const char*: "const char*", void*: "void*", const void*: "const void*", unsigned long*: "unsigned long*", \
           const CUfileFSOps_t*: "const CUfileFSOps_t*", default: "-")
// clang-format on
#define TEXT_OF(text) #text
#define EXPANDED_TEXT_OF(text) TEXT_OF(text)
#define NUMBER(name) printf("value %s=%lld\n", #name, (long long)(name))
#define ENUM(tag) printf("enum %s=%zu\n", #tag, sizeof(enum tag))
#define TYPE(name) printf("type %s=%zu\n", #name, sizeof(name))
#define STRUCT(tag, name) \
  printf("struct %s=%s %zu %s\n", #tag, #name, sizeof(name), _Generic((struct tag*)0, name * : "same type", default : "another type"))
#define FIELD(type, name) \
  printf("field %s.%s=at %zu of %zu %s\n", #type, #name, offsetof(type, name), sizeof(((type*)0)->name), TYPE_NAME(((type*)0)->name))
#define FUNCTION(result, name, arguments) \
  printf("function %s=%s\n", #name, _Generic(&name, result(*) arguments : #result #arguments, default : "another type"))
#define FUNCTION_POINTER(result, type, name, arguments) \
  printf("member %s.%s=%s\n", #type, #name, _Generic(((type*)0)->name, result(*) arguments : #result #arguments, default : "another type"))

#if !defined(CUFILE_PROBE_ADDITIONS)
static void print_constants(void) {
  NUMBER(CU_FILE_SUCCESS);
  NUMBER(CU_FILE_DRIVER_NOT_INITIALIZED);
  NUMBER(CU_FILE_DRIVER_INVALID_PROPS);
  NUMBER(CU_FILE_DRIVER_UNSUPPORTED_LIMIT);
  NUMBER(CU_FILE_DRIVER_VERSION_MISMATCH);
  NUMBER(CU_FILE_DRIVER_VERSION_READ_ERROR);
  NUMBER(CU_FILE_DRIVER_CLOSING);
  NUMBER(CU_FILE_PLATFORM_NOT_SUPPORTED);
  NUMBER(CU_FILE_IO_NOT_SUPPORTED);
  NUMBER(CU_FILE_DEVICE_NOT_SUPPORTED);
  NUMBER(CU_FILE_NVFS_DRIVER_ERROR);
  NUMBER(CU_FILE_CUDA_DRIVER_ERROR);
  NUMBER(CU_FILE_CUDA_POINTER_INVALID);
  NUMBER(CU_FILE_CUDA_MEMORY_TYPE_INVALID);
  NUMBER(CU_FILE_CUDA_POINTER_RANGE_ERROR);
  NUMBER(CU_FILE_CUDA_CONTEXT_MISMATCH);
  NUMBER(CU_FILE_INVALID_MAPPING_SIZE);
  NUMBER(CU_FILE_INVALID_MAPPING_RANGE);
  NUMBER(CU_FILE_INVALID_FILE_TYPE);
  NUMBER(CU_FILE_INVALID_FILE_OPEN_FLAG);
  NUMBER(CU_FILE_DIO_NOT_SET);
  NUMBER(CU_FILE_INVALID_VALUE);
  NUMBER(CU_FILE_MEMORY_ALREADY_REGISTERED);
  NUMBER(CU_FILE_MEMORY_NOT_REGISTERED);
  NUMBER(CU_FILE_PERMISSION_DENIED);
  NUMBER(CU_FILE_DRIVER_ALREADY_OPEN);
  NUMBER(CU_FILE_HANDLE_NOT_REGISTERED);
  NUMBER(CU_FILE_HANDLE_ALREADY_REGISTERED);
  NUMBER(CU_FILE_DEVICE_NOT_FOUND);
  NUMBER(CU_FILE_INTERNAL_ERROR);
  NUMBER(CU_FILE_GETNEWFD_FAILED);
  NUMBER(CU_FILE_NVFS_SETUP_ERROR);
  NUMBER(CU_FILE_IO_DISABLED);
  NUMBER(CU_FILE_BATCH_SUBMIT_FAILED);
  NUMBER(CU_FILE_GPU_MEMORY_PINNING_FAILED);
  NUMBER(CU_FILE_BATCH_FULL);
  NUMBER(CU_FILE_ASYNC_NOT_SUPPORTED);
  NUMBER(CU_FILE_INTERNAL_BATCH_SETUP_ERROR);
  NUMBER(CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR);
  NUMBER(CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR);
  NUMBER(CU_FILE_INTERNAL_BATCH_CANCEL_ERROR);
  NUMBER(CU_FILE_NOMEM_ERROR);
  NUMBER(CU_FILE_IO_ERROR);
  NUMBER(CU_FILE_INTERNAL_BUF_REGISTER_ERROR);
  NUMBER(CU_FILE_HASH_OPR_ERROR);
  NUMBER(CU_FILE_INVALID_CONTEXT_ERROR);
  NUMBER(CU_FILE_NVFS_INTERNAL_DRIVER_ERROR);
  NUMBER(CU_FILE_BATCH_NOCOMPAT_ERROR);
  NUMBER(CU_FILE_IO_MAX_ERROR);
  NUMBER(CU_FILE_LUSTRE_SUPPORTED);
  NUMBER(CU_FILE_WEKAFS_SUPPORTED);
  NUMBER(CU_FILE_NFS_SUPPORTED);
  NUMBER(CU_FILE_GPFS_SUPPORTED);
  NUMBER(CU_FILE_NVME_SUPPORTED);
  NUMBER(CU_FILE_NVMEOF_SUPPORTED);
  NUMBER(CU_FILE_SCSI_SUPPORTED);
  NUMBER(CU_FILE_SCALEFLUX_CSD_SUPPORTED);
  NUMBER(CU_FILE_NVMESH_SUPPORTED);
  NUMBER(CU_FILE_BEEGFS_SUPPORTED);
  NUMBER(CU_FILE_NVME_P2P_SUPPORTED);
  NUMBER(CU_FILE_SCATEFS_SUPPORTED);
  NUMBER(CU_FILE_VIRTIOFS_SUPPORTED);
  NUMBER(CU_FILE_MAX_TARGET_TYPES);
  NUMBER(CU_FILE_USE_POLL_MODE);
  NUMBER(CU_FILE_ALLOW_COMPAT_MODE);
  NUMBER(CU_FILE_POSIX_IO_MODE);
  NUMBER(CU_FILE_FALLBACK_IO_MODE);
  NUMBER(CU_FILE_DYN_ROUTING_SUPPORTED);
  NUMBER(CU_FILE_BATCH_IO_SUPPORTED);
  NUMBER(CU_FILE_STREAMS_SUPPORTED);
  NUMBER(CU_FILE_PARALLEL_IO_SUPPORTED);
  NUMBER(CU_FILE_P2P_SUPPORTED);
  NUMBER(CUFILE_P2PDMA);
  NUMBER(CUFILE_NVFS);
  NUMBER(CUFILE_DMABUF);
  NUMBER(CUFILE_C2C);
  NUMBER(CUFILE_NVIDIA_PEERMEM);
  NUMBER(CUFILE_READ);
  NUMBER(CUFILE_WRITE);
  NUMBER(CU_FILE_HANDLE_TYPE_OPAQUE_FD);
  NUMBER(CU_FILE_HANDLE_TYPE_OPAQUE_WIN32);
  NUMBER(CU_FILE_HANDLE_TYPE_USERSPACE_FS);
  NUMBER(CUFILE_WAITING);
  NUMBER(CUFILE_PENDING);
  NUMBER(CUFILE_INVALID);
  NUMBER(CUFILE_CANCELED);
  NUMBER(CUFILE_COMPLETE);
  NUMBER(CUFILE_TIMEOUT);
  NUMBER(CUFILE_FAILED);
  NUMBER(CUFILE_BATCH);
  NUMBER(CUFILE_PARAM_PROFILE_STATS);
  NUMBER(CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH);
  NUMBER(CUFILE_PARAM_EXECUTION_MAX_IO_THREADS);
  NUMBER(CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB);
  NUMBER(CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM);
  NUMBER(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB);
  NUMBER(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB);
  NUMBER(CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB);
  NUMBER(CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB);
  NUMBER(CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE);
  NUMBER(CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB);
  NUMBER(CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS);
  NUMBER(CUFILE_PARAM_PROPERTIES_USE_POLL_MODE);
  NUMBER(CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE);
  NUMBER(CUFILE_PARAM_FORCE_COMPAT_MODE);
  NUMBER(CUFILE_PARAM_FS_MISC_API_CHECK_AGGRESSIVE);
  NUMBER(CUFILE_PARAM_EXECUTION_PARALLEL_IO);
  NUMBER(CUFILE_PARAM_PROFILE_NVTX);
  NUMBER(CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY);
  NUMBER(CUFILE_PARAM_USE_PCIP2PDMA);
  NUMBER(CUFILE_PARAM_PREFER_IO_URING);
  NUMBER(CUFILE_PARAM_FORCE_ODIRECT_MODE);
  NUMBER(CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION);
  NUMBER(CUFILE_PARAM_STREAM_MEMOPS_BYPASS);
  NUMBER(CUFILE_PARAM_LOGGING_LEVEL);
  NUMBER(CUFILE_PARAM_ENV_LOGFILE_PATH);
  NUMBER(CUFILE_PARAM_LOG_DIR);
  NUMBER(CUFILE_PARAM_POSIX_POOL_SLAB_SIZE_KB);
  NUMBER(CUFILE_PARAM_POSIX_POOL_SLAB_COUNT);
  NUMBER(CUFILE_PARAM_GPU_BOUNCE_BUFFER_SLAB_SIZE_KB);
  NUMBER(CUFILE_PARAM_GPU_BOUNCE_BUFFER_SLAB_COUNT);
  NUMBER(CUFILEOP_BASE_ERR);
  NUMBER(CU_FILE_RDMA_REGISTER);
  NUMBER(CU_FILE_RDMA_RELAXED_ORDERING);
  NUMBER(CU_FILE_STREAM_FIXED_BUF_OFFSET);
  NUMBER(CU_FILE_STREAM_FIXED_FILE_OFFSET);
  NUMBER(CU_FILE_STREAM_FIXED_FILE_SIZE);
  NUMBER(CU_FILE_STREAM_PAGE_ALIGNED_INPUTS);
  NUMBER(CUFILE_GPU_UUID_LEN);
  NUMBER(CU_FILE_P2P_FLAG_PCI_P2PDMA);
  NUMBER(CU_FILE_P2P_FLAG_NVFS);
  NUMBER(CU_FILE_P2P_FLAG_DMABUF);
  NUMBER(CU_FILE_P2P_FLAG_C2C);
  printf("macro cuFileDriverClose=%s\n", EXPANDED_TEXT_OF(cuFileDriverClose));
}

static void print_macros(void) {
  const CUfileError_t cuda_error = {CU_FILE_CUDA_DRIVER_ERROR, (CUresult)700};
  printf("macro IS_CUFILE_ERR=%d %d %d\n", IS_CUFILE_ERR(-5000), IS_CUFILE_ERR(5001), IS_CUFILE_ERR(-5001));
  printf("macro IS_CUDA_ERR=%d\n", IS_CUDA_ERR(cuda_error));
  printf("macro CU_FILE_CUDA_ERR=%d\n", (int)CU_FILE_CUDA_ERR(cuda_error));
  printf("macro CUFILE_ERRSTR=%d\n", CUFILE_ERRSTR(-5022) == cufileop_status_error(CU_FILE_INVALID_VALUE));
}

static void print_types(void) {
  ENUM(CUfileOpError);
  ENUM(CUfileDriverStatusFlags);
  ENUM(CUfileDriverControlFlags);
  ENUM(CUfileFeatureFlags);
  ENUM(CUfileP2PFlags);
  ENUM(CUfileOpcode);
  ENUM(CUfileFileHandleType);
  ENUM(CUFILEStatus_enum);
  ENUM(cufileBatchMode);
  ENUM(CUFileSizeTConfigParameter_t);
  ENUM(CUFileBoolConfigParameter_t);
  ENUM(CUFileStringConfigParameter_t);
  ENUM(CUFileArrayConfigParameter_t);
  TYPE(CUfileOpError);
  TYPE(CUfileDriverStatusFlags_t);
  TYPE(CUfileDriverControlFlags_t);
  TYPE(CUfileFeatureFlags_t);
  TYPE(CUfileP2PFlags_t);
  TYPE(CUfileOpcode_t);
  TYPE(CUfileStatus_t);
  TYPE(CUfileBatchMode_t);
  TYPE(CUFileSizeTConfigParameter_t);
  TYPE(CUFileBoolConfigParameter_t);
  TYPE(CUFileStringConfigParameter_t);
  TYPE(CUFileArrayConfigParameter_t);
  TYPE(CUfileHandle_t);
  TYPE(CUfileBatchHandle_t);
  TYPE(sockaddr_t);
  STRUCT(CUfileError, CUfileError_t);
  FIELD(CUfileError_t, err);
  FIELD(CUfileError_t, cu_err);
  STRUCT(CUfileDrvProps, CUfileDrvProps_t);
  FIELD(CUfileDrvProps_t, nvfs);
  FIELD(CUfileDrvProps_t, nvfs.major_version);
  FIELD(CUfileDrvProps_t, nvfs.minor_version);
  FIELD(CUfileDrvProps_t, nvfs.poll_thresh_size);
  FIELD(CUfileDrvProps_t, nvfs.max_direct_io_size);
  FIELD(CUfileDrvProps_t, nvfs.dstatusflags);
  FIELD(CUfileDrvProps_t, nvfs.dcontrolflags);
  FIELD(CUfileDrvProps_t, fflags);
  FIELD(CUfileDrvProps_t, max_device_cache_size);
  FIELD(CUfileDrvProps_t, per_buffer_cache_size);
  FIELD(CUfileDrvProps_t, max_device_pinned_mem_size);
  FIELD(CUfileDrvProps_t, max_batch_io_size);
  FIELD(CUfileDrvProps_t, max_batch_io_timeout_msecs);
  STRUCT(cufileRDMAInfo, cufileRDMAInfo_t);
  FIELD(cufileRDMAInfo_t, version);
  FIELD(cufileRDMAInfo_t, desc_len);
  FIELD(cufileRDMAInfo_t, desc_str);
  STRUCT(CUfileFSOps, CUfileFSOps_t);
  FIELD(CUfileFSOps_t, fs_type);
  FIELD(CUfileFSOps_t, getRDMADeviceList);
  FIELD(CUfileFSOps_t, getRDMADevicePriority);
  FIELD(CUfileFSOps_t, read);
  FIELD(CUfileFSOps_t, write);
  STRUCT(CUfileDescr_t, CUfileDescr_t);
  FIELD(CUfileDescr_t, type);
  FIELD(CUfileDescr_t, handle);
  FIELD(CUfileDescr_t, handle.fd);
  FIELD(CUfileDescr_t, handle.handle);
  FIELD(CUfileDescr_t, fs_ops);
  STRUCT(CUfileIOParams, CUfileIOParams_t);
  FIELD(CUfileIOParams_t, mode);
  FIELD(CUfileIOParams_t, u);
  FIELD(CUfileIOParams_t, u.batch);
  FIELD(CUfileIOParams_t, u.batch.devPtr_base);
  FIELD(CUfileIOParams_t, u.batch.file_offset);
  FIELD(CUfileIOParams_t, u.batch.devPtr_offset);
  FIELD(CUfileIOParams_t, u.batch.size);
  FIELD(CUfileIOParams_t, fh);
  FIELD(CUfileIOParams_t, opcode);
  FIELD(CUfileIOParams_t, cookie);
  STRUCT(CUfileIOEvents, CUfileIOEvents_t);
  FIELD(CUfileIOEvents_t, cookie);
  FIELD(CUfileIOEvents_t, status);
  FIELD(CUfileIOEvents_t, ret);
  STRUCT(CUfileOpCounter, CUfileOpCounter_t);
  FIELD(CUfileOpCounter_t, ok);
  FIELD(CUfileOpCounter_t, err);
  STRUCT(CUfileStatsLevel1, CUfileStatsLevel1_t);
  FIELD(CUfileStatsLevel1_t, read_ops);
  FIELD(CUfileStatsLevel1_t, write_ops);
  FIELD(CUfileStatsLevel1_t, hdl_register_ops);
  FIELD(CUfileStatsLevel1_t, hdl_deregister_ops);
  FIELD(CUfileStatsLevel1_t, buf_register_ops);
  FIELD(CUfileStatsLevel1_t, buf_deregister_ops);
  FIELD(CUfileStatsLevel1_t, read_bytes);
  FIELD(CUfileStatsLevel1_t, write_bytes);
  FIELD(CUfileStatsLevel1_t, read_bw_bytes_per_sec);
  FIELD(CUfileStatsLevel1_t, write_bw_bytes_per_sec);
  FIELD(CUfileStatsLevel1_t, read_lat_avg_us);
  FIELD(CUfileStatsLevel1_t, write_lat_avg_us);
  FIELD(CUfileStatsLevel1_t, read_ops_per_sec);
  FIELD(CUfileStatsLevel1_t, write_ops_per_sec);
  FIELD(CUfileStatsLevel1_t, read_lat_sum_us);
  FIELD(CUfileStatsLevel1_t, write_lat_sum_us);
  FIELD(CUfileStatsLevel1_t, batch_submit_ops);
  FIELD(CUfileStatsLevel1_t, batch_complete_ops);
  FIELD(CUfileStatsLevel1_t, batch_setup_ops);
  FIELD(CUfileStatsLevel1_t, batch_cancel_ops);
  FIELD(CUfileStatsLevel1_t, batch_destroy_ops);
  FIELD(CUfileStatsLevel1_t, batch_enqueued_ops);
  FIELD(CUfileStatsLevel1_t, batch_posix_enqueued_ops);
  FIELD(CUfileStatsLevel1_t, batch_processed_ops);
  FIELD(CUfileStatsLevel1_t, batch_posix_processed_ops);
  FIELD(CUfileStatsLevel1_t, batch_nvfs_submit_ops);
  FIELD(CUfileStatsLevel1_t, batch_p2p_submit_ops);
  FIELD(CUfileStatsLevel1_t, batch_aio_submit_ops);
  FIELD(CUfileStatsLevel1_t, batch_iouring_submit_ops);
  FIELD(CUfileStatsLevel1_t, batch_mixed_io_submit_ops);
  FIELD(CUfileStatsLevel1_t, batch_total_submit_ops);
  FIELD(CUfileStatsLevel1_t, batch_read_bytes);
  FIELD(CUfileStatsLevel1_t, batch_write_bytes);
  FIELD(CUfileStatsLevel1_t, batch_read_bw_bytes);
  FIELD(CUfileStatsLevel1_t, batch_write_bw_bytes);
  FIELD(CUfileStatsLevel1_t, batch_submit_lat_avg_us);
  FIELD(CUfileStatsLevel1_t, batch_completion_lat_avg_us);
  FIELD(CUfileStatsLevel1_t, batch_submit_ops_per_sec);
  FIELD(CUfileStatsLevel1_t, batch_complete_ops_per_sec);
  FIELD(CUfileStatsLevel1_t, batch_submit_lat_sum_us);
  FIELD(CUfileStatsLevel1_t, batch_completion_lat_sum_us);
  FIELD(CUfileStatsLevel1_t, last_batch_read_bytes);
  FIELD(CUfileStatsLevel1_t, last_batch_write_bytes);
  STRUCT(CUfileStatsLevel2, CUfileStatsLevel2_t);
  FIELD(CUfileStatsLevel2_t, basic);
  FIELD(CUfileStatsLevel2_t, read_size_kb_hist);
  FIELD(CUfileStatsLevel2_t, write_size_kb_hist);
  STRUCT(CUfilePerGpuStats, CUfilePerGpuStats_t);
  FIELD(CUfilePerGpuStats_t, uuid);
  FIELD(CUfilePerGpuStats_t, read_bytes);
  FIELD(CUfilePerGpuStats_t, read_bw_bytes_per_sec);
  FIELD(CUfilePerGpuStats_t, read_utilization);
  FIELD(CUfilePerGpuStats_t, read_duration_us);
  FIELD(CUfilePerGpuStats_t, n_total_reads);
  FIELD(CUfilePerGpuStats_t, n_p2p_reads);
  FIELD(CUfilePerGpuStats_t, n_nvfs_reads);
  FIELD(CUfilePerGpuStats_t, n_posix_reads);
  FIELD(CUfilePerGpuStats_t, n_unaligned_reads);
  FIELD(CUfilePerGpuStats_t, n_dr_reads);
  FIELD(CUfilePerGpuStats_t, n_sparse_regions);
  FIELD(CUfilePerGpuStats_t, n_inline_regions);
  FIELD(CUfilePerGpuStats_t, n_reads_err);
  FIELD(CUfilePerGpuStats_t, writes_bytes);
  FIELD(CUfilePerGpuStats_t, write_bw_bytes_per_sec);
  FIELD(CUfilePerGpuStats_t, write_utilization);
  FIELD(CUfilePerGpuStats_t, write_duration_us);
  FIELD(CUfilePerGpuStats_t, n_total_writes);
  FIELD(CUfilePerGpuStats_t, n_p2p_writes);
  FIELD(CUfilePerGpuStats_t, n_nvfs_writes);
  FIELD(CUfilePerGpuStats_t, n_posix_writes);
  FIELD(CUfilePerGpuStats_t, n_unaligned_writes);
  FIELD(CUfilePerGpuStats_t, n_dr_writes);
  FIELD(CUfilePerGpuStats_t, n_writes_err);
  FIELD(CUfilePerGpuStats_t, n_mmap);
  FIELD(CUfilePerGpuStats_t, n_mmap_ok);
  FIELD(CUfilePerGpuStats_t, n_mmap_err);
  FIELD(CUfilePerGpuStats_t, n_mmap_free);
  FIELD(CUfilePerGpuStats_t, reg_bytes);
  STRUCT(CUfileStatsLevel3, CUfileStatsLevel3_t);
  FIELD(CUfileStatsLevel3_t, detailed);
  FIELD(CUfileStatsLevel3_t, num_gpus);
  FIELD(CUfileStatsLevel3_t, per_gpu_stats);
  FUNCTION_POINTER(const char*, CUfileFSOps_t, fs_type, (const void*));
  FUNCTION_POINTER(int, CUfileFSOps_t, getRDMADeviceList, (const void*, sockaddr_t**));
  FUNCTION_POINTER(int, CUfileFSOps_t, getRDMADevicePriority, (const void*, char*, size_t, off_t, const sockaddr_t*));
  FUNCTION_POINTER(ssize_t, CUfileFSOps_t, read, (const void*, char*, size_t, off_t, const cufileRDMAInfo_t*));
  FUNCTION_POINTER(ssize_t, CUfileFSOps_t, write, (const void*, const char*, size_t, off_t, const cufileRDMAInfo_t*));
}

static void print_functions(void) {
  FUNCTION(CUfileError_t, cuFileHandleRegister, (CUfileHandle_t*, CUfileDescr_t*));
  FUNCTION(void, cuFileHandleDeregister, (CUfileHandle_t));
  FUNCTION(CUfileError_t, cuFileBufRegister, (const void*, size_t, int));
  FUNCTION(CUfileError_t, cuFileBufDeregister, (const void*));
  FUNCTION(ssize_t, cuFileRead, (CUfileHandle_t, void*, size_t, off_t, off_t));
  FUNCTION(ssize_t, cuFileWrite, (CUfileHandle_t, const void*, size_t, off_t, off_t));
  FUNCTION(CUfileError_t, cuFileDriverOpen, (void));
  FUNCTION(CUfileError_t, cuFileDriverClose, (void));
  FUNCTION(long, cuFileUseCount, (void));
  FUNCTION(CUfileError_t, cuFileDriverGetProperties, (CUfileDrvProps_t*));
  FUNCTION(CUfileError_t, cuFileDriverSetPollMode, (bool, size_t));
  FUNCTION(CUfileError_t, cuFileDriverSetMaxDirectIOSize, (size_t));
  FUNCTION(CUfileError_t, cuFileDriverSetMaxCacheSize, (size_t));
  FUNCTION(CUfileError_t, cuFileDriverSetMaxPinnedMemSize, (size_t));
  FUNCTION(CUfileError_t, cuFileBatchIOSetUp, (CUfileBatchHandle_t*, unsigned));
  FUNCTION(CUfileError_t, cuFileBatchIOSubmit, (CUfileBatchHandle_t, unsigned, CUfileIOParams_t*, unsigned int));
  FUNCTION(CUfileError_t, cuFileBatchIOGetStatus, (CUfileBatchHandle_t, unsigned, unsigned*, CUfileIOEvents_t*, struct timespec*));
  FUNCTION(CUfileError_t, cuFileBatchIOCancel, (CUfileBatchHandle_t));
  FUNCTION(void, cuFileBatchIODestroy, (CUfileBatchHandle_t));
  FUNCTION(CUfileError_t, cuFileReadAsync, (CUfileHandle_t, void*, size_t*, off_t*, off_t*, ssize_t*, CUstream));
  FUNCTION(CUfileError_t, cuFileWriteAsync, (CUfileHandle_t, void*, size_t*, off_t*, off_t*, ssize_t*, CUstream));
  FUNCTION(CUfileError_t, cuFileStreamRegister, (CUstream, unsigned));
  FUNCTION(CUfileError_t, cuFileStreamDeregister, (CUstream));
  FUNCTION(CUfileError_t, cuFileGetVersion, (int*));
  FUNCTION(CUfileError_t, cuFileExportPCIeTopology, (const char*));
  FUNCTION(CUfileError_t, cuFileGetParameterSizeT, (CUFileSizeTConfigParameter_t, size_t*));
  FUNCTION(CUfileError_t, cuFileGetParameterBool, (CUFileBoolConfigParameter_t, bool*));
  FUNCTION(CUfileError_t, cuFileGetParameterString, (CUFileStringConfigParameter_t, char*, int));
  FUNCTION(CUfileError_t, cuFileGetParameterMinMaxValue, (CUFileSizeTConfigParameter_t, size_t*, size_t*));
  FUNCTION(CUfileError_t, cuFileSetParameterSizeT, (CUFileSizeTConfigParameter_t, size_t));
  FUNCTION(CUfileError_t, cuFileSetParameterBool, (CUFileBoolConfigParameter_t, bool));
  FUNCTION(CUfileError_t, cuFileSetParameterString, (CUFileStringConfigParameter_t, const char*));
  FUNCTION(CUfileError_t, cuFileSetStatsLevel, (int));
  FUNCTION(CUfileError_t, cuFileGetStatsLevel, (int*));
  FUNCTION(CUfileError_t, cuFileStatsStart, (void));
  FUNCTION(CUfileError_t, cuFileStatsStop, (void));
  FUNCTION(CUfileError_t, cuFileStatsReset, (void));
  FUNCTION(CUfileError_t, cuFileGetStatsL1, (CUfileStatsLevel1_t*));
  FUNCTION(CUfileError_t, cuFileGetStatsL2, (CUfileStatsLevel2_t*));
  FUNCTION(CUfileError_t, cuFileGetStatsL3, (CUfileStatsLevel3_t*));
  FUNCTION(CUfileError_t, cuFileGetBARSizeInKB, (int, size_t*));
  FUNCTION(CUfileError_t, cuFileSetParameterPosixPoolSlabArray, (const size_t*, const size_t*, int));
  FUNCTION(CUfileError_t, cuFileGetParameterPosixPoolSlabArray, (size_t*, size_t*, int));
  FUNCTION(CUfileError_t, cuFileSetParameterGpuBounceBufferSlabArray, (const size_t*, const size_t*, int));
  FUNCTION(CUfileError_t, cuFileGetParameterGpuBounceBufferSlabArray, (size_t*, size_t*, int));
  FUNCTION(CUfileError_t, cuFileDriverGetP2PFlags, (CUfileDriverStatusFlags_t, CUfileP2PFlags_t*));
  FUNCTION(CUfileError_t, cuFileDriverSetP2PFlags, (CUfileDriverStatusFlags_t, CUfileP2PFlags_t));
}

int main(void) {
  print_constants();
  print_macros();
  print_types();
  print_functions();
  return 0;
}
#else
int main(void) {
  NUMBER(CU_FILE_PANFS_SUPPORTED);
  NUMBER(CU_FILE_VANILLA_POSIX_IO_MODE);
  NUMBER(CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE);
  NUMBER(CUFILE_PARAM_GDS_FALLBACK_IO);
  NUMBER(CUFILE_PARAM_RDMA_TRANSPORT);
  NUMBER(CU_FILE_RDMA_ERR_BASE);
  NUMBER(CU_FILE_RDMA_SUCCESS);
  NUMBER(CU_FILE_RDMA_RESET_TOKEN);
  NUMBER(CU_FILE_RDMA_RESET_TOKEN_FAILED);
  STRUCT(CUfileIOVec, CUfileIOVec_t);
  FIELD(CUfileIOVec_t, base);
  FIELD(CUfileIOVec_t, len);
  FUNCTION(ssize_t, cuFileReadv, (CUfileHandle_t, const CUfileIOVec_t*, size_t, off_t, unsigned));
  FUNCTION(ssize_t, cuFileWritev, (CUfileHandle_t, const CUfileIOVec_t*, size_t, off_t, unsigned));
  return 0;
}
#endif
