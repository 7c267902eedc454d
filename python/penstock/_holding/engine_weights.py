"""Copies of the weights that `penstock serve` holds, for the loaders of inference engines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from .._core.batches import in_batches
from .._core.devices import device_name
from .._core.errors import Error
from .._tensors.frameworks import framework_on
from .held_weights import HeldWeights, find_held
from .listing import Tensor

__all__ = ["held_by_server"]

_held_bytes = 256 << 20  # bytes that one batch copies from a server


def held_by_server(
    files: Sequence[str],
    device: Any,
    read: Callable[[set[str]], Iterable[tuple[str, Any]]],
    server: str | None = None,
    on_host: bool = True,
    skip: Callable[[str], bool] | None = None,
    bar: Callable[..., Iterable[Any]] | None = None,
) -> Iterator[tuple[str, Any]] | None:
    """Returns an iterator over copies, on a `torch.device`, of the tensors that `penstock serve` holds for the same files, or None if no server holds them.

    - `read`: yields the tensors with these names from the files. Used if the server ends before all are copied.
    - `server`: its address; None tries the default addresses, that of the host only with `on_host`.
    - `skip`: returns True for the name of a tensor to skip.
    - `bar`: wraps an iterable in a progress bar, like tqdm with total= and unit=.
    """
    found = find_held(files, device_name(device), server, on_host)
    if found is None:
        return None
    logging.getLogger("penstock").info("copying the tensors of %d files from penstock serve", len(files))
    held, tensors = found
    wanted = [each for each in tensors if skip is None or not skip(each.name)]
    copies = _copies(held, wanted, device, read)
    return copies if bar is None else iter(bar(copies, total=len(wanted), unit=" tensors"))


def _copies(held: HeldWeights, wanted: list[Tensor], device: Any, read: Callable[[set[str]], Iterable[tuple[str, Any]]]) -> Iterator[tuple[str, Any]]:
    """Yields each tensor once it is copied and the server has proved that it is still alive. If the server ends, reads the rest from the files."""
    left = {each.name for each in wanted}
    place = framework_on("pt", device)
    try:
        with held:
            for batch in in_batches(wanted, _held_bytes, lambda each: each.nbytes):
                found = held.copied(batch, place)
                left.difference_update(found)
                yield from found.items()
    except Error as problem:
        logging.getLogger("penstock").warning("reading the other %d tensors from their files: %s", len(left), problem)
        yield from read(left)
