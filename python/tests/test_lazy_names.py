"""Names and submodules that a package imports on first use."""

from __future__ import annotations

import importlib
import importlib.util
import os
import re
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


UNUSED = ("_core.plan", "kv", "pipe", "_files.load", "_tensors.save_file", "_tensors.safe_open", "_tensors.ranks", "_patch.safetensors_library", "_tensors.into")


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


def test_importing_the_functions_for_torch_imports_few_modules() -> None:
    program = """
import sys, types
torch = sys.modules["torch"] = types.ModuleType("torch")
torch.Tensor = object
from penstock.safetensors.torch import load_file
print(*sorted(name for name in sys.modules if name.startswith("penstock.")))
"""
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    core = [f"penstock._core{name}" for name in ("", ".errors", ".first_load", ".forks", ".futures", ".interpreter", ".lazy")]
    assert told.stdout.split() == [*core, "penstock._native", "penstock.safetensors", "penstock.safetensors.torch"], told.stderr


STEPS = re.compile(
    r"penstock: first load: imports [\d.]+ ms; after the call: engine ([\d.]+) ms, modules ([\d.]+) ms, header ([\d.]+) ms, first bytes ([\d.]+) ms, everything ([\d.]+) ms\n"
)


@pytest.mark.parametrize("device", ["cpu", "host:0"])
def test_the_summary_has_the_steps_of_the_first_load_only(device: str, tmp_path: Path) -> None:
    path = tmp_path / "a.safetensors"
    save_file({"a": np.arange(1 << 18)}, path)
    program = """
import sys
from penstock.safetensors import load_file
for _ in range(2):
    load_file(sys.argv[1], device=sys.argv[2])
"""
    environment = os.environ | {"PENSTOCK_LOG": "summary"}
    told = subprocess.run([sys.executable, "-c", program, str(path), device], capture_output=True, text=True, timeout=60, env=environment)
    steps = STEPS.findall(told.stderr)
    assert len(steps) == 1, told.stderr
    assert list(map(float, steps[0])) == sorted(map(float, steps[0]))


