"""Every function that takes a device takes each spelling of it, and refuses what names none in the same words."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
import penstock.pipe
from penstock import _native, safetensors
from penstock._core.devices import device_name, known_device
from penstock.safetensors.numpy import save_file

from .zarr_level import stays_level  # noqa: F401


class _CupyDevice:
    """As cupy.cuda.Device, where CuPy is not installed."""

    def __init__(self, number: int) -> None:
        self.id = number


_CupyDevice.__module__, _CupyDevice.__name__ = "cupy.cuda.device", "Device"


def _torch_devices(*names: str) -> dict[str, Any]:
    try:
        import torch
    except ImportError:
        return {}
    return {f"torch.device({name})": torch.device(name) for name in names}


HOST: dict[str, Any] = {"cpu": "cpu", "host": "host", "host:0": "host:0", "Device": penstock.device("host:0")} | _torch_devices("cpu")
CUDA: dict[str, Any] = {"cuda": "cuda", "cuda:0": "cuda:0", "0": 0, "int64": np.int64(0), "cupy": _CupyDevice(0)}
CUDA |= _torch_devices("cuda", "cuda:0")
UNKNOWN = ["gpu", "CPU", "cuda:", "cuda:x", "cuda:-1", "host:1", "99", "mps"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("devices")
    (made / "bytes.bin").write_bytes(bytes(range(64)))
    save_file({"weight": np.arange(16, dtype="f4")}, made / "model.safetensors")
    return made


def _explain(folder: Path, device: Any) -> object:
    with penstock.open(folder / "bytes.bin") as file:
        return file.explain(device=device)


def _prepare(folder: Path, device: Any) -> object:
    with penstock.open(folder / "bytes.bin") as file:
        return file.prepare(device)


def _zarr(folder: Path, device: Any) -> object:
    zarr = pytest.importorskip("zarr")
    from penstock.zarr import load

    if not (folder / "array").exists():
        zarr.save_array(str(folder / "array"), np.arange(8))
    return load(zarr.open_array(str(folder / "array"), mode="r"), device=device)


def _torch(folder: Path, device: Any) -> object:
    pytest.importorskip("torch")
    from penstock.safetensors.torch import load_file

    return load_file(folder / "model.safetensors", device=device)["weight"]


def _torch_load(folder: Path, device: Any) -> object:
    torch = pytest.importorskip("torch")
    return penstock.load(folder / "bytes.bin", torch.uint8, device=device)


def _get_tensor(folder: Path, device: Any) -> object:
    with safetensors.safe_open(folder / "model.safetensors", None, device) as file:
        return file.get_tensor("weight")


def _receive(folder: Path, device: Any) -> object:
    with penstock.pipe.listen() as listener, penstock.pipe.connect(listener.url) as sender, listener.accept().result() as receiver:
        sent = sender.send(tensors=[np.arange(4)])
        try:
            message = receiver.receive(device=device).result()
            sent.result()
            return message.tensors[0]
        finally:
            sent.cancel()


def _send(folder: Path, device: Any) -> object:
    with penstock.pipe.listen() as listener, penstock.pipe.connect(listener.url) as sender, listener.accept().result() as receiver:
        sent = sender.send(tensors=[np.arange(4)], devices=device)
        try:
            message = receiver.receive().result()
            sent.result()
            return message.tensors[0]
        finally:
            sent.cancel()


FUNCTIONS: dict[str, Callable[[Path, Any], object]] = {
    "device": lambda folder, device: penstock.device(device).empty(16),
    "load": lambda folder, device: penstock.load(folder / "bytes.bin", device=device),
    "load, of PyTorch": _torch_load,
    "fromfile": lambda folder, device: penstock.fromfile(folder / "bytes.bin", "u1", device=device),
    "explain": _explain,
    "prepare": _prepare,
    "zarr.load": _zarr,
    "safetensors.load_file": lambda folder, device: safetensors.load_file(folder / "model.safetensors", device)["weight"],
    "device_map": lambda folder, device: safetensors.load_file(folder / "model.safetensors", device_map={"": device})["weight"],
    "bytes": lambda folder, device: safetensors.load_file(folder / "model.safetensors", device, "bytes")["weight"],
    "safetensors.torch": _torch,
    "safe_open": _get_tensor,
    "load_sharded": lambda folder, device: penstock.load_sharded(folder / "model.safetensors", [device])[0]["weight"],
    "receive": _receive,
    "send": _send,
}


@pytest.fixture(params=list(FUNCTIONS))
def function(request: pytest.FixtureRequest, folder: Path) -> Callable[[Any], object]:
    return lambda device: FUNCTIONS[request.param](folder, device)


def test_each_spelling_of_the_host_is_taken(function: Callable[[Any], object]) -> None:
    for device in HOST.values():
        function(device)


def test_each_spelling_of_a_gpu_is_taken_or_refused_alike(function: Callable[[Any], object]) -> None:
    reason = penstock.cuda_status()
    for device in CUDA.values():
        if reason is None:
            try:
                function(device)
            except ImportError as problem:
                assert "cupy" in str(problem)
            continue
        with pytest.raises(penstock.NotFound) as caught:
            function(device)
        assert f'there is no device "cuda:0" (no GPU: {reason}); available devices: host (also cpu), host:0' in str(caught.value)


def test_an_unknown_name_is_refused_with_a_list_of_what_there_is(function: Callable[[Any], object]) -> None:
    for name in UNKNOWN:
        with pytest.raises(penstock.NotFound, match=f'there is no device "{name}".*; available devices: host \\(also cpu\\), host:0'):
            function(name)


def test_what_names_no_device_is_a_type_error(function: Callable[[Any], object]) -> None:
    for device in (1.5, True, b"cpu", object()):
        with pytest.raises(TypeError):
            function(device)


def test_a_number_below_zero_is_no_gpu(function: Callable[[Any], object]) -> None:
    with pytest.raises(penstock.InvalidArgument, match="GPU numbers start at 0"):
        function(-1)


def test_spellings_lead_to_one_name() -> None:
    assert {device_name(HOST[each]) for each in HOST if each not in ("host:0", "Device")} == {"host"}
    assert device_name("cpu:0") == "host"
    assert device_name(HOST["Device"]) == device_name("host:0") == known_device("host:0") == "host:0"
    assert {device_name(each) for each in ("cuda:1", 1, "cuda:01", _CupyDevice(1), np.uint8(1))} == {"cuda:1"}
    assert device_name("elsewhere") == "elsewhere"
    if _native.cuda_status() is not None:
        assert device_name("cuda") == "cuda:0"


@pytest.mark.usefixtures("torch_not_imported")
def test_what_comes_is_what_the_name_says(folder: Path) -> None:
    model, plain = folder / "model.safetensors", folder / "bytes.bin"
    for name in ("cpu", "host"):
        assert isinstance(penstock.load(plain, device=name), np.ndarray)
        assert isinstance(penstock.fromfile(plain, "u1", device=name), np.ndarray)
        assert isinstance(safetensors.load_file(model, name)["weight"], np.ndarray)
        assert penstock.device(name).name == "host:0"
    assert isinstance(penstock.load(plain, device="host:0"), penstock.DeviceBuffer)
    assert isinstance(safetensors.load_file(model, "host:0")["weight"], penstock.DeviceBuffer)
    assert isinstance(safetensors.load_file(model, "host:0", "np")["weight"], np.ndarray)


def test_the_list_tells_the_short_names_of_gpus() -> None:
    gpus = [device.name for device in penstock.devices() if device.name.startswith("cuda:")]
    with pytest.raises(penstock.NotFound) as caught:
        penstock.device("gpu")
    for name in gpus:
        assert f"{name} (also {'cuda, ' if name == 'cuda:0' else ''}{name[5:]})" in str(caught.value)


def test_a_thread_of_its_own_has_the_same_names() -> None:
    found: list[str] = []
    thread = threading.Thread(target=lambda: found.append(penstock.device("cpu").name))
    thread.start()
    thread.join()
    assert found == ["host:0"]
