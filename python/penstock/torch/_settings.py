"""Reads settings in torch.utils.serialization.config."""

from __future__ import annotations

from typing import Any

__all__ = ["setting"]


def setting(part: str, name: str) -> Any:
    """Returns the value of a setting, or None before PyTorch 2.6, which does not have these settings."""
    try:
        from torch.utils.serialization import config
    except ImportError:
        return None
    return getattr(getattr(config, part, None), name, None)
