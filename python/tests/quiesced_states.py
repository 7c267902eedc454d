"""Uses Penstock in one way, quiesces, checks what is left of it, and uses it again. Run by test_quiesce.py.

Usage: python quiesced_states.py STATE FOLDER ROUNDS [URL]
       python quiesced_states.py --freeze STATE FOLDER ROUNDS   for CRIU: quiesces and stops; when it goes on, it uses Penstock again
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import penstock
from penstock import _native, pipe
from penstock._core.pieces import Piece
from penstock._core.saving import save_in_background
from penstock.kv import Store

Use = Callable[[], Any]
NBYTES = 24 << 20


def left_over() -> list[str]:
    """What CRIU or cuda-checkpoint could not freeze."""
    for _ in range(1000):  # a thread that was joined may still be listed for a moment
        names = threads()
        if len(names) == threading.active_count():
            break
        time.sleep(0.001)
    found = [] if len(names) == threading.active_count() else [f"threads {names}"]
    links = [os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{each}")]
    links += [os.readlink(f"/proc/self/fd/{each}") for each in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{each}")]
    found += sorted({link for link in links if link.startswith(("anon_inode:[io_uring]", "socket:"))})
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(("VmPin:", "VmLck:")) and line.split()[1] != "0":
            found.append(line)
    found += [line for line in Path("/proc/self/maps").read_text().splitlines() if "SYSV" in line or "io_uring" in line or "/dev/" in line]
    locked = [line for line in Path("/proc/self/smaps").read_text().splitlines() if line.startswith("Locked:") and line.split()[1] != "0"]
    found += [f"{len(locked)} locked mappings"] if locked else []
    if penstock.stats()["pinned_bytes"]:
        found.append(f"{penstock.stats()['pinned_bytes']} pinned bytes")
    return found


def has_ring() -> bool:
    return any(os.readlink(f"/proc/self/fd/{each}") == "anon_inode:[io_uring]" for each in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{each}"))


def why_no_ring() -> bool:
    return "io_uring" in penstock.summary()


def threads() -> list[str]:
    names = []
    for each in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            names.append(Path(f"/proc/self/task/{each}/comm").read_text().strip())
    return names


def file_only(folder: Path, _: str) -> Use:
    file, target = penstock.open(folder / "data"), bytearray(NBYTES)
    return lambda: (file.read_into(target), bytes(target))[1]


def device(folder: Path, **how: Any) -> Use:
    file, target = penstock.open(folder / "data", **how), penstock.device("host:0").empty(NBYTES)
    return lambda: (file.read_into(target), target.to_host())[1]


def rings(folder: Path, _: str) -> Use:
    read = device(folder, cache="bypass")

    def use() -> Any:
        with penstock.open(folder / "data") as file:
            os.fsync(file.fileno())  # dirty pages stay
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        return read()

    return use


def pinned(folder: Path, _: str) -> Use:
    file, target = penstock.open(folder / "data"), penstock.device("host:0").empty(NBYTES)
    pin = file.pin()

    def use() -> bytes:
        file.read_into(target, prefer="cpu")
        assert pin.size == NBYTES
        return target.to_host()

    return use


def stream(folder: Path, _: str) -> Use:
    file, target = penstock.open(folder / "data"), penstock.device("host:0").empty(NBYTES)
    return lambda: (file.read_on_stream(target, None).wait(), target.to_host())[1]


def futures(folder: Path, _: str) -> Use:
    file = penstock.open(folder / "data")

    def use() -> bytes:
        parts = [bytearray(NBYTES // 8) for _ in range(8)]
        called: list[Any] = []
        started = [file.pread(part, i * len(part)) for i, part in enumerate(parts)]
        for future in started:
            future.add_done_callback(called.append)
        assert [future.result() for future in started] == [len(part) for part in parts]
        return b"".join(parts)

    return use


def read_ahead(folder: Path, _: str) -> Use:
    file, target = penstock.open(folder / "data", immutable=True), penstock.device("host:0").empty(NBYTES)
    views = [penstock.Pointer(target.ptr + at, 1 << 20) for at in range(0, NBYTES, 1 << 20)]

    def use() -> bytes:
        for i, view in enumerate(views):
            file.read_into(view, i << 20)
        return target.to_host()

    return use


def written(folder: Path, _: str) -> Use:
    data = (folder / "data").read_bytes()
    source = penstock.device("host:0").empty(NBYTES)
    penstock.copy(source, data)
    file = penstock.open(folder / "copy", "w")
    return lambda: (file.write_from(source), (folder / "copy").read_bytes())[1]


def store(folder: Path, _: str) -> Use:
    data = (folder / "data").read_bytes()
    held = Store(folder / "store", capacity_bytes=2 * NBYTES)
    half = NBYTES // 2
    held.put({"first": data[:half]})

    def use() -> bytes:
        target = bytearray(NBYTES)
        view = memoryview(target)
        held.put_async({"second": data[half:]}).result()
        assert held.get_async([("first", view[:half]), ("second", view[half:])]).result() == [True, True]
        return bytes(target)

    return use


def closed_pipe(folder: Path, _: str) -> Use:
    data = (folder / "data").read_bytes()

    def use() -> bytes:
        target = bytearray(NBYTES)
        with pipe.listen("unix:") as listener, pipe.connect(listener.url) as near, listener.accept().result() as far:
            sent = near.send(tensors=[data])
            far.receive([target]).result()
            sent.result()
        return bytes(target)

    return use


def saved(folder: Path, _: str) -> Use:
    data = (folder / "data").read_bytes()

    class Whole:
        def pieces(self) -> list[Piece]:
            return [Piece("all", 0, len(data), _native.resolve(data, False)[0], data)]

        def rest(self) -> list[Piece]:
            return []

    return lambda: (save_in_background(str(folder / "saved"), Whole()).result(), (folder / "saved").read_bytes())[1]


def tree(folder: Path, _: str) -> Use:
    data = (folder / "data").read_bytes()
    (folder / "tree").mkdir(exist_ok=True)
    part = NBYTES // 64
    for i in range(64):
        (folder / "tree" / f"{i:02}").write_bytes(data[i * part : (i + 1) * part])
    return lambda: b"".join(bytes(content) for _, content in sorted(penstock.read_tree(folder / "tree").items()))


def remote(folder: Path, url: str, **how: Any) -> Use:
    file, target = penstock.open(url, **how), bytearray(NBYTES)
    return lambda: (file.read_into(target), bytes(target))[1]


STATES: dict[str, Callable[[Path, str], Use]] = {
    "file": file_only,
    "cached": lambda folder, _: device(folder),
    "rings": rings,
    "pinned": pinned,
    "stream": stream,
    "futures": futures,
    "read ahead": read_ahead,
    "written": written,
    "closed pipe": closed_pipe,
    "saved": saved,
    "tree": tree,
    "store": store,
    "remote": remote,
    "node cache": lambda folder, url: remote(folder, url, storage_options={"cache_dir": str(folder / "node")}),
}


def child_refuses(use: Use) -> bool:
    """A forked child must still see that its files belong to its parent."""
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        try:
            use()
        except penstock.Error:
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def calls_on_threads(folder: Path, rounds: int) -> None:
    data = (folder / "data").read_bytes()[:5000]
    stop = threading.Event()
    problems: list[BaseException] = []

    def repeat(call: Use) -> None:
        try:
            while not stop.is_set():
                assert call() == data
        except BaseException as problem:
            problems.append(problem)

    with penstock.open(folder / "data") as file:
        target, later = bytearray(5000), bytearray(5000)
        calls: list[Use] = [lambda: (file.read_into(target), bytes(target))[1], lambda: (file.pread(later).result(), bytes(later))[1]]
        started = [threading.Thread(target=repeat, args=(call,)) for call in calls]
        for thread in started:
            thread.start()
        for _ in range(rounds):
            penstock.quiesce()
        stop.set()
        for thread in started:
            thread.join()
    assert problems == []


def main() -> None:
    if sys.argv[1] == "--threads":
        calls_on_threads(Path(sys.argv[2]), int(sys.argv[3]))
        print("done", flush=True)
        return
    freezes = sys.argv[1] == "--freeze"
    state, folder, rounds, *url = sys.argv[2 if freezes else 1 :]
    data = (Path(folder) / "data").read_bytes()
    use = STATES[state](Path(folder), *url or [""])
    assert use() == data
    for _ in range(int(rounds)):
        assert state in ("file", "tree") or any(name.startswith("penstock") for name in threads())
        assert state != "rings" or has_ring() or why_no_ring()
        penstock.quiesce()
        if left := left_over():
            raise AssertionError(left)
        if freezes:
            print("quiesced", flush=True)
            os.kill(os.getpid(), signal.SIGSTOP)
            assert child_refuses(use)
        assert use() == data
    print("done", flush=True)


if __name__ == "__main__":
    main()
