"""Forks again and again with threads and requests at work; the children call all there is. Run by test_fork.py.

Usage: python forked_children.py FILE FORKS

What a child calls is printed to the standard error: the last line names what hangs, which ends the child.
"""

from __future__ import annotations

import asyncio
import faulthandler
import os
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import penstock
from penstock import _native, cufile, gds, kvikio
from penstock.kvikio import cufile_driver, defaults, utils

HANG_S = 60
PATH, FORKS = sys.argv[1], int(sys.argv[2])
NBYTES = 300_000
inherited = penstock.open(PATH, "r+")
registered = cufile.handle_register(os.open(PATH, os.O_RDWR))
kvikio_file = kvikio.CuFile(PATH, "r+")
gds_file = gds.GdsFile(PATH, os.O_RDWR)
device_buffer = penstock.device("host:0").empty(NBYTES)
large = bytearray(NBYTES)
scratch = penstock.Pointer(device_buffer.ptr, NBYTES)
stop = threading.Event()
once = utils.call_once(lambda: 1)


def at_work(call: Callable[[], object]) -> None:
    while not stop.is_set():
        call()


def register() -> None:
    fd = os.open(PATH, os.O_RDWR)
    handle = cufile.handle_register(fd)
    cufile.pread(handle, device_buffer.ptr, 1000, 0, 0)
    cufile.handle_deregister(handle)
    os.close(fd)


def reopen() -> None:
    with kvikio.CuFile(PATH, "r") as file:
        file.pread(bytearray(5000)).done()


def wait() -> None:
    penstock.wait([inherited.pread(bytearray(5000)), inherited.pread_many([(bytearray(5000), 0)])], 1)


def queue() -> None:
    inherited.read_on_stream(device_buffer, None, 0, 1000).wait()


WORK: list[Callable[[], object]] = [
    register,
    reopen,
    wait,
    queue,
    penstock.stats,
    penstock.summary,
    penstock.advice,
    penstock.devices,
    inherited.explain,
    lambda: penstock.describe(device_buffer),
    lambda: inherited.read_into(bytearray(NBYTES)),
    lambda: inherited.read_into(scratch),
    lambda: penstock.device("host:0").empty(4096),
    lambda: defaults.set("task_size", defaults.get("task_size")),
    lambda: cufile_driver.set("poll_mode", False),
    gds.direct_io_fallbacks,
]


def awaited(future: Any) -> Any:
    async def wait_for_it() -> Any:
        return await future

    return asyncio.run(wait_for_it())


