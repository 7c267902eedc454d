"""Each function of the native module, with what each of its arguments cannot be: a TypeError or a ValueError, and words for people."""

from __future__ import annotations

import os
import pydoc
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock import _native

WRONG: list[Any] = [None, "x", b"x", object(), -1, 0, 1.5, 1 << 31, 1 << 63, 1 << 64, 1 << 70, -(1 << 63), -(1 << 70), 10**400, [], [None]]
WRONG += [(), (1, 2, 3), {}, {"x": 1}, True, 1j, float("nan"), float("inf"), int, len, [[]], [(1,)], [("x", 0)], [(None, None, None)]]

NBYTES = 10_000


class Given:
    """Arguments of each function that are right."""

    def __init__(self, folder: Path) -> None:
        (folder / "file").write_bytes(bytes(NBYTES))
        self.path = str(folder / "file")
        self.beginning, *_ = _native.make_safetensors(["a"], ["F32"], [[2]])
        self.tensors = str(folder / "tensors")
        (folder / "tensors").write_bytes(self.beginning + bytes(8))
        (folder / "gguf").write_bytes(b"GGUF\3" + bytes(19))
        self.gguf = penstock.open(folder / "gguf")
        self.file = penstock.open(self.path, "r+")
        self.buffer = bytearray(100)
        self.memory = penstock.device("host:0").empty(NBYTES)
        store = {"read_only": False, "checksums": True, "durable": False, "direct": False, "max_put_bytes": NBYTES}
        self.store_arguments = {"folder": str(folder / "other"), "capacity_bytes": NBYTES, **store}
        self.store = _native.open_kv(str(folder / "store"), NBYTES, *store.values())
        self.future = self.file.pread(bytearray(10))
        self.future.result()
        self.result = self.file.read_on_stream(self.memory, None)
        self.result.wait()

    def functions(self) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
        options = {"order": "C", "path": None, "prefer": None, "cache": None, "links": None, "timeout": None}
        one = {"buffer": self.buffer, "offset": 0, "size": 10, "buffer_offset": 0, **options}
        many = {"requests": [(self.buffer, 0, 10, 0)], **options}
        files = {"requests": [(self.file, self.buffer, 0, 10, 0)], **options}
        ranges = {"buffer": self.buffer, "offsets": [0], "sizes": [10], "buffer_offsets": [0], **options}
        queued = {"buffer": self.memory, "stream": None, "offset": 0, "size": 10, "buffer_offset": 0, "order": "C"}
        explained = {"size": 10, "offset": 0, "memory": "host", "write": False}
        explained |= {"path": None, "prefer": None, "cache": None, "links": None, "device": None}
        file, future = self.file, self.future
        return {
            "open": (penstock.open, {"path": self.path, "mode": "r", "direct": False, "cache": None}),
            "open_many": (_native.open_many, {"paths": [self.path]}),
            "read_tree": (_native.read_tree, {"folder": str(Path(self.path).parent), "storage_options": None, "max_bytes": 1 << 30, "max_files": 1000}),
            "close_many": (_native.close_many, {"files": [penstock.open(self.path)]}),
            "read_into": (file.read_into, {**one, "progress": None}),
            "write_from": (file.write_from, {**one, "progress": None}),
            "readinto": (file.readinto, {"buffer": self.buffer}),
            "read": (file.read, {"size": 10}),
            "write": (file.write, {"buffer": self.buffer}),
            "seek": (file.seek, {"offset": 0, "whence": 0}),
            "readline": (file.readline, {"size": 10}),
            "readlines": (file.readlines, {"hint": 10}),
            "writelines": (file.writelines, {"lines": []}),
            "truncate": (file.truncate, {"size": NBYTES}),
            "pread": (file.pread, one),
            "pwrite": (file.pwrite, one),
            "read_many": (file.read_many, many),
            "write_many": (file.write_many, many),
            "pread_many": (file.pread_many, many),
            "pwrite_many": (file.pwrite_many, many),
            "penstock.pread_many": (penstock.pread_many, files),
            "penstock.pwrite_many": (penstock.pwrite_many, files),
            "read_ranges": (file.read_ranges, ranges),
            "write_ranges": (file.write_ranges, ranges),
            "pread_ranges": (file.pread_ranges, {**ranges, "copies": ()}),
            "pwrite_ranges": (file.pwrite_ranges, ranges),
            "read_on_stream": (file.read_on_stream, queued),
            "write_on_stream": (file.write_on_stream, queued),
            "explain": (file.explain, explained),
            "pin": (file.pin, {"offset": 0, "size": 10}),
            "prepare": (file.prepare, {"device": "host:0"}),
            "__exit__": (penstock.open(self.path).__exit__, {"type": None, "value": None, "traceback": None}),
            "result": (future.result, {"timeout": None}),
            "exception": (future.exception, {"timeout": None}),
            "add_done_callback": (future.add_done_callback, {"fn": lambda _: None}),
            "_forget_callback": (future._forget_callback, {"fn": lambda _: None}),
            "StreamResult.wait": (self.result.wait, {"timeout": None}),
            "Pointer": (penstock.Pointer, {"address": 1, "nbytes": 1, "owner": None, "readonly": False}),
            "Device.empty": (penstock.device("host:0").empty, {"nbytes": 10}),
            "DeviceBuffer.copy_from": (self.memory.copy_from, {"source": b"1", "order": "C"}),
            "DeviceBuffer.copy_to": (self.memory.copy_to, {"target": bytearray(NBYTES), "order": "C"}),
            "__getitem__": (self.memory.__getitem__, {"part": slice(3)}),
            "__dlpack__": (self.memory.__dlpack__, {"stream": None, "max_version": None, "dl_device": None, "copy": None}),
            "device": (penstock.device, {"name": "host:0"}),
            "copy": (penstock.copy, {"target": self.buffer, "source": b"1", "order": "C"}),
            "share_memory": (lambda memory: os.close(_native.share_memory(memory)[3]), {"memory": self.memory}),
            "open_shared_memory": (
                _native.open_shared_memory,
                {"device": "host:0", "handle": b"host 9 9 0 9", "offset": 0, "nbytes": 9, "descriptor": -1, "process": 1},
            ),
            "digest_of": (_native.digest_of, {"parts": []}),
            "add_to_digest": (_native.add_to_digest, {"parts": [], "sums": self.memory.ptr, "stream": 0}),
            "describe": (penstock.describe, {"memory": self.buffer}),
            "quiesce": (penstock.quiesce, {"timeout": None}),
            "_cufile_count": (
                _native._cufile_count,
                {"address": 0, "is_write": False, "bytes_done": 0, "failed": False, "took_ns": 0, "is_vector": False},
            ),
            "_cufile_count_call": (_native._cufile_count_call, {"what": "buf_register", "ok": False}),
            "_cufile_register_file": (register_and_release, {"descriptor": -1}),
            "_cufile_release_file": (_native._cufile_release_file, {"handle": 0}),
            "_cufile_register_buffer": (_native._cufile_register_buffer, {"base": 0, "length": 0, "flags": 0}),
            "_cufile_buffer_fault": (_native._cufile_buffer_fault, {"base": 0, "offset": 0, "length": 0, "is_write": False}),
            "_cufile_reachable": (_native._cufile_reachable, {"address": 0, "length": 0, "writable": False}),
            "_cufile_is_file": (_native._cufile_is_file, {"handle": 0}),
            "_cufile_file": (_native._cufile_file, {"handle": 0}),
            "_cufile_words": (_native._cufile_words, {"status": 5022}),
            "resolve": (_native.resolve, {"obj": self.buffer, "writable": False}),
            "read_safetensors": (_native.read_safetensors, {"file": self.tensors}),
            "parse_safetensors": (_native.parse_safetensors, {"beginning": self.beginning, "file_bytes": len(self.beginning) + 8}),
            "make_safetensors": (
                _native.make_safetensors,
                {"names": ["a"], "dtypes": ["F32"], "shapes": [[2]], "metadata": {"k": "v"}},
            ),
            "place": (_native.parse_safetensors(self.beginning, len(self.beginning) + 8).place, {"alignment": 64, "start": 0}),
            "find_model": (_native.find_model, {"path": self.path, "storage_options": {}}),
            "is_url": (_native.is_url, {"path": self.path}),
            "file_path": (_native.file_path, {"path": self.path}),
            "shown_name": (_native.shown_name, {"name": self.path}),
            "list_remote": (_native.list_remote, {"url": "s3://bucket-of-nobody/", "storage_options": {"kind": "http"}, "one_level": False}),
            "find_file_kind": (_native.find_file_kind, {"file": self.tensors}),
            "part_of": (_native.part_of, {"shape": [4, 4], "item_bytes": 1, "index": (slice(0, 2),), "gaps": None}),
            "shards_of_index": (_native.shards_of_index, {"json": b'{"weight_map": {}}', "path": "index.json"}),
            "check_model": (
                _native.check_model,
                {"files": ["f"], "headers": [_native.parse_safetensors(self.beginning, len(self.beginning) + 8)], "promised": {"a": "f"}},
            ),
            "read_gguf": (_native.read_gguf, {"file": self.gguf}),
            "gguf_files": (_native.gguf_files, {"path": self.path}),
            "check_gguf_files": (_native.check_gguf_files, {"files": ["f"], "headers": [_native.read_gguf(self.gguf)]}),
            "find_plain_tensors": (
                _native.find_plain_tensors,
                {"headers": [_native.parse_safetensors(self.beginning, len(self.beginning) + 8)], "targets": {"a": 1}, "classes": (int,)},
            ),
            "open_kv": (_native.open_kv, self.store_arguments),
            "KVStore.put": (self.store.put, {"keys": [b"a"], "buffers": [[self.buffer]], "return_exceptions": False, "stream": None}),
            "KVStore.get": (self.store.get, {"keys": [b"a"], "buffers": [[self.buffer]], "return_exceptions": False}),
            "KVStore.get_async": (self.store.get_async, {"keys": [b"a"], "buffers": [[self.buffer]], "return_exceptions": False, "stream": None}),
            "KVStore.sizes": (self.store.sizes, {"keys": [b"a"]}),
            "KVStore.drop": (self.store.drop, {"keys": [b"a"]}),
            "PendingFile": (_native.PendingFile, {"path": self.path, "mode": 0o600}),
            "PendingFile.open": (_native.PendingFile(self.path).open, {"direct": True}),
            "publish": (_native.PendingFile(self.path).publish, {"replace": True, "durable": False}),
            "PendingFile.__exit__": (_native.PendingFile(self.path).__exit__, {"type": None, "value": None, "traceback": None}),
            "only": (_native.parse_safetensors(self.beginning, len(self.beginning) + 8).only, {"names": ["a"]}),
            "find": (_native.parse_safetensors(self.beginning, len(self.beginning) + 8).find, {"name": "a"}),
            "_pipe_listen": (_native._pipe_listen, {"url": "unix:", "channels": [], "secret": b"", "connections": 4, "tls": None}),
            "_pipe_connect": (_native._pipe_connect, {"url": "unix:@nobody", "channels": [], "secret": b"", "connections": 4, "tls": None}),
        }


