"""penstock.kv: values from and to any memory, what happens to keys that fail, and what is left by those who do not close."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.kv import Store

GPUS = [device.name for device in penstock.devices() if device.name.startswith("cuda:")]
NO_GPU = pytest.mark.skipif(not GPUS, reason="no GPU that Penstock can use")
MIB = 1 << 20


def content(seed: int, count: int) -> Any:
    return np.random.default_rng(seed).integers(0, 256, count, np.uint8)


def on_device(array: Any, name: str = "host:0") -> penstock.DeviceBuffer:
    buffer = penstock.device(name).empty(array.nbytes)
    penstock.copy(buffer, array)
    return buffer


def test_values_of_many_pieces_come_back(tmp_path: Path) -> None:
    layers = [content(i, 5000 + i) for i in range(8)]
    with Store(tmp_path / "store", capacity_bytes=4 * MIB) as store:
        assert store.put({"block": layers, b"\xff\x00": layers[0]}) == [True, True]
        back = [np.empty_like(each) for each in layers]
        other = bytearray(5000)
        assert store.get([("block", back), ("none", back), (b"\xff\x00", other)]) == [True, False, True]
        assert all((one == two).all() for one, two in zip(layers, back))
        assert bytes(other) == layers[0].tobytes()
        assert store.exists(["block", "none"]) == [True, False]
        assert store.sizes(["block", b"none"]) == [sum(each.nbytes for each in layers), None]
        assert "block" in store
        assert store.drop(["block", "block"]) == [True, False]
        assert "block" not in store
        stats = store.stats()
        assert (stats.keys, stats.bytes, stats.hits, stats.misses, stats.capacity_bytes) == (1, 5000, 2, 1, 4 * MIB)
    assert store.closed
    assert "closed" in repr(store)


def test_keys_are_bytes_and_items_come_in_any_mapping_or_as_pairs(tmp_path: Path) -> None:
    names = ["block", "größe", "字", os.fsdecode(b"\xff"), b"\xff\xfe"]
    of_bytes = [name if isinstance(name, bytes) else os.fsencode(name) for name in names]
    values = {name: content(i, 3000) for i, name in enumerate(names)}
    with Store(tmp_path / "store", MIB) as store:
        assert store.put(types.MappingProxyType(values)) == [True] * 5
        assert store.exists(of_bytes) == store.exists(iter(names)) == [True] * 5
        for given in (of_bytes, names):
            back = [np.empty(3000, np.uint8) for _ in names]
            pairs = ((name, (array[:7], array[7:])) for name, array in zip(given, back))
            assert store.get(pairs) == [True] * 5
            assert all((one == two).all() for one, two in zip(back, values.values()))
        assert store.drop(of_bytes) == [True] * 5


def test_a_list_of_buffers_may_change_while_it_is_looked_at(tmp_path: Path) -> None:
    class Shrinking:
        @property
        def __cuda_array_interface__(self) -> Any:
            pieces.clear()
            raise AttributeError

        def __dlpack_device__(self) -> tuple[int, int]:
            return piece.__dlpack_device__()

        def __dlpack__(self, **how: Any) -> Any:
            return piece.__dlpack__(**how)

    piece = content(1, 1000)
    pieces: list[Any] = [Shrinking(), piece]
    with Store(tmp_path / "store", MIB) as store:
        assert store.put({"a": pieces}) == [True]
        assert store.sizes(["a"]) == [1000]


def test_memory_of_the_host_device(tmp_path: Path) -> None:
    value = content(1, 100_000)
    with penstock.kv.Store(tmp_path / "store", 4 * MIB) as store:
        store.put({"a": (on_device(value[:70_000]), value[70_000:])})
        back = penstock.device("host:0").empty(value.nbytes)
        assert store.get({"a": back}) == [True]
        seen = np.empty_like(value)
        penstock.copy(seen, back)
        assert (seen == value).all()


@NO_GPU
def test_memory_of_a_gpu(tmp_path: Path) -> None:
    value = content(2, 3 * MIB + 77)
    with Store(tmp_path / "store", 16 * MIB) as store:
        store.put({"a": on_device(value, GPUS[0])})
        back = penstock.device(GPUS[0]).empty(value.nbytes)
        assert store.get({"a": back}) == [True]
        seen = np.empty_like(value)
        penstock.copy(seen, back)
        assert (seen == value).all()
        assert store.get({"a": seen}) == [True]


def test_tensors_of_torch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    keys, values = torch.arange(1000.0), torch.arange(1000).to(torch.bfloat16)
    with Store(tmp_path / "store", MIB) as store:
        store.put({"layer": [keys, values]})
        back = [torch.empty_like(keys), torch.empty_like(values)]
        assert store.get({"layer": back}) == [True]
        assert torch.equal(back[0], keys) and torch.equal(back[1], values)


def test_calls_that_do_not_wait(tmp_path: Path) -> None:
    values = [content(i, 20_000) for i in range(20)]
    with Store(tmp_path / "store", 4 * MIB, max_put_bytes=50_000) as store:
        futures = [store.put_async({str(i): value}) for i, value in enumerate(values)]
        assert [future.result() for future in futures] == [[True]] * 20
        back = [np.empty_like(each) for each in values]
        assert store.get_async({str(i): array for i, array in enumerate(back)}).result() == [True] * 20
        assert all((one == two).all() for one, two in zip(values, back))

        async def fetch() -> list[bool]:
            return await store.get_async({"3": back[0], "none": back[1]})

        assert asyncio.run(fetch()) == [True, False]
        told = threading.Event()
        store.get_async({"5": back[0]}).add_done_callback(lambda future: told.set())
        assert told.wait(60)


def get_threads() -> int:
    names = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    return sum(name.startswith("penstock-kv-get") for name in names)


class Stream:
    """A stream as CuPy, PyTorch and cuda-python show theirs: here, the default one."""

    def __init__(self, name: str) -> None:
        setattr(self, name, (0, 0) if name == "__cuda_stream__" else 0)


@pytest.mark.parametrize("stream", [0, Stream("cuda_stream"), Stream("ptr"), Stream("__cuda_stream__")], ids=["int", "torch", "cupy", "cuda-python"])
def test_calls_in_the_order_of_a_stream(tmp_path: Path, device_memory: Any, stream: Any) -> None:
    layers = [content(i, 50_000 + i) for i in range(4)]
    sources = [device_memory.of(each.tobytes()) for each in layers]
    targets = [device_memory.of(bytes(each.nbytes)) for each in layers]
    with Store(tmp_path / "store", 4 * MIB) as store:
        stored = store.put_async({"block": sources, "other": sources[0]}, stream=stream)
        found = store.get_async({"block": targets, "none": targets[0]}, stream=stream)  # finds what was put before it on its stream
        assert stored.result() == [True, True]
        assert found.result() == [True, False]
        assert [device_memory.bytes(each) for each in targets] == [each.tobytes() for each in layers]
        assert store.put({"again": sources}, stream=stream) == [True]
        assert store.get({"again": targets[::-1]}, stream=stream) == [True]  # they divide the value differently
        assert b"".join(device_memory.bytes(each) for each in targets[::-1]) == b"".join(each.tobytes() for each in layers)
        assert store.get({}, stream=stream) == store.put({}, stream=stream) == []


def test_what_fails_in_the_order_of_a_stream(tmp_path: Path) -> None:
    buffer = on_device(content(1, 4096))
    store = Store(tmp_path / "store", 16 * 4096)
    store.put({"a": buffer}, stream=0)
    with pytest.raises(penstock.Error, match="key b: a call in stream order needs memory on the stream's device"):
        store.put({"a": buffer, "b": bytearray(10)}, stream=0)
    mixed = store.get({"a": [buffer], "b": bytearray(10), "c": buffer}, stream=0, return_exceptions=True)
    assert mixed == [True, False, False]
    with pytest.raises(penstock.Error, match="key a"):
        store.get_async({"a": bytearray(4096)}, stream=0).result()
    with pytest.raises(penstock.InvalidArgument, match="key a: the value has 4096 bytes, but the buffer has 10"):
        store.get({"a": on_device(content(1, 10))}, stream=0)
    for wrong in ("stream", 1.5, -1, 1 << 70, object()):
        for call in (store.put, store.get, store.put_async, store.get_async):
            with pytest.raises((TypeError, ValueError)):
                call({"a": buffer}, stream=wrong)
    reader = Store(tmp_path / "store", read_only=True)
    assert reader.get({"a": buffer}, stream=0) == [True]
    with pytest.raises(penstock.PermissionDenied):
        reader.put({"a": buffer}, stream=0)
    reader.close()
    store.close()
    for call in (store.put_async, store.get_async):
        with pytest.raises(penstock.Closed):
            call({"a": buffer}, stream=0).result()


def test_a_future_in_stream_order_may_be_dropped(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", 4 * MIB)
    for i in range(20):
        store.put_async({f"block-{i}": on_device(content(i, 100_000))}, stream=0)
    del store
    with Store(tmp_path / "store") as store:
        back = on_device(np.zeros(100_000, np.uint8))
        for i in range(20):
            store.get_async({f"block-{i}": back}, stream=0)
        assert store.get({"block-3": back}, stream=0) == [True]
        array = np.empty(100_000, np.uint8)
        penstock.copy(array, back)
        assert (array == content(3, 100_000)).all()


def test_a_get_that_blocks_runs_on_the_thread_of_its_caller(tmp_path: Path) -> None:
    before = get_threads()
    with Store(tmp_path / "store", MIB) as store:
        store.put({"a": b"value"})
        back = bytearray(5)
        assert store.get({"a": back}) == [True] and back == b"value"
        assert get_threads() == before
        assert store.get_async({"a": back}).result() == [True]
        assert get_threads() == before + 1


GETS: dict[str, dict[Any, int]] = {  # the bytes of the buffer for each key
    "none": {},
    "absent": {"none": 7},
    "many": {"a": 1000, "none": 5, b"b": 2000},
    "short": {"a": 999},
    "some fail": {"none": 5, "a": 1000, "b": 1},
    "all fail": {"k" * 513: 3, "a": 1001},
    "so long that a signal can end the wait": {"long": (64 << 20) + 1, "a": 1000},
    "long, and one fails": {"a": (64 << 20) + 1, "b": 2000},
}


@pytest.mark.parametrize("return_exceptions", [False, True])
@pytest.mark.parametrize("items", GETS.values(), ids=GETS)
def test_a_get_ends_as_its_future_does(tmp_path: Path, items: dict[Any, int], return_exceptions: bool) -> None:
    def seen(result: Any) -> Any:
        if not isinstance(result, penstock.Error):
            return result
        return type(result), str(result), result.code, result.filename, result.bytes_done

    def ended(get: Any) -> Any:
        buffers = {key: np.zeros(size, np.uint8) for key, size in items.items()}
        try:
            results = [seen(each) for each in get(buffers)]
        except penstock.Error as error:
            results = seen(error)
        return results, [each.tobytes() for each in buffers.values()]

    values = {"a": content(1, 1000), "b": content(2, 2000)} | ({"long": np.ones(items["long"], np.uint8)} if "long" in items else {})
    with Store(tmp_path / "store", 128 * MIB) as store:
        store.put(values)
        told = ended(lambda buffers: store.get(buffers, return_exceptions=return_exceptions))
        assert told == ended(lambda buffers: store.get_async(buffers, return_exceptions=return_exceptions).result())
    with pytest.raises(penstock.Closed, match="store"):
        store.get({})


def test_a_future_keeps_its_memory_and_a_store_that_is_dropped_ends_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "store", 4 * MIB)
    future = store.put_async({"a": content(1, MIB)})
    del store
    assert future.result() == [True]
    with Store(tmp_path / "store") as again:
        assert again.sizes(["a"]) == [MIB]


def test_a_key_that_fails_raises_or_is_told_and_leaves_the_others(tmp_path: Path) -> None:
    value = content(1, 1000)
    with Store(tmp_path / "store", MIB) as store:
        with pytest.raises(penstock.InvalidArgument, match="key large.*capacity"):
            store.put({"large": np.zeros(MIB + 1, np.uint8), "a": value})
        assert store.exists(["large", "a"]) == [False, True]
        told = store.get({"a": value[:999].copy(), "b": value.copy()}, return_exceptions=True)
        assert isinstance(told[0], penstock.InvalidArgument) and told[1] is False
        assert "1000" in str(told[0]) and "999" in str(told[0])
        future = store.get_async({"a": value[:999].copy()})
        assert isinstance(future.exception(), penstock.InvalidArgument)
        assert store.get_async({"a": value[:999].copy()}, return_exceptions=True).exception() is None


def test_arguments_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(penstock.InvalidArgument, match="capacity"):
        Store(tmp_path / "new")
    for wrong in ("x", -1, 1 << 70, 4095):
        with pytest.raises((TypeError, ValueError)):
            Store(tmp_path / "new", wrong)  # type: ignore[arg-type]
    for folder in (5, None, "", "a\0b"):
        with pytest.raises((TypeError, ValueError)):
            Store(folder, MIB)  # type: ignore[arg-type]
    with pytest.raises(penstock.NotFound):
        Store(tmp_path / "none", read_only=True)
    with Store(tmp_path / "store", MIB) as store:
        with pytest.raises(TypeError, match="a key must be str or bytes, not int"):
            store.put({5: b"abc"})  # type: ignore[dict-item]
        with pytest.raises(TypeError, match="iterable of keys"):
            store.exists("abc")
        with pytest.raises(TypeError, match=r"items\['b'\]: memory is required"):
            store.put({"a": b"abc", "b": 5})
        with pytest.raises(penstock.BufferError, match=r"items\['a'\].*read-only"):
            store.get({"a": b"abc"})
        with pytest.raises(penstock.InvalidArgument, match="512"):
            store.put({"k" * 513: b"abc"})
        with pytest.raises(penstock.Error, match=f"process {os.getpid()}") as error:
            Store(tmp_path / "store")
        assert error.value.code == "would_block"
        with Store(tmp_path / "store", read_only=True) as reader, pytest.raises(penstock.PermissionDenied, match="read-only"):
            reader.put({"a": b"abc"})
    with pytest.raises(penstock.Closed):
        store.get({"a": bytearray(3)})
    with pytest.raises(penstock.Closed), store:
        pass
    store.close()


def test_a_reader_beside_the_writer(tmp_path: Path) -> None:
    with Store(tmp_path / "store", MIB) as store, Store(tmp_path / "store", read_only=True) as reader:
        assert "a" not in reader
        store.put({"a": b"first"})
        back = bytearray(5)
        assert reader.get({"a": back}) == [True] and back == b"first"
        store.put({"a": b"other"})
        assert reader.get({"a": back}) == [True] and back == b"other"
        store.drop(["a"])
        assert reader.get({"a": back}) == [False]


def test_what_was_put_outlasts_a_process_that_is_killed(tmp_path: Path) -> None:
    program = f"""
