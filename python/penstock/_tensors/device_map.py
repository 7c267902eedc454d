"""device_map: maps tensors to devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from .._core.errors import InvalidArgument
from .frameworks import Framework, framework_on
from .header import Header

__all__ = ["DeviceMap", "Places"]

DeviceMap = Mapping[str, Any] | Callable[[str], Any]


class Places:
    """Maps tensor names to devices. Tensors without an entry go to `device`, if it is set.

    The longest matching key applies. A key matches the tensor's name, or its beginning up to a dot; "" matches all names. Raises InvalidArgument if
    no key matches and there is no device.
    """

    def __init__(self, framework: str | None, device: Any, device_map: DeviceMap | None = None) -> None:
        self._framework = framework
        self._device = device
        self._made: dict[Any, Framework] = {}
        self._by_name: dict[str, Framework] = {}
        if device_map is not None and not isinstance(device_map, Mapping) and not callable(device_map):
            raise TypeError(f"device_map must be a mapping or a callable, not {type(device_map).__name__}")
        self._map = dict(device_map) if isinstance(device_map, Mapping) else device_map
        if self._map is None:
            self._place(device)
        if isinstance(self._map, dict):
            for name, where in self._map.items():
                if not isinstance(name, str):
                    raise TypeError(f"the keys of device_map must be str, not {type(name).__name__}")
                self._place(where)  # reports an unknown device before anything is read

    def devices(self) -> list[str]:
        """Returns the devices known so far, excluding the host."""
        return [each.device for each in self._by_name.values() if ":" in each.device]

    def of(self, name: str) -> Framework:
        if self._map is None:
            return self._place(self._device)
        return self._place(self._longest(self._map, name) if isinstance(self._map, dict) else self._map(name))

    def split(self, header: Header, rows: Sequence[int]) -> dict[Framework, Sequence[int]]:
        """Groups the rows by device."""
        if self._map is None:
            return {self._place(self._device): rows}
        found: dict[Framework, Sequence[int]] = {}
        for row in rows:
            mine = found.setdefault(self.of(header.names[row]), [])
            assert isinstance(mine, list)
            mine.append(row)
        return found

    def _place(self, where: Any) -> Framework:
        key = where if isinstance(where, (str, int)) else repr(where)  # torch.device("cpu") differs from "cpu", which means NumPy
        found = self._made.get(key)
        if found is None:
            found = framework_on(self._framework, where)
            found = self._made[key] = self._by_name.setdefault(f"{found.name} {found.device}", found)  # "cuda" and 0 may be the same device
        return found

    def _longest(self, told: dict[str, Any], name: str) -> Any:
        prefix = name
        while prefix:
            if prefix in told:
                return told[prefix]
            prefix = prefix.rpartition(".")[0]
        if "" in told:
            return told[""]
        if self._device is None:
            raise InvalidArgument(f'device_map has no device for tensor "{name}"; use the key "" for all other tensors', code="invalid_argument")
        return self._device
