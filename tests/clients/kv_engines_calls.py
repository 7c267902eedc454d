#!/usr/bin/env python3
"""The cuFile calls of two engines that cannot be installed here, in the order and with the arguments of their sources, by ctypes.

  llm-d     llmd_fs_backend (llm-d-kv-cache), gds_mode read_write and bb_read_write: blocks registered one by one with CU_FILE_RDMA_REGISTER, or all
            as one; a file for each group of blocks, with O_DIRECT, opened and registered anew each time, from several threads
  Mooncake  the transport nvmeof of its transfer engine: batches of 128, set up once and used again, asked for events without a minimum and without a time
            limit; files with O_DIRECT
Neither engine runs. Memory is a GPU's where there is one (by PyTorch), else the host's.

Usage: penstock run -- python3 kv_engines_calls.py FOLDER [LIBRARY]
FOLDER is written to. LIBRARY: the library file that must be in use.
"""

import concurrent.futures
import ctypes
import os
import pathlib
import sys
import tempfile
from typing import Any

from client import check, check_library, equal, ok
from memory import Memory

OPAQUE_FD, RDMA_REGISTER, BATCH, READ, WRITE, COMPLETE = 1, 1, 1, 0, 1, 16
USED = {
    "llm-d": ("cuFileGetVersion", "cuFileDriverOpen", "cuFileDriverClose_v2", "cuFileDriverGetProperties", "cuFileBufRegister", "cuFileBufDeregister",
              "cuFileHandleRegister", "cuFileHandleDeregister", "cuFileRead", "cuFileWrite"),
    "Mooncake": ("cuFileDriverOpen", "cuFileBufRegister", "cuFileBufDeregister", "cuFileHandleRegister", "cuFileHandleDeregister",
                 "cuFileBatchIOSetUp", "cuFileBatchIOSubmit", "cuFileBatchIOGetStatus", "cuFileBatchIODestroy"),
}


class Error(ctypes.Structure):
    _fields_ = [("err", ctypes.c_int), ("cu_err", ctypes.c_int)]


class Descriptor(ctypes.Structure):
    _fields_ = [("type", ctypes.c_int), ("fd", ctypes.c_void_p), ("fs_ops", ctypes.c_void_p)]


class Entry(ctypes.Structure):
    _fields_ = [("mode", ctypes.c_int), ("base", ctypes.c_void_p), ("file_offset", ctypes.c_int64), ("memory_offset", ctypes.c_int64),
                ("size", ctypes.c_size_t), ("file", ctypes.c_void_p), ("opcode", ctypes.c_int), ("cookie", ctypes.c_void_p)]


class Event(ctypes.Structure):
    _fields_ = [("cookie", ctypes.c_void_p), ("status", ctypes.c_int), ("ret", ctypes.c_size_t)]


def load() -> Any:
    """The library by the name that the linker knows, with every function that the engines name."""
    library = ctypes.CDLL("libcufile.so.0")
    for engine, names in USED.items():
        missing = [name for name in names if not hasattr(library, name)]
        check(not missing, f"functions that {engine} needs: {', '.join(missing)}")
        for name in names:
            getattr(library, name).restype = Error
    for name in ("cuFileRead", "cuFileWrite"):
        function = getattr(library, name)
        function.restype = ctypes.c_ssize_t
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, ctypes.c_int64]
    library.cuFileBufRegister.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    library.cuFileBufDeregister.argtypes = library.cuFileHandleDeregister.argtypes = library.cuFileBatchIODestroy.argtypes = [ctypes.c_void_p]
    library.cuFileHandleDeregister.restype = library.cuFileBatchIODestroy.restype = None
    return library


def done(error: Error, what: str) -> None:
    equal(error.err, 0, what)


class File:
    """A descriptor and its handle."""

    def __init__(self, library: Any, path: pathlib.Path, flags: int):
        self.library = library
        self.fd = os.open(path, flags, 0o644)
        self.handle = ctypes.c_void_p()
        done(library.cuFileHandleRegister(ctypes.byref(self.handle), ctypes.byref(Descriptor(OPAQUE_FD, self.fd))), "cuFileHandleRegister")

    def __enter__(self) -> "File":
        return self

    def __exit__(self, *unused: object) -> None:
        self.library.cuFileHandleDeregister(self.handle)
        os.close(self.fd)


# --- llm-d


def open_llmd(library: Any) -> None:
    version = ctypes.c_int()
    done(library.cuFileGetVersion(ctypes.byref(version)), "cuFileGetVersion")
    done(library.cuFileDriverOpen(), "cuFileDriverOpen")
    properties = ctypes.create_string_buffer(256)
    done(library.cuFileDriverGetProperties(properties), "cuFileDriverGetProperties")


def registered_ranges(memory: Any, block: int, as_one: bool) -> list[tuple[int, int, int]]:
    """Address, bytes, flags."""
    if as_one:
        return [(memory.address, memory.size, 0)]
    return [(memory.address + at, block, RDMA_REGISTER) for at in range(0, memory.size, block)]


