#!/usr/bin/env python3
"""LMCache's own modules over libcufile: its back end that keeps a file for each chunk (GdsBackend), and the slab file of its server (GDS L1).

The modules are those of LMCache's wheel; lmcache_modules.py says what of LMCache is left out. Chunks are stored and retrieved, and compared byte for
byte. GdsBackend takes a GPU's memory where there is one, else the host's. The slab needs a GPU, since its calls follow a CUDA stream; without one,
everything up to the first of these calls is checked, and that it is refused with 5013.

Usage: penstock run -- python3 lmcache_client.py --unpacked FOLDER FOLDER [LIBRARY]
       python3 lmcache_client.py --bench --unpacked FOLDER [--slab-mib 2048] [--repeats 3] [FOLDER]    (starts `penstock run` by itself)
--unpacked: the folder with lmcache, cufile, sortedcontainers, cachetools, aiofile and caio, as `pip install --no-deps --target` leaves them.
FOLDER is written to (with --bench, the folder for temporary files if none is given). LIBRARY: the library file that must be in use.
"""

import argparse
import asyncio
import ctypes
import importlib.util
import logging
import os
import pathlib
import re
import tempfile
import threading
from typing import Any

from client import check, check_library, equal, fail, ok, refused, skip, why_no_gpu

GPU_MISSING = why_no_gpu()
MIB = 1 << 20
OWNER = 1


def use_lmcache(folder: pathlib.Path) -> None:
    os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")
    try:
        import lmcache_modules

        lmcache_modules.use_modules_of(folder)
        import cufile  # noqa: F401
        from lmcache.v1.gpu_connector import gds_context  # noqa: F401
        from lmcache.v1.storage_backend import gds_backend  # noqa: F401
    except ImportError as problem:
        skip(f"LMCache's modules cannot be imported: {problem}")
    except OSError as problem:
        fail(f"cufile-python found no libcufile.so: {problem}")
    logging.disable(logging.INFO)


def synchronize() -> None:
    import torch

    if GPU_MISSING is None:
        torch.cuda.synchronize()


# --- GdsBackend: a file for each chunk


