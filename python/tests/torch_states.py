"""What the tests of checkpoints save, and how they compare what comes back."""

from __future__ import annotations

import collections
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch

DTYPES = [each for each in vars(torch).values() if isinstance(each, torch.dtype)]


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """PyTorch warns that there is no process group, and of what it means to deprecate. For each test of a module that imports this."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def plain_state() -> dict[str, Any]:
    """As a file of safetensors has it: nothing but tensors, of several types, empty and without dimensions."""
    torch.manual_seed(3)
    return {
        "weight": torch.randn(50, 20),
        "bfloat16": torch.randn(33).bfloat16(),
        "float8": torch.randn(8, 8).to(torch.float8_e4m3fn),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 3),
        "bool": torch.tensor([True, False]),
        "large": torch.arange(300_000).reshape(300, 1000),
    }


def tensors_of_every_dtype() -> dict[str, Any]:
    """Of those of which PyTorch can make and save a tensor."""
    found = {}
    for dtype in DTYPES:
        try:
            tensor = torch.randint(0, 255, (6 * dtype.itemsize,), dtype=torch.uint8).view(dtype)
            torch.save(tensor, "/dev/null")
        except (RuntimeError, TypeError, AttributeError, KeyError):
            continue
        found[str(dtype)] = tensor
    return found


def state() -> dict[str, Any]:
    """Nested objects, tied tensors, views, strides, a scalar, an empty tensor, parameters."""
    base = torch.arange(6_000, dtype=torch.float32).reshape(60, 100)
    weight = torch.nn.Parameter(torch.randn(17, 5))
    return {
        "ordered": collections.OrderedDict(first=base, tied=base, view=base[3:50:2, 10:], transposed=base.t()),
        "list": [torch.tensor(3.5), torch.empty(0), torch.empty(0, 4, dtype=torch.int16), (torch.ones(3, dtype=torch.bool), None, "text")],
        "parameter": weight,
        "same parameter": weight,
        "bfloat16": torch.randn(33).bfloat16(),
        "float8": torch.randn(64).to(torch.float8_e4m3fn),
        "numbers": {"step": 7, "rate": 0.25, "names": {"a", "b"}},
        "complex": torch.randn(4, 4, dtype=torch.complex64).conj(),
    }


def module_and_optimizer() -> dict[str, Any]:
    """After a step, so that the optimizer has a state."""
    model = torch.nn.Sequential(torch.nn.Linear(20, 30), torch.nn.BatchNorm1d(30), torch.nn.Linear(30, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model(torch.randn(8, 20)).sum().backward()
    optimizer.step()
    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "generator": torch.get_rng_state()}


def assert_same(found: Any, wanted: Any, where: str = "state") -> None:
    """The same types, values, strides, devices; and what is shared is shared in the same way."""
    _assert_same(found, wanted, where, {})


def _assert_same(found: Any, wanted: Any, where: str, storages: dict[int, int]) -> None:
    assert type(found) is type(wanted), where
    if isinstance(wanted, torch.Tensor):
        facts = ("dtype", "shape", "device", "requires_grad", "layout")
        assert [getattr(found, each) for each in facts] == [getattr(wanted, each) for each in facts], where
        assert found.stride() == wanted.stride() and found.storage_offset() == wanted.storage_offset(), where
        assert found.is_conj() == wanted.is_conj() and found.is_neg() == wanted.is_neg(), where
        assert bytes_of(found) == bytes_of(wanted), where
        key = wanted.untyped_storage()._cdata
        assert storages.setdefault(key, found.untyped_storage()._cdata) == found.untyped_storage()._cdata, where
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted), where
        for each in wanted:
            _assert_same(found[each], wanted[each], f"{where}[{each!r}]", storages)
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted), where
        for i, each in enumerate(wanted):
            _assert_same(found[i], each, f"{where}[{i}]", storages)
    else:
        assert found == wanted, where


def bytes_of(tensor: Any) -> bytes:
    """Of the whole storage behind it."""
    return bytes(tensor.detach().untyped_storage().cpu().tolist()) if tensor.numel() < 100_000 else _fast_bytes_of(tensor)


def _fast_bytes_of(tensor: Any) -> bytes:
    storage = tensor.detach().untyped_storage().cpu()
    return bytes(torch.empty(0, dtype=torch.uint8).set_(storage).numpy())
