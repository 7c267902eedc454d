// The C interface of NVIDIA cuFile (GPUDirect Storage), as implemented by Penstock's libcufile.so.0. Names, values and layouts are those of
// version 1.17 (CUDA 13.2), so a program built with NVIDIA's header runs with this library, and vice versa. Later functions and values are
// included if they do not change a layout. Source: NVIDIA's GPUDirect Storage API reference; if that page and NVIDIA's library differ, this
// header follows the library.
//
// Every function may be called from any thread. A CUfileError_t is returned by value: err is the error, and cu_err is the CUDA driver's own
// number if err is CU_FILE_CUDA_DRIVER_ERROR. Counts and offsets are in bytes; values whose names end in _kb are in KiB.
//
// Compiles as C11 and as C++17, with or without a CUDA toolkit.

// The include guard is NVIDIA's, so that a source file that includes both headers sees only one of them.
#ifndef __CUFILE_H_
#define __CUFILE_H_

#include <arpa/inet.h>  // struct sockaddr; programs also expect the byte-order functions from here
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/types.h>
#include <time.h>

// CUresult and CUstream come from <cuda.h> if available; otherwise they are declared as an int and a pointer, which matches <cuda.h>.
#if !defined(CUDA_VERSION) && defined(__has_include)
#if __has_include(<cuda.h>)
#include <cuda.h>
#define PENSTOCK_CUFILE_FOUND_CUDA_H
#endif
#endif
#if !defined(CUDA_VERSION) && !defined(PENSTOCK_CUFILE_FOUND_CUDA_H)
typedef int CUresult;
typedef struct CUstream_st* CUstream;
#endif

#if defined(__GNUC__)
#define PENSTOCK_CUFILE_API __attribute__((visibility("default")))
#else
#define PENSTOCK_CUFILE_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// --- errors

#define CUFILEOP_BASE_ERR 5000

