"""One buffer to several processes and GPUs: a chain, in which each hands on what it has while more comes.

    python pipe_fan_out.py [RECEIVERS] [MIB] [DEVICE,DEVICE,...]

With devices (cuda:0,cuda:1,...) the buffer begins on the first, and the receivers take the others in turn. However many there are, it leaves
its source once: the last receiver has it one piece later than the one before.
"""

import multiprocessing
import sys
import time

import numpy as np

import penstock.pipe

PIECE = 64 << 20


def arrays_of(device):
    """NumPy, or CuPy on this device."""
    if device == "host":
        return np
    import cupy

    cupy.cuda.Device(int(device.partition(":")[2])).use()
    return cupy


def pieces_of(buffer):
    return [buffer[at : at + PIECE] for at in range(0, buffer.size, PIECE)]


def pattern(xp, size):
    return (xp.arange(min(size, PIECE), dtype="u4") % 251).astype("u1")


def receiver(url, is_last, size, device, told):
    xp = arrays_of(device)
    buffer = xp.zeros(size, dtype="u1")
    with penstock.pipe.connect(url) as before, penstock.pipe.listen() as listener:
        told.put(listener.url)
        behind = None if is_last else listener.accept(timeout=60).result()
        receiving = [before.receive(into=[piece]) for piece in pieces_of(buffer)]  # posted before anything comes
        told.put("ready")
        sent = []
        for piece, come in zip(pieces_of(buffer), receiving, strict=True):
            come.result()
            if behind is not None:
                sent.append(behind.send(tensors=[piece]))
        for each in sent:
            each.result()
        told.put("has all")
        expected = pattern(xp, size)
        assert all(bool((piece == expected[: piece.size]).all()) for piece in pieces_of(buffer))
        told.put([f"{route.source} to {route.target} by {choice.name}" for route in before.explain().received for choice in route.channels if choice.chosen])
        if behind is not None:
            behind.close()


def main():
    receivers = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    size = (int(sys.argv[2]) if len(sys.argv) > 2 else 256) << 20
    devices = sys.argv[3].split(",") if len(sys.argv) > 3 else ["host"]
    xp = arrays_of(devices[0])
    one = pattern(xp, size)
    buffer = xp.concatenate([one[: piece.size] for piece in pieces_of(np.empty(size, "u1"))])
    spawn = multiprocessing.get_context("spawn")
    told = [spawn.Queue() for _ in range(receivers)]
    with penstock.pipe.listen() as listener:
        url = listener.url
        processes = []
        for i in range(receivers):
            device = devices[(i + 1) % len(devices)]
            processes.append(spawn.Process(target=receiver, args=(url, i + 1 == receivers, size, device, told[i])))
            processes[-1].start()
            url = told[i].get(timeout=60)
        first = listener.accept(timeout=60).result()
    assert all(each.get(timeout=60) == "ready" for each in told)
    began = time.perf_counter()
    sent = [first.send(tensors=[piece]) for piece in pieces_of(buffer)]
    for each in sent:
        each.result()
    assert all(each.get(timeout=60) == "has all" for each in told)
    took = time.perf_counter() - began
    for i, each in enumerate(told):
        print(f"receiver {i + 1}: {', '.join(each.get(timeout=60))}")
    first.close()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    print(f"{receivers} receivers, {size >> 20} MiB each: {took * 1e3:.1f} ms, {receivers * size / took / 1e9:.2f} GB/s, bytes as expected")


if __name__ == "__main__":
    main()
