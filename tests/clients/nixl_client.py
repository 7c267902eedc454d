#!/usr/bin/env python3
"""NIXL's plugins GDS and GDS_MT over libcufile: writes and reads of many pieces, of host memory and of a GPU, compared byte for byte.

Needs NIXL (nixl-cu12 or nixl-cu13) and NumPy; CuPy or PyTorch for memory of a GPU. If NIXL_PLUGIN_DIR names a folder with the plugin PENSTOCK
(examples/nixl/plugin.cc), that plugin is tested instead, and `penstock run` is not needed.

Usage: penstock run -- python3 nixl_client.py FOLDER [LIBRARY]
FOLDER is written to. LIBRARY: the library file that must be in use.
"""

import ctypes
import glob
import importlib
import os
import pathlib
import sys
import tempfile
import time
from typing import Any, Callable

from client import check, check_library, equal, fail, ok, skip, why_no_gpu

MIB = 1 << 20
PATIENCE_SECONDS = 60


def find_nixl() -> Any:
    reasons = []
    for name in ("nixl_cu13", "nixl_cu12", "nixl"):
        try:
            return importlib.import_module(name)
        except ImportError as problem:
            reasons.append(str(problem))
    skip(f"NIXL cannot be imported: {'; '.join(reasons)}")


def load_runtime() -> None:
    """NIXL's plugins want libcudart, which a package of NVIDIA's may have brought without the linker knowing."""
    for folder in sys.path:
        for library in glob.glob(os.path.join(folder, "nvidia", "*", "lib", "libcudart.so.*")):
            ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)


class HostMemory:
    kind = "DRAM"
    device = 0

    def __init__(self, content: bytes) -> None:
        import numpy

        self.array = numpy.frombuffer(content, dtype="u1").copy()
        self.address = self.array.ctypes.data

    def get(self) -> bytes:
        return self.array.tobytes()


class GpuMemory:
    kind = "VRAM"
    device = 0

    def __init__(self, content: bytes) -> None:
        import numpy

        try:
            import cupy

            self.array = cupy.asarray(numpy.frombuffer(content, dtype="u1"))
            self.address = self.array.data.ptr
            self.get: Callable[[], bytes] = lambda: cupy.asnumpy(self.array).tobytes()
            cupy.cuda.runtime.deviceSynchronize()
        except ImportError:
            import torch

            self.array = torch.frombuffer(bytearray(content), dtype=torch.uint8).cuda()
            self.address = self.array.data_ptr()
            self.get = lambda: self.array.cpu().numpy().tobytes()
            torch.cuda.synchronize()


def finish(agent: Any, handle: Any, what: str) -> None:
    state = agent.transfer(handle)
    until = time.monotonic() + PATIENCE_SECONDS
    while state == "PROC" and time.monotonic() < until:
        state = agent.check_xfer_state(handle)
    equal(state, "DONE", what)
    agent.release_xfer_handle(handle)


