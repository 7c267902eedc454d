"""PyTorch tensors on the CPU that record their place in a file, so that Penstock can read them into a GPU.

The library maps files, so a tensor on the CPU costs nothing until its first byte is accessed. Such a tensor keeps the library's memory, strides and
storage. Only its class differs, which records the file and the byte range. When the tensor is moved to a GPU, or copied into a tensor there, Penstock
reads the file into GPU memory. Any other operation first turns it permanently into an ordinary torch.Tensor (or Parameter), so that values that a
program may have changed in memory are never read from the file again.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import torch

from .indexes import is_plain, part_of_part, takes_all

if TYPE_CHECKING:
    from .safe_open import DoorFile

__all__ = ["LEAST_BYTES", "TensorInFile", "gpus_may_be_used", "in_file"]

# Copying a smaller tensor is faster than tracking it.
LEAST_BYTES = 32 << 10


class _Origin:
    """The place of a tensor's bytes."""

    __slots__ = ("file", "name", "shape", "index", "version")

    def __init__(self, file: DoorFile, name: str, shape: tuple[int, ...], index: Any, version: int) -> None:
        self.file = file
        self.name = name
        self.shape = shape  # shape of the whole tensor with this name
        self.index = index  # index of the part; None: the whole tensor
        self.version = version  # PyTorch's version counter, which increases with every write to the memory

    def part(self, index: Any) -> _Origin:
        """Returns the origin of the part that a plain index selects."""
        return _Origin(self.file, self.name, self.shape, index if self.index is None else part_of_part(self.shape, self.index, index), self.version)


def in_file(tensor: Any, file: DoorFile, name: str, index: Any = None, shape: tuple[int, ...] | None = None) -> Any:
    """Returns a tensor that records its file, or the same tensor if that would be useless. `index` selects the part; `shape` is the whole tensor's
    shape.
    """
    if type(tensor) is not torch.Tensor or tensor.nbytes < LEAST_BYTES or tensor.is_inference() or not file.is_untouched(name):
        return tensor
    return _noted(tensor, _Origin(file, name, tuple(tensor.shape if shape is None else shape), index, tensor._version))


class TensorInFile(torch.Tensor):  # type: ignore[misc,unused-ignore]
    """A CPU tensor whose bytes come from a file until the CPU accesses any of them."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _called(func, args, kwargs or {}) if not _is_compiling() else _plainly(func, args, kwargs or {})

    @property
    def _is_param(self) -> bool:
        return False

    @_is_param.setter
    def _is_param(self, value: bool) -> None:
        if value:
            _make_parameter(self, sys._getframe(1))


class ParameterInFile(torch.nn.Parameter):  # type: ignore[misc,unused-ignore]
    """The result of torch.nn.Parameter() for a TensorInFile or ParameterInFile."""

    def __new__(cls, data: Any = None, requires_grad: bool = True) -> Any:
        """Creates an ordinary torch.nn.Parameter, because only a tensor from a file can have this class."""
        return torch.nn.Parameter(data, requires_grad)

    def __deepcopy__(self, memo: Any) -> Any:
        _make_ordinary(self)
        return self.__deepcopy__(memo)

    def __reduce_ex__(self, protocol: Any) -> Any:
        _make_ordinary(self)
        return self.__reduce_ex__(protocol)

    @property
    def _is_param(self) -> bool:
        return True

    @_is_param.setter
    def _is_param(self, value: bool) -> None:
        if value:
            _make_parameter(self, sys._getframe(1))

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_compiling():
            return _plainly(func, args, kwargs or {})
        found = _called(func, args, kwargs or {})
        if func is torch.Tensor.detach and type(found) is TensorInFile and sys._getframe(1).f_code is _makes_parameter:
            found.__class__ = ParameterInFile  # torch.nn.Parameter() requires detach() to keep the class
        return found


_makes_parameter = torch.nn.Parameter.__new__.__code__


def _make_parameter(tensor: Any, frame: Any) -> None:
    """Handles torch.nn.Parameter(), which sets _is_param on the result of detach() and returns it. `frame` is the caller's.

    For a class derived from Parameter, PyTorch would create an instance of that class from an ordinary tensor, and so does this function.
    """
    kind = frame.f_locals.get("cls") if frame.f_code is _makes_parameter else None
    if kind in (None, torch.nn.Parameter):
        tensor.__class__ = ParameterInFile
    else:
        _make_ordinary(tensor)
        tensor.__class__ = kind


_ordinary = {TensorInFile: torch.Tensor, ParameterInFile: torch.nn.Parameter}


# torch.compile() recognizes this function, and takes one of the paths above while tracing.
_is_compiling = getattr(getattr(torch, "compiler", None), "is_compiling", lambda: False)


def _plainly(func: Any, args: Any, kwargs: Any) -> Any:
    """Calls the function as if for an ordinary tensor with the same memory. The tensor's class does not change."""
    with torch._C.DisableTorchFunctionSubclass():
        return func(*args, **kwargs)


