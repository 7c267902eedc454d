"""PyTorch checkpoints: read directly into their tensors' devices, and saved atomically.

    import penstock.torch

    state = penstock.torch.load("model.pt", map_location="cuda")   # as torch.load
    penstock.torch.save(state, "copy.pt")                          # as torch.save; a crash leaves the old file or the new one
    future = penstock.torch.save_async(state, "step_100.pt")       # training continues; future.result() waits for the disk

`penstock.torch.checkpoint` has a reader and a writer for `torch.distributed.checkpoint`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._core.lazy import lazily
from .._core.saving import SaveFuture
from ._archive import CheckpointError
from ._load_checkpoint import fallback_reason, load
from ._save_checkpoint import save, save_async

if TYPE_CHECKING:
    from . import checkpoint as checkpoint
    from ._load_module import load_module
else:
    __getattr__ = lazily(__name__, __name__, {"._load_module": ("load_module",)}, modules=("checkpoint",))

__all__ = ["CheckpointError", "SaveFuture", "fallback_reason", "load", "load_module", "save", "save_async"]

CheckpointError.__module__ = SaveFuture.__module__ = __name__


def __dir__() -> list[str]:
    return sorted({*__all__, "checkpoint"})