// CUFILE_OP(value, name, text) for every error. 5021 and 5032 were never assigned; 5050 is a bound, not an error.
#define CUFILEOP_STATUS_ENTRIES                                                                                                 \
  CUFILE_OP(0, CU_FILE_SUCCESS, no error)                                                                                       \
  CUFILE_OP(CUFILEOP_BASE_ERR + 1, CU_FILE_DRIVER_NOT_INITIALIZED, the library is not open)                                     \
  CUFILE_OP(CUFILEOP_BASE_ERR + 2, CU_FILE_DRIVER_INVALID_PROPS, a driver property does not make sense)                         \
  CUFILE_OP(CUFILEOP_BASE_ERR + 3, CU_FILE_DRIVER_UNSUPPORTED_LIMIT, the value is outside the limits of this property)          \
  CUFILE_OP(CUFILEOP_BASE_ERR + 4, CU_FILE_DRIVER_VERSION_MISMATCH, kernel module and library do not fit each other)            \
  CUFILE_OP(CUFILEOP_BASE_ERR + 5, CU_FILE_DRIVER_VERSION_READ_ERROR, the version cannot be read)                               \
  CUFILE_OP(CUFILEOP_BASE_ERR + 6, CU_FILE_DRIVER_CLOSING, the library is being closed)                                         \
  CUFILE_OP(CUFILEOP_BASE_ERR + 7, CU_FILE_PLATFORM_NOT_SUPPORTED, this machine is not supported)                               \
  CUFILE_OP(CUFILEOP_BASE_ERR + 8, CU_FILE_IO_NOT_SUPPORTED, reading and writing this kind of file is not supported)            \
  CUFILE_OP(CUFILEOP_BASE_ERR + 9, CU_FILE_DEVICE_NOT_SUPPORTED, this GPU is not supported)                                     \
  CUFILE_OP(CUFILEOP_BASE_ERR + 10, CU_FILE_NVFS_DRIVER_ERROR, the kernel module nvidia_fs reported an error)                   \
  CUFILE_OP(CUFILEOP_BASE_ERR + 11, CU_FILE_CUDA_DRIVER_ERROR, the CUDA driver reported an error)                               \
  CUFILE_OP(CUFILEOP_BASE_ERR + 12, CU_FILE_CUDA_POINTER_INVALID, not a device pointer)                                         \
  CUFILE_OP(CUFILEOP_BASE_ERR + 13, CU_FILE_CUDA_MEMORY_TYPE_INVALID, this type of memory cannot be used here)                  \
  CUFILE_OP(CUFILEOP_BASE_ERR + 14, CU_FILE_CUDA_POINTER_RANGE_ERROR, the range runs past the end of the allocation)            \
  CUFILE_OP(CUFILEOP_BASE_ERR + 15, CU_FILE_CUDA_CONTEXT_MISMATCH, the memory belongs to another CUDA context)                  \
  CUFILE_OP(CUFILEOP_BASE_ERR + 16, CU_FILE_INVALID_MAPPING_SIZE, more memory than may be registered)                           \
  CUFILE_OP(CUFILEOP_BASE_ERR + 17, CU_FILE_INVALID_MAPPING_RANGE, the range runs past the end of the registered memory)        \
  CUFILE_OP(CUFILEOP_BASE_ERR + 18, CU_FILE_INVALID_FILE_TYPE, neither a regular file nor a block device)                       \
  CUFILE_OP(CUFILEOP_BASE_ERR + 19, CU_FILE_INVALID_FILE_OPEN_FLAG, the file was opened with flags that do not allow this)      \
  CUFILE_OP(CUFILEOP_BASE_ERR + 20, CU_FILE_DIO_NOT_SET, the file was opened without O_DIRECT)                                  \
  CUFILE_OP(CUFILEOP_BASE_ERR + 22, CU_FILE_INVALID_VALUE, an argument is invalid)                                              \
  CUFILE_OP(CUFILEOP_BASE_ERR + 23, CU_FILE_MEMORY_ALREADY_REGISTERED, this memory is registered already)                       \
  CUFILE_OP(CUFILEOP_BASE_ERR + 24, CU_FILE_MEMORY_NOT_REGISTERED, this memory is not registered)                               \
  CUFILE_OP(CUFILEOP_BASE_ERR + 25, CU_FILE_PERMISSION_DENIED, access denied)                                                   \
  CUFILE_OP(CUFILEOP_BASE_ERR + 26, CU_FILE_DRIVER_ALREADY_OPEN, the library is open already)                                   \
  CUFILE_OP(CUFILEOP_BASE_ERR + 27, CU_FILE_HANDLE_NOT_REGISTERED, not a registered file)                                       \
  CUFILE_OP(CUFILEOP_BASE_ERR + 28, CU_FILE_HANDLE_ALREADY_REGISTERED, this file descriptor is registered already)              \
  CUFILE_OP(CUFILEOP_BASE_ERR + 29, CU_FILE_DEVICE_NOT_FOUND, no such GPU)                                                      \
  CUFILE_OP(CUFILEOP_BASE_ERR + 30, CU_FILE_INTERNAL_ERROR, internal error)                                                     \
  CUFILE_OP(CUFILEOP_BASE_ERR + 31, CU_FILE_GETNEWFD_FAILED, a new file descriptor cannot be had)                               \
  CUFILE_OP(CUFILEOP_BASE_ERR + 33, CU_FILE_NVFS_SETUP_ERROR, the kernel module nvidia_fs could not be set up)                  \
  CUFILE_OP(CUFILEOP_BASE_ERR + 34, CU_FILE_IO_DISABLED, the configuration forbids reading and writing this file)               \
  CUFILE_OP(CUFILEOP_BASE_ERR + 35, CU_FILE_BATCH_SUBMIT_FAILED, the batch could not be submitted)                              \
  CUFILE_OP(CUFILEOP_BASE_ERR + 36, CU_FILE_GPU_MEMORY_PINNING_FAILED, GPU memory could not be pinned)                          \
  CUFILE_OP(CUFILEOP_BASE_ERR + 37, CU_FILE_BATCH_FULL, the batch holds as many operations as it can)                           \
  CUFILE_OP(CUFILEOP_BASE_ERR + 38, CU_FILE_ASYNC_NOT_SUPPORTED, operations on streams are not supported)                       \
  CUFILE_OP(CUFILEOP_BASE_ERR + 39, CU_FILE_INTERNAL_BATCH_SETUP_ERROR, internal error while a batch was set up)                \
  CUFILE_OP(CUFILEOP_BASE_ERR + 40, CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR, the batch was refused when submitted)                  \
  CUFILE_OP(CUFILEOP_BASE_ERR + 41, CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR, the state of the batch cannot be told)              \
  CUFILE_OP(CUFILEOP_BASE_ERR + 42, CU_FILE_INTERNAL_BATCH_CANCEL_ERROR, the batch cannot be cancelled)                         \
  CUFILE_OP(CUFILEOP_BASE_ERR + 43, CU_FILE_NOMEM_ERROR, out of memory)                                                         \
  CUFILE_OP(CUFILEOP_BASE_ERR + 44, CU_FILE_IO_ERROR, reading or writing failed)                                                \
  CUFILE_OP(CUFILEOP_BASE_ERR + 45, CU_FILE_INTERNAL_BUF_REGISTER_ERROR, internal error while memory was registered)            \
  CUFILE_OP(CUFILEOP_BASE_ERR + 46, CU_FILE_HASH_OPR_ERROR, internal error in a lookup table)                                   \
  CUFILE_OP(CUFILEOP_BASE_ERR + 47, CU_FILE_INVALID_CONTEXT_ERROR, no usable CUDA context)                                      \
  CUFILE_OP(CUFILEOP_BASE_ERR + 48, CU_FILE_NVFS_INTERNAL_DRIVER_ERROR, internal error of the kernel module nvidia_fs)          \
  CUFILE_OP(CUFILEOP_BASE_ERR + 49, CU_FILE_BATCH_NOCOMPAT_ERROR, the batch needs the compatibility mode and that is forbidden) \
  CUFILE_OP(CUFILEOP_BASE_ERR + 50, CU_FILE_IO_MAX_ERROR, not an error : the first number that is none)

