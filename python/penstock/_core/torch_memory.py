"""Checks whether bytes can be read from and written to the memory of PyTorch tensors, and if not, why: one set of rules for every call that takes a
tensor.

This module does not import PyTorch, because a caller with a tensor has imported it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from .errors import BufferError
from .overlaps import OVERLAP, may_overlap, span_of

__all__ = [
    *("check_array", "check_memory", "copy_into", "is_wrapper", "lie_in_their_storages", "plain_copy", "problem_of", "saved_problem_of"),
    *("span_of_tensor", "target_problem_of"),
]


def problem_of(tensor: Any, wrappers: bool = False) -> str | None:
    """Returns why a tensor has no bytes to read or write, phrased to follow the tensor's name. None if it has bytes, or no elements.

    `wrappers`: accept tensors that contain other tensors and implement PyTorch's operations themselves, such as DTensor.
    """
    torch = sys.modules["torch"]
    if isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        return "is not initialized: its shape is unknown until the module's first call or materialize()"
    problem = _values_problem_of(torch, tensor)
    if problem is not None:
        return problem
    if tensor.is_nested:
        return "is a nested tensor, whose parts differ in shape: pass the result of unbind() or to_padded_tensor()"
    if tensor.layout != torch.strided:
        return f"has the layout {tensor.layout}, which is not contiguous: pass to_dense()"
    if tensor.device.type not in ("cpu", "cuda"):
        return f"is on the device {tensor.device.type}, which has no readable or writable bytes: allocate memory first, for example with to_empty()"
    if is_wrapper(tensor):
        if wrappers:
            return _part_problem_of(tensor, lambda part: problem_of(part, wrappers=True))
        instead = "pass to_local() or full_tensor()" if hasattr(tensor, "full_tensor") else "pass these tensors"
        return f"is a {type(tensor).__name__}, which wraps other tensors and has no memory of its own: {instead}"
    return _storage_problem_of(tensor) if tensor.numel() else None


def saved_problem_of(tensor: Any) -> str | None:
    """Returns why a tensor cannot be saved in a pickle. PyTorch saves a wrapper's parts one by one, and meta tensors without bytes."""
    torch = sys.modules["torch"]
    problem = _values_problem_of(torch, tensor)
    if problem is not None or isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        return problem
    if tensor.layout == torch._mkldnn:
        return problem_of(tensor)  # PyTorch cannot pickle such tensors
    if str(tensor.dtype) in _NEVER_SAVED:
        return f"has the dtype {tensor.dtype}, which PyTorch cannot save: pass view(torch.uint8)"
    if tensor.is_nested or tensor.layout != torch.strided or tensor.device.type not in ("cpu", "cuda"):
        return None
    if is_wrapper(tensor):
        return _part_problem_of(tensor, saved_problem_of)
    return _storage_problem_of(tensor) if tensor.numel() else None


def target_problem_of(tensor: Any) -> str | None:
    """Returns why a tensor cannot be filled. Tensors that wrap others are filled by their own copy_(), except DTensors, whose copy_() accepts only
    DTensors.
    """
    problem = problem_of(tensor, wrappers=not hasattr(tensor, "full_tensor"))
    if problem is not None:
        return problem
    if _is_masked(tensor):
        return "is a MaskedTensor, and files cannot represent masks: pass its data tensor"
    return OVERLAP if may_overlap(tensor.shape, tensor.stride()) else None


