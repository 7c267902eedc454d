"""vLLM over Penstock: with both installed, vllm serve MODEL --load-format penstock.

vLLM finds register() by the entry point "penstock" of the group vllm.general_plugins, and calls it in each of its processes. Importing this module
imports nothing of vLLM. docs/guides/engines.md says what the loader does.
"""

from __future__ import annotations

import logging

__all__ = ["register"]


def register() -> None:
    """Makes the load format "penstock" known to vLLM. More than once changes nothing.

    Where this vLLM's loaders are not those that it is made for, vLLM goes on without it, and a warning of the logger "penstock" says why.
    """
    try:
        from ._loader import registered
    except (ImportError, AttributeError) as problem:
        logging.getLogger("penstock").warning("the load format penstock is not there: this vLLM has other loaders than 0.12 to 0.33: %s", problem)
    else:
        registered()


def __dir__() -> list[str]:
    return sorted(__all__)
