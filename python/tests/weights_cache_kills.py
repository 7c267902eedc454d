"""Kills processes at random moments while they use a weights cache, and checks after each that the cache never gives a wrong byte.

Usage: weights_cache_kills.py FOLDER NUMBER_OF_KILLS
"""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from penstock.weights_cache import WeightsCache

KEYS = 4
CAPACITY_BYTES = 2_500_000  # of two to three entries, so that writers remove entries all the time


def value_of(number: int, source: bytes) -> dict[str, Any]:
    numbers = torch.Generator().manual_seed(number)
    large = torch.randint(0, 256, (700_000,), dtype=torch.uint8, generator=numbers)
    return {"large": large, "view": large[1000:2000].view(10, 100).t(), "small": torch.tensor([number, source[0]])}


def is_right(found: dict[str, Any], number: int, source: bytes) -> bool:
    expected = value_of(number, source)
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def use(folder: Path, seed: int) -> None:
    """Uses the cache as a program does, with sources that change, and ends the process if an object is wrong."""
    choices = random.Random(seed)
    cache = WeightsCache(folder / "cache", capacity_bytes=CAPACITY_BYTES, free_bytes=0)
    while True:
        number = choices.randrange(KEYS)
        source = folder / f"source{number}"
        if choices.random() < 0.2:
            source.write_bytes(bytes([choices.randrange(4)]) * 5000)
        if len(content := source.read_bytes()) == 5000:  # else a writer was killed
            found = cache.get({"number": number}, lambda: value_of(number, content), sources=[source])
            if not is_right(found, number, content) and source.read_bytes() == content:
                os._exit(3)


def check(folder: Path) -> None:
    """Ends the process with 0 if all entries are right and complete, and if nothing else lies in the folder after the next store."""
    cache = WeightsCache(folder / "cache", capacity_bytes=CAPACITY_BYTES, free_bytes=0)
    for number in range(KEYS):
        (folder / f"source{number}").write_bytes(content := bytes([number]) * 5000)
        key = cache.key({"number": number}, [folder / f"source{number}"])
        if (found := cache.load(key)) is not None and not is_right(found, number, content):
            os._exit(4)
    if not cache.save(key, value_of(number, content)) or cache.load(key) is None:
        os._exit(5)
    names = [each.name for each in (folder / "cache").iterdir()]
    entries = [each for each in names if each.endswith(".safetensors")]
    if len(entries) * 700_000 > CAPACITY_BYTES or set(names) - set(entries) - {"lock", "sources"}:
        print(names)
        os._exit(6)
    os._exit(0)


def started(run: Callable[..., None], *arguments: Any) -> int:
    """Runs a function in a forked process, which has PyTorch already. Returns its id."""
    process = os.fork()
    if process == 0:
        try:
            run(*arguments)
        finally:
            os._exit(7)
    return process


def main(folder: Path, kills: int) -> int:
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    seed = int(time.time()) if len(sys.argv) < 4 else int(sys.argv[3])
    choices = random.Random(seed)
    for number in range(KEYS):
        (folder / f"source{number}").write_bytes(b"\0" * 5000)
    for count in range(kills):
        processes = [started(use, folder, choices.randrange(1 << 30)) for _ in range(2)]
        time.sleep(choices.uniform(0.01, 0.06))
        for each in processes:
            os.kill(each, signal.SIGKILL)
        ends = [os.waitpid(each, 0)[1] for each in processes] + [os.waitpid(started(check, folder), 0)[1]]
        if ends != [signal.SIGKILL, signal.SIGKILL, 0]:
            print(f"seed {seed}, after {count} rounds of kills: the processes ended with {ends}")
            return 1
    print(f"{2 * kills} processes killed")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2])))
