"""What is raised, and what it tells."""

from __future__ import annotations

import errno
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import penstock


def test_a_missing_file_is_not_found(tmp_path: Path) -> None:
    path = tmp_path / "missing"
    for mode in ("r", "r+"):
        with pytest.raises(FileNotFoundError) as caught:
            penstock.open(path, mode)
        error = caught.value
        assert isinstance(error, penstock.NotFound)
        assert (error.errno, error.filename, error.code, error.domain) == (errno.ENOENT, str(path), "not_found", "os")
        assert str(path) in str(error) and "No such file" in str(error)


def test_a_directory_is_a_directory(tmp_path: Path) -> None:
    for mode in ("r", "r+", "w"):
        with pytest.raises(IsADirectoryError) as caught:
            penstock.open(tmp_path, mode)
        assert isinstance(caught.value, penstock.Error)
        assert (caught.value.errno, caught.value.filename) == (errno.EISDIR, str(tmp_path))


# Each opens one file.
FILE_READERS: dict[str, Callable[[Path], Any]] = {
    "open": penstock.open,
    "safetensors.safe_open": lambda path: penstock.safetensors.safe_open(path, "np"),
    "gguf.open": penstock.gguf.open,
}


@pytest.mark.parametrize("reader", FILE_READERS)
def test_a_folder_in_place_of_a_file_names_the_calls_that_load_folders(tmp_path: Path, reader: str) -> None:
    with pytest.raises(penstock.IsADirectory, match=f"^{tmp_path} is a folder, not a file: .*safetensors.load_file.* load the model in a folder"):
        FILE_READERS[reader](tmp_path)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    ours, theirs = socket.socketpair()
    with ours, theirs:
        for name in (tmp_path / "fifo", "/dev/null", ours.fileno()):
            with pytest.raises(penstock.NotAFile) as caught:
                penstock.open(name)
            assert caught.value.code == "not_a_file"


@pytest.mark.parametrize("mode", ["", "a", "ab", "a+", "rw", "r++", "+", "b", "rbb", "q", "wr", "rt", "R"])
def test_a_wrong_mode_is_a_value_error(tmp_path: Path, mode: str) -> None:
    with pytest.raises(ValueError, match="mode"):
        penstock.open(tmp_path / "never", mode)
    assert not (tmp_path / "never").exists()


def test_a_path_that_cannot_be_is_a_value_error() -> None:
    for path in ("", "zero\0byte", b"zero\0byte"):
        for mode in ("r", "x"):
            with pytest.raises((ValueError, FileNotFoundError)):
                penstock.open(path, mode)
    for what in (None, 1.5, [], True):
        with pytest.raises((TypeError, OSError)):
            penstock.open(what)  # type: ignore[arg-type]
    with pytest.raises(OSError, match="descriptor"):
        penstock.open(987_654)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    name = tmp_path / "file"
    name.write_bytes(bytes(100_000))
    return name


def calls_of(file: penstock.File, buffer: Any) -> dict[str, Any]:
    """Each way of asking for something, to be called."""
    return {
        "read_into": lambda: file.read_into(buffer),
        "readinto": lambda: file.readinto(buffer),
        "write_from": lambda: file.write_from(buffer),
        "pread": lambda: file.pread(buffer).result(),
        "pwrite": lambda: file.pwrite(buffer).result(),
        "read_many": lambda: file.read_many([(buffer, 0)]),
        "write_many": lambda: file.write_many([(buffer, 0)]),
        "pread_many": lambda: file.pread_many([(buffer, 0)]).result(),
        "pwrite_many": lambda: file.pwrite_many([(buffer, 0)]).result(),
        "read_ranges": lambda: file.read_ranges(buffer, [0], [10]),
        "write_ranges": lambda: file.write_ranges(buffer, [0], [10]),
        "progress": lambda: file.read_into(buffer, progress=lambda _: None),
        "size": file.size,
        "sync": file.sync,
        "explain": file.explain,
        "with": lambda: file.read_into(buffer),
    }


