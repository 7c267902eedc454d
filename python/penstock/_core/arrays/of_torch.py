"""PyTorch's tensors."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from ... import _native
from ..devices import is_gpu, name_for_torch, number_of
from ..huge_pages import ask_for_huge_pages
from ..numpy_types import dtype_of
from ..torch_memory import copy_into, is_wrapper, plain_copy, problem_of, target_problem_of
from .library import Arena, Facts, Library, View

__all__ = ["LIBRARY", "count_changes"]

_ask_handle = getattr(torch._C, "_cuda_getCurrentRawStream", None)  # ten times faster than creating the stream object


@functools.lru_cache(4096)
def _strides_of(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the strides of a contiguous array, in elements. Cached, because a model has few shapes and many tensors."""
    strides = [1] * len(shape)
    for axis in range(len(shape) - 2, -1, -1):
        strides[axis] = strides[axis + 1] * max(1, shape[axis + 1])
    return tuple(strides)


class _TorchArena:
    def __init__(self, memory: Any) -> None:
        self._bytes = memory
        self._bases: dict[Any, tuple[Any, int]] = {}
        self._stream = self._before = None
        if self._bytes.is_cuda:
            self._stream = torch.cuda.current_stream(self._bytes.device)
            self._before = self._stream.record_event()
            self._handle = self._stream.cuda_stream
        nbytes = memory.numel()
        self.memory = _native.Pointer(memory.data_ptr(), nbytes, memory) if nbytes else b""

    def views(self, rows: Iterable[View], found: dict[str, Any]) -> None:
        as_strided, bases = torch.as_strided, self._bases
        for name, dtype, shape, start, _ in rows:
            base = bases.get(dtype)
            if base is None:
                base = bases[dtype] = self._bytes.view(dtype), dtype.itemsize
            found[name] = as_strided(base[0], shape, _strides_of(shape), start // base[1])

    def settled(self) -> bool:
        return self._before is None or bool(self._before.query())

    def settle(self) -> None:
        if self._before is not None:
            self._before.synchronize()

    def use(self) -> None:
        if self._stream is None or (_ask_handle is not None and _ask_handle(self._bytes.get_device()) == self._handle):
            return
        current = torch.cuda.current_stream(self._bytes.device)
        if current != self._stream:
            self._bytes.record_stream(current)

    def held(self) -> Callable[[], bool]:
        storage = torch.multiprocessing.reductions.StorageWeakRef(self._bytes.untyped_storage())
        return lambda: not storage.expired()


def _shape_of(tensor: Any) -> tuple[int, ...]:
    try:
        return tuple(tensor.shape)
    except RuntimeError:  # the tensor has no shape
        return ()


def count_changes(tensors: Iterable[Any]) -> None:
    """Notifies autograd that the values of these tensors have changed."""
    counted = [each for each in tensors if not each.is_inference()]
    increment = torch.autograd.graph.increment_version
    try:
        increment(counted)
    except (AttributeError, TypeError):  # older versions accept only one tensor at a time
        for each in counted:
            increment(each)


class Torch(Library):
    name = "PyTorch"
    word = "pt"
    has_streams = True

    def owns(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def dtype(self, name: str) -> Any:
        found = vars(torch).get(name)
        return found if isinstance(found, torch.dtype) else None

    def dtype_like(self, item_type: Any) -> Any:
        is_plain = item_type.isnative and item_type.isbuiltin != 2  # 2: for example ml_dtypes' bfloat16, whose typestr describes only bytes
        return self.dtype(item_type.name) if is_plain else None

    def dtype_named(self, word: str) -> Any:
        found = self.dtype(word)
        if found is None:
            item_type = dtype_of(word)
            found = None if item_type is None else self.dtype_like(item_type)
        return found

    def shape(self, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        if name != "float4_e2m1fn_x2":
            return shape
        if not shape or shape[-1] % 2:
            raise ValueError("PyTorch packs two elements into a byte, but the last dimension is odd")
        return *shape[:-1], shape[-1] // 2

    def empty(self, shape: tuple[int, ...], dtype: Any, device: str) -> Any:
        return torch.empty(shape, dtype=dtype, device=name_for_torch(device))

    def arena(self, nbytes: int, device: str) -> Arena:
        memory = torch.empty(nbytes, dtype=torch.uint8, device=name_for_torch(device))
        if not memory.is_cuda:
            ask_for_huge_pages(memory.data_ptr(), nbytes)
        return _TorchArena(memory)

    def arena_over(self, memory: Any, device: str) -> Arena:
        if isinstance(memory, torch.Tensor):
            return _TorchArena(memory)
        return _TorchArena(torch.from_dlpack(memory) if isinstance(memory, _native.DeviceBuffer) else torch.frombuffer(memory, dtype=torch.uint8))

    def to_numpy(self, array: Any) -> Any:
        return array.detach().cpu().resolve_conj().resolve_neg().numpy()

    def memory(self, array: Any, readonly: bool = False) -> Any:
        return _native.Pointer(array.data_ptr(), array.numel() * array.element_size(), array, readonly)

    def problem_of(self, array: Any, wrappers: bool = False) -> str | None:
        return problem_of(array, wrappers)

    def is_wrapper(self, array: Any) -> bool:
        return is_wrapper(array)

    def dtype_name(self, dtype: Any) -> str:
        return str(dtype).removeprefix("torch.")

    def device_of(self, array: Any) -> str:
        return f"cuda:{array.get_device()}" if array.is_cuda else "host"  # str(array.device) takes ten times as long

    def plain(self, array: Any) -> Any:
        return plain_copy(array)

    def facts(self, array: Any, *, fill: bool) -> Facts:
        problem = target_problem_of(array) if fill else problem_of(array)
        if array.is_quantized and not fill:
            problem = "is quantized, so its scales would be lost: pass int_repr() and the scales as separate tensors"
        if problem is not None:
            return Facts(array, problem, array.dtype, _shape_of(array))
        size, shape = array.element_size(), tuple(array.shape)
        strides = tuple([each * size for each in array.stride()])
        nbytes = array.numel() * size
        wraps = is_wrapper(array)  # for example, a tensor that is distributed across GPUs
        address = 0 if wraps or not nbytes else array.data_ptr()
        flags = array.is_conj(), array.is_neg()
        is_plain = not wraps and array.is_contiguous() and flags == (False, False)
        array = array if fill else array.detach()
        return Facts(array, None, array.dtype, shape, strides, size, nbytes, self.device_of(array), address, is_plain, False, flags)

    def is_contiguous(self, array: Any) -> bool:
        return bool(array.is_contiguous()) and not array.is_conj() and not array.is_neg()

    def put(self, target: Any, source: Any) -> None:
        copy_into(target, source)

    def put_all(self, targets: Sequence[Any], sources: Sequence[Any]) -> None:
        with torch.no_grad():
            together = getattr(torch, "_foreach_copy_", None)
            if together is not None:
                together(targets, sources)
                return
            for target, source in zip(targets, sources):
                target.copy_(source)

    def have_changed(self, arrays: Sequence[Any]) -> None:
        count_changes(arrays)

    def copied(self, array: Any) -> Any:
        return array.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)

    def current_device(self) -> str:
        return f"cuda:{torch.cuda.current_device()}" if torch.cuda.is_available() else "host"

    def settle(self, device: str) -> None:
        if device.startswith("cuda"):
            torch.cuda.current_stream(device).synchronize()

    def settle_array(self, array: Any, stream: int | None = None) -> None:
        if getattr(getattr(array, "device", None), "type", "cpu") == "cuda":
            (torch.cuda.current_stream(array.device) if stream is None else self.stream_at(stream, array.device)).synchronize()

    def use(self, array: Any, stream: int) -> None:
        if array.is_cuda:
            current = torch.cuda.current_stream(array.device)
            if int(current.cuda_stream) != stream:
                array.record_stream(current)

    def current_stream(self, device: str) -> Any:
        return torch.cuda.current_stream(device)

    def stream_at(self, handle: int, device: str) -> Any:
        return torch.cuda.ExternalStream(handle, device) if handle else torch.cuda.default_stream(device)  # ExternalStream(0) is another stream

    def new_stream(self, device: str) -> Any:
        return torch.cuda.Stream(device)

    def handle_of(self, stream: Any) -> int:
        return int(stream.cuda_stream)

    def current_handle(self, device: str) -> int:
        return super().current_handle(device) if _ask_handle is None else int(_ask_handle(number_of(device)))

    def using(self, stream: Any, device: str) -> contextlib.AbstractContextManager[Any]:
        if not is_gpu(device):
            return contextlib.nullcontext()
        found: contextlib.AbstractContextManager[Any] = torch.cuda.device(device) if stream is None else torch.cuda.stream(stream)
        return found

    def mark(self, device: str) -> Any:
        return torch.cuda.current_stream(device).record_event()


LIBRARY = Torch()
