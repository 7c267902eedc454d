"""Over how many links one GPU is filled: the same bytes whatever is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest

import penstock

pytestmark = pytest.mark.usefixtures("torch_not_imported")

NBYTES = 70_000_003  # of 64 MiB and more it matters


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory, pattern: Any) -> Path:
    stored = tmp_path_factory.mktemp("links") / "data"
    stored.write_bytes(pattern(NBYTES))
    return stored


@pytest.mark.parametrize("links", [None, "auto", 1, 2, 8])
def test_bytes_are_the_same_over_any_number_of_links(device_memory: Any, path: Path, links: Any) -> None:
    with penstock.open(path) as file:
        target = device_memory.empty(NBYTES)
        assert file.read_into(target, links=links) == NBYTES
        assert device_memory.bytes(target) == path.read_bytes()
        target = device_memory.empty(NBYTES)
        assert file.pread(target, links=links).result() == NBYTES
        assert device_memory.bytes(target) == path.read_bytes()
        assert file.read_many([(target, 0)], links=links) == [NBYTES]
        assert file.pread_ranges(target, [0, 7], [5, 9], links=links).result() == [5, 9]
        assert penstock.pread_many([(file, target, 0)], links=links).result() == [NBYTES]
        assert sum(part.length for part in file.explain(links=links).parts) == NBYTES


def test_explain_names_the_gpus_beside(path: Path) -> None:
    gpus = [each.name for each in penstock.devices() if each.name.startswith("cuda:")]
    if len(gpus) < 2:
        pytest.skip("one GPU at most")
    with penstock.open(path) as file:
        file.read_into(penstock.device(gpus[0]).empty(NBYTES), links=2)
        told = " ".join(file.explain(device=gpus[0], links=2).remarks)
        if f"also over the links of {gpus[1]}" not in told:
            pytest.skip(f"{gpus[1]} does not reach {gpus[0]}, or there are few cores: {told}")
        assert "over the links" not in " ".join(file.explain(device=gpus[0], links=1).remarks)


@pytest.mark.parametrize("links", [0, 9, -1, 1 << 70, "many", ""])
def test_other_numbers_and_words_are_refused(tmp_path: Path, links: Any) -> None:
    from penstock.safetensors import load_file
    from penstock.safetensors.numpy import save_file

    path = tmp_path / "model.safetensors"
    save_file({"a": numpy.zeros(3)}, path)
    with penstock.open(path) as file, pytest.raises(penstock.InvalidArgument, match="links"):
        file.read_into(bytearray(1), links=links)
    with pytest.raises(penstock.InvalidArgument, match="links"):
        load_file(path, links=links)


def test_other_types_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(b"1")
    with penstock.open(path) as file:
        for links in (1.5, b"auto", [1]):
            with pytest.raises(TypeError, match="links"):
                file.pread(bytearray(1), links=links)  # type: ignore[arg-type]