def test_a_closed_file_says_so(memory: Any, path: Path) -> None:
    file = penstock.open(path, "r+")
    buffer = memory.of(bytes(10))
    file.close()
    for name, call in calls_of(file, buffer).items():
        with pytest.raises(penstock.Closed, match="closed") as caught:
            call()
        assert isinstance(caught.value, ValueError), name
        assert caught.value.filename == str(path), name


def test_a_file_not_open_for_this_says_so(memory: Any, path: Path) -> None:
    buffer = memory.of(bytes(10))
    with penstock.open(path) as file:
        for name, call in calls_of(file, buffer).items():
            if "write" in name:
                with pytest.raises(PermissionError, match="not open for writing") as caught:
                    call()
                assert isinstance(caught.value, penstock.PermissionDenied)


def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path = tmp_path / "secret"
    path.touch(0o000)
    with pytest.raises(PermissionError):
        penstock.open(path)


def test_a_negative_offset_is_a_value_error(memory: Any, path: Path) -> None:
    buffer = memory.of(bytes(10))
    with penstock.open(path, "r+") as file:
        for call in (
            lambda: file.read_into(buffer, -1),
            lambda: file.write_from(buffer, -1),
            lambda: file.pread(buffer, -1),
            lambda: file.pwrite(buffer, -1),
            lambda: file.read_many([(buffer, -1)]),
            lambda: file.read_ranges(buffer, [-1], [1]),
            lambda: file.explain(10, -1),
        ):
            with pytest.raises(ValueError, match="-1"):
                call()


def test_an_unknown_word_names_the_right_ones(path: Path) -> None:
    with penstock.open(path) as file:
        with pytest.raises(ValueError, match="staged"):
            file.read_into(bytearray(1), path="teleport")
        with pytest.raises(ValueError, match="speed"):
            file.pread(bytearray(1), prefer="comfort")
        with pytest.raises(ValueError, match="device"):
            file.explain(memory="cloud")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="cuda:5"):
            file.explain(memory="host", device="cuda:5")
        with pytest.raises(FileNotFoundError, match="host:0"):
            file.explain(device="host:7")
        with pytest.raises(TypeError):
            file.read_into(bytearray(1), path=3)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="number"):
            file.read_into(bytearray(1), timeout=float("nan"))


def test_a_path_that_cannot_do_it_says_why(path: Path) -> None:
    with penstock.open(path) as file, pytest.raises(penstock.Error, match="staged"):
        file.read_into(bytearray(1000), path="staged")


def test_time_is_up(memory: Any, path: Path) -> None:
    buffer = memory.of(bytes(100_000))
    with penstock.open(path, "r+") as file:
        for call in (
            lambda: file.read_into(buffer, timeout=0),
            lambda: file.write_from(buffer, timeout=-1.0),
            lambda: file.pread(buffer, timeout=0).result(),
            lambda: file.read_many([(buffer, 0)], timeout=0),
        ):
            with pytest.raises(TimeoutError) as caught:
                call()
            assert isinstance(caught.value, penstock.TimedOut)
            assert (caught.value.code, caught.value.filename, caught.value.bytes_done) == ("timed_out", str(path), 0)
        assert file.read_into(buffer, timeout=1e30) == 100_000
        assert file.read_into(buffer, timeout=float("inf")) == 100_000
        assert file.read_into(buffer, timeout=3600) == 100_000


def test_a_cancelled_request_ends_soon_and_true(memory: Any, tmp_path: Path, pattern: Any) -> None:
    path = tmp_path / "large"
    content = pattern(40_000_000)
    path.write_bytes(content)
    target = memory.empty(len(content))
    with penstock.open(path) as file:
        future = file.pread(target)
        future.cancel()
        error = future.exception(60)
        if error is None:
            assert future.result() == len(content)
        else:
            assert isinstance(error, penstock.Cancelled)
            done = error.bytes_done
            assert done < len(content)
            assert memory.bytes(target)[:done] == content[:done]
            with pytest.raises(penstock.Cancelled):
                future.result()


def test_a_result_that_is_not_there_yet_is_a_timeout(path: Path) -> None:
    with penstock.open(path) as file:
        future = file.pread_many([(bytearray(100_000), 0)] * 2000)
        try:
            future.result(0)
        except TimeoutError as error:
            assert not isinstance(error, penstock.Error)  # not the request's
        assert future.result() == [100_000] * 2000


