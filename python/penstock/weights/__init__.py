"""Serves one process's weights, and loads them into others: from a trainer into inference engines, or from a running replica into a new one.

    # the trainer
    server = penstock.serve_weights(model, "unix:@weights")
    ...
    server.update()                                    # after a step: publishes a new version

    # another process
    penstock.load_weights("unix:@weights", model)      # fills its parameters in place

`penstock serve` holds a model's weights for other processes, which copy them with load_weights() or use them in place:

    attached = penstock.attach_weights(address)        # attached.tensors; only read them

Tensors are transferred over pipes (`penstock.pipe`), from GPU to GPU if the GPUs can access each other, and directly into their targets. Several
ranks may serve parts of the tensors, and receivers may load different parts; each byte is sent once. The guide is docs/guides/weights.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core.lazy import lazily

if TYPE_CHECKING:
    from ._attach import AttachedWeights, attach_weights
    from ._receiver import LoadedWeights, WeightsReceiver, load_weights
    from ._serve import WeightsServer, serve_weights
else:
    __getattr__ = lazily(
        __name__,
        __name__,
        {
            "._attach": ("AttachedWeights", "attach_weights"),
            "._receiver": ("LoadedWeights", "WeightsReceiver", "load_weights"),
            "._serve": ("WeightsServer", "serve_weights"),
        },
    )

__all__ = ["AttachedWeights", "LoadedWeights", "WeightsReceiver", "WeightsServer", "attach_weights", "load_weights", "serve_weights"]


def __dir__() -> list[str]:
    return sorted(__all__)
