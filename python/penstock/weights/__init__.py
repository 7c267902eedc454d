"""Weights of a process that has them, to processes that want them: from a trainer to the engines that sample from it, from a running replica to
one that starts.

    # the trainer
    server = penstock.serve_weights(model, "unix:@weights")
    ...
    server.update()                                    # after a step: a new version

    # another process
    penstock.load_weights("unix:@weights", model)      # its parameters are filled in place

Over pipes (penstock.pipe): memory of GPUs goes from GPU to GPU where these reach each other, and each tensor is received where it belongs.
Several ranks may serve parts of the tensors, and several may want other parts: each gets from each what overlaps, and every byte once.
"""

from __future__ import annotations

from ._load import LoadedWeights, WeightsReceiver, load_weights
from ._serve import WeightsServer, serve_weights

__all__ = ["LoadedWeights", "WeightsReceiver", "WeightsServer", "load_weights", "serve_weights"]


def __dir__() -> list[str]:
    return sorted(__all__)
