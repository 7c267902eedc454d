"""The folder of a checkpoint, on this machine or on a server, as torch.distributed.checkpoint's readers use it."""

from __future__ import annotations

import contextlib
import io
import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torch.distributed.checkpoint import filesystem as _filesystem

from .. import _native
from .._core.urls import is_url, opened_together

__all__ = ["CheckpointFolder", "in_turns", "opened"]

_MOST_OPEN = 128  # a checkpoint from many ranks has thousands of files, and the usual limit is 1024


class CheckpointFolder(_filesystem.FileSystem):  # type: ignore[misc]
    """PyTorch's view of a folder of files, which may be the URL of a folder on a server. Files on servers are only read."""

    def __init__(self, storage_options: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.storage_options = storage_options

    def init_path(self, path: Any) -> Any:
        return os.fspath(path).rstrip("/") if is_url(path) else super().init_path(path)

    def concat_path(self, path: Any, suffix: str) -> Any:
        return f"{path}/{suffix}" if is_url(path) else super().concat_path(path, suffix)

    @contextlib.contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[Any]:
        if not is_url(path):
            with super().create_stream(path, mode) as stream:
                yield stream
            return
        with _native.open(path, storage_options=self.storage_options) as file:
            # pickle reads the metadata in small steps. Of the other files, PyTorch reads only the items that Penstock leaves to it.
            yield io.BytesIO(file.read()) if str(path).endswith(".metadata") else file

    def exists(self, path: Any) -> bool:
        if not is_url(path):
            return bool(super().exists(path))
        try:
            _native.open(path, storage_options=self.storage_options).close()
        except FileNotFoundError:
            return False
        return True

    def ls(self, path: Any) -> list[str]:
        if not is_url(path):
            return list(super().ls(path))
        return [url for url, size in _native.list_remote(f"{path}/", storage_options=self.storage_options, one_level=True) if size is not None]


def in_turns(files: Mapping[str, list[Any]], at_once: bool) -> Iterator[dict[str, list[Any]]]:
    """Yields groups of files to read at once: as many files as may be open, or one if `at_once` is False."""
    left = iter(files.items())
    while turn := dict(itertools.islice(left, _MOST_OPEN if at_once else 1)):
        yield turn


@contextlib.contextmanager
def opened(paths: Iterable[str], storage_options: Mapping[str, Any] | None) -> Iterator[dict[str, _native.File]]:
    """Opens files, concurrently if they are on servers, and closes them at the end of the block."""
    with contextlib.ExitStack() as stack:
        found = {}
        paths = list(paths)
        for path, file in zip(paths, opened_together(paths, lambda path: _native.open(path, storage_options=storage_options), _native.File.close)):
            found[path] = stack.enter_context(file)
        yield found