def move_blocks(library: Any, path: pathlib.Path, memory: Any, block: int, blocks: range, is_write: bool) -> None:
    """The blocks of one file, one call each; the address is the block's own."""
    call = library.cuFileWrite if is_write else library.cuFileRead
    target = path.with_suffix(".tmp") if is_write else path
    with File(library, target, (os.O_RDWR | os.O_CREAT if is_write else os.O_RDONLY) | os.O_DIRECT) as file:
        for number, index in enumerate(blocks):
            equal(call(file.handle, memory.address + index * block, block, number * block, 0), block, f"block {index} of {path.name}")
    if is_write:
        os.rename(target, path)


def check_llmd(library: Any, folder: pathlib.Path, as_one: bool) -> str:
    block, blocks_each, files = 65_536, 16, 24
    memory = Memory(block * blocks_each * files)
    content = os.urandom(memory.size)
    memory.put(content)
    open_llmd(library)
    ranges = registered_ranges(memory, block, as_one)
    for address, size, flags in ranges:
        done(library.cuFileBufRegister(address, size, flags), "cuFileBufRegister")
    work = [(folder / f"{'one' if as_one else 'each'}-{i}", range(i * blocks_each, (i + 1) * blocks_each)) for i in range(files)]
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda each: move_blocks(library, each[0], memory, block, each[1], True), work))
        check(b"".join(path.read_bytes() for path, _ in work) == content, "llm-d: the files differ")
        memory.put(bytes(memory.size))
        list(threads.map(lambda each: move_blocks(library, each[0], memory, block, each[1], False), work))
    check(memory.get(memory.size) == content, "llm-d: memory differs")
    for address, _, _ in ranges:
        done(library.cuFileBufDeregister(address), "cuFileBufDeregister")
    done(library.cuFileDriverClose_v2(), "cuFileDriverClose")
    return f"{files} files of {blocks_each} blocks, {len(ranges)} registered ranges"


# --- Mooncake


def run_batch(library: Any, batch: ctypes.c_void_p, entries: Any) -> list[tuple[int, int]]:
    """Submits, and asks for events as often as it takes, without a minimum and without a time limit. Returns the status and count of each."""
    done(library.cuFileBatchIOSubmit(batch, len(entries), entries, 0), "cuFileBatchIOSubmit")
    found: list[tuple[int, int]] = []
    while len(found) < len(entries):
        count = ctypes.c_uint(len(entries))
        events = (Event * len(entries))()
        done(library.cuFileBatchIOGetStatus(batch, 0, ctypes.byref(count), events, None), "cuFileBatchIOGetStatus")
        found += [(event.status, event.ret) for event in events[: count.value]]
    return found


def check_mooncake(library: Any, folder: pathlib.Path) -> str:
    piece, pieces, rounds = 65_536, 128, 4
    path = folder / "nvmeof"
    memory = Memory(piece * pieces)
    done(library.cuFileDriverOpen(), "cuFileDriverOpen")
    done(library.cuFileBufRegister(memory.address, memory.size, 0), "cuFileBufRegister")
    batch = ctypes.c_void_p()
    done(library.cuFileBatchIOSetUp(ctypes.byref(batch), pieces), "cuFileBatchIOSetUp")
    with File(library, path, os.O_RDWR | os.O_CREAT | os.O_DIRECT) as file:
        for number in range(rounds):
            content = os.urandom(memory.size)
            memory.put(content)
            for opcode in (WRITE, READ):
                entries = (Entry * pieces)(*(Entry(BATCH, memory.address + at, at, 0, piece, file.handle, opcode, None)
                                             for at in range(0, memory.size, piece)))
                equal(run_batch(library, batch, entries), [(COMPLETE, piece)] * pieces, f"Mooncake: events of round {number}")
                if opcode == WRITE:
                    check(path.read_bytes() == content, "Mooncake: the file differs")
                    memory.put(bytes(memory.size))
            check(memory.get(memory.size) == content, "Mooncake: memory differs")
    library.cuFileBatchIODestroy(batch)
    done(library.cuFileBufDeregister(memory.address), "cuFileBufDeregister")
    done(library.cuFileDriverClose_v2(), "cuFileDriverClose")
    return f"{2 * rounds} batches of {pieces} on one handle"


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: kv_engines_calls.py FOLDER [LIBRARY]")
    library = load()
    check_library(sys.argv[2] if len(sys.argv) == 3 else None)
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as scratch:
        folder = pathlib.Path(scratch)
        ok(f"llm-d, read_write: {check_llmd(library, folder, as_one=False)}, {Memory.kind}")
        ok(f"llm-d, bb_read_write: {check_llmd(library, folder, as_one=True)}, {Memory.kind}")
        ok(f"Mooncake, nvmeof: {check_mooncake(library, folder)}, {Memory.kind}")


if __name__ == "__main__":
    main()
