"""The enumerations of cuda.bindings.cufile (cuda-python 13), with cuda-python's names and cuFile's numbers. Use them through
penstock.cuda_bindings.cufile."""

from __future__ import annotations

import enum

__all__ = [
    "ArrayConfigParameter",
    "BatchMode",
    "BoolConfigParameter",
    "DriverControlFlags",
    "DriverStatusFlags",
    "FeatureFlags",
    "FileHandleType",
    "OpError",
    "Opcode",
    "P2PFlags",
    "SizeTConfigParameter",
    "Status",
    "StringConfigParameter",
]


class OpError(enum.IntEnum):
    """The status of a failed call."""

    SUCCESS = 0
    DRIVER_NOT_INITIALIZED = 5001
    DRIVER_INVALID_PROPS = 5002
    DRIVER_UNSUPPORTED_LIMIT = 5003
    DRIVER_VERSION_MISMATCH = 5004
    DRIVER_VERSION_READ_ERROR = 5005
    DRIVER_CLOSING = 5006
    PLATFORM_NOT_SUPPORTED = 5007
    IO_NOT_SUPPORTED = 5008
    DEVICE_NOT_SUPPORTED = 5009
    NVFS_DRIVER_ERROR = 5010
    CUDA_DRIVER_ERROR = 5011
    CUDA_POINTER_INVALID = 5012
    CUDA_MEMORY_TYPE_INVALID = 5013
    CUDA_POINTER_RANGE_ERROR = 5014
    CUDA_CONTEXT_MISMATCH = 5015
    INVALID_MAPPING_SIZE = 5016
    INVALID_MAPPING_RANGE = 5017
    INVALID_FILE_TYPE = 5018
    INVALID_FILE_OPEN_FLAG = 5019
    DIO_NOT_SET = 5020
    INVALID_VALUE = 5022
    MEMORY_ALREADY_REGISTERED = 5023
    MEMORY_NOT_REGISTERED = 5024
    PERMISSION_DENIED = 5025
    DRIVER_ALREADY_OPEN = 5026
    HANDLE_NOT_REGISTERED = 5027
    HANDLE_ALREADY_REGISTERED = 5028
    DEVICE_NOT_FOUND = 5029
    INTERNAL_ERROR = 5030
    GETNEWFD_FAILED = 5031
    NVFS_SETUP_ERROR = 5033
    IO_DISABLED = 5034
    BATCH_SUBMIT_FAILED = 5035
    GPU_MEMORY_PINNING_FAILED = 5036
    BATCH_FULL = 5037
    ASYNC_NOT_SUPPORTED = 5038
    INTERNAL_BATCH_SETUP_ERROR = 5039
    INTERNAL_BATCH_SUBMIT_ERROR = 5040
    INTERNAL_BATCH_GETSTATUS_ERROR = 5041
    INTERNAL_BATCH_CANCEL_ERROR = 5042
    NOMEM_ERROR = 5043
    IO_ERROR = 5044
    INTERNAL_BUF_REGISTER_ERROR = 5045
    HASH_OPR_ERROR = 5046
    INVALID_CONTEXT_ERROR = 5047
    NVFS_INTERNAL_DRIVER_ERROR = 5048
    BATCH_NOCOMPAT_ERROR = 5049
    IO_MAX_ERROR = 5050


class Status(enum.IntEnum):
    """The status of a batch operation."""

    WAITING = 1
    PENDING = 2
    INVALID = 4
    CANCELED = 8
    COMPLETE = 16
    TIMEOUT = 32
    FAILED = 64


class Opcode(enum.IntEnum):
    """The direction of a batch operation."""

    READ = 0
    WRITE = 1


class BatchMode(enum.IntEnum):
    """The mode of a batch operation. There is only one mode."""

    BATCH = 1


class FileHandleType(enum.IntEnum):
    """The type of a Descr. Only OPAQUE_FD can be registered."""

    OPAQUE_FD = 1
    OPAQUE_WIN32 = 2
    USERSPACE_FS = 3


