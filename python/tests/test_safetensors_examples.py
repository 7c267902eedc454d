"""The programs of examples/python about tensor files, and what docs/guides/models.md and docs/guides/engines.md show."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

import penstock
from penstock.safetensors import save_file

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "python"

if not EXAMPLES.is_dir():
    pytest.skip("the examples are not beside the tests", allow_module_level=True)

HAS_GPU = any(each.name.startswith("cuda:") for each in penstock.devices())
HAS_LIBRARY = any(importlib.util.find_spec(name) for name in ("torch", "cupy"))
DEVICES = ["cpu", pytest.param("cuda:0", marks=pytest.mark.skipif(not (HAS_GPU and HAS_LIBRARY), reason="no GPU, or neither PyTorch nor CuPy"))]


def run(name: str, *arguments: object) -> str:
    done = subprocess.run([sys.executable, str(EXAMPLES / name), *map(str, arguments)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("device", [*DEVICES, "host:0"])
def test_a_server_starts(tmp_path: pathlib.Path, device: str) -> None:
    told = run("safetensors_server.py", "--device", device, "--mib", 4)
    assert f"rank 0 of 1: 12 tensors, 4.0 MB on {device}" in told
    assert ("ready" in told) is (device != "host:0")
    save_file({"norm.weight": np.ones(10, "f4"), "w": np.ones((4, 4), "f4")}, tmp_path / "model.safetensors")
    told = run("safetensors_server.py", tmp_path, "--device", device, "--ranks", 2)
    assert told.count("of 2: 2 tensors, 0.0 MB") == 2 and told.count("sum up to 10.0") == (0 if device == "host:0" else 2)


@pytest.mark.parametrize("device", DEVICES)
def test_adapters_are_swapped(device: str) -> None:
    told = run("safetensors_adapters.py", "--device", device, "--swaps", 6)
    assert f"6 swaps of 16 tensors (1.0 MB) on {device}" in told


@pytest.mark.parametrize("changed", [[], ["--changed"]])
@pytest.mark.parametrize("device", ["host:0", DEVICES[1]])
def test_models_take_turns(tmp_path: pathlib.Path, device: str, changed: list[str]) -> None:
    for name, rows in (("first", 1000), ("second", 2000)):
        (tmp_path / name).mkdir()
        for number in range(2):
            tensors = {f"{number}.{word}": np.full(shape, rows + number, "f4") for word, shape in (("w", (rows, 500)), ("none", (0, 3)))}
            save_file(tensors, tmp_path / name / f"model-{number}.safetensors")
    told = run("swap_models.py", tmp_path / "first", tmp_path / "second", "--device", device, "--budget-gb", 0.01, "--swaps", 4, *changed)
    assert f"first (4.0 MB, 4.0 pinned), second (8.0 MB, 4.0 pinned) on {device}" in told and "4 swaps" in told
    if device == "host:0":  # PyTorch rounds up
        assert "held 8.0 MB at most, and the largest model has 8.0" in told


@pytest.mark.parametrize("device", DEVICES)
def test_weights_are_cast_as_they_come(tmp_path: pathlib.Path, device: str) -> None:
    told = run("safetensors_weights.py", "--device", device, "--mib", 2)
    assert f"16 weights, 16.8 MB in half precision, on {device}" in told and "2 MiB of the model at a time" in told
    save_file({"norm.weight": np.ones(10, "f4"), "w": np.ones((4, 4), "f4")}, tmp_path / "model.safetensors")
    assert "2 weights, 0.0 MB" in run("safetensors_weights.py", tmp_path, "--device", device)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ranks", [2, 4])
def test_ranks_compute_together_what_one_does(device: str, ranks: int) -> None:
    told = run("safetensors_tensor_parallel.py", "--device", device, "--ranks", ranks)
    assert told.count(f"of {ranks}: ") == ranks and f"on {device} in" in told
    assert f"{ranks} ranks together compute what one does" in told


def snippets() -> list[str]:
    pages = [(ROOT / "docs/guides" / name).read_text() for name in ("models.md", "engines.md")]
    return [code for page in pages for code in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)]


def test_there_are_snippets() -> None:
    assert len(snippets()) >= 2


@pytest.mark.parametrize("code", snippets())
def test_a_snippet_runs(tmp_path: pathlib.Path, code: str) -> None:
    if "import torch" in code:
        pytest.importorskip("torch", reason="PyTorch is not installed")
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.iterdir())  # the files that it tells of