def calls(futures: list[Any], stream_result: Any, waiting: Iterator[Any]) -> Iterator[tuple[str, Callable[[], object]]]:
    """Each thing that the child does: all answer, or raise penstock.Error."""
    buffer = bytearray(1000)
    yield "describe", lambda: penstock.describe(buffer)
    yield "describe a device's", lambda: penstock.describe(device_buffer)
    yield "devices", penstock.devices
    yield "device", lambda: penstock.device("host:0")
    yield "stats", penstock.stats
    yield "summary", penstock.summary
    yield "advice", penstock.advice
    yield "cuda_status", penstock.cuda_status
    yield "gpu_direct_status", penstock.gpu_direct_status
    yield "copy", lambda: penstock.copy(buffer, bytes(1000))
    yield "resolve", lambda: _native.resolve(buffer, True)
    yield "what is under way", lambda: left_behind(futures[1])
    for name in ("done", "exception", "result", "cancel", "__repr__"):
        for future in futures[:4]:
            yield name, getattr(future, name)
        yield f"{name} of one that has ended", getattr(futures[4], name)
    for future in futures[:2]:
        yield "add_done_callback", lambda future=future: called(future)
        yield "await", lambda future=future: awaited(future)
        yield "result with a time-out", lambda future=future: future.result(0.01)
    yield "wait", lambda: all_of(penstock.wait(futures))
    yield "wait for the first", lambda: penstock.wait(futures, None, penstock.FIRST_COMPLETED)
    yield "as_completed", lambda: list(penstock.as_completed(futures, 30))
    yield "as_completed of the parent", lambda: list(waiting)
    yield "a stream's wait", stream_result.wait
    yield "a stream's done", lambda: stream_result.done
    yield "a stream's bytes", lambda: stream_result.bytes
    yield "a stream's repr", lambda: repr(stream_result)
    for name in ("size", "sync", "explain", "__repr__"):
        yield f"File.{name}", getattr(inherited, name)
    for name in ("read_into", "write_from", "readinto"):
        yield name, lambda name=name: getattr(inherited, name)(buffer)
    for name in ("pread", "pwrite"):
        yield name, lambda name=name: getattr(inherited, name)(buffer).result()
        yield f"{name}, waited for", lambda name=name: penstock.wait([getattr(inherited, name)(buffer)])
        yield f"{name}_many", lambda name=name: getattr(inherited, f"{name}_many")([(buffer, 0)]).result()
        yield f"penstock.{name}_many", lambda name=name: getattr(penstock, f"{name}_many")([(inherited, buffer, 0)]).result()
    yield "read_many", lambda: inherited.read_many([(buffer, 0)])
    yield "write_many", lambda: inherited.write_many([(buffer, 0)])
    yield "read_ranges", lambda: inherited.read_ranges(buffer, [0], [10])
    yield "write_ranges", lambda: inherited.write_ranges(buffer, [0], [10])
    yield "read_on_stream", lambda: inherited.read_on_stream(device_buffer, None).wait()
    yield "write_on_stream", lambda: inherited.write_on_stream(device_buffer, None).wait()
    yield "to_host", device_buffer.to_host
    yield "copy_from", lambda: device_buffer.copy_from(b"1234")
    yield "copy_to", lambda: device_buffer.copy_to(bytearray(NBYTES))
    yield "cufile.pread", lambda: cufile.pread(registered, device_buffer.ptr, 1000, 0, 0)
    yield "cufile.get_file_properties", lambda: cufile.get_file_properties(registered)
    yield "cufile.synchronize", cufile.synchronize
    yield "cufile.buf_register", lambda: cufile.buf_register(device_buffer.ptr, 1000, 0)
    yield "cufile.handle_register", lambda: cufile.handle_register(os.open(PATH, os.O_RDWR))
    yield "cufile.handle_deregister", lambda: cufile.handle_deregister(registered)
    yield "cufile.driver_close", cufile.driver_close
    yield "kvikio get", lambda: kvikio_file.pread(buffer).get()
    yield "kvikio close", kvikio_file.close
    yield "kvikio defaults", lambda: defaults.set("task_size", 1 << 20)
    yield "kvikio properties", lambda: cufile_driver.set("poll_mode", False)
    yield "kvikio call_once", once
    yield "gds", lambda: gds_file.load_storage(device_buffer)
    yield "gds close", gds_file.close
    yield "gds fallbacks", gds.direct_io_fallbacks
    yield "fromfile", lambda: penstock.fromfile(PATH, "u1", device="host:0")
    yield "with", inherited.__enter__
    yield "with, its end", lambda: inherited.__exit__(None, None, None)
    yield "close", inherited.close
    yield "drop", futures.clear
    yield "settle", _native._settle


def called(future: Any) -> None:
    seen: list[Any] = []
    future.add_done_callback(seen.append)
    assert seen == [future], seen


def left_behind(future: Any) -> None:
    assert future.done() and not future.cancel()
    error = future.exception(60)
    assert error is None or error.code == "forked", error


def all_of(waited: Any) -> None:
    assert not waited.not_done, waited


def in_child(futures: list[Any], stream_result: Any, waiting: Iterator[Any]) -> None:
    for name, call in calls(futures, stream_result, waiting):
        print(name, file=sys.stderr, flush=True)
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        try:
            call()
        except (penstock.Error, cufile.cuFileError, RuntimeError) as error:
            assert type(error) is not RuntimeError or isinstance(error.__cause__, penstock.Error), repr(error)


def begin() -> tuple[list[Any], Any, Iterator[Any]]:
    futures: list[Any] = [
        inherited.pread(bytearray(NBYTES)),
        inherited.pread_many([(large, 0)] * 400),  # long enough to be under way when the child is there
        inherited.pread(scratch, 0, 4096),
        inherited.pwrite(bytes(100), NBYTES),
        inherited.pread(bytearray(10)),
    ]
    futures[-1].result()  # the others may be under way
    waiting = penstock.as_completed([inherited.pread(bytearray(NBYTES)) for _ in range(3)])
    next(waiting)
    return futures, inherited.read_on_stream(device_buffer, None, 0, 1000), waiting


def fork(number: int) -> None:
    begun = begin()
    child = os.fork()
    if child == 0:
        try:
            in_child(*begun)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        if number % 2:
            os._exit(0)
        sys.exit(0)  # as Python ends by itself, the watchdog still on guard
    _, status = os.waitpid(child, 0)
    if status != 0:
        print(f"fork {number}: status {status}", flush=True)
        os._exit(1)
    penstock.wait(begun[0])


def main() -> None:
    threads = [threading.Thread(target=at_work, args=(call,)) for call in WORK]
    for thread in threads:
        thread.start()
    for number in range(FORKS):
        fork(number)
    stop.set()
    for thread in threads:
        thread.join()
    print("all children ended", flush=True)


main()