class Loop:
    """An event loop on a thread of its own, as LMCache's engine gives its back ends."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)

    def __enter__(self) -> asyncio.AbstractEventLoop:
        self.thread.start()
        return self.loop

    def __exit__(self, *unused: object) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


def make_gds_backend(folder: pathlib.Path, loop: asyncio.AbstractEventLoop, direct_io: bool, buffer_mib: int) -> Any:
    import torch
    from lmcache.v1.config import LMCacheEngineConfig
    from lmcache.v1.metadata import LMCacheMetadata
    from lmcache.v1.storage_backend.gds_backend import GdsBackend

    GdsBackend._use_noatime = True  # LMCache 0.5.6 sets it after its scan of the folder has started, which then fails now and then
    config = LMCacheEngineConfig.from_defaults(gds_path=str(folder), gds_buffer_size=buffer_mib, use_gds=True, extra_config={"use_direct_io": direct_io})
    metadata = LMCacheMetadata("model", 1, 1, 0, 0, torch.bfloat16, (32, 2, 256, 8, 128))
    return GdsBackend(config, metadata, loop, dst_device="cuda")


def chunk_key(number: int) -> Any:
    import torch
    from lmcache.utils import CacheEngineKey

    return CacheEngineKey("model", 1, 0, 0x1234_5678_9ABC_0000 + number, torch.bfloat16)


def check_documented_settings(scratch: pathlib.Path) -> None:
    """LMCache takes every line of the settings that docs/guides/engines.md shows."""
    import yaml
    from lmcache.v1.config import LMCacheEngineConfig

    page = (pathlib.Path(__file__).resolve().parents[2] / "docs/guides/engines.md").read_text()
    shown = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    equal(len(shown), 1, "settings in docs/guides/engines.md")
    path = scratch / "lmcache.yaml"
    path.write_text(shown[0])
    config = LMCacheEngineConfig.from_file(str(path))
    for name, value in yaml.safe_load(shown[0]).items():
        equal(getattr(config, name, None), value, f"docs/guides/engines.md: {name}")


def check_gds_backend(folder: pathlib.Path, direct_io: bool) -> str:
    """Chunks of several sizes are put, then read by a second back end that finds them on the disk, as after a restart."""
    import torch

    shapes = [torch.Size((2, 32, 256, 1024)), torch.Size((2, 4, 16, 1024)), torch.Size((2, 1, 7, 333))]
    written = {}
    with Loop() as loop:
        backend = make_gds_backend(folder, loop, direct_io, buffer_mib=96)
        for number, shape in enumerate(shapes):
            chunk = backend.allocate(shape, torch.bfloat16)
            check(chunk is not None, f"GdsBackend: no memory for {shape}")
            chunk.tensor.copy_(torch.randn(shape, dtype=torch.bfloat16))
            synchronize()
            written[number] = chunk.tensor.cpu().clone()
            backend.submit_put_task(chunk_key(number), chunk).result(timeout=60)
            check(backend.contains(chunk_key(number)), f"GdsBackend: chunk {number} was not stored")
            chunk.ref_count_down()
        backend.close()
        after = make_gds_backend(folder, loop, direct_io, buffer_mib=96)
        for number, tensor in written.items():
            check(after.contains(chunk_key(number)), f"GdsBackend: chunk {number} is not found again")
            check_chunk(after.get_blocking(chunk_key(number)), tensor, f"GdsBackend: get_blocking of chunk {number}")
        found = after.batched_get_blocking([chunk_key(number) for number in written])
        for number, chunk in enumerate(found):
            check_chunk(chunk, written[number], f"GdsBackend: batched_get_blocking of chunk {number}")
        after.close()
    files = list(folder.rglob("*.kvcache.safetensors"))
    equal(sorted(path.stat().st_size for path in files), sorted(4096 + tensor.nbytes for tensor in written.values()), "GdsBackend: files")
    return f"{len(files)} chunks of up to {max(tensor.nbytes for tensor in written.values()) // MIB} MiB"


def check_chunk(chunk: Any, tensor: Any, what: str) -> None:
    import torch

    check(chunk is not None, f"{what}: nothing came back")
    synchronize()
    check(torch.equal(chunk.tensor.cpu().view(torch.int16), tensor.view(torch.int16)), f"{what}: bytes differ")
    chunk.ref_count_down()


# --- GDS L1: one slab file, and calls on a stream


def l1_config(folder: pathlib.Path, size: int, direct_io: bool) -> Any:
    from lmcache.v1.distributed.config import GdsL1Config

    return GdsL1Config(file_location=str(folder), size_in_bytes=size, use_direct_io=direct_io, backend="auto")


class Slab:
    """LMCache's GDS L1: the slab file, its manager, and a staging buffer of the GPU that is registered on the current stream."""

    def __init__(self, folder: pathlib.Path, size: int, buffer: Any, direct_io: bool):
        from lmcache.v1.distributed.memory_manager.gds_l1_memory_manager import GDSL1MemoryManager
        from lmcache.v1.gpu_connector import gds_context

        self.module = gds_context
        self.config = l1_config(folder, size, direct_io)
        self.buffer = buffer
        gds_context.initialize_l1_gds_context(OWNER, self.config)
        self.context = gds_context.get_l1_gds_context(OWNER)
        self.manager = GDSL1MemoryManager(self.config)
        gds_context.register_gds_gpu_buffer(buffer)

    def allocate(self, chunk_bytes: int, count: int) -> list[Any]:
        import torch
        from lmcache.v1.distributed.api import MemoryLayoutDesc

        error, chunks = self.manager.allocate(MemoryLayoutDesc([torch.Size((chunk_bytes,))], [torch.uint8]), count)
        equal(len(chunks), count, f"GDS L1: allocating {count} x {chunk_bytes} ({error})")
        return chunks

    def queue(self, chunks: list[Any], is_write: bool) -> None:
        """Each chunk from, or to, the part of the buffer that has its place in the slab."""
        direction = self.module.SlabDirection.WRITE if is_write else self.module.SlabDirection.READ
        for chunk in chunks:
            at, size = chunk.slab_offset, chunk.get_size()
            self.context.transfer_async(chunk, self.buffer[at : at + size], direction)

    def close(self) -> None:
        self.module.deregister_gds_gpu_buffer(self.buffer)
        self.module.close_l1_gds_context(OWNER)


def check_slab(folder: pathlib.Path, direct_io: bool) -> str:
    """Chunks that lie across the borders of the registered regions (16 MiB), all queued on one stream before one wait."""
    import torch

    size = 80 * MIB
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        buffer = torch.randint(0, 256, (size,), dtype=torch.uint8, device="cuda")
        stored = buffer.clone()
        slab = Slab(folder, size, buffer, direct_io)
        chunks = slab.allocate(24 * MIB, 1) + slab.allocate(5 * MIB, 4) + slab.allocate(65_536, 300) + slab.allocate(4096, 500)
        slab.queue(chunks, is_write=True)
        used = sum(chunk.get_size() for chunk in chunks)
        stream.synchronize()
        on_disk = (folder / "lmcache_gds_slab.bin").read_bytes()
        check(on_disk[:used] == bytes(stored[:used].cpu().numpy()), "GDS L1: the slab file differs")
        buffer.zero_()
        slab.queue(chunks[::-1], is_write=False)
        stream.synchronize()
        check(torch.equal(buffer[:used], stored[:used]), "GDS L1: memory differs")
        check(not buffer[used:].any(), "GDS L1: memory behind the chunks was written to")
        slab.close()
    return f"{len(chunks)} chunks"


