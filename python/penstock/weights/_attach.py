"""attach_weights(): uses weights that `penstock serve` holds, in place or as a copy."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._core.closable import Closable
from .._core.devices import device_name
from .._holding.held_weights import HeldWeights
from .._holding.listing import default_address, default_device
from .._tensors.frameworks import framework_on
from .._tensors.sources import check_names
from ._deadline import left_until, until

__all__ = ["AttachedWeights", "attach_weights"]


def attach_weights(
    address: str | None = None,
    *,
    device: Any = None,
    framework: str | None = None,
    names: Iterable[str] | None = None,
    copy: bool = False,
    timeout: float = 10.0,
) -> AttachedWeights:
    """Attaches to weights that a process of this user holds (`penstock serve`).

    Arguments:

    - `address`: the server's address. None means the default address for `device`; without `device`, that for the first GPU, or for the host if there is
      none.
    - `device`, `framework`: as in `penstock.safetensors.load_file()`. The default device is the server's.
    - `names`: the tensors to use. None means all.
    - `copy`: False maps the server's memory without copying. Only read it: on a GPU, a write changes the weights of every process; on the host, it changes
      only your process's copy of the page. True copies the weights into new memory, with one copy on the device. Pass True if you do not control the
      code that uses the tensors.
    - `timeout`: seconds to wait for the server.

    Raises: NotFound if no server runs at the address, or if it lacks some of the names; PermissionDenied if the server belongs to another user; Error with code
    "would_block" if the server is still loading or has too many readers; InvalidArgument; TimedOut.
    """
    wanted = check_names(names)
    if address is None:
        address = default_address(default_device() if device is None else device_name(device))
    held = HeldWeights(address, left_until(until(timeout)))
    try:
        if device is None and held.device != "host":
            device = held.device
        place = framework_on(framework, device)
        tensors = held.chosen(wanted)
        if copy:
            found = held.copied(tensors, place)
            held.close()
        else:
            found = held.mapped(tensors, place)
    except BaseException:
        held.close()
        raise
    return AttachedWeights(held, found, copy)


class AttachedWeights(Closable):
    """The weights that `attach_weights()` returns. Thread-safe.

    `tensors` contains the tensors by name. They keep the mapping alive, but not the server.
    """

    def __init__(self, held: HeldWeights, tensors: dict[str, Any], is_copy: bool) -> None:
        self._held, self._is_copy = held, is_copy
        self.tensors = tensors

    @property
    def connected(self) -> bool:
        """True while the server runs and you have not called close(). False for a copy."""
        return not self._is_copy and self._held.connected

    def check(self) -> None:
        """Raises Closed if the tensors are in GPU memory of a server that has ended: their values are then undefined. Blocks, because it asks the server.
        Call it after you have waited for the GPU, and before you use a result. Copies and host memory stay valid.
        """
        if not self._is_copy:
            self._held.check()

    def close(self) -> None:
        """Disconnects from the server, and drops this object's references to the tensors. The memory is unmapped once no tensor refers to it."""
        self.tensors = {}
        self._held.close()

    def __repr__(self) -> str:
        return f"<penstock.weights.AttachedWeights of {len(self.tensors)} tensors at {self._held.address}>"
