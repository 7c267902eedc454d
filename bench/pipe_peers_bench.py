"""Measures PyTorch tensors sent between the GPUs of two processes: penstock.pipe, NCCL, NIXL and torch.distributed.rpc (TensorPipe), in turn.

    python pipe_peers_bench.py [penstock] [unposted] [nccl] [nixl] [rpc]      # only these

Requires two GPUs and a PyTorch with NCCL and RPC; NIXL is optional. One tensor at a time is sent back and forth. The reported time is half of the
median round trip, by the starting process's clock, until the bytes have arrived. Penstock's receives are posted before the tensors arrive; in the
row unposted, once their message has arrived. NCCL's are posted before, and NIXL writes into memory that was registered, and described to the
other end, before.
"""

import functools
import importlib.util
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


def penstock_end(rank, urls, posted=True):
    import torch

    import penstock.pipe

    torch.cuda.set_device(rank)
    if rank == 0:
        with penstock.pipe.listen() as listener:
            urls.put(listener.url)
            pipe = listener.accept(timeout=60).result()
    else:
        pipe = penstock.pipe.connect(urls.get(timeout=60))

    def receive(into):
        return pipe.receive(into=[into]).result if posted else lambda: pipe.next().result().receive(into=[into]).result()

    def trip(tensor, back):
        received = receive(back)
        if rank == 0:
            sending = pipe.send(tensors=[tensor])
            received()
        else:
            received()
            sending = pipe.send(tensors=[back])
        sending.result()

    for size, count in SIZES:
        tensor = torch.ones(size, dtype=torch.uint8, device="cuda")
        back = torch.zeros_like(tensor)
        trips = timed(functools.partial(trip, tensor, back), count)
        if rank == 0:
            assert torch.equal(tensor, back)
            report("penstock" if posted else "unposted", size, trips)
    pipe.close()


def unposted_end(rank, urls):
    penstock_end(rank, urls, posted=False)


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


def nixl_end(rank, mails):
    """Each end writes into the other's memory and sends a notification when the bytes have arrived."""
    import torch
    from nixl._api import nixl_agent, nixl_agent_config

    torch.cuda.set_device(rank)
    agent = nixl_agent(f"end{rank}", nixl_agent_config(backends=["UCX"]))
    mine, its = mails[rank], mails[1 - rank]
    for size, count in SIZES:
        tensor = torch.ones(size, dtype=torch.uint8, device="cuda") if rank == 0 else torch.zeros(size, dtype=torch.uint8, device="cuda")
        back = torch.zeros_like(tensor)
        out, into = (tensor, back) if rank == 0 else (tensor, tensor)
        registered = [agent.register_memory([each]) for each in {id(out): out, id(into): into}.values()]
        its.put((agent.get_agent_metadata(), agent.get_serialized_descs(agent.get_xfer_descs([into]))))
        metadata, described = mine.get(timeout=60)
        other = agent.add_remote_agent(metadata)  # its name, as bytes
        writing = agent.initialize_xfer("WRITE", agent.get_xfer_descs([out]), agent.deserialize_descs(described), other, b"there")

        def send():
            state = agent.transfer(writing, b"there")
            while state != "DONE":
                state = agent.check_xfer_state(writing)
                assert state != "ERR"

        def receive():
            while not agent.check_remote_xfer_done(f"end{1 - rank}", b"there"):
                pass

        def trip():
            for step in (send, receive) if rank == 0 else (receive, send):
                step()

        trips = timed(trip, count)
        if rank == 0:
            assert torch.equal(tensor, back)
            report("nixl", size, trips)
        its.put("done")
        mine.get(timeout=60)
        agent.release_xfer_handle(writing)
        agent.remove_remote_agent(other)
        for each in registered:
            agent.deregister_memory(each)


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
    loopback = dict.fromkeys(("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), "lo")
    os.environ.update(MASTER_ADDR="127.0.0.1", **loopback)
    spawn = multiprocessing.get_context("spawn")
    ends = {"penstock": penstock_end, "unposted": unposted_end, "nccl": nccl_end, "nixl": nixl_end, "rpc": rpc_end}
    for name in sys.argv[1:] or ends:
        end = ends[name]
        if name == "nixl" and importlib.util.find_spec("nixl") is None:
            print("nixl       is not installed", flush=True)
            continue
        urls = (spawn.Queue(), spawn.Queue()) if name == "nixl" else spawn.Queue()
        processes = [spawn.Process(target=end, args=(rank, urls)) for rank in (0, 1)]
        for process in processes:
            process.start()
        for process in processes:
            process.join(120)
            assert process.exitcode == 0, end.__name__


if __name__ == "__main__":
    main()