def test_the_first_load_into_a_gpu_reads_while_it_imports(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    made = {"a": torch.arange(1000.0), "b": torch.ones(3, 5, dtype=torch.bfloat16), "none": torch.zeros(0, 2), "c": torch.tensor(True)}
    save_file(made, tmp_path / "a.safetensors")
    save_file({}, tmp_path / "empty.safetensors")
    program = """
import sys, torch
from penstock.safetensors.torch import load_file
from penstock._core import first_load
started = []
start = first_load.FirstLoad._start
first_load.FirstLoad._start = lambda *arguments: (start(*arguments), started.append("penstock._tensors.load_file" in sys.modules))
for number in range(2):
    found = load_file(sys.argv[1], device="host:0")
    assert str(found) == str(load_file(sys.argv[1])), number
print(sorted(found), started, first_load.first_load._early)
"""
    for name, expected in {"a": sorted(made), "empty": []}.items():
        told = subprocess.run([sys.executable, "-c", program, str(tmp_path / f"{name}.safetensors")], capture_output=True, text=True, timeout=60)
        assert told.stdout == f"{expected} [False] None\n", told.stdout + told.stderr


def test_an_early_read_that_fails_names_the_tensor(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    save_file({"a": np.arange(1 << 16), "b": np.arange(1 << 16)}, tmp_path / "a.safetensors")
    program = """
import os, sys, torch, penstock
from penstock.safetensors.torch import load_file
from penstock._core import first_load
first_load.FirstLoad.reads_begin = lambda self: os.truncate(sys.argv[1], 800_000)  # called after the header is read
try:
    load_file(sys.argv[1], device="host:0")
except penstock.ShortRead as problem:
    print(problem, first_load.first_load._early)
"""
    told = subprocess.run([sys.executable, "-c", program, str(tmp_path / "a.safetensors")], capture_output=True, text=True, timeout=60)
    assert 'truncated after it was opened: it ends at 800000, before the end of "b" None' in told.stdout, told.stdout + told.stderr


FAILED_LOADS = {
    "a missing file": "absent.safetensors",
    "a folder without a model": "",
    "a file of other bytes": "other.safetensors",
    "an argument that is checked later": "good.safetensors",
}


@pytest.mark.parametrize("door", ["penstock.safetensors", "penstock.safetensors.torch"])
@pytest.mark.parametrize("what", FAILED_LOADS)
def test_a_first_load_that_fails_leaves_no_file_open(what: str, door: str, tmp_path: Path) -> None:
    if door.endswith("torch"):
        pytest.importorskip("torch")
    if FAILED_LOADS[what]:
        save_file({"a": np.arange(1 << 20)}, tmp_path / "good.safetensors")
    (tmp_path / "other.safetensors").write_bytes(bytes(100))
    if not FAILED_LOADS[what]:
        (tmp_path / "other.safetensors").unlink()
    program = """
import os, sys, penstock
from importlib import import_module
load_file = import_module(sys.argv[3]).load_file
wrong = {"device_map": {"": "host:9"}} if "torch" not in sys.argv[3] else {"backend": "wrong"}
try:
    load_file(sys.argv[1], device="host:0", **wrong if "good" in sys.argv[1] else {})
except penstock.Error as problem:
    print(type(problem).__name__)
print([path for path in map(os.path.realpath, (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))) if path.startswith(sys.argv[2])])
"""
    path = str(tmp_path / FAILED_LOADS[what])
    told = subprocess.run([sys.executable, "-c", program, path, os.path.realpath(tmp_path), door], capture_output=True, text=True, timeout=60)
    assert told.stdout.splitlines()[1:] == ["[]"], told.stdout + told.stderr


def test_loading_plain_bytes_imports_nothing_for_archives(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(bytes(100))
    program = "import sys, numpy, penstock; penstock.load(sys.argv[1]); print('penstock._files.npz' in sys.modules)"
    told = subprocess.run([sys.executable, "-c", program, str(tmp_path / "a.bin")], capture_output=True, text=True, timeout=60)
    assert told.stdout == "False\n", told.stderr


# Each is one way to reach a submodule after `import penstock`, and the library that it needs.
SUBMODULES = {
    "penstock.cuda_bindings.cufile.driver_open": "numpy",
    "penstock.cufile.read": "",
    "penstock.gds.GdsFile": "",
    "penstock.gguf.open": "",
    "penstock.kv.Store": "",
    "penstock.kvikio.CuFile": "",
    "penstock.kvikio.numpy.fromfile": "numpy",
    "penstock.kvikio.zarr.GDSStore": "zarr",
    "penstock.pipe.listen": "",
    "penstock.safetensors.load_file": "",
    "penstock.safetensors.numpy.load_file": "numpy",
    "penstock.safetensors.original.safe_open": "safetensors",
    "penstock.safetensors.torch.load_file": "torch",
    "penstock.torch.checkpoint": "torch",
    "penstock.torch.load": "torch",
    "penstock.vllm.register": "",
    "penstock.vllm_weights.register": "",
    "penstock.weights.serve_weights": "",
    "penstock.zarr.load": "zarr",
}


@pytest.mark.parametrize("library", sorted(set(SUBMODULES.values())))
def test_submodules_are_imported_on_first_use(library: str) -> None:
    if library and importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    expressions = [expression for expression, needed in SUBMODULES.items() if needed == library]
    program = "\n".join(["import penstock", *expressions])  # one process for each library, because importing PyTorch takes seconds
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


def test_a_submodule_without_its_library_says_what_it_needs_and_is_not_listed() -> None:
    program = """
import sys
sys.modules["zarr"] = None
import penstock
assert "zarr" not in dir(penstock) and "kv" in dir(penstock)
try:
    penstock.zarr
except ImportError as error:
    print(error)
"""
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.stdout == 'penstock.zarr requires zarr: pip install "penstock[zarr]"\n', result.stderr


def test_importing_the_package_imports_no_public_submodule() -> None:
    program = "import sys, penstock; print([name for name in sys.modules if name.startswith('penstock.') and '._' not in name])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert result.stdout == "[]\n", result.stderr