typedef enum CUfileOpError {
#define CUFILE_OP(value, name, text) name = value,
  CUFILEOP_STATUS_ENTRIES
#undef CUFILE_OP
} CUfileOpError;

// Returns a description of an error; never null, and always valid.
static inline const char* cufileop_status_error(CUfileOpError error) {
#define CUFILE_OP(value, name, text) \
  case name:                         \
    return #text;
  switch (error) {
    CUFILEOP_STATUS_ENTRIES
    default:
      return "not an error number of cuFile";
  }
#undef CUFILE_OP
}

typedef struct CUfileError {
  CUfileOpError err;
  CUresult cu_err;
} CUfileError_t;

// For a number of any sign and integer type: errno, a result, or the err of a CUfileError_t.
#define IS_CUFILE_ERR(number) (llabs((long long)(number)) > CUFILEOP_BASE_ERR)
#define CUFILE_ERRSTR(number) cufileop_status_error((CUfileOpError)llabs((long long)(number)))
// For a CUfileError_t.
#define IS_CUDA_ERR(error) ((error).err == CU_FILE_CUDA_DRIVER_ERROR)
#define CU_FILE_CUDA_ERR(error) ((error).cu_err)

// --- opening and closing the library

// Opens the library and increments its use count. Calling this is optional: the first registration also opens the library.
// Errors: CU_FILE_DRIVER_INVALID_PROPS if cufile.json cannot be read, CU_FILE_CUDA_DRIVER_ERROR.
PENSTOCK_CUFILE_API CUfileError_t cuFileDriverOpen(void);

// Decrements the use count. When it reaches zero, waits for operations in progress and releases all files, memory and streams that are
// still registered. Programs built before CUDA 11.8 call the first function, newer ones the second: here both do the same. Errors:
// CU_FILE_DRIVER_NOT_INITIALIZED if the use count is already zero.
PENSTOCK_CUFILE_API CUfileError_t cuFileDriverClose(void);
PENSTOCK_CUFILE_API CUfileError_t cuFileDriverClose_v2(void);
#define cuFileDriverClose cuFileDriverClose_v2

// Returns the current number of uses; 0 if closed.
PENSTOCK_CUFILE_API long cuFileUseCount(void);

// Writes 1000 * major + 10 * minor of the cuFile version that this library implements: 1170, unless the environment variable
// PENSTOCK_CUFILE_VERSION ("1.19") selects another. The library need not be open.
// Errors: CU_FILE_INVALID_VALUE for null.
PENSTOCK_CUFILE_API CUfileError_t cuFileGetVersion(int* version);

// Bit positions in CUfileDrvProps_t.nvfs.dstatusflags: storage that can be read without passing through host memory.
typedef enum CUfileDriverStatusFlags {
  CU_FILE_LUSTRE_SUPPORTED = 0,
  CU_FILE_WEKAFS_SUPPORTED = 1,
  CU_FILE_NFS_SUPPORTED = 2,
  CU_FILE_GPFS_SUPPORTED = 3,
  CU_FILE_NVME_SUPPORTED = 4,
  CU_FILE_NVMEOF_SUPPORTED = 5,
  CU_FILE_SCSI_SUPPORTED = 6,
  CU_FILE_SCALEFLUX_CSD_SUPPORTED = 7,
  CU_FILE_NVMESH_SUPPORTED = 8,
  CU_FILE_BEEGFS_SUPPORTED = 9,
  CU_FILE_NVME_P2P_SUPPORTED = 11,  // 10 was never assigned; 11 is no longer set
  CU_FILE_SCATEFS_SUPPORTED = 12,
  CU_FILE_VIRTIOFS_SUPPORTED = 13,
  CU_FILE_MAX_TARGET_TYPES = 14,  // as of 1.17
  CU_FILE_PANFS_SUPPORTED = 14    // 1.20
} CUfileDriverStatusFlags_t;

// Bit positions in CUfileDrvProps_t.nvfs.dcontrolflags.
typedef enum CUfileDriverControlFlags {
  CU_FILE_USE_POLL_MODE = 0,
  CU_FILE_ALLOW_COMPAT_MODE = 1,
  CU_FILE_POSIX_IO_MODE = 2,
  CU_FILE_VANILLA_POSIX_IO_MODE = 2,  // its name since 1.19
  CU_FILE_FALLBACK_IO_MODE = 4
} CUfileDriverControlFlags_t;

