"""Memory for clients that take an address: a GPU's where there is one (by PyTorch), else the host's.

One owner; no two threads. Addresses are multiples of 4096.
"""

import ctypes
from typing import Any

from client import skip, why_no_gpu

GPU_MISSING = why_no_gpu()
ALIGNMENT = 4096


def torch_with_cuda() -> Any:
    """PyTorch, which must use the GPU that is there."""
    try:
        import torch
    except ImportError as problem:
        skip(f"there is a GPU, and torch, which gives out its memory, cannot be imported: {problem}")
    if not torch.cuda.is_available():
        skip(f"there is a GPU, and this torch ({torch.__version__}) does not use it")
    return torch


class HostMemory:
    kind = "host memory"

    def __init__(self, size: int):
        self.size = size
        self._kept = ctypes.create_string_buffer(size + ALIGNMENT)
        self.address = (ctypes.addressof(self._kept) + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT

    def put(self, data: bytes, offset: int = 0) -> None:
        ctypes.memmove(self.address + offset, data, len(data))

    def get(self, length: int, offset: int = 0) -> bytes:
        return ctypes.string_at(self.address + offset, length)


class GpuMemory:
    kind = "memory of a GPU"

    def __init__(self, size: int):
        self._torch = torch_with_cuda()
        self.size = size
        self._tensor = self._torch.zeros(size, dtype=self._torch.uint8, device="cuda")
        self._torch.cuda.synchronize()
        self.address = int(self._tensor.data_ptr())

    def put(self, data: bytes, offset: int = 0) -> None:
        self._tensor[offset : offset + len(data)].copy_(self._torch.frombuffer(bytearray(data), dtype=self._torch.uint8))
        self._torch.cuda.synchronize()

    def get(self, length: int, offset: int = 0) -> bytes:
        return bytes(self._tensor[offset : offset + length].cpu().numpy())


Memory = HostMemory if GPU_MISSING else GpuMemory