def _called(func: Any, args: Any, kwargs: Any) -> Any:
    """Handles every PyTorch function that receives such a tensor."""
    if torch._C._get_tracing_state() is not None:  # torch.jit.trace() traces twice, and requires the same Python lines both times
        for each in _in_files((args, kwargs)):
            _touch(each)
        return _plainly(func, args, kwargs)
    handler = _handlers.get(func)
    if handler is not None:
        with torch._C.DisableTorchFunctionSubclass():
            found = handler(func, *args, **kwargs)
        if found is not _passed_on:
            return found
    for each in _in_files((args, kwargs)):
        _make_ordinary(each)
    return func(*args, **kwargs)


def _is_in_file(value: Any) -> bool:
    return type(value) in _ordinary


def _noted(tensor: Any, origin: _Origin) -> Any:
    tensor.__class__ = TensorInFile
    tensor._penstock_origin = origin
    return tensor


def _make_ordinary(tensor: Any) -> None:
    """Turns the tensor into an ordinary one. The values of all tensors with the same name then come from memory."""
    _touch(tensor)
    tensor.__class__ = _ordinary.get(type(tensor), type(tensor))


def _touch(tensor: Any) -> None:
    origin = tensor.__dict__.pop("_penstock_origin", None)
    if origin is not None:  # None: another thread was faster
        origin.file.touch(origin.name)


