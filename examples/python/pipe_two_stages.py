"""A pipeline of two stages: two processes with half a model each, between which microbatches flow, several of them at once.

    python pipe_two_stages.py [MICROBATCHES] [ROWS] [WIDTH]

With PyTorch the stages are on the first two GPUs, or on the one there is, or on the host, and the same is done by torch.distributed.rpc (over
TensorPipe) in the same run; without it they are NumPy's. The first stage sends activations, the second sends results back.
"""

import collections
import multiprocessing
import os
import sys
import tempfile
import time

THREADS = max(1, os.cpu_count() // 2)  # two processes compute
os.environ.setdefault("OPENBLAS_NUM_THREADS", str(THREADS))

import numpy as np

import penstock.pipe

try:
    import torch
except ImportError:
    torch = None

LAYERS = 4  # of each stage
AT_ONCE = 4  # microbatches under way
ROUNDS = 3  # of which the first warms up


class Stage:
    """LAYERS times a product with a matrix, and its positive part."""

    def __init__(self, number, width):
        random = np.random.default_rng(number)
        self.weights = [(random.standard_normal((width, width)) / width**0.5).astype("f4") for _ in range(LAYERS)]
        self.device = None
        if torch is not None:
            gpus = torch.cuda.device_count()
            self.device = torch.device("cuda", number % gpus) if gpus else torch.device("cpu")
            self.weights = [self.of(each) for each in self.weights]
            torch.set_num_threads(THREADS)

    def of(self, array):
        return array if torch is None else torch.from_numpy(array).to(self.device)

    def room(self, rows):
        return self.of(np.empty((rows, len(self.weights[0])), "f4"))

    def run(self, batch):
        for each in self.weights:
            batch = np.maximum(batch @ each, 0) if torch is None else torch.relu(batch @ each)
        return batch

    def synchronize(self):
        if self.device is not None and self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


# --- by penstock.pipe


class Posted:
    """Receives that are posted before anything comes, each into a buffer that is used again once the next is asked for."""

    def __init__(self, pipe, rooms, count):
        self.pipe, self.rooms, self.left = pipe, collections.deque(rooms), count
        self.receiving = collections.deque()
        for _ in rooms:
            self.post()

    def post(self):
        if self.left > 0:
            self.left -= 1
            self.receiving.append(self.pipe.receive(into=[self.rooms[0]]))  # after what the GPU still does with it
            self.rooms.rotate(-1)

    def next(self):
        return self.receiving.popleft().result().tensors[0]


def second_stage(url, microbatches, rows, width):
    stage = Stage(1, width)
    with penstock.pipe.connect(url) as pipe:
        come = Posted(pipe, [stage.room(rows) for _ in range(AT_ONCE)], ROUNDS * microbatches)
        sent = collections.deque()
        for _ in range(ROUNDS * microbatches):
            sent.append(pipe.send(tensors=[stage.run(come.next())]))  # after the GPU has computed it; nobody waits
            come.post()
            if len(sent) > AT_ONCE:
                sent.popleft().result()
        for each in sent:
            each.result()


def by_pipe(stage, batches, rows, width):
    with penstock.pipe.listen() as listener:
        other = multiprocessing.get_context("spawn").Process(target=second_stage, args=(listener.url, len(batches), rows, width))
        other.start()
        pipe = listener.accept(timeout=120).result()
    with pipe:
        come = Posted(pipe, [stage.room(rows) for _ in range(AT_ONCE)], ROUNDS * len(batches))

        def one_round():
            results, sent = [], []
            for i, batch in enumerate(batches):
                if i >= AT_ONCE:
                    results.append(come.next() + 0)  # a copy: its buffer is used again
                    come.post()
                sent.append(pipe.send(tensors=[stage.run(batch)]))
            while len(results) < len(batches):
                results.append(come.next() + 0)
                come.post()
            for each in sent:
                each.result()
            return results

        results, seconds = timed(stage, one_round)
        received = [(route, choice) for route in pipe.explain().received for choice in route.channels if choice.chosen]
        way = [f"{route.source} to {route.target} by {choice.name}" for route, choice in received]
    other.join()
    assert other.exitcode == 0
    return results, seconds, ", ".join(way) or "with the messages"


# --- by torch.distributed.rpc

here = None  # the stage of the process that serves


def run_here(batch):
    return here.run(batch)


def rpc_options(store, devices):
    import torch.distributed.rpc as rpc

    os.environ.update(GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{store}")
    if devices:
        options.set_device_map("stage1", devices)
    return options


def rpc_stage(store, width):
    import torch.distributed.rpc as rpc

    global here
    here = Stage(1, width)
    rpc.init_rpc("stage1", rank=1, world_size=2, rpc_backend_options=rpc_options(store, {}))
    rpc.shutdown()


def by_rpc(stage, batches, width):
    import torch.distributed.rpc as rpc

    gpus = torch.cuda.device_count()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        other = multiprocessing.get_context("spawn").Process(target=rpc_stage, args=(store, width))
        other.start()
        rpc.init_rpc("stage0", rank=0, world_size=2, rpc_backend_options=rpc_options(store, {0: 1 % gpus} if gpus else {}))

        def one_round():
            under_way, results = collections.deque(), []
            for batch in batches:
                if len(under_way) == AT_ONCE:
                    results.append(under_way.popleft().wait())
                under_way.append(rpc.rpc_async("stage1", run_here, args=(stage.run(batch),)))
            return results + [each.wait() for each in under_way]

        results, seconds = timed(stage, one_round)
        rpc.shutdown()
        other.join()
        assert other.exitcode == 0
    return results, seconds


# ---


def timed(stage, one_round):
    """What the last round gave, and the time of the quickest that was warm."""
    times = []
    for _ in range(ROUNDS):
        stage.synchronize()
        began = time.perf_counter()
        results = one_round()
        stage.synchronize()
        times.append(time.perf_counter() - began)
    return results, min(times[1:])


def main():
    microbatches = int(sys.argv[1]) if len(sys.argv) > 1 else 64
    rows = int(sys.argv[2]) if len(sys.argv) > 2 else 128
    width = int(sys.argv[3]) if len(sys.argv) > 3 else 1024
    stage, other = Stage(0, width), Stage(1, width)
    random = np.random.default_rng(7)
    batches = [stage.of(random.standard_normal((rows, width)).astype("f4")) for _ in range(microbatches)]
    # Both stages in this process. The same but for rounding: another GPU may add up in another order.
    there = other.device
    expected = [other.run(each if there is None else each.to(there)) for each in map(stage.run, batches)]

    def check(results):
        assert len(results) == microbatches
        for got, right in zip(results, expected, strict=True):
            right = np.asarray(right) if torch is None else right.cpu().numpy()
            assert np.allclose(np.asarray(got) if torch is None else got.cpu().numpy(), right, rtol=1e-2, atol=1e-4)

    def tell(name, seconds, more):
        print(f"{name:<22} {seconds * 1e3:>8.1f} ms  {microbatches / seconds:>9.0f} microbatches/s  {more}")

    print(f"{microbatches} microbatches of {rows} x {width}, {AT_ONCE} at once, stages on {stage.device or 'host'} and {there or 'host'}")
    results, seconds, way = by_pipe(stage, batches, rows, width)
    check(results)
    tell("penstock.pipe", seconds, way)
    if torch is None or not torch.distributed.is_available():
        print("torch.distributed.rpc: PyTorch is not installed")
    else:
        results, seconds = by_rpc(stage, batches, width)
        check(results)
        tell("torch.distributed.rpc", seconds, "by TensorPipe")
    print("results as expected")


if __name__ == "__main__":
    main()
