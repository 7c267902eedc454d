"""Two processes that send each other an array: how long a message takes, and at what rate.

    python pipe_ping_pong.py [BYTES] [MESSAGES] [CHANNEL]
"""

import multiprocessing
import sys
import time

import numpy as np

import penstock.pipe


def echo(url, channels, nbytes, messages):
    room = np.empty(nbytes, dtype="u1")
    with penstock.pipe.connect(url, channels) as pipe:
        for _ in range(messages):
            pipe.receive(into=[room]).result()
            pipe.send(tensors=[room]).result()


def main():
    nbytes = int(sys.argv[1]) if len(sys.argv) > 1 else 64 << 20
    messages = int(sys.argv[2]) if len(sys.argv) > 2 else 20
    channels = sys.argv[3:4]
    listener = penstock.pipe.listen("unix:", channels)
    accepted = listener.accept(timeout=60)
    other = multiprocessing.get_context("spawn").Process(target=echo, args=(listener.url, channels, nbytes, messages))
    other.start()
    pipe = accepted.result()
    for choice in pipe.explain().sending:
        print(f"{choice.name}: {'chosen' if choice.chosen else choice.refusal or 'usable'}")
    array = np.arange(nbytes, dtype="u1")
    back = np.empty_like(array)
    times = []
    for _ in range(messages):
        began = time.perf_counter()
        receiving = pipe.receive(into=[back])
        pipe.send(tensors=[array]).result()
        receiving.result()
        times.append((time.perf_counter() - began) / 2)
    other.join()
    assert (back == array).all()
    middle = sorted(times)[messages // 2]
    print(f"{nbytes} bytes: {middle * 1e6:.0f} us one way, {nbytes / middle / 1e9:.2f} GB/s")


if __name__ == "__main__":
    main()