LIMITED = """
import resource, signal, sys
import penstock
source = penstock.device("host:0").empty(3 << 20) if sys.argv[2] == "host:0" else bytearray(3 << 20)
penstock.copy(source, bytes(3 << 20))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
with penstock.open(sys.argv[1], "w") as file:
    try:
        file.pwrite(source).result() if sys.argv[3] == "pwrite" else file.write_from(source)
    except penstock.Error as error:
        print(error.errno, error.code, error.filename, error.bytes_done <= 1 << 20, isinstance(error, ValueError))
"""


@pytest.mark.parametrize("call", ["write_from", "pwrite"])
@pytest.mark.parametrize("where", ["numpy", "host:0"])
def test_a_file_that_may_not_grow_is_an_error(tmp_path: Path, where: str, call: str) -> None:
    path = tmp_path / "limited"
    run = subprocess.run([sys.executable, "-c", LIMITED, path, where, call], capture_output=True, text=True, timeout=120)
    assert run.stderr == ""
    assert run.stdout.split()[0] == str(errno.EFBIG)
    assert run.stdout.split()[2:] == [str(path), "True", "False"]


def test_a_full_disk_is_no_space(memory: Any, tmp_path: Path) -> None:
    mounted = tmp_path / "small"
    mounted.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", mounted], capture_output=True, text=True)
    if made.returncode != 0:
        pytest.skip(f"a small tmpfs cannot be mounted: {made.stderr.strip()}")
    try:
        with penstock.open(mounted / "full", "w") as file:
            with pytest.raises(penstock.Error) as caught:
                file.write_from(memory.of(bytes(3 << 20)))
            assert (caught.value.errno, caught.value.code) == (errno.ENOSPC, "no_space")
            assert caught.value.bytes_done <= 1 << 20
    finally:
        subprocess.run(["umount", mounted], check=True)


def test_an_error_survives_a_pickle(path: Path) -> None:
    with pytest.raises(penstock.Error) as caught:
        penstock.open(f"{path}.missing")
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is type(caught.value)
    names = ("errno", "strerror", "filename", "offset", "bytes_done", "code", "domain", "native")
    assert [getattr(again, name) for name in names] == [getattr(caught.value, name) for name in names]
    assert str(again) == str(caught.value)


def test_the_classes_are_those_that_python_has() -> None:
    pairs = {
        penstock.InvalidArgument: ValueError,
        penstock.BufferError: BufferError,
        penstock.NotFound: FileNotFoundError,
        penstock.FileExists: FileExistsError,
        penstock.PermissionDenied: PermissionError,
        penstock.IsADirectory: IsADirectoryError,
        penstock.TimedOut: TimeoutError,
        penstock.Closed: ValueError,
        penstock.OutOfMemory: MemoryError,
    }
    for ours, pythons in pairs.items():
        assert issubclass(ours, pythons) and issubclass(ours, penstock.Error) and issubclass(ours, OSError)
        assert ours.__module__ == "penstock"


INTERRUPTED = """
import os, signal, sys, threading
import numpy as np
import penstock
target = np.empty(1 << 30, np.uint8)
file = penstock.open(sys.argv[1])
file.read_into(target, 0, 4096)

class Interrupt(Exception): pass

def handle(*_): raise Interrupt

signal.signal(signal.SIGUSR1, handle)
stop = threading.Event()

def send():
    while not stop.wait(0.01):
        os.kill(os.getpid(), signal.SIGUSR1)

threading.Thread(target=send, daemon=True).start()
try:
    for _ in range(1000):
        file.read_into(target)
except Interrupt:
    stop.set()
    print("interrupted")
    target[:] = 1  # nothing is under way on it any more
"""


def test_a_signal_interrupts_a_long_request(tmp_path: Path) -> None:
    path = tmp_path / "sparse"
    with open(path, "wb") as plain:
        plain.truncate(1 << 30)
    run = subprocess.run([sys.executable, "-c", INTERRUPTED, path], capture_output=True, text=True, timeout=300)
    assert "interrupted" in run.stdout or "Interrupt" in run.stderr  # by the handler, wherever Python was
    assert run.returncode in (0, 1)


