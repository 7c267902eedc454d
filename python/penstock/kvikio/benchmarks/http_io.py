"""KvikIO's remote-file benchmark, which Penstock does not have."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> None:
    """Raises SystemExit with the reason."""
    raise SystemExit("http_io: Penstock reads no files over HTTP; single_node_io and zarr_io are the benchmarks that run here")


def __dir__() -> list[str]:
    return sorted(__all__)


if __name__ == "__main__":
    main()
