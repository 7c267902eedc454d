"""Makes the copies for torch.distributed.checkpoint.async_save() before it returns. GPU tensors are copied on their own GPU, at memory bandwidth."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import torch
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.tensor import DTensor

from .._core.arrays import library_named
from .._core.errors import InvalidArgument
from .._core.torch_storages import has_room, is_plain
from ._plan_tensors import check_state

__all__ = ["DeviceStager"]


class DeviceStager:
    """The part of a writer that copies tensors for `async_save()`. The writer acts as its own AsyncStager.

    - `snapshot`: where to copy GPU tensors: "device" (the same GPU), "host" (pinned memory), or "auto" (the GPU if it has enough memory, else pinned
      memory).
    """

    def __init__(self, *arguments: Any, snapshot: str = "auto", **named: Any) -> None:
        if snapshot not in ("auto", "device", "host"):
            raise InvalidArgument(f"snapshot must be 'auto', 'device' or 'host', not {snapshot!r}", code="invalid_argument")
        super().__init__(*arguments, **named)
        self.snapshot = snapshot
        self._copying: list[Any] = []  # stream events

    def stage(self, state_dict: Any) -> Any:
        """Copies the state: CPU tensors immediately, and GPU tensors, if they stay on the GPU, on its current stream."""
        check_state(state_dict)
        tensors = list(_tensors_of(state_dict))
        if not self._stays_on_device(tensors):
            return _staged_by_torch(state_dict)
        try:
            copied = _copied(state_dict)
        except torch.cuda.OutOfMemoryError:
            if self.snapshot == "device":
                raise
            return _staged_by_torch(state_dict)
        self._copying += [library_named("torch").mark(str(device)) for device in {each.device for each in tensors if each.is_cuda}]
        return copied

    def wait_for_copies(self) -> None:
        """Blocks until the copies queued by `stage()` are complete."""
        while self._copying:
            self._copying.pop().synchronize()

    def __getstate__(self) -> dict[str, Any]:
        """Pickles the writer for another process, which cannot wait for this process's events."""
        self.wait_for_copies()
        return self.__dict__

    def _stays_on_device(self, tensors: list[Any]) -> bool:
        if not all(is_plain(each) for each in tensors):
            return False
        nbytes: dict[Any, int] = {}
        for each in tensors:
            if each.is_cuda:
                nbytes[each.device] = nbytes.get(each.device, 0) + each.numel() * each.element_size()
        if not nbytes or self.snapshot == "device":
            return True
        return self.snapshot == "auto" and all(has_room(device, each) for device, each in nbytes.items())


def _tensors_of(value: Any) -> Iterator[Any]:
    """Yields the tensors that have memory; for a DTensor, its local part."""
    if isinstance(value, DTensor):
        yield value.to_local()
    elif isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _tensors_of(each)
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors_of(each)


def _copied(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {name: _copied(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_copied(each) for each in value]
    return tuple(_copied(each) for each in value) if type(value) is tuple else copy.deepcopy(value)


def _staged_by_torch(state_dict: Any) -> Any:
    """Copies the state with PyTorch's stager, into pinned memory if there are GPUs."""
    pins = torch.cuda.is_available()
    options = StagingOptions(use_pinned_memory=pins, use_shared_memory=False, use_async_staging=False, use_non_blocking_copy=pins)
    stager = DefaultStager(options)
    try:
        return stager.stage(state_dict)
    finally:
        stager.close()