// Bit positions in CUfileDrvProps_t.fflags.
typedef enum CUfileFeatureFlags {
  CU_FILE_DYN_ROUTING_SUPPORTED = 0,
  CU_FILE_BATCH_IO_SUPPORTED = 1,
  CU_FILE_STREAMS_SUPPORTED = 2,
  CU_FILE_PARALLEL_IO_SUPPORTED = 3,
  CU_FILE_P2P_SUPPORTED = 4
} CUfileFeatureFlags_t;

// Sizes in KiB.
typedef struct CUfileDrvProps {
  struct {
    unsigned int major_version;  // the version of the nvidia-fs kernel module; 0.0 if it is not loaded or force_compat_mode is set
    unsigned int minor_version;
    size_t poll_thresh_size;
    size_t max_direct_io_size;
    unsigned int dstatusflags;
    unsigned int dcontrolflags;
  } nvfs;
  unsigned int fflags;
  unsigned int max_device_cache_size;
  unsigned int per_buffer_cache_size;
  unsigned int max_device_pinned_mem_size;
  unsigned int max_batch_io_size;  // operations, not KiB
  unsigned int max_batch_io_timeout_msecs;
} CUfileDrvProps_t;

// Errors: CU_FILE_INVALID_VALUE for null.
PENSTOCK_CUFILE_API CUfileError_t cuFileDriverGetProperties(CUfileDrvProps_t* properties);

// Older ways to set a parameter (see CUFileSizeTConfigParameter_t); sizes are in KiB. Errors: CU_FILE_DRIVER_UNSUPPORTED_LIMIT for a direct
// I/O size below 64, above 16384 or not a multiple of 64, and for a cache size that is not a multiple of 64.
PENSTOCK_CUFILE_API CUfileError_t cuFileDriverSetPollMode(bool poll, size_t largest_polled_kb);
PENSTOCK_CUFILE_API CUfileError_t cuFileDriverSetMaxDirectIOSize(size_t size_kb);
PENSTOCK_CUFILE_API CUfileError_t cuFileDriverSetMaxCacheSize(size_t size_kb);
PENSTOCK_CUFILE_API CUfileError_t cuFileDriverSetMaxPinnedMemSize(size_t size_kb);

// --- files

typedef void* CUfileHandle_t;

typedef struct sockaddr sockaddr_t;

typedef struct cufileRDMAInfo {
  int version;
  int desc_len;
  const char* desc_str;
} cufileRDMAInfo_t;

// Callbacks that a user-space file system provides. Offsets are loff_t, which strict C11 hides; off_t is the same type on 64-bit Linux.
typedef struct CUfileFSOps {
  const char* (*fs_type)(const void* handle);
  int (*getRDMADeviceList)(const void* handle, sockaddr_t** addresses);
  int (*getRDMADevicePriority)(const void* handle, char* memory, size_t length, off_t memory_offset, const sockaddr_t* address);
  ssize_t (*read)(const void* handle, char* memory, size_t length, off_t file_offset, const cufileRDMAInfo_t* info);
  ssize_t (*write)(const void* handle, const char* memory, size_t length, off_t file_offset, const cufileRDMAInfo_t* info);
} CUfileFSOps_t;

enum CUfileFileHandleType { CU_FILE_HANDLE_TYPE_OPAQUE_FD = 1, CU_FILE_HANDLE_TYPE_OPAQUE_WIN32 = 2, CU_FILE_HANDLE_TYPE_USERSPACE_FS = 3 };

typedef struct CUfileDescr_t {
  enum CUfileFileHandleType type;
  union {
    int fd;
    void* handle;
  } handle;
  const CUfileFSOps_t* fs_ops;
} CUfileDescr_t;

// Registers an open file descriptor (O_DIRECT or not) and opens the library if necessary. The caller keeps ownership of the descriptor and
// must keep it open until cuFileHandleDeregister. *file is written only on success.
// Errors: CU_FILE_INVALID_VALUE, CU_FILE_INVALID_FILE_TYPE, CU_FILE_INVALID_FILE_OPEN_FLAG (O_APPEND),
// CU_FILE_HANDLE_ALREADY_REGISTERED, CU_FILE_IO_NOT_SUPPORTED (a type other than OPAQUE_FD).
PENSTOCK_CUFILE_API CUfileError_t cuFileHandleRegister(CUfileHandle_t* file, CUfileDescr_t* descriptor);

// The handle is stale after this call: using it is an error, not a crash. A stale or null handle is ignored.
PENSTOCK_CUFILE_API void cuFileHandleDeregister(CUfileHandle_t file);

// --- memory

// Flags for cuFileBufRegister. They have no effect without RDMA.
#define CU_FILE_RDMA_REGISTER 1
#define CU_FILE_RDMA_RELAXED_ORDERING (1 << 1)
#define CU_FILE_RDMA_ERR_BASE 6000
#define CU_FILE_RDMA_SUCCESS 0
#define CU_FILE_RDMA_RESET_TOKEN (CU_FILE_RDMA_ERR_BASE + 1)
#define CU_FILE_RDMA_RESET_TOKEN_FAILED (CU_FILE_RDMA_ERR_BASE + 2)

