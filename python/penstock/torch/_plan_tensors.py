"""What torch.distributed.checkpoint's readers and writers share: checks of the tensors in plans and states, before any is read or written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.futures import Future

from .._core.errors import BufferError, InvalidArgument
from .._core.overlaps import crossing
from .._core.torch_memory import check_memory, span_of_tensor, target_problem_of
from .._core.torch_storages import is_plain, reaches

__all__ = ["by_file", "check_sources", "check_state", "check_targets", "done", "overlapping", "takes_bytes", "wrong"]


def check_targets(items: Iterable[Any], planner: Any) -> None:
    """Raises BufferError, which names all tensors in a plan that cannot be filled. Keeps no reference to the planner's tensors."""
    problems: dict[str, str] = {}
    for item in items:
        problem = target_problem_of(planner.resolve_tensor(item)) if item.type != LoadItemType.BYTE_IO else None
        if problem is not None:
            problems.setdefault(item.dest_index.fqn, problem)
    if problems:
        raise BufferError("; ".join(f'tensor "{name}" {problem}' for name, problem in list(problems.items())[:20]), code="bad_memory")


def check_sources(items: Iterable[Any], planner: Any) -> None:
    """Raises BufferError, which names the tensors in a plan that have no memory or are not contiguous."""
    check_memory({each.index.fqn: planner.resolve_data(each) for each in items if each.type != WriteItemType.BYTE_IO})


def check_state(state: Any) -> None:
    """Checks a state before it is planned, using the names that its tensors will have."""
    check_memory(dict(_named("", state)))


def _named(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, (dict, list, tuple)):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _named(f"{name}.{key}" if name else str(key), each)


def takes_bytes(target: Any) -> bool:
    """Returns True if the tensor's values are the bytes given by its address and strides, so that bytes of its type can be read into it."""
    return bool(is_plain(target) and reaches(target.device) and not target.is_conj() and not target.is_neg())


def overlapping(targets: Sequence[Any]) -> set[int]:
    """Returns the numbers of the tensors that may share memory with another tensor. They must be filled one at a time, in plan order."""
    spans = []
    for number, each in enumerate(targets):
        if is_plain(each) and reaches(each.device):
            spans.append((str(each.device), *span_of_tensor(each), number))
    return crossing(spans)


def by_file(infos: Any, items: Sequence[Any]) -> dict[str, list[Any]]:
    """Groups a plan's items by the path of their file."""
    found: dict[str, list[Any]] = {}
    for each in items:
        found.setdefault(os.fspath(infos[each.storage_index].relative_path), []).append(each)
    return found


def wrong(problem: str) -> InvalidArgument:
    return InvalidArgument(problem, code="invalid_argument")


def done(result: Any = None) -> Any:
    """Returns a completed future."""
    future: Any = Future()
    future.set_result(result)
    return future