_NEVER_SAVED = {f"torch.{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)}


def is_wrapper(tensor: Any) -> bool:
    """Returns True if the tensor's class implements PyTorch's operations itself, so that its values are not simply the bytes at an address."""
    return type(tensor).__torch_dispatch__ is not sys.modules["torch"].Tensor.__torch_dispatch__


def span_of_tensor(tensor: Any) -> tuple[int, int]:
    """Returns the address of a tensor's first byte, and the address past its last."""
    size = tensor.element_size()
    return span_of(tensor.data_ptr(), tensor.size(), [stride * size for stride in tensor.stride()], size)


def check_memory(tensors: Mapping[str, Any]) -> None:
    """Raises BufferError, which names all tensors that have no bytes to read. Accepts tensors that wrap others, which are saved by their own
    methods."""
    problems = [f'tensor "{name}" {problem}' for name, each in tensors.items() if (problem := problem_of(each, wrappers=True))]
    if problems:
        raise BufferError("; ".join(problems[:20]), code="bad_memory")


def lie_in_their_storages(tensors: Sequence[Any], sizes: Iterable[int]) -> bool:
    """Returns True if contiguous tensors of these sizes all have memory. Much faster than calling problem_of() for each."""
    torch = sys.modules["torch"]
    try:
        storages = list(map(torch.Tensor.untyped_storage, tensors))
        begins = map(torch.UntypedStorage.data_ptr, storages)
        rows = zip(map(torch.Tensor.data_ptr, tensors), begins, map(torch.UntypedStorage.nbytes, storages), sizes)
        return all(not size or (begin and address - begin + size <= nbytes) for address, begin, nbytes, size in rows)
    except (RuntimeError, NotImplementedError):
        return False


def plain_copy(tensor: Any) -> Any:
    """Returns a detached tensor with its values as bytes in C order: the same memory if possible, else a copy. The tensor must have passed
    problem_of().
    """
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def check_array(argument: str, array: Any, wrappers: bool = True) -> None:
    """Raises BufferError, which names the argument, for a tensor without memory. Accepts other arrays. `wrappers`: as for problem_of()."""
    torch = sys.modules.get("torch")
    problem = problem_of(array, wrappers) if torch is not None and isinstance(array, torch.Tensor) else None
    if problem is not None:
        raise BufferError(f"{argument}: this {type(array).__name__} {problem}", code="bad_memory")


def copy_into(target: Any, source: Any) -> None:
    """Calls target.copy_(source), also for parameters and for tensors of inference mode."""
    torch = sys.modules["torch"]
    with torch.inference_mode(target.is_inference()), torch.no_grad():
        target.copy_(source)


def _part_problem_of(tensor: Any, problem_of_part: Callable[[Any], str | None]) -> str | None:
    """Returns the problem of a wrapper's part, if the wrapper lists its parts."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    for name in flatten()[0] if flatten is not None else ():
        part = getattr(tensor, name)  # a DTensor also lists its mesh
        problem = problem_of_part(part) if isinstance(part, sys.modules["torch"].Tensor) else None
        if problem is not None:
            return f"has a part, {name}, that {problem}"
    return None


def _is_fake(tensor: Any) -> bool:
    module = sys.modules.get("torch._subclasses.fake_tensor")
    return module is not None and isinstance(tensor, module.FakeTensor)


def _is_masked(tensor: Any) -> bool:
    module = sys.modules.get("torch.masked.maskedtensor.core")
    return module is not None and isinstance(tensor, module.MaskedTensor)


def _values_problem_of(torch: Any, tensor: Any) -> str | None:
    if _is_fake(tensor):
        return "is a FakeTensor, which has a shape but no values"
    if _is_inside_of_a_transform(torch, tensor):
        return "belongs to a PyTorch transform (vmap, grad, functionalize) and has no memory of its own: pass it outside the transform"
    return None


def _is_inside_of_a_transform(torch: Any, tensor: Any) -> bool:
    functorch = getattr(torch._C, "_functorch", None)
    is_wrapped = getattr(functorch, "is_functorch_wrapped_tensor", None)
    return bool((is_wrapped is not None and is_wrapped(tensor)) or torch._is_functional_tensor(tensor))


def _storage_problem_of(tensor: Any) -> str | None:
    try:
        storage = tensor.untyped_storage()
        address, nbytes = storage.data_ptr(), storage.nbytes()
    except (RuntimeError, NotImplementedError) as problem:
        return f"has no memory that can be addressed: {problem}"
    if not address:
        return "has no memory: its storage was freed, for example by untyped_storage().resize_(0) or FSDP"
    last = tensor.storage_offset() + sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride()))
    needed = (last + 1) * tensor.element_size()
    if needed > nbytes:
        return f"extends past the end of its storage, which was reduced to {nbytes} bytes and would need {needed}"
    return None
