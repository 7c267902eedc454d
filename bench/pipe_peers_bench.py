"""PyTorch tensors from GPU to GPU of another process: penstock.pipe, NCCL and torch.distributed.rpc (TensorPipe), one after the other.

    python pipe_peers_bench.py [penstock] [nccl] [rpc]      # those alone

Two GPUs and a PyTorch with NCCL and RPC. A tensor goes there and back, one at a time; half of the median trip is told, by the clock of the
process that begins, until the bytes are there. Penstock's tensors are named before they come; NCCL's are, too.
"""

import functools
import multiprocessing
import os
import statistics
import sys
import time

SIZES = ((4096, 500), (1 << 20, 500), (16 << 20, 100), (1 << 30, 10))  # bytes, trips
WARM_UP = 5


def report(name, size, trips):
    seconds = statistics.median(trips[WARM_UP:]) / 2
    print(f"{name:<10} {size:>11} B  {seconds * 1e6:>9.1f} us  {size / seconds / 1e9:>7.2f} GB/s", flush=True)


def timed(trip, count):
    trips = []
    for _ in range(count + WARM_UP):
        began = time.perf_counter()
        trip()
        trips.append(time.perf_counter() - began)
    return trips


def penstock_end(rank, urls):
    import torch

    import penstock.pipe

    torch.cuda.set_device(rank)
    if rank == 0:
        with penstock.pipe.listen() as listener:
            urls.put(listener.url)
            pipe = listener.accept(timeout=60).result()
    else:
        pipe = penstock.pipe.connect(urls.get(timeout=60))

    def trip(tensor, back):
        receiving = pipe.receive(into=[back])
        if rank == 0:
            sending = pipe.send(tensors=[tensor])
            receiving.result()
        else:
            receiving.result()
            sending = pipe.send(tensors=[back])
        sending.result()

    for size, count in SIZES:
        tensor = torch.ones(size, dtype=torch.uint8, device="cuda")
        back = torch.zeros_like(tensor)
        trips = timed(functools.partial(trip, tensor, back), count)
        if rank == 0:
            assert torch.equal(tensor, back)
            report("penstock", size, trips)
    pipe.close()


def nccl_end(rank, _urls):
    import torch
    import torch.distributed

    os.environ["MASTER_PORT"] = "29511"
    torch.cuda.set_device(rank)
    torch.distributed.init_process_group("nccl", rank=rank, world_size=2, device_id=torch.device("cuda", rank))

    def trip(tensor):
        ways = (torch.distributed.send, torch.distributed.recv) if rank == 0 else (torch.distributed.recv, torch.distributed.send)
        for way in ways:
            way(tensor, 1 - rank)
        torch.cuda.synchronize()

    for size, count in SIZES:
        trips = timed(functools.partial(trip, torch.ones(size, dtype=torch.uint8, device="cuda")), count)
        if rank == 0:
            report("nccl", size, trips)
    torch.distributed.destroy_process_group()


def same(tensor):
    return tensor


def rpc_end(rank, _urls):
    import torch
    import torch.distributed.rpc as rpc

    os.environ["MASTER_PORT"] = "29512"
    torch.cuda.set_device(rank)
    options = rpc.TensorPipeRpcBackendOptions()
    options.set_device_map(f"end{1 - rank}", {rank: 1 - rank})
    rpc.init_rpc(f"end{rank}", rank=rank, world_size=2, rpc_backend_options=options)

    def trip(tensor):
        rpc.rpc_sync("end1", same, args=(tensor,))
        torch.cuda.synchronize()

    for size, count in SIZES if rank == 0 else ():
        report("torch rpc", size, timed(functools.partial(trip, torch.ones(size, dtype=torch.uint8, device="cuda")), min(count, 100)))
    rpc.shutdown()


def main():
    loopback = {name: "lo" for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}
    os.environ.update(MASTER_ADDR="127.0.0.1", **loopback)
    spawn = multiprocessing.get_context("spawn")
    ends = {"penstock": penstock_end, "nccl": nccl_end, "rpc": rpc_end}
    for end in [ends[each] for each in sys.argv[1:]] or ends.values():
        urls = spawn.Queue()
        processes = [spawn.Process(target=end, args=(rank, urls)) for rank in (0, 1)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
            assert process.exitcode == 0, end.__name__


if __name__ == "__main__":
    main()
