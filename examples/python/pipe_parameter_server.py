"""A parameter server: one process keeps the parameters of a model, others send it gradients and get the parameters back.

    python pipe_parameter_server.py [WORKERS] [STEPS] [PARAMETERS] [DEVICE]

Each worker has a pipe of its own. With DEVICE (cuda:0, ...) parameters and gradients are CuPy arrays there, and no byte passes the host
where pipe.explain() says cuda_ipc. Where PyTorch is installed, torch.distributed.rpc (over TensorPipe) does the same in the same run.
"""

import importlib.util
import itertools
import multiprocessing
import os
import sys
import tempfile
import threading
import time

import numpy as np

import penstock.pipe


WARM = 1  # steps of each worker that are not counted


def arrays_of(device):
    """NumPy, or CuPy on this device."""
    if device == "host":
        return np
    import cupy

    cupy.cuda.Device(int(device.partition(":")[2])).use()
    return cupy


def worker(url, number, steps, count, device):
    xp = arrays_of(device)
    parameters = xp.empty(count, dtype="f4")
    with penstock.pipe.connect(url) as pipe:
        for step in range(WARM + steps):
            gradients = xp.full(count, number + step, dtype="f4")
            receiving = pipe.receive(into=[parameters])  # posted before the gradients leave
            pipe.send(b"gradients", tensors=[gradients]).result()
            receiving.result()


class Server:
    def __init__(self, count, device, workers):
        self.warm = threading.Barrier(workers + 1, timeout=60)  # every worker has had its first step, in which libraries load and kernels are compiled
        self.xp = arrays_of(device)
        self.device = device
        self.parameters = self.xp.zeros(count, dtype="f4")
        self.lock = threading.Lock()

    def serve(self, pipe):
        arrays_of(self.device)  # the current device is each thread's own
        gradients = self.xp.empty_like(self.parameters)
        for step in itertools.count():
            if step == WARM:
                self.warm.wait()
            try:
                pipe.receive(into=[gradients]).result()
            except penstock.Closed:
                return
            with self.lock:
                self.parameters -= gradients
                answer = self.parameters.copy()
            pipe.send(b"parameters", tensors=[answer]).result()


# --- the same by torch.distributed.rpc

kept = None  # the parameters of the process that serves
lock = threading.Lock()


def update(gradients):
    with lock:
        kept.sub_(gradients)
        return kept.clone()


def rpc_end(store, rank, workers, steps, count, device, told):
    import torch
    import torch.distributed.rpc as rpc

    global kept
    device = torch.device("cpu" if device == "host" else device)
    os.environ.update(GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{store}")
    if rank > 0 and device.type == "cuda":
        options.set_device_map("end0", {device: device})
    if rank == 0:
        kept = torch.zeros(count, dtype=torch.float32, device=device)
    rpc.init_rpc(f"end{rank}", rank=rank, world_size=workers + 1, rpc_backend_options=options)
    for step in range(WARM + steps if rank > 0 else 0):
        if step == WARM:
            began = time.perf_counter()
        parameters = rpc.rpc_sync("end0", update, args=(torch.full((count,), float(rank - 1 + step), device=device),))
    if rank > 0:
        assert parameters.shape == (count,)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        told.put((began, time.perf_counter()))
    rpc.shutdown()
    if rank == 0:
        assert bool((kept == expected_of(workers, steps)).all())


def by_rpc(workers, steps, count, device):
    """Seconds, from when the first worker begins until the last has its parameters."""
    spawn = multiprocessing.get_context("spawn")
    told = spawn.Queue()
    with tempfile.TemporaryDirectory() as folder:
        words = (workers, steps, count, device, told)
        processes = [spawn.Process(target=rpc_end, args=(os.path.join(folder, "store"), rank, *words)) for rank in range(workers + 1)]
        for process in processes:
            process.start()
        times = [told.get(timeout=120) for _ in range(workers)]
        for process in processes:
            process.join()
            assert process.exitcode == 0
    return max(end for _, end in times) - min(began for began, _ in times)


def expected_of(workers, steps):
    return -sum(number + step for number in range(workers) for step in range(WARM + steps))


def main():
    workers = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 10
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 1_000_000
    device = sys.argv[4] if len(sys.argv) > 4 else "host"
    server = Server(count, device, workers)
    spawn = multiprocessing.get_context("spawn")
    with penstock.pipe.listen() as listener:
        processes = [spawn.Process(target=worker, args=(listener.url, i, steps, count, device)) for i in range(workers)]
        for process in processes:
            process.start()
        pipes = [listener.accept(timeout=60).result() for _ in processes]
    threads = [threading.Thread(target=server.serve, args=(pipe,)) for pipe in pipes]
    for thread in threads:
        thread.start()
    server.warm.wait()
    began = time.perf_counter()
    for thread in threads:
        thread.join()
    took = time.perf_counter() - began
    for process in processes:
        process.join()
    for route in pipes[0].explain().received:
        chosen = [choice.name for choice in route.channels if choice.chosen]
        print(f"{route.source} to {route.target}: {chosen[0]}")
    assert bool((server.parameters == expected_of(workers, steps)).all())
    moved = 2 * workers * steps * count * 4
    print(f"{workers} workers, {steps} steps of {count * 4 / 1e6:.1f} MB each way, parameters as expected")
    print(f"penstock.pipe         {took * 1e3:>8.1f} ms  {moved / took / 1e9:>7.2f} GB/s")
    if importlib.util.find_spec("torch") is None:
        print("torch.distributed.rpc: PyTorch is not installed")
        return
    took = by_rpc(workers, steps, count, device)
    print(f"torch.distributed.rpc {took * 1e3:>8.1f} ms  {moved / took / 1e9:>7.2f} GB/s")


if __name__ == "__main__":
    main()