# What cannot be tried: any number may be the address of a stream, or of memory that is written to; and a store is made in any folder, of any capacity.
SKIPPED = {("read_on_stream", "stream"), ("write_on_stream", "stream"), ("open_kv", "folder"), ("open_kv", "capacity_bytes")}


def register_and_release(descriptor: int) -> None:
    """A handle has a duplicate of the descriptor, which would stay open."""
    _native._cufile_release_file(_native._cufile_register_file(descriptor)[2])


def refused(call: Callable[[], Any]) -> None:
    """Calls: it may do what is asked; or refuse it by an error for what the caller got wrong."""
    try:
        done = call()
        if isinstance(done, penstock.Future):
            done.exception(60)
    except (TypeError, ValueError, OverflowError, penstock.Error, TimeoutError) as error:
        assert str(error) and "bad_cast" not in str(error) and "std::" not in str(error)


def cases() -> Iterator[tuple[str, str]]:
    with tempfile.TemporaryDirectory() as folder:
        given = Given(Path(folder))
        for name, (_, arguments) in given.functions().items():
            for argument in arguments:
                if (name, argument) not in SKIPPED:
                    yield name, argument
        given.file.close()
        given.gguf.close()


@pytest.fixture
def given(tmp_path: Path) -> Iterator[Given]:
    made = Given(tmp_path)
    yield made
    made.file.close()
    made.gguf.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(("name", "argument"), list(cases()))
