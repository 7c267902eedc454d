"""Goes through one door of the package in forked children, each with a lower limit of one kind. Run by test_limits.py.

Usage: python starved_doors.py DOOR FOLDER PLACES KIND VALUE... [KIND VALUE...]

PLACES is JSON: where the servers of the test are. For each limit a line of JSON is printed: the kind, the value, and how the child ended.
"""

from __future__ import annotations

import ctypes
import errno
import faulthandler
import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Callable
from typing import Any

import numpy

import penstock
import penstock.kv
import penstock.kvikio
import penstock.pipe
import penstock.safetensors.numpy
import penstock.weights._receiver
from penstock.__main__ import command

HANG_S = 60
NBYTES = 12_000_000
SECRET = "correct horse battery staple"
DOOR, FOLDER = sys.argv[1:3]
PLACES: dict[str, Any] = json.loads(sys.argv[3])
QUICK = {"attempts": 2, "retry_pause": 0.01}


def expected(nbytes: int = NBYTES) -> Any:
    return numpy.arange(nbytes // 4, dtype="u4").view("u1")


def check(got: Any, nbytes: int = NBYTES) -> None:
    assert numpy.array_equal(numpy.asarray(got).reshape(-1).view("u1"), expected(nbytes)), "other bytes"


def read_a_file() -> None:
    with penstock.open("data") as file:
        into = numpy.empty(NBYTES, "u1")
        assert file.read_into(into) == NBYTES
        check(into)
        assert file.read_into(penstock.device("host:0").empty(NBYTES)) == NBYTES


def write_a_file() -> None:
    penstock.tofile(expected(), f"written-{os.getpid()}")
    check(numpy.fromfile(f"written-{os.getpid()}", "u1"))


def load_tensors() -> None:
    check(penstock.safetensors.numpy.load_file("tensors.safetensors")["data"])


def load_an_object() -> None:
    check(penstock.load(PLACES["url"], dtype="u1", storage_options=QUICK))


def load_tensors_of_an_object() -> None:
    loaded = penstock.safetensors.numpy.load_file(PLACES["tensors"], storage_options=QUICK)
    check(loaded["data"])


def read_a_remote_file() -> None:
    penstock.kvikio.defaults.set("http_max_attempts", 1)
    with penstock.kvikio.RemoteFile.open_http(PLACES["url"]) as file:
        into = numpy.empty(NBYTES, "u1")
        assert file.read(into) == NBYTES
        check(into)


def write_an_object() -> None:
    options = {"endpoint": PLACES["bucket"], "region": "r", "access_key_id": "a", "secret_access_key": "b", **QUICK}
    penstock.tofile(expected(), "s3://bucket/key", storage_options=options)


def load_by_the_cache() -> None:
    for _ in range(2):
        check(penstock.load(PLACES["url"], dtype="u1", storage_options={"cache_dir": os.path.abspath(f"cache-{os.getpid()}"), **QUICK}))


def keep_values() -> None:
    with penstock.kv.Store(f"store-{os.getpid()}", capacity_bytes=2 * NBYTES) as store:
        store.put({"key": [expected()]})
        back = numpy.empty(NBYTES, "u1")
        assert store.get({"key": [back]}) == [True]
        check(back)


def talk_over_a_pipe() -> None:
    with penstock.pipe.connect(PLACES["pipe"], secret=SECRET) as pipe:
        pipe.send(b"hello", tensors=[expected()]).result(HANG_S)
        assert pipe.receive().result(HANG_S).metadata == b"hello"


def load_weights() -> None:
    into = {"data": numpy.zeros(NBYTES, "u1")}
    penstock.weights.load_weights(PLACES["weights"], into, secret=SECRET)
    check(into["data"])


def tool(*words: str) -> Callable[[], None]:
    def run() -> None:
        os.execv(command(), [str(command()), *(word.format(process=os.getpid()) for word in words)])

    return run


DOORS: dict[str, Callable[[], None]] = {
    "read": read_a_file,
    "write": write_a_file,
    "tensors": load_tensors,
    "remote": load_an_object,
    "remote tensors": load_tensors_of_an_object,
    "RemoteFile": read_a_remote_file,
    "upload": write_an_object,
    "cache": load_by_the_cache,
    "kv": keep_values,
    "pipe": talk_over_a_pipe,
    "weights": load_weights,
    "penstock read": tool("read", "data", "--verify"),
    "penstock cp": tool("cp", PLACES["url"], "copied-{process}"),
}


def starve(kind: str, value: int) -> None:
    """From here on the process gets so much more of it, and no more."""
    if kind == "descriptors":
        highest = max(int(each) for each in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + value,) * 2)
    elif kind == "threads":  # which are counted by user, and root's not at all
        libc = ctypes.CDLL(None)
        user = 100_000 + os.getpid()
        resource.setrlimit(resource.RLIMIT_NPROC, (1 + value,) * 2)
        assert libc.setresgid(user, user, user) == 0 and libc.setresuid(user, user, user) == 0
    else:
        with open("/proc/self/statm") as facts:
            used = int(facts.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (value << 20),) * 2)


# Whatever says one of these names what could not be had.
NAMES = ("descriptor", "too many open files", "thread", "memory", "resource temporarily unavailable", "mmap", "fork")


def names_it(error: BaseException) -> bool:
    if isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENOMEM, errno.EAGAIN)):
        return True
    # If the starved end of a pipe loses a connection, the other end may close the pipe before this one can say why.
    if DOOR == "pipe" and "the peer disconnected" in str(error):
        return True
    return any(each in str(error).lower() for each in NAMES)


def in_child(kind: str, value: int) -> None:
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    try:
        starve(kind, value)
        DOORS[DOOR]()
    except Exception as error:
        if not names_it(error):
            traceback.print_exc()
        os._exit(3 if names_it(error) else 4)
    os._exit(0)


def ending_of(kind: str, value: int) -> str:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        os.closerange(3, writing + 1)
        in_child(kind, value)
    os.close(writing)
    with open(reading, "rb") as output:
        said = output.read().decode(errors="replace")
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended < 0:
        if "Couldn't create thread-state" in said:  # Python ends a process whose thread cannot have a thread state, and says so
            return "named"
        return f"{signal.Signals(-ended).name}: {said[-2000:]}"
    if DOOR.startswith("penstock ") and ended != 0 and any(each in said.lower() for each in NAMES):
        ended = 3
    return {0: "ok", 3: "named"}.get(ended) or f"exit code {ended}: {said[-2000:]}"


def main() -> None:
    os.chdir(FOLDER)
    penstock.device("host:0")  # what is looked up once per process
    limits = iter(sys.argv[4:])
    for kind, value in zip(limits, limits):
        print(json.dumps([kind, int(value), ending_of(kind, int(value))]), flush=True)


main()