import sys
from penstock.kv import Store
store = Store({str(tmp_path / "store")!r}, 1 << 20)
store.put({{"a": b"value"}})
print("put", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None and child.stdout.readline() == b"put\n"
        child.send_signal(signal.SIGKILL)
        child.wait()
    with Store(tmp_path / "store") as store:
        back = bytearray(5)
        assert store.get({"a": back}) == [True] and back == b"value"


def test_a_store_that_nobody_closes_does_not_keep_python_from_ending(tmp_path: Path) -> None:
    program = f"""
import penstock
from penstock.kv import Store
store = Store({str(tmp_path / "store")!r}, 1 << 20)
future = store.put_async({{"a": bytes(500_000)}})
memory = penstock.device("host:0").empty(500_000)
other = store.put_async({{"b": memory}}, stream=0)
"""
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
    with Store(tmp_path / "store") as store:
        assert store.sizes(["a", "b"]) == [500_000, 500_000]


def test_a_forked_child_is_told(tmp_path: Path) -> None:
    with Store(tmp_path / "store", MIB) as store:
        store.put({"a": b"value"})
        buffer = on_device(content(1, 5))
        calls = [
            lambda: store.exists(["a"]),
            lambda: store.get({"a": buffer}, stream=0),
            lambda: store.put_async({"a": buffer}, stream=0).result(),
        ]
        for call in calls:
            child = os.fork()
            if child == 0:
                try:
                    call()
                except penstock.Error as error:
                    os._exit(0 if error.code == "forked" else 1)
                os._exit(2)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert "a" in store


def test_the_program_in_cpp_of_the_page_is_the_example() -> None:
    root = Path(__file__).parents[2]
    shown = re.findall(r"^```cpp\n(.*?)^```", (root / "docs/guides/kv-cache.md").read_text(), re.DOTALL | re.MULTILINE)
    assert shown == [(root / "examples/key_value_store.cc").read_text().partition("\n")[2]]