def _in_files(value: Any) -> Iterator[Any]:
    if _is_in_file(value):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _in_files(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from _in_files(each)


def _on_gpu(tensor: Any, device: Any) -> Any:
    """Returns the values in new GPU memory, with the tensor's type, or None if they must be copied from CPU memory."""
    origin = tensor.__dict__.get("_penstock_origin")
    if origin is None or tensor._version != origin.version or (tensor.requires_grad and torch.is_grad_enabled()):
        return None
    found = origin.file.on_gpu(origin.name, origin.index, device)
    if found is None or found.dtype != tensor.dtype or found.shape != tensor.shape:
        return None
    return found


def _is_gpu(device: Any) -> bool:
    return device is not None and device.type == "cuda"


# --- operations that need no bytes. Handlers take the function's arguments, and return _passed_on if the bytes are needed.

_passed_on = object()


def _moved(func: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    """Handles Tensor.to()."""
    copy = kwargs.get("copy", False)
    try:
        device, dtype, _, memory_format = torch._C._nn._parse_to(*args, **{name: value for name, value in kwargs.items() if name != "copy"})
    except (TypeError, RuntimeError):
        return _passed_on
    if not _is_in_file(tensor):
        return _passed_on
    if _is_gpu(device):
        return _moved_to_gpu(tensor, device, dtype, memory_format)
    stays = (device is None or device.type == "cpu") and dtype in (None, tensor.dtype) and memory_format in (None, torch.preserve_format)
    return tensor if stays and not copy else _passed_on


def _moved_by_cuda(func: Any, tensor: Any, device: Any = None, non_blocking: bool = False, memory_format: Any = torch.preserve_format) -> Any:
    """Handles Tensor.cuda()."""
    where = torch.device("cuda") if device is None else torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    return _moved_to_gpu(tensor, where, None, memory_format) if _is_gpu(where) else _passed_on


def _moved_to_gpu(tensor: Any, device: Any, dtype: Any, memory_format: Any) -> Any:
    found = _on_gpu(tensor, device)
    if found is None:
        return _passed_on
    if memory_format not in (None, torch.preserve_format):
        found = found.contiguous(memory_format=memory_format)
    return found if dtype is None else found.to(dtype)


def _copied(func: Any, target: Any, source: Any = None, *args: Any, **kwargs: Any) -> Any:
    """Handles Tensor.copy_()."""
    if source is None:
        source = kwargs.pop("src", kwargs.pop("other", None))
    if _is_in_file(target) or not _is_in_file(source) or not _is_gpu(target.device):
        return _passed_on
    found = _on_gpu(source, target.device)
    return _passed_on if found is None else func(target, found, *args, **kwargs)


def _assigned(func: Any, target: Any, index: Any, value: Any) -> Any:
    """Handles target[index] = value."""
    if _is_in_file(target) or not _is_in_file(value) or not _is_gpu(target.device) or any(_in_files(index)):
        return _passed_on
    found = _on_gpu(value, target.device)
    return _passed_on if found is None else func(target, index, found)


def _all_copied(func: Any, targets: Any, sources: Any, *args: Any, **kwargs: Any) -> Any:
    """Handles torch._foreach_copy_()."""
    if any(True for _ in _in_files(targets)) or not all(_is_gpu(each.device) for each in targets):
        return _passed_on
    found = [_on_gpu(each, target.device) if _is_in_file(each) else each for each, target in zip(sources, targets)]
    return _passed_on if any(each is None for each in found) else func(targets, found, *args, **kwargs)


def _indexed(func: Any, tensor: Any, index: Any) -> Any:
    if takes_all(index):
        return _alias(func, tensor, index)
    return _part(tensor, index, lambda: func(tensor, index))


def _narrowed(func: Any, tensor: Any, dim: Any, start: Any, length: Any) -> Any:
    """Handles narrow(), which engines use to take a rank's part."""
    if not all(type(each) is int for each in (dim, start, length)) or not _is_in_file(tensor) or not -tensor.dim() <= dim < tensor.dim():
        return _passed_on
    return _part(tensor, _index_of(tensor, dim, start, length), lambda: func(tensor, dim, start, length))


def _cut(func: Any, tensor: Any, size: Any, dim: Any = 0) -> Any:
    """Handles chunk() and split()."""
    if type(dim) is not int or not _is_in_file(tensor):
        return _passed_on
    found, start = [], 0
    for part in func(tensor, size, dim):
        length = part.shape[dim]
        noted = _part(tensor, _index_of(tensor, dim, start, length), lambda part=part: part)  # type: ignore[misc]
        if noted is _passed_on:
            return _passed_on
        found.append(noted)
        start += length
    return tuple(found)


def _index_of(tensor: Any, dim: int, start: int, length: int) -> Any:
    return (*[slice(None)] * (dim % tensor.dim()), slice(start, start + length))


def _part(tensor: Any, index: Any, made: Callable[[], Any]) -> Any:
    """Returns a part that shares the tensor's memory; made() creates it."""
    origin = tensor.__dict__.get("_penstock_origin") if _is_in_file(tensor) else None
    if origin is None or tensor.requires_grad or not is_plain(index, tensor.shape):
        return _passed_on
    part = made()
    return _noted(part, origin.part(index)) if part.nbytes >= LEAST_BYTES else _passed_on


def _alias(func: Any, tensor: Any, *args: Any) -> Any:
    """Handles operations that return the same bytes: detach(), data, and [...]."""
    if not _is_in_file(tensor):
        return _passed_on
    origin = tensor.__dict__.get("_penstock_origin")
    found = func(tensor, *args)
    return found if origin is None else _noted(found, origin)


def _same_if_contiguous(func: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    return tensor if not args and not kwargs and tensor.is_contiguous() else _passed_on


def _itself(func: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    return _passed_on if args or kwargs else tensor


def _told(func: Any, *args: Any, **kwargs: Any) -> Any:
    """Handles queries that need no bytes."""
    return func(*args, **kwargs)


def _set_needs_gradient(func: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
    func(tensor, *args, **kwargs)
    return tensor


def _methods(*names: str) -> list[Any]:
    return [getattr(torch.Tensor, name) for name in names if hasattr(torch.Tensor, name)]


def _getters(*names: str) -> list[Any]:
    return [getattr(torch.Tensor, name).__get__ for name in names if hasattr(getattr(torch.Tensor, name, None), "__get__")]


def _table() -> dict[Any, Callable[..., Any]]:
    table: dict[Any, Callable[..., Any]] = {}
    told = _getters(*"shape dtype device layout ndim is_cuda is_cpu is_meta is_sparse is_quantized is_nested requires_grad grad grad_fn is_leaf".split())
    told += _getters(*"itemsize nbytes names _version is_mps is_xpu is_xla is_mkldnn is_sparse_csr is_vulkan is_ipu is_maia is_mtia _base retains_grad".split())
    told += _methods(*"size stride dim ndimension numel nelement element_size is_contiguous storage_offset get_device is_floating_point".split())
    told += _methods(*"is_complex is_signed is_inference is_conj is_neg __len__ type new_empty new_zeros new_ones new_full is_same_size".split())
    told += [torch.empty_like, torch.zeros_like, torch.ones_like, torch.full_like, torch.rand_like, torch.randn_like, torch.numel, torch.is_same_size]
    told += [torch.is_floating_point, torch.is_complex, torch.result_type, torch.is_inference, torch.is_conj, torch.is_neg]
    table.update(dict.fromkeys(told, _told))
    table.update(dict.fromkeys([*_methods("detach"), torch.detach, *_getters("data")], _alias))
    table[torch.Tensor.type] = lambda func, tensor, *args, **kwargs: _passed_on if args or kwargs else func(tensor)
    table[torch.Tensor.to] = _moved
    table[torch.Tensor.cuda] = _moved_by_cuda
    table[torch.Tensor.cpu] = _itself
    table[torch.Tensor.contiguous] = _same_if_contiguous
    table[torch.Tensor.copy_] = _copied
    table[torch.Tensor.__getitem__] = _indexed
    table[torch.Tensor.__setitem__] = _assigned
    table[torch.Tensor.narrow] = table[torch.narrow] = _narrowed
    table.update(dict.fromkeys([torch.Tensor.chunk, torch.chunk, torch.Tensor.split, torch.split], _cut))
    table[torch.Tensor.requires_grad_] = _set_needs_gradient
    table[torch.Tensor.requires_grad.__set__] = _told
    if hasattr(torch, "_foreach_copy_"):
        table[torch._foreach_copy_] = _all_copied
    return table


_handlers = _table()


def _reduced(tensor: Any) -> Any:
    """Shares the tensor with another process, as PyTorch does for ordinary tensors."""
    from torch.multiprocessing.reductions import reduce_tensor

    _make_ordinary(tensor)
    return reduce_tensor(tensor)


ForkingPickler.register(TensorInFile, _reduced)
ForkingPickler.register(ParameterInFile, _reduced)


@functools.cache
def gpus_may_be_used() -> bool:
    """Returns True if this process has a GPU. Makes no CUDA calls, because the process could no longer fork after one."""
    return torch.version.cuda is not None and torch.cuda.device_count() > 0