def test_a_wrong_argument_is_refused_in_words(
    given: Given, monkeypatch: pytest.MonkeyPatch, name: str, argument: str
) -> None:
    monkeypatch.setattr("sys.unraisablehook", lambda _: None)  # of callbacks that cannot be called
    call, arguments = given.functions()[name]
    for wrong in WRONG:
        refused(lambda: call(**{**arguments, argument: wrong}))


def test_what_stands_for_a_function_looks_like_it() -> None:
    for function, name in ((penstock.File.pread, "pread"), (penstock.open, "open")):
        assert function.__name__ == name
        assert function.__doc__ and name in function.__doc__
        assert callable(function) and not isinstance(function, type)
    assert "Starts reading" in pydoc.render_doc(penstock.File)


def test_what_a_function_raises_itself_is_passed_on(given: Given) -> None:
    def refuse(_: int) -> None:
        raise TypeError("incompatible function arguments, says the caller")

    with pytest.raises(TypeError, match="says the caller"):
        given.file.read_into(given.buffer, progress=refuse)


def test_the_functions_are_all_there_are(given: Given) -> None:
    tried = {name.rpartition(".")[2] for name in given.functions()}
    without_arguments = {"size", "sync", "close", "done", "cancel", "to_host", "devices", "stats", "summary", "advice", "cuda_status"}
    # _add_file_kind changes a table of the whole process.
    without_arguments |= {"_add_file_kind", "file_kinds", "gpu_direct_status", "trim", "_cufile_settings", "_cufile_calls", "_cufile_use", "_cufile_opening", "_cufile_counts", "requests", "tell", "readall", "isatty", "fileno", "flush", "readable", "writable", "seekable", "running", "cancelled", "_finish", "_settle", "_under_way", "_held_memories", "names", "dtypes", "kinds", "shapes", "offsets", "sizes", "rows", "unknown_rows", "drop"}
    owners = (_native, penstock.File, penstock.Future, penstock.StreamResult, penstock.Device, penstock.DeviceBuffer, _native.TensorHeader, _native.GGUFHeader, _native.PendingFile, _native.KVStore)
    for owner in owners:
        for name, member in vars(owner).items():
            if callable(member) and not isinstance(member, type) and not name.startswith("__"):
                assert name in tried | without_arguments, name