class FeatureFlags(enum.IntEnum):
    """Bit positions in fflags of the driver's properties."""

    DYN_ROUTING_SUPPORTED = 0
    BATCH_IO_SUPPORTED = 1
    STREAMS_SUPPORTED = 2
    PARALLEL_IO_SUPPORTED = 3
    P2P_SUPPORTED = 4


class DriverControlFlags(enum.IntEnum):
    """Bit positions in dcontrolflags of the driver's properties."""

    USE_POLL_MODE = 0
    ALLOW_COMPAT_MODE = 1
    VANILLA_POSIX_IO_MODE = 2
    POSIX_IO_MODE = 2  # the same bit under its later name
    FALLBACK_IO_MODE = 4


class DriverStatusFlags(enum.IntEnum):
    """Bit positions in dstatusflags of the driver's properties."""

    LUSTRE_SUPPORTED = 0
    WEKAFS_SUPPORTED = 1
    NFS_SUPPORTED = 2
    GPFS_SUPPORTED = 3
    NVME_SUPPORTED = 4
    NVMEOF_SUPPORTED = 5
    SCSI_SUPPORTED = 6
    SCALEFLUX_CSD_SUPPORTED = 7
    NVMESH_SUPPORTED = 8
    BEEGFS_SUPPORTED = 9
    NVME_P2P_SUPPORTED = 11
    SCATEFS_SUPPORTED = 12
    VIRTIOFS_SUPPORTED = 13
    PANFS_SUPPORTED = 14
    MAX_TARGET_TYPES = 15


class P2PFlags(enum.IntEnum):
    """How a GPU and a storage device are connected."""

    P2PDMA = 0
    NVFS = 1
    DMABUF = 2
    C2C = 3
    NVIDIA_PEERMEM = 4


class SizeTConfigParameter(enum.IntEnum):
    """Numeric parameters."""

    PROFILE_STATS = 0
    EXECUTION_MAX_IO_QUEUE_DEPTH = 1
    EXECUTION_MAX_IO_THREADS = 2
    EXECUTION_MIN_IO_THRESHOLD_SIZE_KB = 3
    EXECUTION_MAX_REQUEST_PARALLELISM = 4
    PROPERTIES_MAX_DIRECT_IO_SIZE_KB = 5
    PROPERTIES_MAX_DEVICE_CACHE_SIZE_KB = 6
    PROPERTIES_PER_BUFFER_CACHE_SIZE_KB = 7
    PROPERTIES_MAX_DEVICE_PINNED_MEM_SIZE_KB = 8
    PROPERTIES_IO_BATCHSIZE = 9
    POLLTHRESHOLD_SIZE_KB = 10
    PROPERTIES_BATCH_IO_TIMEOUT_MS = 11


class BoolConfigParameter(enum.IntEnum):
    """Boolean parameters."""

    PROPERTIES_USE_POLL_MODE = 0
    PROPERTIES_ALLOW_COMPAT_MODE = 1
    FORCE_COMPAT_MODE = 2
    FS_MISC_API_CHECK_AGGRESSIVE = 3
    EXECUTION_PARALLEL_IO = 4
    PROFILE_NVTX = 5
    PROPERTIES_ALLOW_SYSTEM_MEMORY = 6
    USE_PCIP2PDMA = 7
    PREFER_IO_URING = 8
    FORCE_ODIRECT_MODE = 9
    SKIP_TOPOLOGY_DETECTION = 10
    STREAM_MEMOPS_BYPASS = 11
    PROPERTIES_POSIX_IO_MODE = 12
    GDS_FALLBACK_IO = 13


class StringConfigParameter(enum.IntEnum):
    """String parameters."""

    LOGGING_LEVEL = 0
    ENV_LOGFILE_PATH = 1
    LOG_DIR = 2
    RDMA_TRANSPORT = 3


class ArrayConfigParameter(enum.IntEnum):
    """Parameters that are arrays of slabs."""

    POSIX_POOL_SLAB_SIZE_KB = 0
    POSIX_POOL_SLAB_COUNT = 1
    GPU_BOUNCE_BUFFER_SLAB_SIZE_KB = 2
    GPU_BOUNCE_BUFFER_SLAB_COUNT = 3
