"""The status codes of penstock.cufile, and its exception. Use them through penstock.cufile."""

from __future__ import annotations

import enum

__all__ = ["CODE_NUMBERS", "FeatureFlags", "FileHandleType", "OpError", "Status", "cuFileError"]


class OpError(enum.IntEnum):
    """cuFile's operation codes (CUfileOpError, cuFile 1.17), under cuFile's names and under the documented module's names for the same numbers."""

    CU_FILE_SUCCESS = 0
    CU_FILE_DRIVER_NOT_INITIALIZED = 5001
    CU_FILE_DRIVER_INVALID_PROPS = 5002
    CU_FILE_DRIVER_UNSUPPORTED_LIMIT = 5003
    CU_FILE_DRIVER_VERSION_MISMATCH = 5004
    CU_FILE_DRIVER_VERSION_READ_ERROR = 5005
    CU_FILE_DRIVER_CLOSING = 5006
    CU_FILE_PLATFORM_NOT_SUPPORTED = 5007
    CU_FILE_IO_NOT_SUPPORTED = 5008
    CU_FILE_DEVICE_NOT_SUPPORTED = 5009
    CU_FILE_NVFS_DRIVER_ERROR = 5010
    CU_FILE_CUDA_DRIVER_ERROR = 5011
    CU_FILE_CUDA_POINTER_INVALID = 5012
    CU_FILE_CUDA_MEMORY_TYPE_INVALID = 5013
    CU_FILE_CUDA_POINTER_RANGE_ERROR = 5014
    CU_FILE_CUDA_CONTEXT_MISMATCH = 5015
    CU_FILE_INVALID_MAPPING_SIZE = 5016
    CU_FILE_INVALID_MAPPING_RANGE = 5017
    CU_FILE_INVALID_FILE_TYPE = 5018
    CU_FILE_INVALID_FILE_OPEN_FLAG = 5019
    CU_FILE_DIO_NOT_SET = 5020
    CU_FILE_INVALID_VALUE = 5022
    CU_FILE_MEMORY_ALREADY_REGISTERED = 5023
    CU_FILE_MEMORY_NOT_REGISTERED = 5024
    CU_FILE_PERMISSION_DENIED = 5025
    CU_FILE_DRIVER_ALREADY_OPEN = 5026
    CU_FILE_HANDLE_NOT_REGISTERED = 5027
    CU_FILE_HANDLE_ALREADY_REGISTERED = 5028
    CU_FILE_DEVICE_NOT_FOUND = 5029
    CU_FILE_INTERNAL_ERROR = 5030
    CU_FILE_GETNEWFD_FAILED = 5031
    CU_FILE_NVFS_SETUP_ERROR = 5033
    CU_FILE_IO_DISABLED = 5034
    CU_FILE_BATCH_SUBMIT_FAILED = 5035
    CU_FILE_GPU_MEMORY_PINNING_FAILED = 5036
    CU_FILE_BATCH_FULL = 5037
    CU_FILE_ASYNC_NOT_SUPPORTED = 5038
    CU_FILE_INTERNAL_BATCH_SETUP_ERROR = 5039
    CU_FILE_INTERNAL_BATCH_SUBMIT_ERROR = 5040
    CU_FILE_INTERNAL_BATCH_GETSTATUS_ERROR = 5041
    CU_FILE_INTERNAL_BATCH_CANCEL_ERROR = 5042
    CU_FILE_NOMEM_ERROR = 5043
    CU_FILE_IO_ERROR = 5044
    CU_FILE_INTERNAL_BUF_REGISTER_ERROR = 5045
    CU_FILE_HASH_OPR_ERROR = 5046
    CU_FILE_INVALID_CONTEXT_ERROR = 5047
    CU_FILE_NVFS_INTERNAL_DRIVER_ERROR = 5048
    CU_FILE_BATCH_NOCOMPAT_ERROR = 5049
    CU_FILE_OP_SUCCESS = 0
    CU_FILE_OP_FAILED = 5030
    CU_FILE_OP_INVALID_ARG = 5022
    CU_FILE_OP_IO_FAILED = 5044
    CU_FILE_OP_MEMORY_INVALID = 5012
    CU_FILE_OP_PARTIAL_COMPLETION = 5901  # cuFile has no such code