def test_the_error_names_what_is_wrong(given: Given) -> None:
    file, buffer = given.file, given.buffer
    for words, call in {
        "timeout must be a number, not str": lambda: file.pread(buffer, timeout="soon"),  # type: ignore[arg-type]
        "path must be a str or None, not int": lambda: file.pread(buffer, path=3),  # type: ignore[arg-type]
        "^offset must be an int, not str": lambda: file.read_many([(buffer, "x")]),  # type: ignore[list-item]
        "size must be an int, not float": lambda: file.read_many([(buffer, 0, 1.5)]),  # type: ignore[list-item]
        "buffer_offset must be an int, not NoneType": lambda: file.read_many([(buffer, 0, 1, None)]),  # type: ignore[list-item]
        "an offset must be an int, not str": lambda: file.read_ranges(buffer, ["x"], [1]),
        "a size must be an int, not str": lambda: file.read_ranges(buffer, [0], ["x"]),
        "progress must be a callable": lambda: file.read_into(buffer, progress="x"),  # type: ignore[arg-type]
        "stream must be an int": lambda: file.read_on_stream(given.memory, object()),
        "memory is required, not list": lambda: penstock.describe([]),
    }.items():
        with pytest.raises(TypeError, match=words):
            call()
    with pytest.raises(ValueError, match="offset is -1:"):
        file.read_ranges(buffer, [-1], [1])
    anything: Any = file
    host = penstock.device("host:0")
    for words, call in {
        r"read_into\(\) has no argument 'ofset': did you mean 'offset'\?": lambda: anything.read_into(buffer, ofset=3),
        r"pread\(\) has no argument 'zzz': its arguments are buffer, offset, size, .*timeout$": lambda: anything.pread(buffer, zzz=3),
        r"size\(\) has no argument 'x': it takes none": lambda: anything.size(x=3),
        r"^pwrite\(\) requires the argument 'buffer'": lambda: anything.pwrite(offset=3),
        r"^read_into\(\): offset was passed twice": lambda: anything.read_into(buffer, 0, offset=3),
        r"^read_into\(\) takes 4 positional arguments, but 5 were given: order, path, .*progress are keyword-only": lambda: anything.read_into(buffer, 0, 1, 0, "C"),
        r"^sync\(\) takes 0 positional arguments, but 1 were given$": lambda: anything.sync(1),
        r"^read_into\(\): offset must be an int, not str": lambda: anything.read_into(buffer, "x"),
        r"^pwrite\(\): size must be an int or None, not float": lambda: anything.pwrite(buffer, size=1.5),
        r"^seek\(\): whence must be an int, not NoneType": lambda: anything.seek(0, None),
        r"^explain\(\): write must be a bool, not str": lambda: anything.explain(write="yes"),
        r"^explain\(\): memory must be a str or None, not int": lambda: anything.explain(memory=3),
        r"^open\(\): mode must be a str, not int": lambda: penstock.open("x", 3),  # type: ignore[arg-type]
        r"^name must be a str, an int, a torch.device or a CuPy Device, not float": lambda: penstock.device(1.5),
        r"^empty\(\): nbytes must be an int, not str": lambda: host.empty("x"),  # type: ignore[arg-type]
        r"^result\(\): timeout must be a number or None, not str": lambda: given.future.result("x"),  # type: ignore[arg-type]
        r"^add_done_callback\(\) requires the argument 'fn'": lambda: given.future.add_done_callback(),  # type: ignore[call-arg]
        r"^_pipe_listen\(\): channels must be a sequence, not int": lambda: _native._pipe_listen("unix:", 3, b"", 1),  # type: ignore[arg-type]
    }.items():
        with pytest.raises(TypeError, match=words):
            call()
    for words, call in {
        r"^read_into\(\): offset is 9223372036854775808, which is out of range": lambda: file.read_into(buffer, 1 << 63),
        r"^seek\(\): offset is a number of \d+ bits, which is out of range": lambda: file.seek(10**400),
    }.items():
        with pytest.raises(penstock.InvalidArgument, match=words):
            call()
    for words, call in {
        "offset is -1:": lambda: file.read_many([(buffer, -1)]),
        "an offset is 18446744073709551615:": lambda: file.read_ranges(buffer, memoryview(b"\xff" * 8).cast("Q"), [1]),
        "offset is 1180591620717411303424:": lambda: file.read_many([(buffer, 1 << 70)]),
        "stream is -1:": lambda: file.read_on_stream(given.memory, -1),
        "an address is -1:": lambda: penstock.describe(-1),
        "not a valid descriptor: 2147483648": lambda: penstock.open(1 << 31),
    }.items():
        with pytest.raises(ValueError, match=words):
            call()