def check_roundtrip(nixl: Any, plugin: str, memory_type: Any, folder: pathlib.Path) -> None:
    """Pieces of a buffer to a file and back into another one. The last is larger than one request of the plugin, the others lie anywhere."""
    name = f"{plugin}-{memory_type.kind}"
    agent = nixl.nixl_agent(name, nixl.nixl_agent_config(backends=[]))
    agent.create_backend(plugin)
    size = 40 * MIB + 4321
    pieces = [(0, 4096), (4096, 100_003), (1 << 20, 65_536), (2 * MIB + 5, 38 * MIB + 4000)]
    content = os.urandom(1 << 16) * (size // (1 << 16)) + os.urandom(size % (1 << 16))
    source, target = memory_type(content), memory_type(bytes(size))
    path = folder / name
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    registered = [agent.register_memory([(each.address, size, each.device, "")], each.kind) for each in (source, target)]
    file = agent.register_memory([(0, size, descriptor, "")], "FILE")
    in_file = agent.get_xfer_descs([(at, length, descriptor) for at, length in pieces], "FILE")
    for operation, memory in (("WRITE", source), ("READ", target)):
        in_memory = agent.get_xfer_descs([(memory.address + at, length, memory.device) for at, length in pieces], memory.kind)
        finish(agent, agent.initialize_xfer(operation, in_memory, in_file, name), f"{name}: {operation}")
    written, back = path.read_bytes(), target.get()
    for at, length in pieces:
        check(written[at : at + length] == content[at : at + length], f"{name}: the file differs at {at}")
        check(back[at : at + length] == content[at : at + length], f"{name}: memory differs at {at}")
    check(back[110_000 : 1 << 20] == bytes((1 << 20) - 110_000), f"{name}: memory between the pieces was written to")
    for each in (*registered, file):
        agent.deregister_memory(each)
    os.close(descriptor)


def check_penstock_plugin(nixl: Any, folder: pathlib.Path) -> None:
    """Files registered by their paths, transfers that are posted again or released early, and a read past the end of a file."""
    agent = nixl.nixl_agent("odd", nixl.nixl_agent_config(backends=[]))
    agent.create_backend("PENSTOCK")
    memory = HostMemory(bytes(range(256)) * 4096)
    path, size = folder / "by path", 1 << 20
    registered = [agent.register_memory([(memory.address, size, 0, "")], "DRAM"), agent.register_memory([(0, 2 * size, 7, f"rw,create:{path}")], "FILE")]
    in_memory = agent.get_xfer_descs([(memory.address, size, 0)], "DRAM")
    writing = agent.initialize_xfer("WRITE", in_memory, agent.get_xfer_descs([(0, size, 7)], "FILE"), "odd")
    for _ in range(2):
        state = agent.transfer(writing)
        while state == "PROC":
            state = agent.check_xfer_state(writing)
        equal(state, "DONE", "a transfer that is posted again")
    agent.release_xfer_handle(writing)
    check(path.read_bytes() == memory.get(), "the file registered by its path differs")
    reading = agent.initialize_xfer("READ", in_memory, agent.get_xfer_descs([(4096, size, 7)], "FILE"), "odd")
    try:
        state = agent.transfer(reading)
        while state == "PROC":
            state = agent.check_xfer_state(reading)
    except Exception:  # NIXL raises its own error for a state of the plugin that is one
        state = "ERR"
    equal(state, "ERR", "a read past the end of a file")
    agent.release_xfer_handle(reading)
    early = agent.initialize_xfer("READ", in_memory, agent.get_xfer_descs([(0, size, 7)], "FILE"), "odd")
    agent.transfer(early)
    agent.release_xfer_handle(early)
    for each in registered:
        agent.deregister_memory(each)


def main() -> None:
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: nixl_client.py FOLDER [LIBRARY]")
    nixl = find_nixl()
    try:
        import numpy  # noqa: F401
    except ImportError as problem:
        skip(f"NumPy cannot be imported: {problem}")
    load_runtime()
    no_gpu = why_no_gpu()
    kinds: list[Any] = [HostMemory]
    if no_gpu is None:
        kinds.append(GpuMemory)
    agent = nixl.nixl_agent("lister", nixl.nixl_agent_config(backends=[]))
    known = agent.get_plugin_list()
    plugins = ("PENSTOCK",) if "PENSTOCK" in known else ("GDS", "GDS_MT")
    for plugin in plugins:
        if plugin not in known:
            fail(f"NIXL has no plugin {plugin}; it has {', '.join(known)}")
    with tempfile.TemporaryDirectory(dir=sys.argv[1]) as scratch:
        if "PENSTOCK" in plugins:
            check_penstock_plugin(nixl, pathlib.Path(scratch))
            ok("PENSTOCK, odd requests")
        for plugin in plugins:
            for kind in kinds:
                check_roundtrip(nixl, plugin, kind, pathlib.Path(scratch))
                ok(f"{plugin}, {'memory of a GPU' if kind is GpuMemory else 'host memory'}")
            if plugin != "PENSTOCK":
                check_library(sys.argv[2] if len(sys.argv) == 3 else None)
    if no_gpu is not None:
        print(f"memory of a GPU was left out: {no_gpu}")


if __name__ == "__main__":
    main()
