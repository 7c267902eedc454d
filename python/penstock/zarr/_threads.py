"""The threads of loads and stores."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

__all__ = ["Pool"]


class Pool(ThreadPoolExecutor):
    """A pool that starts new threads in a forked child, because threads do not survive a fork. Never freed."""

    def __init__(self, most_threads: int | None, name: str) -> None:
        super().__init__(most_threads, name)
        os.register_at_fork(after_in_child=lambda: super(Pool, self).__init__(most_threads, name))