class Interface:
    def __init__(self, **facts: Any) -> None:
        self.__cuda_array_interface__ = {"shape": (4,), "typestr": "|u1", "data": (4096, False), "version": 3, **facts}


WRONG_FACTS: list[dict[str, Any]] = [
    *({"shape": wrong} for wrong in (None, "x", 4, (None,), (1.5,), (-1,), (1 << 70,), (1 << 40, 1 << 40))),
    *({"typestr": wrong} for wrong in (None, 4, "", "f", b"<f4", "<f0")),
    *({"data": wrong} for wrong in (None, 4, (4,), (None, False), ("x", False), (-1, False), (1 << 70, False), "xy")),
    *({"strides": wrong} for wrong in ("x", 4, (None,), (1.5,), (1, 1), (-1,))),
]


@pytest.mark.parametrize("facts", WRONG_FACTS, ids=str)
def test_an_array_that_tells_nonsense_is_refused(facts: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        _native.resolve(Interface(**facts))
    assert str(caught.value) and "bad_cast" not in str(caught.value)


@pytest.mark.parametrize("wrong", [None, 4, "x", [], {}])
def test_what_is_no_interface_is_refused(wrong: Any) -> None:
    array = Interface()
    array.__cuda_array_interface__ = wrong
    with pytest.raises((TypeError, ValueError)):
        _native.resolve(array)


class Tensor:
    """As PyTorch's, with what its methods should not tell."""

    def __init__(self, address: Any, nbytes: Any) -> None:
        self.data_ptr = lambda: address
        self.nbytes = nbytes


@pytest.mark.parametrize("wrong", [None, "x", 1.5, -1, 1 << 70])
def test_a_tensor_that_tells_nonsense_is_refused(wrong: Any) -> None:
    for tensor in (Tensor(wrong, 4), Tensor(4096, wrong)):
        with pytest.raises((TypeError, ValueError)) as caught:
            _native.resolve(tensor)
        assert "bad_cast" not in str(caught.value)


class Capsule:
    def __init__(self, where: Any) -> None:
        self.__dlpack_device__ = lambda: where
        self.__dlpack__ = lambda **_: "no capsule"


@pytest.mark.parametrize("where", [None, 4, (1,), ("x", 0), (1.5, 0), (1 << 70, 0), (-1, 0), (1, 0)])
def test_a_dlpack_that_tells_nonsense_is_refused(where: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as caught:
        _native.resolve(Capsule(where))
    assert "bad_cast" not in str(caught.value)