// Registers length bytes of device, managed or host memory, which must stay allocated until cuFileBufDeregister. Optional: every operation
// also accepts memory that is not registered.
// Errors: CU_FILE_INVALID_VALUE, CU_FILE_MEMORY_ALREADY_REGISTERED (same base), CU_FILE_CUDA_POINTER_RANGE_ERROR.
PENSTOCK_CUFILE_API CUfileError_t cuFileBufRegister(const void* base, size_t length, int flags);

// Errors: CU_FILE_INVALID_VALUE for null, CU_FILE_MEMORY_NOT_REGISTERED.
PENSTOCK_CUFILE_API CUfileError_t cuFileBufDeregister(const void* base);

// --- reading and writing

// Reads up to size bytes at file_offset to base + memory_offset. Blocks. No alignment is required. Not ordered with any CUDA stream.
// Returns the bytes read, fewer than size only at the end of the file, or -1 with errno set to an errno value or to a CUfileOpError.
PENSTOCK_CUFILE_API ssize_t cuFileRead(CUfileHandle_t file, void* base, size_t size, off_t file_offset, off_t memory_offset);

// Writes size bytes; otherwise like cuFileRead.
PENSTOCK_CUFILE_API ssize_t cuFileWrite(CUfileHandle_t file, const void* base, size_t size, off_t file_offset, off_t memory_offset);

typedef struct CUfileIOVec {
  void* base;
  size_t len;
} CUfileIOVec_t;

// Transfer one range of the file to or from count pieces of memory, in order. flags must be 0. The result is as for cuFileRead. Since 1.19.
PENSTOCK_CUFILE_API ssize_t cuFileReadv(CUfileHandle_t file, const CUfileIOVec_t* pieces, size_t count, off_t file_offset, unsigned flags);
PENSTOCK_CUFILE_API ssize_t cuFileWritev(CUfileHandle_t file, const CUfileIOVec_t* pieces, size_t count, off_t file_offset, unsigned flags);

// --- batches

typedef enum CUfileOpcode { CUFILE_READ = 0, CUFILE_WRITE = 1 } CUfileOpcode_t;

typedef enum cufileBatchMode { CUFILE_BATCH = 1 } CUfileBatchMode_t;

typedef enum CUFILEStatus_enum {
  CUFILE_WAITING = 0x01,
  CUFILE_PENDING = 0x02,
  CUFILE_INVALID = 0x04,
  CUFILE_CANCELED = 0x08,
  CUFILE_COMPLETE = 0x10,
  CUFILE_TIMEOUT = 0x20,
  CUFILE_FAILED = 0x40
} CUfileStatus_t;

typedef struct CUfileIOParams {
  CUfileBatchMode_t mode;
  union {
    struct {
      void* devPtr_base;
      off_t file_offset;
      off_t devPtr_offset;
      size_t size;
    } batch;
  } u;
  CUfileHandle_t fh;
  CUfileOpcode_t opcode;
  void* cookie;  // returned in the event
} CUfileIOParams_t;

typedef struct CUfileIOEvents {
  void* cookie;
  CUfileStatus_t status;
  size_t ret;  // the bytes done; read it as ssize_t: negative on failure
} CUfileIOEvents_t;

typedef void* CUfileBatchHandle_t;

// Creates a batch for up to capacity operations at a time. Errors: CU_FILE_INVALID_VALUE if capacity is 0 or above 256.
PENSTOCK_CUFILE_API CUfileError_t cuFileBatchIOSetUp(CUfileBatchHandle_t* batch, unsigned capacity);

// Starts count operations without waiting for them; their order is not defined. The array may be freed on return; the memory that it refers
// to must stay valid until the operation's event. flags must be 0. On an error, no operation was started.
// Errors: CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR.
PENSTOCK_CUFILE_API CUfileError_t cuFileBatchIOSubmit(CUfileBatchHandle_t batch, unsigned count, CUfileIOParams_t* operations,
                                                      unsigned flags);

// Waits until at_least operations have completed or the timeout (null: none) has passed. Writes up to *count events, one per operation, and
// their number to *count.
// Errors: CU_FILE_INVALID_VALUE if at_least > *count, CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR for an unknown batch.
PENSTOCK_CUFILE_API CUfileError_t cuFileBatchIOGetStatus(CUfileBatchHandle_t batch, unsigned at_least, unsigned* count,
                                                         CUfileIOEvents_t* events, struct timespec* timeout);

// Cancels operations that have not started; started ones complete as usual.
PENSTOCK_CUFILE_API CUfileError_t cuFileBatchIOCancel(CUfileBatchHandle_t batch);

// Waits for running operations. The handle is stale after this call.
PENSTOCK_CUFILE_API void cuFileBatchIODestroy(CUfileBatchHandle_t batch);

// --- operations in CUDA stream order

