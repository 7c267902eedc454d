"""KvikIO's benchmarks, by the names and options that its documentation gives them: `python -m penstock.kvikio.benchmarks.single_node_io`.

They run on the first GPU through CuPy where both are there, and on NumPy arrays elsewhere, which the first lines of their output tell.
Penstock's own figures come from `penstock bench`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock._lazy import importable, lazily

_submodules = {"http_io": "", "single_node_io": "", "utils": "", "zarr_io": "zarr"}

if TYPE_CHECKING:
    from penstock.kvikio.benchmarks import http_io as http_io
    from penstock.kvikio.benchmarks import single_node_io as single_node_io
    from penstock.kvikio.benchmarks import utils as utils
    from penstock.kvikio.benchmarks import zarr_io as zarr_io
else:
    __getattr__ = lazily(__name__, __name__, {}, modules=_submodules)


def __dir__() -> list[str]:
    return sorted(importable(_submodules))
