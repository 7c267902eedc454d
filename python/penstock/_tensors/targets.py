"""Existing tensors as targets for loading."""

from __future__ import annotations

from typing import Any

from .._core.arrays import library_for
from .._core.arrays.library import Library
from .frameworks import Framework, framework_on

__all__ = ["Target", "target_of"]


class Target:
    """A tensor to fill. `problem` is the reason why it cannot be filled."""

    def __init__(self, library: Library, array: Any) -> None:
        facts = library.facts(array, fill=True)
        self.library = library
        self.array = array
        self.problem = facts.problem
        self.shape = facts.shape  # None: bytes without a shape
        self.dtype = facts.dtype
        self.nbytes = facts.nbytes
        self.address = facts.address
        self.span = facts.span
        self.is_plain = facts.is_contiguous  # and writable: bytes may be read directly into it
        self.same_as: Any = facts.key or id(array)  # equal for targets that share the same memory
        self.device = f"{facts.device} of {library.name}"  # with the library, because its stream matters
        self._place = library.word, facts.device

    def place(self) -> Framework:
        found = _places.get(self._place)
        if found is None:
            found = _places[self._place] = framework_on(*self._place)
        return found

    def memory(self) -> Any:
        return self.library.memory(self.array)

    def settle(self) -> None:
        """Waits for the device's current stream."""
        self.library.settle_array(self.array)

    def assign(self, array: Any) -> None:
        """Copies an array from the same library, with the same shape, into the target, converting the type if necessary."""
        self.library.put(self.array, array)


_places: dict[tuple[str, str], Framework] = {}


def target_of(name: str, value: Any) -> Target:
    """Describes a target. Raises TypeError if it is not a tensor."""
    return Target(library_for(f'target "{name}"', value), value)
