"""The program of `penstock serve`: loads a model, and holds its weights for other processes until it is terminated."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator

from .. import _native
from .._core.devices import known_device
from .._holding.listing import default_address, default_device, message_of, sealed_memory
from ._attach_door import AttachDoor
from ._held_model import HeldModel
from ._serve import serve_weights

__all__ = ["main", "serve"]


def main(model: str, device: str, address: str, readers: str) -> None:
    """The arguments are those of `penstock serve`. An empty string means the default."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with serve(model, known_device(device) if device else default_device(), address, int(readers)) as line:
            print(line, flush=True)
            threading.Event().wait()
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except (OSError, ImportError) as problem:
        print(f"penstock serve: {problem}", file=sys.stderr)
        sys.exit(1)


@contextlib.contextmanager
def serve(model: str, device: str, address: str = "", readers: int = 256) -> Iterator[str]:
    """Loads a model and serves it during the block. Yields a line that describes it."""
    address = address or default_address(device)
    with contextlib.ExitStack() as stack:
        door = AttachDoor(address, readers)
        stack.callback(door.close)
        held = HeldModel(model, device)
        stack.callback(held.close)
        stack.enter_context(serve_weights(held.arrays(), address, snapshot=False, receivers=readers))
        listing = held.listing.encode()
        descriptors = [sealed_memory(listing)]
        stack.callback(os.close, descriptors[0])
        facts, descriptor = held.share()
        if descriptor >= 0:
            descriptors.append(descriptor)
            stack.callback(os.close, descriptor)
        stack.callback(door.close)  # before the descriptors
        door.open(message_of({**facts, "listing_bytes": len(listing)}), descriptors)
        count, gigabytes = len(held.listing.tensors), held.listing.nbytes / 1e9
        yield f"serving {_native.shown_name(model)} on {device} at {address}: {count} tensors, {gigabytes:.2f} GB"
