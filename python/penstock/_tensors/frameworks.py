"""The library and device on which tensors are returned."""

from __future__ import annotations

from typing import Any

from .._core.arrays import library_named
from .._core.arrays.library import Arena, Library
from .._core.devices import name_for_torch
from .._core.libraries import choose_library
from .errors import SafetensorError
from .types import NAMES

__all__ = ["Framework", "framework_on"]


class Framework:
    """A library, and the device on which it makes arrays. Each device has its own arena."""

    def __init__(self, library: Library, device: str) -> None:
        self.library = library
        self.device = device
        self.name = library.name
        self.indexes = library.indexes

    def dtype(self, word: str) -> Any:
        """Returns the library's type for a safetensors type, or None if the library lacks it."""
        return self.library.dtype(NAMES.get(word, ""))

    def shape(self, word: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Returns the array's shape for a shape in the file. Raises ValueError if there can be no such array."""
        return self.library.shape(NAMES.get(word, ""), shape)

    def arena(self, nbytes: int) -> Arena:
        """Allocates memory and waits for the current stream, which may still be using it."""
        found = self.unsettled_arena(nbytes)
        found.settle()
        return found

    def unsettled_arena(self, nbytes: int) -> Arena:
        """Allocates memory without waiting. Write to it only once it is settled()."""
        return self.library.arena(nbytes, self.device)


def framework_on(framework: str | None, device: Any) -> Framework:
    """Returns the library and device that choose_library() selects for the arguments.

    Raises SafetensorError for an unknown framework, ImportError if the library is not installed, and NotFound if the device does not exist.
    """
    library, name = choose_library(device, framework, SafetensorError)
    return Framework(library_named(library), name_for_torch(name) if library == "torch" else name)
