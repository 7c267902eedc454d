"""Names that a package imports when they are first asked for."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from penstock.safetensors import save_file

PACKAGES = ("penstock", "penstock.safetensors", "penstock.safetensors.torch")


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_is_there(package: str) -> None:
    if package.endswith(".torch"):
        pytest.importorskip("torch")
    module = importlib.import_module(package)
    assert all(hasattr(module, name) for name in module.__all__)
    assert set(module.__all__) <= set(dir(module))
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nonsense'"):
        module.nonsense  # noqa: B018


UNUSED = ("_plan", "kv", "pipe", "_load", "safetensors._save", "safetensors._open", "safetensors._ranks", "safetensors._door", "safetensors._into")


def test_a_load_imports_nothing_that_it_does_not_use(tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a": np.arange(4)}, path)
    program = f"""
import sys
from penstock.safetensors import load_file
assert load_file(sys.argv[1])["a"].tolist() == [0, 1, 2, 3]
print([name for name in {UNUSED} if "penstock." + name in sys.modules])
"""
    told = subprocess.run([sys.executable, "-c", program, str(path)], capture_output=True, text=True, timeout=60)
    assert told.stdout == "[]\n", told.stderr


def test_loading_plain_bytes_imports_nothing_for_archives(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(100))
    program = "import sys, numpy, penstock; penstock.load(sys.argv[1]); print('penstock._npz' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", program, str(tmp_path / "a.bin")], capture_output=True, text=True, timeout=60)
    assert told.stdout == "False\n", told.stderr
