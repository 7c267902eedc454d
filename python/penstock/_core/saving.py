"""Writes files atomically, in the foreground or in the background, for every format.

A format describes its file as an Image. save_image() writes one; save_in_background() does so on a separate thread.
"""

from __future__ import annotations

import concurrent.futures
import logging
import os
import threading
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol

from .. import _native
from .errors import Cancelled, Error
from .forks import forkable_lock
from .pieces import Control, Piece, Progress, move_pieces, remade
from .urls import in_order, place_of

__all__ = ["Image", "SaveFuture", "first_in_progress", "save_image", "save_in_background"]

_log = logging.getLogger("penstock")


class Image(Protocol):
    """A file's contents."""

    def pieces(self) -> Sequence[Piece]:
        """Returns the large parts. Called once, before rest(); may block until their memory is ready."""

    def rest(self) -> Sequence[Piece]:
        """Returns the remaining parts, such as checksums. Called once, while the large parts are being written."""


def save_image(
    path: str,
    image: Image,
    *,
    progress: Progress | None = None,
    control: Control | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Writes a temporary file next to path, flushes it to the disk, and renames it. Blocks. Until the rename, the old file stays unchanged.

    For a URL (s3://BUCKET/KEY), creates an object; `storage_options`: as for penstock.open(). Raises penstock.Error with the path (a URL without its
    query), and Cancelled if `control` was stopped before the rename.
    """
    control = control or Control()
    shown = _native.shown_name(path)  # without a URL's query, which may contain a secret
    try:
        with _native.PendingFile(path, storage_options=storage_options) as pending:
            if pending.is_object:
                _write_object(shown, pending, image, progress, control)
                return
            rest: list[Piece] = []
            pieces = image.pieces()
            with pending.open(direct=True) as file:  # bypasses the page cache if possible, because the data is flushed to disk immediately
                move_pieces(
                    file,
                    pieces,
                    label=shown,
                    write=True,
                    progress=progress,
                    control=control,
                    meanwhile=lambda: rest.extend(image.rest()),
                )
                move_pieces(file, rest, label=shown, write=True, control=control)
            control.commit()
            pending.publish()
    except Error as error:
        if str(error).startswith(shown):
            raise
        raise remade(error, f"{shown}: {error}") from error


def _write_object(shown: str, pending: _native.PendingFile, image: Image, progress: Progress | None, control: Control) -> None:
    """Writes the pieces of an object in order. Its parts are uploaded roughly in order, so small pieces are written along with the large ones around
    them.
    """
    pieces = sorted([*image.pieces(), *image.rest()], key=lambda each: each.offset)
    total, done = sum(each.nbytes for each in pieces), 0
    with pending.open() as file:
        file.truncate(max((each.offset + each.nbytes for each in pieces), default=0))
        for group in in_order(pieces, lambda each: each.nbytes):
            move_pieces(file, group, label=shown, write=True, control=control)
            done += sum(each.nbytes for each in group)
            if progress is not None:
                progress(done, total)
    control.commit()
    pending.publish()


class SaveFuture(concurrent.futures.Future[None]):
    """A background save.

    `result()` returns None once the file is on disk under its final name, and raises the error if the save failed. You can also await the future. If
    you drop the future, the save continues, and the logger "penstock" logs the error if it fails. The interpreter waits for running saves before it
    exits.
    """

    def __init__(self, path: str, storage_options: Mapping[str, Any] | None = None) -> None:
        super().__init__()
        self.path = path
        self._storage_options = storage_options
        self._control = Control()
        self._progress = (0, 0)
        self._asked = False
        self._may_begin = threading.Event()

    @property
    def progress(self) -> tuple[int, int]:
        """The bytes written and the total bytes; (0, 0) before the save starts."""
        return self._progress

    def running(self) -> bool:
        """Returns True until the save is done."""
        return not self.done()

    def cancel(self) -> bool:
        """Stops the save, unless the file is about to be renamed; the old file stays. Returns False if it is too late.

        `result()` then raises `concurrent.futures.CancelledError`.
        """
        stops = not self.done() and self._control.stop()
        if stops:
            self._may_begin.set()
        return stops

    def result(self, timeout: float | None = None) -> None:
        """Waits for the save, up to `timeout` seconds. Raises the error of the save, or TimeoutError."""
        self._asked = True
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits for the save, up to `timeout` seconds. Returns its error, or None if it succeeded."""
        self._asked = True
        return super().exception(timeout)

    def _wait(self, timeout: float | None) -> bool:
        """Returns False if the save is still in progress after that many seconds. Its error, if any, still counts as unread."""
        return bool(concurrent.futures.wait([self], timeout).done)

    def __await__(self) -> Generator[Any, None, None]:
        import asyncio

        self._asked = True
        return asyncio.wrap_future(self).__await__()

    def __del__(self) -> None:
        if not self._asked and self.done() and not self.cancelled() and (error := super().exception()) is not None:
            _log.error("saving %s failed, and its result was never read: %s", _native.shown_name(self.path), error)

    def _run(self, image: Image, progress: Progress | None, before: Sequence[SaveFuture]) -> None:
        def tell(done: int, total: int) -> None:
            self._progress = (done, total)
            if progress is not None:
                progress(done, total)

        error: BaseException | None = None
        try:
            self._wait_for(before)
            save_image(self.path, image, progress=tell, control=self._control, storage_options=self._storage_options)
        except BaseException as caught:
            error = caught
        self._end(error)

    def _wait_for(self, before: Sequence[SaveFuture]) -> None:
        """Waits until earlier saves are done or this one is cancelled."""

        def look(_: object) -> None:
            if all(each.done() for each in before):
                self._may_begin.set()

        look(None)
        for each in before:
            each.add_done_callback(look)
        self._may_begin.wait()
        self._control.check()

    def _end(self, error: BaseException | None) -> None:
        _forget(self)
        if isinstance(error, Cancelled):
            super().cancel()  # the future was never marked as running, so this marks it as cancelled
            self.set_running_or_notify_cancel()
        elif error is not None:
            self.set_exception(error)
        else:
            self.set_result(None)


def save_in_background(
    path: str, image: Image, progress: Progress | None = None, storage_options: Mapping[str, Any] | None = None
) -> SaveFuture:
    """Runs save_image() on a separate thread, which also calls progress. Saves to the same path run sequentially, so the last one wins. The image's
    memory must not change.
    """
    future = SaveFuture(path, storage_options)
    with _lock:
        before = tuple(_under_way.setdefault(place_of(path), []))
        _under_way[place_of(path)].append(future)
    thread = threading.Thread(target=_run, args=([future], image, progress, before), name="penstock-save")
    try:
        thread.start()
    except BaseException:
        _forget(future)
        raise
    return future


def first_in_progress() -> SaveFuture | None:
    """Returns a save in progress, or None. Takes no lock, because a signal handler may call it."""
    return next((each for futures in list(_under_way.values()) for each in list(futures)), None)


_lock = forkable_lock()
_under_way: dict[str, list[SaveFuture]] = {}  # by path, in call order


def _run(holder: list[SaveFuture], image: Image, progress: Progress | None, before: Sequence[SaveFuture]) -> None:
    """Runs a save. The thread drops its own reference to the future first, because dropping the last reference logs an error that was never
    retrieved."""
    holder.pop()._run(image, progress, before)


def _forget(future: SaveFuture) -> None:
    with _lock:
        for path, futures in list(_under_way.items()):
            if future in futures:
                futures.remove(future)
            if not futures:
                del _under_way[path]


def _forget_all() -> None:
    """Forgets all saves in a forked child, in which their threads do not exist."""
    _under_way.clear()


os.register_at_fork(after_in_child=_forget_all)
