"""KvikIO's benchmarks, with KvikIO's names and options: `python -m penstock.kvikio.benchmarks.single_node_io`.

They run on the first GPU if there is one and CuPy is installed, and on NumPy arrays otherwise; the first lines of their output say which. For
Penstock's own benchmark, run `penstock bench`.
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