NO_MEMORY = """
import faulthandler, os, resource, sys
import penstock
from penstock import _native

faulthandler.dump_traceback_later(120, exit=True)
file = penstock.open(sys.argv[1])
buffer = bytearray(100)
requests = [(buffer, 0)] * 100_000
file.pread(buffer).result()
_native._settle()
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
refused = 0
for room in range(0, 64 << 20, 512 << 10):
    resource.setrlimit(resource.RLIMIT_AS, (used + room, resource.RLIM_INFINITY))
    try:
        future = file.pread_many(requests)
    except MemoryError:
        refused += 1
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
future = None
assert refused
_native._settle()  # as the interpreter's end does
assert (_native._under_way(), _native._held_memories()) == (0, 0), (_native._under_way(), _native._held_memories())
print("settled", flush=True)
os._exit(0)
"""


def test_a_request_that_memory_was_short_for_is_not_waited_for(path: Path) -> None:
    run = subprocess.run([sys.executable, "-c", NO_MEMORY, path], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "settled\n", "")


NO_DESCRIPTORS = """
import errno, os, resource, sys
import penstock
import penstock.kvikio.numpy
from penstock import cufile, gds, kvikio

path, was_used = sys.argv[1], sys.argv[2] == "used"
file = penstock.open(path, "r+")
given = os.open(path, os.O_RDWR)
handle = cufile.handle_register(given)
kvikio_file = kvikio.CuFile(path, "r")
with kvikio.defaults.set("auto_direct_io_read", True):
    kvikio_direct = kvikio.CuFile(path, "r")
if was_used:
    file.read_into(penstock.device("host:0").empty(10))
calls = {
    "open": lambda: penstock.open(path),
    "open a new file": lambda: penstock.open(path + ".new", "x"),
    "device": lambda: penstock.device("host:0"),
    "fromfile": lambda: penstock.fromfile(path, "u1"),
    "fromfile into a device": lambda: penstock.fromfile(path, "u1", device="host:0"),
    "tofile": lambda: penstock.tofile(b"x", path),
    "CuFile": lambda: kvikio.CuFile(path),
    "Mmap": lambda: kvikio.Mmap(path),
    "kvikio.numpy": lambda: kvikio.numpy.fromfile(path),
    "is_direct_io_supported": kvikio_direct.is_direct_io_supported,
    "get_page_cache_info": lambda: kvikio.get_page_cache_info(path),
    "GdsFile": lambda: gds.GdsFile(path, os.O_RDONLY),
    "handle_register": lambda: cufile.handle_register(given),
    "get_file_properties": lambda: cufile.get_file_properties(handle),
    "set_file_properties": lambda: cufile.set_file_properties(handle, {"direct_io": True}),
}
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))
taken = []
try:
    while True:
        taken.append(os.dup(0))
except OSError:
    pass
told = {}
for name, call in calls.items():
    try:
        told[name] = f"no error: {call()}"
    except Exception as error:
        told[name] = error
for each in taken:
    os.close(each)
for name, error in told.items():
    if name == "device" and not isinstance(error, Exception):
        continue  # the host device does without a descriptor
    cause = error
    while cause is not None and getattr(cause, "errno", None) is None:
        cause = cause.__cause__ if isinstance(cause, Exception) else None
    well = cause is not None and cause.errno == errno.EMFILE and not isinstance(error, FileNotFoundError)
    if isinstance(error, penstock.Error):
        well = well and isinstance(error, penstock.OutOfMemory)
    if isinstance(error, cufile.cuFileError):
        well = well and error.status == cufile.OpError.CU_FILE_NOMEM_ERROR
    if not well:
        print(name, repr(error))
"""


@pytest.mark.parametrize("state", ["fresh", "used"])
def test_no_descriptor_left_is_no_missing_file(path: Path, state: str) -> None:
    settings = path.with_name("cufile.json")  # the machine's own may warn that its settings come too late
    settings.write_text("{}")
    variables = {**os.environ, "CUFILE_ENV_PATH_JSON": str(settings)}
    run = subprocess.run([sys.executable, "-c", NO_DESCRIPTORS, path, state], capture_output=True, text=True, timeout=120, env=variables)
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")