// Flags for cuFileStreamRegister: which values the caller will not change between the call and the operation, and that all of them are
// multiples of 4096.
#define CU_FILE_STREAM_FIXED_BUF_OFFSET 1
#define CU_FILE_STREAM_FIXED_FILE_OFFSET 2
#define CU_FILE_STREAM_FIXED_FILE_SIZE 4
#define CU_FILE_STREAM_PAGE_ALIGNED_INPUTS 8

// Optional. Errors: CU_FILE_INVALID_VALUE for an unknown flag or a stream that is already registered.
PENSTOCK_CUFILE_API CUfileError_t cuFileStreamRegister(CUstream stream, unsigned flags);
PENSTOCK_CUFILE_API CUfileError_t cuFileStreamDeregister(CUstream stream);

// Enqueues a read. When the stream reaches it, size and offsets are read through the pointers, and the result is written to *bytes_read:
// the bytes read, or a negative number (-1, or -CUfileOpError). At the time of the call *size must contain the largest value that it will
// have. The four pointers and the memory must stay valid until the stream has passed the operation.
// Errors: CU_FILE_INVALID_VALUE for a null pointer, CU_FILE_ASYNC_NOT_SUPPORTED.
PENSTOCK_CUFILE_API CUfileError_t cuFileReadAsync(CUfileHandle_t file, void* base, size_t* size, off_t* file_offset, off_t* memory_offset,
                                                  ssize_t* bytes_read, CUstream stream);
PENSTOCK_CUFILE_API CUfileError_t cuFileWriteAsync(CUfileHandle_t file, void* base, size_t* size, off_t* file_offset, off_t* memory_offset,
                                                   ssize_t* bytes_written, CUstream stream);

// --- parameters

typedef enum CUFileSizeTConfigParameter_t {
  CUFILE_PARAM_PROFILE_STATS = 0,
  CUFILE_PARAM_EXECUTION_MAX_IO_QUEUE_DEPTH = 1,
  CUFILE_PARAM_EXECUTION_MAX_IO_THREADS = 2,
  CUFILE_PARAM_EXECUTION_MIN_IO_THRESHOLD_SIZE_KB = 3,
  CUFILE_PARAM_EXECUTION_MAX_REQUEST_PARALLELISM = 4,
  CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB = 5,
  CUFILE_PARAM_PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB = 6,
  CUFILE_PARAM_PROPERTIES_PER_BUFFER_CACHE_SIZE_KB = 7,
  CUFILE_PARAM_PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB = 8,
  CUFILE_PARAM_PROPERTIES_IO_BATCHSIZE = 9,
  CUFILE_PARAM_POLLTHRESHOLD_SIZE_KB = 10,
  CUFILE_PARAM_PROPERTIES_BATCH_IO_TIMEOUT_MS = 11
} CUFileSizeTConfigParameter_t;

typedef enum CUFileBoolConfigParameter_t {
  CUFILE_PARAM_PROPERTIES_USE_POLL_MODE = 0,
  CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE = 1,
  CUFILE_PARAM_FORCE_COMPAT_MODE = 2,
  CUFILE_PARAM_FS_MISC_API_CHECK_AGGRESSIVE = 3,
  CUFILE_PARAM_EXECUTION_PARALLEL_IO = 4,
  CUFILE_PARAM_PROFILE_NVTX = 5,
  CUFILE_PARAM_PROPERTIES_ALLOW_SYSTEM_MEMORY = 6,
  CUFILE_PARAM_USE_PCIP2PDMA = 7,
  CUFILE_PARAM_PREFER_IO_URING = 8,
  CUFILE_PARAM_FORCE_ODIRECT_MODE = 9,
  CUFILE_PARAM_SKIP_TOPOLOGY_DETECTION = 10,
  CUFILE_PARAM_STREAM_MEMOPS_BYPASS = 11,
  CUFILE_PARAM_PROPERTIES_POSIX_IO_MODE = 12,  // this and the next: 1.19
  CUFILE_PARAM_GDS_FALLBACK_IO = 13
} CUFileBoolConfigParameter_t;

typedef enum CUFileStringConfigParameter_t {
  CUFILE_PARAM_LOGGING_LEVEL = 0,
  CUFILE_PARAM_ENV_LOGFILE_PATH = 1,
  CUFILE_PARAM_LOG_DIR = 2,
  CUFILE_PARAM_RDMA_TRANSPORT = 3  // 1.19
} CUFileStringConfigParameter_t;

typedef enum CUFileArrayConfigParameter_t {
  CUFILE_PARAM_POSIX_POOL_SLAB_SIZE_KB = 0,
  CUFILE_PARAM_POSIX_POOL_SLAB_COUNT = 1,
  CUFILE_PARAM_GPU_BOUNCE_BUFFER_SLAB_SIZE_KB = 2,
  CUFILE_PARAM_GPU_BOUNCE_BUFFER_SLAB_COUNT = 3
} CUFileArrayConfigParameter_t;

