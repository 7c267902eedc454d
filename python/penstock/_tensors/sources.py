"""The files to load (one file, several files, or those in an index) and their headers."""

from __future__ import annotations

import contextlib
import copy
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from .. import _native
from .._core.errors import Error, InvalidArgument, NotFound
from .._core.first_load import first_load
from .errors import SafetensorError, meant, of_file
from .header import Header, read_header

__all__ = ["Path", "Paths", "Source", "Sources", "StorageOptions", "check_names", "files_of", "is_name_of"]

Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]
StorageOptions = Mapping[str, Any]  # as in penstock.open()


class Source:
    """An open tensor file and its header. The file is closed with the last reference, because parts of tensors may outlive the caller's object."""

    def __init__(
        self,
        name: str,
        devices: Iterable[str] = (),
        descriptor: int | None = None,
        storage_options: StorageOptions | None = None,
        *,
        file: _native.File | None = None,
    ) -> None:
        """Opens a file, or uses an open one.

        - `descriptor`: an open descriptor for a file whose name may have been reused; the caller closes it.
        - `file`: the open file itself.
        """
        self.name = _native.shown_name(name)
        self.file = file if file is not None else _native.open(name if descriptor is None else descriptor, storage_options=storage_options)
        try:
            for each in devices:  # while the header is read
                self.file.prepare(each)
            self.header = self._read_header()
        except BaseException:
            self.file.close()
            raise
        self._rows: dict[str, int] | None = None

    def in_page_cache(self) -> Source | None:
        """Returns this file with reads that fill the page cache, for bytes that several ranks of a node need.

        Returns None if the file is on a local drive, in memory or at a URL, or if PENSTOCK_CACHE is not auto.
        """
        try:
            descriptor = self.file.fileno()
        except Error:
            return None
        if _is_near(os.fstat(descriptor).st_dev) or os.environ.get("PENSTOCK_CACHE", "auto") != "auto":
            return None
        kept = copy.copy(self)
        try:
            kept.file = _native.open(self.name if is_name_of(self.name, descriptor) else descriptor, cache="fill")
            if not os.path.samestat(os.fstat(kept.file.fileno()), os.fstat(descriptor)):  # the name was reused after it was looked at
                kept.file.close()
                kept.file = _native.open(descriptor, cache="fill")
        except (Error, OSError):  # this file can be read without it
            return None
        with contextlib.suppress(OSError):  # so that the kernel does not read ahead past a part: another node may need those bytes
            os.posix_fadvise(kept.file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        return kept

    def _read_header(self) -> Header:
        early = first_load.early(self.file)
        return read_header(self.file, self.name) if early is None else Header(early.header)

    def keep(self, names: set[str]) -> None:
        """Keeps only these tensors."""
        if not names.issuperset(self.header.names):
            self.header = Header(self.header.told.only(sorted(names)))
            self._rows = None

    def rows_of(self, names: set[str] | None) -> Sequence[int]:
        """Returns the rows of the tensors with these names; None means all rows."""
        if names is None:
            return range(len(self.header))
        return [row for row, name in enumerate(self.header.names) if name in names]

    def row(self, tensor: str) -> int:
        """Returns a tensor's row. Raises SafetensorError for an unknown name."""
        if self._rows is None:
            self._rows = {name: row for row, name in enumerate(self.header.names)}
        found = self._rows.get(tensor)
        if found is None:
            raise of_file(self.name, f"File does not contain tensor {tensor}{meant([tensor], self.header.names)}", code="not_found")
        return found


def is_name_of(name: str, descriptor: int) -> bool:
    """Returns True if the name still refers to the open file. Opening a file by its name makes errors contain the name."""
    try:
        return os.path.samestat(os.stat(name), os.fstat(descriptor))
    except OSError:
        return False


_near_kinds = ("tmpfs", "ramfs", "overlay", "btrfs", "bcachefs", "zfs", "squashfs")


def _is_near(device: int) -> bool:
    """Returns True if the file system has no server, or if its type is unknown. Most file systems on drives have the drive's device number."""
    if os.major(device) != 0:
        return True
    with contextlib.suppress(OSError), open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as mounts:
        for fields in map(str.split, mounts):
            if fields[2] == f"0:{os.minor(device)}":
                return fields[fields.index("-") + 1] in _near_kinds
    return True


class Sources:
    """Several files. No tensor may be in two of them; an index determines which tensors in its files are used. A context manager.

    `devices`: the devices that the tensors will be read into.
    """

    def __init__(self, paths: Paths, devices: Iterable[str] = (), storage_options: StorageOptions | None = None) -> None:
        """`storage_options`: connection options for URLs, as in penstock.open()."""
        names: list[str] = []
        promised: dict[str, str] = {}  # tensor: the file that contains it according to an index
        for path in _listed(paths):
            found, index = files_of(path, storage_options)
            names += [each for each in found if each not in names]
            promised.update(index)
        self._stack = contextlib.ExitStack()
        self.files: list[Source] = []
        try:
            for source in _opened(names, devices, storage_options):
                self.files.append(source)
                self._stack.callback(source.file.close)
            self._check(promised)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[Source]:
        return iter(self.files)

    @property
    def name(self) -> str:
        """The name of the files, for messages."""
        if len(self.files) == 1:
            return self.files[0].name
        return f"{self.files[0].name} and {len(self.files) - 1} more" if self.files else "no files"

    def _check(self, promised: dict[str, str]) -> None:
        """Checks that no tensor is in two files, and that each is in the file listed in the index. Drops tensors that an index does not list."""
        if len(self.files) < 2 and not promised:
            return
        try:
            _native.check_model([each.name for each in self.files], [each.header.told for each in self.files], promised)
        except (InvalidArgument, NotFound) as problem:
            raise SafetensorError(str(problem), code=problem.code, filename=problem.filename) from None
        by_file: dict[str, set[str]] = {}
        for tensor, file in promised.items():
            by_file.setdefault(file, set()).add(tensor)
        for each in self.files:
            if each.name in by_file:
                each.keep(by_file[each.name])


def _listed(paths: Paths) -> list[Path]:
    if isinstance(paths, (str, os.PathLike)):
        return [paths]
    if isinstance(paths, (bytes, bytearray)) or not hasattr(paths, "__iter__"):
        raise TypeError(f"a path must be a str, an os.PathLike or a list of them, not {type(paths).__name__}")
    return [_checked(each) for each in paths]


def _checked(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"a path must be a str or an os.PathLike, not {type(path).__name__}")
    return path


def _opened(names: list[str], devices: Iterable[str], storage_options: StorageOptions | None) -> Iterator[Source]:
    """Yields the files in order. Opening rejects storage_options unless a path is a URL."""
    some_far = any(map(_native.is_url, names))

    def open_one(name: str) -> Source:
        options = storage_options if _native.is_url(name) or not some_far else None
        return Source(name, devices, storage_options=options, file=first_load.take(name) if options is None else None)

    if not some_far:
        return map(open_one, names)
    from .._core.urls import opened_together

    return opened_together(names, open_one, lambda source: source.file.close())


def files_of(path: Path, storage_options: StorageOptions | None) -> tuple[list[str], dict[str, str]]:
    """Returns the files at a path, and the file that an index lists for each tensor."""
    name = _native.find_model(path, storage_options)
    at_url = _native.is_url(name)
    if not _native.shown_name(name).endswith(".json"):
        return [name], {}
    if at_url:
        content = _read_index(name, storage_options)
    else:
        from .._core.small_files import read_small_file  # a single file has no index

        content = read_small_file(name, _native.MOST_MODEL_INDEX_BYTES)
    try:
        files, promised = _native.shards_of_index(content, name)
    except InvalidArgument as problem:
        raise SafetensorError(str(problem), code=problem.code, filename=_native.shown_name(name)) from None
    return files, {tensor: _native.shown_name(file) for tensor, file in promised.items()} if at_url else promised


def _read_index(url: str, storage_options: StorageOptions | None) -> bytes:
    with _native.open(url, storage_options=storage_options) as file:
        size = file.size()
        if size > _native.MOST_MODEL_INDEX_BYTES:
            problem = f"{_native.shown_name(url)} is larger than {_native.MOST_MODEL_INDEX_BYTES} bytes"
            raise InvalidArgument(problem, code="invalid_argument")
        content = bytearray(size)
        file.read_into(content)
    return bytes(content)


def check_names(names: Any) -> set[str] | None:
    if names is None:
        return None
    if isinstance(names, (str, bytes)) or not hasattr(names, "__iter__"):
        raise TypeError(f"names must be an iterable of str, not {type(names).__name__}")
    found = set(names)
    wrong = [each for each in found if not isinstance(each, str)]
    if wrong:
        raise InvalidArgument(f"names must be str, not {type(wrong[0]).__name__}", code="invalid_argument")
    return found
