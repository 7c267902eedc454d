"""The cuFile settings that penstock.cufile and penstock.gds obey, from the file and the variables that libcufile.so.0 reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import penstock
from penstock import _native
from penstock._core.file_facts import direct_problem
from penstock._cufile.codes import OpError, cuFileError

__all__ = ["Settings", "read_settings"]


class Settings(NamedTuple):
    """The settings of an open driver. `values` contains every key that has a cuFile parameter, such as "properties.io_batchsize"."""

    gpu_direct: bool  # False: properties.force_compat_mode
    only_gpu_direct: bool  # properties.allow_compat_mode is false
    host_memory: bool  # properties.allow_system_memory
    streams: bool  # execution.parallel_io is true, and execution.max_io_threads is above 0
    values: Mapping[str, int | bool | str]

    def path_for(self, *addresses: int) -> Literal["staged", "direct"] | None:
        """Returns the path that requests for this memory must take, or None if they may take any, as they always may for host memory."""
        if self.gpu_direct and not self.only_gpu_direct:
            return None
        if any(penstock.describe(address)["kind"] != "device" for address in addresses):
            return None
        return "direct" if self.only_gpu_direct else "staged"

    def refuses(self, address: int) -> bool:
        """Returns True for host memory if the settings forbid it."""
        return not self.host_memory and penstock.describe(address)["kind"] != "device"

    def refusal(self, file: penstock.File) -> str | None:
        """Returns why a file may not be used, or None if it may be. Like libcufile.so.0, plans a write of one block to find out."""
        if not self.only_gpu_direct:
            return None
        problem = direct_problem(file, write=True)
        return None if problem is None else f"allow_compat_mode is false: {problem}"


def read_settings() -> Settings:
    """Reads cufile.json and the environment. Blocks. Raises cuFileError with CU_FILE_DRIVER_INVALID_PROPS and the file and position of the error.
    """
    try:
        values = _native._cufile_settings()
    except penstock.Error as error:
        raise cuFileError(OpError.CU_FILE_DRIVER_INVALID_PROPS, str(error)) from error
    forced = bool(values["properties.force_compat_mode"])
    return Settings(
        gpu_direct=not forced,
        only_gpu_direct=not values["properties.allow_compat_mode"] and not forced,
        host_memory=bool(values["properties.allow_system_memory"]),
        streams=bool(values["execution.parallel_io"]) and int(values["execution.max_io_threads"]) > 0,
        values=values,
    )
