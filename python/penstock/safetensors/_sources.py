"""The files that tensors come from: one, several, or those that an index names; and their headers."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

from .. import _native
from .._errors import InvalidArgument, NotFound
from .._small_files import read_small_file
from ._errors import SafetensorError, listed, meant, of_file
from ._header import read_header

__all__ = ["INDEX", "Path", "Paths", "Source", "Sources", "check_names"]

Path = str | os.PathLike[str]
Paths = Path | Sequence[Path]

INDEX = "model.safetensors.index.json"
_single = "model.safetensors"
_INDEX_BYTES = 100_000_000  # at most: as much as a header of safetensors may have


class Source:
    """An open tensor file and what is in it. Closed when nobody has it any more: parts of tensors outlive who opened it."""

    def __init__(self, name: str, devices: Iterable[str] = ()) -> None:
        self.name = name
        self.file = _native.open(name)
        try:
            for each in devices:  # while the header is read
                self.file.prepare(each)
            self.header = read_header(self.file, name)
        except BaseException:
            self.file.close()
            raise
        self._rows: dict[str, int] | None = None

    def rows_of(self, names: set[str] | None) -> Sequence[int]:
        """Of the tensors that are called so; None: all."""
        if names is None:
            return range(len(self.header))
        return [row for row, name in enumerate(self.header.names) if name in names]

    def row(self, tensor: str) -> int:
        """Raises SafetensorError where there is no such tensor."""
        if self._rows is None:
            self._rows = {name: row for row, name in enumerate(self.header.names)}
        found = self._rows.get(tensor)
        if found is None:
            raise of_file(self.name, f"File does not contain tensor {tensor}{meant([tensor], self.header.names)}", code="not_found")
        return found


class Sources:
    """Several of them, in which no tensor is twice. A context manager. devices: that they will be read into."""

    def __init__(self, paths: Paths, devices: Iterable[str] = ()) -> None:
        names: list[str] = []
        promised: dict[str, str] = {}  # tensor: the file that an index promises it in
        for path in _listed(paths):
            found, index = _files_of(path)
            names += [each for each in found if each not in names]
            promised.update(index)
        self._stack = contextlib.ExitStack()
        self.files: list[Source] = []
        try:
            for name in names:
                self.files.append(Source(name, devices))
                self._stack.callback(self.files[-1].file.close)
            self._check_doubles()
            self._check_promises(promised)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Sources:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self._stack.close()

    def __iter__(self) -> Iterator[Source]:
        return iter(self.files)

    @property
    def name(self) -> str:
        """For messages."""
        if len(self.files) == 1:
            return self.files[0].name
        return f"{self.files[0].name} and {len(self.files) - 1} more" if self.files else "no files"

    def _check_doubles(self) -> None:
        if len(self.files) < 2:
            return
        where: dict[str, str] = {}
        doubles = []
        for each in self.files:
            for tensor in each.header.names:
                if tensor in where:
                    doubles.append(f'"{tensor}" in {where[tensor]} and {each.name}')
                where[tensor] = each.name
        if doubles:
            more = f" and {len(doubles) - 20} more" if len(doubles) > 20 else ""
            raise SafetensorError(f"tensors that are in two files: {'; '.join(doubles[:20])}{more}", code="invalid_argument")

    def _check_promises(self, promised: dict[str, str]) -> None:
        if not promised:
            return
        there = {each.name: set(each.header.names) for each in self.files}
        missing: dict[str, list[str]] = {}
        for tensor, name in promised.items():
            if tensor not in there[name]:
                missing.setdefault(name, []).append(tensor)
        if missing:
            told = "; ".join(f"{name} lacks {listed(tensors)}" for name, tensors in missing.items())
            raise SafetensorError(f"tensors that the index promises are not there: {told}", code="not_found", filename=next(iter(missing)))


def _listed(paths: Paths) -> list[Path]:
    if isinstance(paths, (str, os.PathLike)):
        return [paths]
    if isinstance(paths, (bytes, bytearray)) or not hasattr(paths, "__iter__"):
        raise TypeError(f"a path is a str or an os.PathLike of one, or several of them, not {type(paths).__name__}")
    return [_checked(each) for each in paths]


def _checked(path: Any) -> Path:
    if not isinstance(path, (str, os.PathLike)):
        raise TypeError(f"a path is a str or an os.PathLike of one, not {type(path).__name__}")
    return path


def _files_of(path: Path) -> tuple[list[str], dict[str, str]]:
    """The files of one path, and which tensor an index promises in which of them."""
    name = os.fspath(path)
    if os.path.isdir(name):
        for each in (INDEX, _single):
            if os.path.exists(os.path.join(name, each)):
                return _files_of(os.path.join(name, each))
        raise NotFound(f"{name}: the folder has neither {INDEX} nor {_single}", code="not_found", filename=name)
    if not name.endswith(".json"):
        return [name], {}
    promised = {tensor: os.path.join(os.path.dirname(name), shard) for tensor, shard in _weights_of(name).items()}
    shards = sorted(set(promised.values()))
    missing = [each for each in shards if not os.path.exists(each)]
    if missing:
        raise NotFound(f"{name}: shards that are not there: {listed(missing)}", code="not_found", filename=missing[0])
    return shards, promised


def _weights_of(name: str) -> dict[str, str]:
    content = read_small_file(name, _INDEX_BYTES)
    try:
        told = json.loads(content)
    except (ValueError, RecursionError) as problem:
        raise of_file(name, f"the index is no JSON: {problem}") from None
    weights = told.get("weight_map") if isinstance(told, dict) else None
    if not isinstance(weights, dict) or not all(isinstance(each, str) for each in weights.values()):
        raise of_file(name, 'the index has no "weight_map" of tensors and files')
    for tensor, shard in weights.items():
        if os.path.isabs(shard) or ".." in shard.split("/") or "\0" in shard or not shard:
            raise of_file(name, f'the index puts tensor "{tensor}" into "{shard}", which is no file of its folder')
    return weights


def check_names(names: Any) -> set[str] | None:
    if names is None:
        return None
    if isinstance(names, (str, bytes)) or not hasattr(names, "__iter__"):
        raise TypeError(f"names are several str, not {type(names).__name__}")
    found = set(names)
    wrong = [each for each in found if not isinstance(each, str)]
    if wrong:
        raise InvalidArgument(f"names are str, not {type(wrong[0]).__name__}", code="invalid_argument")
    return found