// A value that was set takes precedence over the environment, then the configuration file, then the default. It takes effect at the next
// open. Errors: CU_FILE_DRIVER_ALREADY_OPEN from the Set functions, CU_FILE_INVALID_VALUE for an unknown parameter or null.
PENSTOCK_CUFILE_API CUfileError_t cuFileGetParameterSizeT(CUFileSizeTConfigParameter_t parameter, size_t* value);
PENSTOCK_CUFILE_API CUfileError_t cuFileSetParameterSizeT(CUFileSizeTConfigParameter_t parameter, size_t value);
PENSTOCK_CUFILE_API CUfileError_t cuFileGetParameterBool(CUFileBoolConfigParameter_t parameter, bool* value);
PENSTOCK_CUFILE_API CUfileError_t cuFileSetParameterBool(CUFileBoolConfigParameter_t parameter, bool value);

// length is the size of the buffer at text in bytes, including the terminating NUL. Error: CU_FILE_INVALID_VALUE if it is too small.
PENSTOCK_CUFILE_API CUfileError_t cuFileGetParameterString(CUFileStringConfigParameter_t parameter, char* text, int length);
PENSTOCK_CUFILE_API CUfileError_t cuFileSetParameterString(CUFileStringConfigParameter_t parameter, const char* text);

PENSTOCK_CUFILE_API CUfileError_t cuFileGetParameterMinMaxValue(CUFileSizeTConfigParameter_t parameter, size_t* least, size_t* most);

// Sizes in KiB, and the number of buffers of each size. Get requires the length that was set.
PENSTOCK_CUFILE_API CUfileError_t cuFileSetParameterPosixPoolSlabArray(const size_t* sizes_kb, const size_t* counts, int length);
PENSTOCK_CUFILE_API CUfileError_t cuFileGetParameterPosixPoolSlabArray(size_t* sizes_kb, size_t* counts, int length);
PENSTOCK_CUFILE_API CUfileError_t cuFileSetParameterGpuBounceBufferSlabArray(const size_t* sizes_kb, const size_t* counts, int length);
PENSTOCK_CUFILE_API CUfileError_t cuFileGetParameterGpuBounceBufferSlabArray(size_t* sizes_kb, size_t* counts, int length);

// --- statistics

#define CUFILE_GPU_UUID_LEN 16

typedef struct CUfileOpCounter {
  uint64_t ok;
  uint64_t err;
} CUfileOpCounter_t;

// The layout of 1.17: 512 bytes. 1.19 appended twelve fields without renaming the functions, and older programs have no room for them. They
// are written only if PENSTOCK_CUFILE_VERSION is 1.19 or later.
typedef struct CUfileStatsLevel1 {
  CUfileOpCounter_t read_ops;
  CUfileOpCounter_t write_ops;
  CUfileOpCounter_t hdl_register_ops;
  CUfileOpCounter_t hdl_deregister_ops;
  CUfileOpCounter_t buf_register_ops;
  CUfileOpCounter_t buf_deregister_ops;
  uint64_t read_bytes;
  uint64_t write_bytes;
  uint64_t read_bw_bytes_per_sec;
  uint64_t write_bw_bytes_per_sec;
  uint64_t read_lat_avg_us;
  uint64_t write_lat_avg_us;
  uint64_t read_ops_per_sec;
  uint64_t write_ops_per_sec;
  uint64_t read_lat_sum_us;
  uint64_t write_lat_sum_us;
  CUfileOpCounter_t batch_submit_ops;
  CUfileOpCounter_t batch_complete_ops;
  CUfileOpCounter_t batch_setup_ops;
  CUfileOpCounter_t batch_cancel_ops;
  CUfileOpCounter_t batch_destroy_ops;
  CUfileOpCounter_t batch_enqueued_ops;
  CUfileOpCounter_t batch_posix_enqueued_ops;
  CUfileOpCounter_t batch_processed_ops;
  CUfileOpCounter_t batch_posix_processed_ops;
  CUfileOpCounter_t batch_nvfs_submit_ops;
  CUfileOpCounter_t batch_p2p_submit_ops;
  CUfileOpCounter_t batch_aio_submit_ops;
  CUfileOpCounter_t batch_iouring_submit_ops;
  CUfileOpCounter_t batch_mixed_io_submit_ops;
  CUfileOpCounter_t batch_total_submit_ops;
  uint64_t batch_read_bytes;
  uint64_t batch_write_bytes;
  uint64_t batch_read_bw_bytes;
  uint64_t batch_write_bw_bytes;
  uint64_t batch_submit_lat_avg_us;
  uint64_t batch_completion_lat_avg_us;
  uint64_t batch_submit_ops_per_sec;
  uint64_t batch_complete_ops_per_sec;
  uint64_t batch_submit_lat_sum_us;
  uint64_t batch_completion_lat_sum_us;
  uint64_t last_batch_read_bytes;
  uint64_t last_batch_write_bytes;
} CUfileStatsLevel1_t;