class Status(enum.IntEnum):
    """The documented module's names. Each has the number of the cuFile code with the same meaning.

    CU_FILE_PLATFORM_NOT_SUPPORTED and CU_FILE_FILE_SYSTEM_NOT_SUPPORTED are never raised, because every machine and file system is supported.
    """

    CU_FILE_SUCCESS = 0
    CU_FILE_PLATFORM_NOT_SUPPORTED = 5007
    CU_FILE_IO_NOT_SUPPORTED = 5008
    CU_FILE_CUDA_MEMORY_TYPE_NOT_SUPPORTED = 5013
    CU_FILE_INVALID_FILE_OPEN_FLAG = 5019
    CU_FILE_INVALID_VALUE = 5022
    CU_FILE_MEMORY_ALREADY_REGISTERED = 5023
    CU_FILE_MEMORY_NOT_REGISTERED = 5024
    CU_FILE_PERMISSION_DENIED = 5025
    CU_FILE_INVALID_HANDLE = 5027
    CU_FILE_FILE_SYSTEM_NOT_SUPPORTED = 5902  # cuFile has no such code


class FeatureFlags(enum.IntFlag):
    """A library's features, as returned by driver_get_properties()."""

    CU_FILE_FEATURE_GDS_SUPPORTED = 1
    CU_FILE_FEATURE_BATCH_IO_SUPPORTED = 2
    CU_FILE_FEATURE_ASYNC_IO_SUPPORTED = 4
    CU_FILE_FEATURE_VECTOR_IO_SUPPORTED = 8


class FileHandleType(enum.IntEnum):
    """The first field of a cuFile descriptor struct. Only Linux descriptors (OPAQUE_FD) can be registered."""

    CU_FILE_HANDLE_TYPE_OPAQUE_FD = 1
    CU_FILE_HANDLE_TYPE_OPAQUE_WIN32 = 2


class cuFileError(Exception):  # noqa: N801, N818 - the documented name
    """A failed call.

    - `status`: a Status, or an OpError if Status has no name for the number; both are integers.
    - `message`: what failed.
    - `bytes_done`: the number of bytes, from the start of the request, that were transferred before the failure. If it is not 0, `status` is
      OpError.CU_FILE_OP_PARTIAL_COMPLETION.
    - `reason`: the status that stopped a partial operation; otherwise the same as `status`.
    """

    def __init__(self, status: int, message: str = "", bytes_done: int = 0) -> None:
        super().__init__(status, message, bytes_done)
        self.reason = _named(status)
        self.status = self.reason if bytes_done == 0 else OpError.CU_FILE_OP_PARTIAL_COMPLETION
        self.message = message
        self.bytes_done = bytes_done

    def __str__(self) -> str:
        name = self.status.name if isinstance(self.status, enum.Enum) else "status"
        return f"{name} ({int(self.status)}): {self.message}{self._how_far()}"

    def _how_far(self) -> str:
        if self.bytes_done == 0:
            return ""
        reason = self.reason.name if isinstance(self.reason, enum.Enum) else "status"
        return f" ({self.bytes_done} bytes done, then {reason})"


for _kind in (OpError, Status, FeatureFlags, FileHandleType, cuFileError):
    _kind.__module__ = "penstock.cufile"  # their public module, which pickles name

# Maps Penstock's error codes to cuFile's, like the C library.
CODE_NUMBERS = {
    "invalid_argument": OpError.CU_FILE_INVALID_VALUE,
    "bad_memory": OpError.CU_FILE_CUDA_POINTER_INVALID,
    "permission_denied": OpError.CU_FILE_PERMISSION_DENIED,
    "not_a_file": OpError.CU_FILE_INVALID_FILE_TYPE,
    "io": OpError.CU_FILE_IO_ERROR,
    "no_space": OpError.CU_FILE_IO_ERROR,
    "out_of_memory": OpError.CU_FILE_NOMEM_ERROR,
    "closed": OpError.CU_FILE_HANDLE_NOT_REGISTERED,
    "unsupported": OpError.CU_FILE_IO_NOT_SUPPORTED,
    "not_found": OpError.CU_FILE_DEVICE_NOT_FOUND,
    "forked": OpError.CU_FILE_DRIVER_NOT_INITIALIZED,
    "device": OpError.CU_FILE_CUDA_DRIVER_ERROR,
}


def _named(status: int) -> int:
    for names in (Status, OpError):
        try:
            return names(status)
        except ValueError:
            continue
    return status