def check_two_buffers(folder: pathlib.Path) -> None:
    """Of two buffers on one stream, the first to go takes the stream's registration with it; transfers of the other go on."""
    import torch

    buffer = torch.randint(0, 256, (8 * MIB,), dtype=torch.uint8, device="cuda")
    other = torch.zeros(4 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        slab = Slab(folder, buffer.numel(), buffer, False)
        slab.module.register_gds_gpu_buffer(other)
        chunks = slab.allocate(MIB, 8)
        slab.queue(chunks, is_write=True)
        slab.module.deregister_gds_gpu_buffer(other)
        stored = buffer.clone()
        buffer.zero_()
        slab.queue(chunks, is_write=False)
        stream.synchronize()
        check(torch.equal(buffer, stored), "GDS L1: memory differs after a neighbour was deregistered")
        slab.close()


def check_submissions(folder: pathlib.Path) -> None:
    """The handle below the slab: the counts of its calls, a stream that is registered twice, and one that is registered again afterwards."""
    import torch
    from lmcache.v1.gpu_connector._gds_backends import create_backend

    backend = create_backend("auto")
    equal(backend.name, "cufile", "LMCache's choice on this machine")
    buffer = torch.ones(4 * MIB, dtype=torch.uint8, device="cuda")
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with backend.open_slab(str(folder), 4 * MIB, False) as handle:
        backend.register_buffer(buffer)
        backend.register_stream(stream.cuda_stream)
        refused(lambda: backend.register_stream(stream.cuda_stream), 5022, "a stream that is registered")
        calls = [handle.write_async(buffer.data_ptr(), MIB, at, at, stream.cuda_stream) for at in range(0, 4 * MIB, MIB)]
        calls += [handle.read_async(buffer.data_ptr(), MIB, at, at, stream.cuda_stream) for at in range(0, 4 * MIB, MIB)]
        stream.synchronize()
        equal([call.bytes_done for call in calls], [MIB] * 8, "GDS L1: bytes_done")
        refused(lambda: handle.read_async(buffer.data_ptr(), MIB, 0, 4 * MIB - 1, stream.cuda_stream), 5017, "past the registered memory")
        backend.deregister_stream(stream.cuda_stream)
        backend.register_stream(stream.cuda_stream)
        backend.deregister_stream(stream.cuda_stream)
        backend.deregister_buffer(buffer)
    backend.close_driver()


def check_slab_without_gpu(folder: pathlib.Path) -> None:
    """All calls of LMCache's cuFile back end, up to those that need a GPU."""
    import torch
    from cufile import bindings
    from lmcache.v1.gpu_connector.gds_backends.cufile import Backend

    backend = Backend()
    for direct_io in (True, False):
        with backend.open_slab(str(folder), 4 * MIB, direct_io) as handle:
            memory = torch.zeros(MIB, dtype=torch.uint8)
            bindings.cuFileBufRegister(ctypes.c_void_p(memory.data_ptr()), MIB, 0)
            backend.register_stream(0)
            refused(lambda: backend.register_stream(0), 5022, "a stream that is registered")
            refused(lambda: handle.write_async(memory.data_ptr(), MIB, 0, 0, 0), 5013, "a write from host memory on a stream")
            refused(lambda: handle.read_async(memory.data_ptr(), MIB, 0, 0, 0), 5013, "a read to host memory on a stream")
            refused(lambda: handle.read_async(memory.data_ptr(), MIB, 0, 1, 0), 5017, "past the registered memory")
            backend.deregister_stream(0)
            bindings.cuFileBufDeregister(ctypes.c_void_p(memory.data_ptr()))
    backend.close_driver()


def run_checks(scratch: pathlib.Path, library: str) -> None:
    check_library(library)
    check_documented_settings(scratch)
    ok("the settings of docs/guides/engines.md")
    for direct_io in (False, True):
        what = "O_DIRECT" if direct_io else "page cache"
        folder = pathlib.Path(tempfile.mkdtemp(dir=scratch))
        ok(f"GdsBackend, {what}: {check_gds_backend(folder, direct_io)}, {'memory of a GPU' if GPU_MISSING is None else 'host memory'}")
        if GPU_MISSING is None:
            ok(f"GDS L1, {what}: {check_slab(pathlib.Path(tempfile.mkdtemp(dir=scratch)), direct_io)}")
    if GPU_MISSING is None:
        check_two_buffers(pathlib.Path(tempfile.mkdtemp(dir=scratch)))
        check_submissions(scratch)
        ok("GDS L1: two buffers on one stream, counts of its calls, streams registered twice and again")
    else:
        check_slab_without_gpu(scratch)
        ok(f"GDS L1 up to the stream, whose calls are refused without a GPU: {GPU_MISSING}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--unpacked", type=pathlib.Path, required=True)
    parser.add_argument("--bench", action="store_true")
    parser.add_argument("--slab-mib", type=int, default=2048)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("folder", nargs="?", default=tempfile.gettempdir())
    parser.add_argument("library", nargs="?")
    told = parser.parse_args()
    if told.bench:
        import lmcache_bench

        lmcache_bench.start_over_penstock()
    if importlib.util.find_spec("torch") is None:
        skip("torch is not installed")
    use_lmcache(told.unpacked.resolve())
    with tempfile.TemporaryDirectory(dir=told.folder) as scratch:
        if told.bench:
            lmcache_bench.run(pathlib.Path(scratch), told.slab_mib * MIB, told.repeats)
        else:
            run_checks(pathlib.Path(scratch), told.library)


if __name__ == "__main__":
    main()