typedef struct CUfileStatsLevel2 {
  CUfileStatsLevel1_t basic;
  uint64_t read_size_kb_hist[32];  // operations up to 4 KiB, then doubling
  uint64_t write_size_kb_hist[32];
} CUfileStatsLevel2_t;

typedef struct CUfilePerGpuStats {
  char uuid[CUFILE_GPU_UUID_LEN];
  uint64_t read_bytes;
  uint64_t read_bw_bytes_per_sec;
  uint64_t read_utilization;
  uint64_t read_duration_us;
  uint64_t n_total_reads;
  uint64_t n_p2p_reads;
  uint64_t n_nvfs_reads;
  uint64_t n_posix_reads;
  uint64_t n_unaligned_reads;
  uint64_t n_dr_reads;
  uint64_t n_sparse_regions;
  uint64_t n_inline_regions;
  uint64_t n_reads_err;
  uint64_t writes_bytes;
  uint64_t write_bw_bytes_per_sec;
  uint64_t write_utilization;
  uint64_t write_duration_us;
  uint64_t n_total_writes;
  uint64_t n_p2p_writes;
  uint64_t n_nvfs_writes;
  uint64_t n_posix_writes;
  uint64_t n_unaligned_writes;
  uint64_t n_dr_writes;
  uint64_t n_writes_err;
  uint64_t n_mmap;
  uint64_t n_mmap_ok;
  uint64_t n_mmap_err;
  uint64_t n_mmap_free;
  uint64_t reg_bytes;
} CUfilePerGpuStats_t;

typedef struct CUfileStatsLevel3 {
  CUfileStatsLevel2_t detailed;
  uint32_t num_gpus;
  CUfilePerGpuStats_t per_gpu_stats[16];
} CUfileStatsLevel3_t;

// The level is 0 (off) to 3. Set it before cuFileStatsStart. Errors: CU_FILE_INVALID_VALUE.
PENSTOCK_CUFILE_API CUfileError_t cuFileSetStatsLevel(int level);
PENSTOCK_CUFILE_API CUfileError_t cuFileGetStatsLevel(int* level);
PENSTOCK_CUFILE_API CUfileError_t cuFileStatsStart(void);
PENSTOCK_CUFILE_API CUfileError_t cuFileStatsStop(void);
PENSTOCK_CUFILE_API CUfileError_t cuFileStatsReset(void);

// Errors: CU_FILE_INVALID_VALUE if the level that was set is below the requested one, CU_FILE_DRIVER_NOT_INITIALIZED if closed. At level 3,
// only the first num_gpus entries are written.
PENSTOCK_CUFILE_API CUfileError_t cuFileGetStatsL1(CUfileStatsLevel1_t* stats);
PENSTOCK_CUFILE_API CUfileError_t cuFileGetStatsL2(CUfileStatsLevel2_t* stats);
PENSTOCK_CUFILE_API CUfileError_t cuFileGetStatsL3(CUfileStatsLevel3_t* stats);

// --- the machine

// The size of a GPU's BAR1, in KiB. Errors: CU_FILE_INVALID_VALUE for an unknown GPU or null.
PENSTOCK_CUFILE_API CUfileError_t cuFileGetBARSizeInKB(int gpu, size_t* size_kb);

// Writes the detected PCIe topology to a file: one comment line, then JSON. Errors: CU_FILE_INVALID_VALUE for null.
PENSTOCK_CUFILE_API CUfileError_t cuFileExportPCIeTopology(const char* file_name);

// Ways to move bytes between storage and a GPU without going through host memory.
typedef enum CUfileP2PFlags {
  CUFILE_P2PDMA = 0,
  CUFILE_NVFS = 1,
  CUFILE_DMABUF = 2,
  CUFILE_C2C = 3,
  CUFILE_NVIDIA_PEERMEM = 4
} CUfileP2PFlags_t;

// The same as masks, for the two functions below.
#define CU_FILE_P2P_FLAG_PCI_P2PDMA ((CUfileP2PFlags_t)(1 << CUFILE_P2PDMA))
#define CU_FILE_P2P_FLAG_NVFS ((CUfileP2PFlags_t)(1 << CUFILE_NVFS))
#define CU_FILE_P2P_FLAG_DMABUF ((CUfileP2PFlags_t)(1 << CUFILE_DMABUF))
#define CU_FILE_P2P_FLAG_C2C ((CUfileP2PFlags_t)(1 << CUFILE_C2C))

// For one kind of storage. Call Set before the library is opened.
PENSTOCK_CUFILE_API CUfileError_t cuFileDriverGetP2PFlags(CUfileDriverStatusFlags_t storage, CUfileP2PFlags_t* flags);
PENSTOCK_CUFILE_API CUfileError_t cuFileDriverSetP2PFlags(CUfileDriverStatusFlags_t storage, CUfileP2PFlags_t flags);

#ifdef __cplusplus
}
#endif

#endif
