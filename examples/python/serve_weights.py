"""A trainer that hands its weights to engines which sample from them: each step is a version, which the engines fetch while training goes on.

    python serve_weights.py [ENGINES] [STEPS] [DEVICE]

Without a device the weights are NumPy arrays; with cuda:0 they are PyTorch's tensors on that GPU, and its own copies bring them to the engines.
"""

import multiprocessing
import sys
import time

import numpy as np

import penstock

LAYERS, ROWS, COLUMNS = 24, 1000, 2000


def make(device, value):
    """A model's weights: large matrices, and small vectors between them."""
    if device == "host":

        def full(*shape):
            return np.full(shape, value, "f4")

    else:
        import torch

        def full(*shape):
            return torch.full(shape, float(value), device=device)

    return {f"layers.{i}.{name}": full(*shape) for i in range(LAYERS) for name, shape in (("weight", (ROWS, COLUMNS)), ("norm", (COLUMNS,)))}


def engine(url, steps, device, told):
    from penstock.weights import WeightsReceiver

    weights = make(device, -1)
    version = -1
    with WeightsReceiver(url, weights) as receiver:  # its connection stays; penstock.load_weights(url, weights) makes one for each call
        while version < steps:
            began = time.perf_counter()
            version = receiver.load(at_least=version + 1, timeout=60).version  # waits for a newer one
            took = time.perf_counter() - began
            assert all(bool((each == version).all()) for each in weights.values()), "weights of several versions"
        told.put(took)


def main():
    engines = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 3
    device = sys.argv[3] if len(sys.argv) > 3 else "host"
    weights = make(device, 0)
    spawn = multiprocessing.get_context("spawn")
    told = spawn.Queue()
    with penstock.serve_weights(weights) as server:
        processes = [spawn.Process(target=engine, args=(server.url, steps, device, told)) for _ in range(engines)]
        for each in processes:
            each.start()
        for _ in range(steps):
            for each in weights.values():
                each += 1  # a step of training
            server.update()  # from now on engines get these
        took = [told.get(timeout=120) for _ in processes]
        for each in processes:
            each.join()
            assert each.exitcode == 0
    mib = sum(each.nbytes for each in weights.values()) >> 20
    waited = f"the last load took {max(took) * 1e3:.0f} ms, with what it waited for"
    print(f"{engines} engines have version {server.version}, {mib} MiB, weights as expected; {waited}")


if __name__ == "__main__":
    main()
