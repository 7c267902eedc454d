"""Files written whole or not at all, now or in the background: what every format has in common.

A format says what its file consists of, as an Image. save_image() writes one; save_in_background() does so on a thread of its own.
"""

from __future__ import annotations

import concurrent.futures
import logging
import os
import threading
from collections.abc import Generator, Mapping, Sequence
from typing import Any, Protocol

from . import _native
from ._errors import Cancelled, Error
from ._forks import forkable_lock
from ._pieces import Control, Piece, Progress, move_pieces, remade
from ._urls import in_order, place_of

__all__ = ["Image", "SaveFuture", "save_image", "save_in_background"]

_log = logging.getLogger("penstock")


class Image(Protocol):
    """What a file consists of."""

    def pieces(self) -> Sequence[Piece]:
        """Its large parts. Called first, once; may block until their memory is ready to be written."""

    def rest(self) -> Sequence[Piece]:
        """What is written around them, such as checksums of them. Called once, while they are being written."""


def save_image(
    path: str,
    image: Image,
    *,
    progress: Progress | None = None,
    control: Control | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> None:
    """Writes the file beside path, forces it to the disk, and gives it its name. Blocks.

    Of a URL (s3://BUCKET/KEY) an object is made; storage_options: as for penstock.open().
    Until the very end the file under that name is what it was. Raises penstock.Error, which names path (a URL without its
    query); Cancelled, when control was stopped before.
    """
    control = control or Control()
    shown = _native.shown_name(path)  # a URL's query may have a secret
    try:
        with _native.PendingFile(path, storage_options=storage_options) as pending:
            if pending.is_object:
                _write_object(shown, pending, image, progress, control)
                return
            rest: list[Piece] = []
            pieces = image.pieces()
            with pending.open(direct=True) as file:  # past the page cache, where that goes: it is on its way to the disk
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
    """Parts of an object are sent in about their order, so what lies around the large ones is needed with them."""
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
    """A save in the background.

    `result()` returns None when the file is on the disk under its name, and raises the error if the save failed. You can also await the future. A
    save continues if you drop its future; if it then fails, the logger "penstock" logs the error. The interpreter waits for running saves before it
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
        """The bytes written, and the bytes in total; (0, 0) before the save begins."""
        return self._progress

    def running(self) -> bool:
        """True until the save has ended."""
        return not self.done()

    def cancel(self) -> bool:
        """Stops the save, unless the file is about to get its name; the old file stays. Returns False if it is too late.

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
        """Or until this one is cancelled."""

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
            super().cancel()  # it has never been marked as running, so this marks it as cancelled
            self.set_running_or_notify_cancel()
        elif error is not None:
            self.set_exception(error)
        else:
            self.set_result(None)


def save_in_background(
    path: str, image: Image, progress: Progress | None = None, storage_options: Mapping[str, Any] | None = None
) -> SaveFuture:
    """As save_image(), on a thread of its own, where progress is called, too. Of several saves to one path each begins when the one before it
    has ended, so the last one wins. The image has to keep its memory as it is."""
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


_lock = forkable_lock()
_under_way: dict[str, list[SaveFuture]] = {}  # by path, in the order of the calls


def _run(holder: list[SaveFuture], image: Image, progress: Progress | None, before: Sequence[SaveFuture]) -> None:
    """The thread has to let go of the future before it ends, since the last one to do that tells of an error that nobody asked for."""
    holder.pop()._run(image, progress, before)


def _forget(future: SaveFuture) -> None:
    with _lock:
        for path, futures in list(_under_way.items()):
            if future in futures:
                futures.remove(future)
            if not futures:
                del _under_way[path]


def _forget_all() -> None:
    """In a forked child, where the threads that save are not."""
    _under_way.clear()


os.register_at_fork(after_in_child=_forget_all)
