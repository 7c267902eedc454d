"""The result of File.explain()."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

__all__ = ["Plan", "PlanPart"]


class PlanPart(NamedTuple):
    """A part of a file that is transferred by a single path. Offset and length are in bytes."""

    offset: int
    length: int
    path: str
    reason: str


@dataclass(frozen=True)
class Plan:
    """The plan of a read or write: its parts in file order, and remarks on why no faster path is used.

    `cached_bytes`: the number of bytes of the range that are in the page cache; None if the kernel does not report it.
    """

    parts: list[PlanPart]
    remarks: list[str]
    cached_bytes: int | None

    def __str__(self) -> str:
        total = sum(part.length for part in self.parts)
        cached = "an unknown part" if self.cached_bytes is None else size_words(self.cached_bytes)
        lines = [f"{size_words(total)}, {cached} of it in the page cache"]
        lines += [_line(group) for group in _alike(self.parts)]
        lines += [f"  remark: {remark}" for remark in self.remarks]
        return "\n".join(lines)


def make_plan(parts: Iterable[tuple[int, int, str, str]], remarks: list[str], cached_bytes: int | None) -> Plan:
    """Returns a plan. Called by penstock._native."""
    return Plan([PlanPart(*part) for part in parts], remarks, cached_bytes)


def _alike(parts: list[PlanPart]) -> list[list[PlanPart]]:
    """Groups parts with the same path and reason, ordered by their first parts. A partly cached file may have hundreds of parts."""
    groups: dict[tuple[str, str], list[PlanPart]] = {}
    for part in parts:
        groups.setdefault((part.path, part.reason), []).append(part)
    return list(groups.values())


def _line(group: list[PlanPart]) -> str:
    first, total = group[0], sum(part.length for part in group)
    where = f"at {first.offset}" if len(group) == 1 else f"in {len(group)} parts, starting at {first.offset}"
    return f"  {size_words(total):>10} {where}: {first.path}, {first.reason}"


def size_words(count: int) -> str:
    for unit, bytes_ in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= bytes_:
            return f"{count / bytes_:.4g} {unit}"
    return f"{count} bytes"


PlanPart.__module__ = Plan.__module__ = "penstock"  # the public home, which pickles name
