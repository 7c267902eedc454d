"""Runs the tests of python/tests for the unchanged loaders and KV caches of inference engines, with other versions of the engines than ./test.

Usage: engines.py [--folder FOLDER] [REQUIREMENT ...]    (vllm sglang diffusers lmcache; such as vllm==0.32.0)

tools/fetch_engines puts the Python files of each into FOLDER (a temporary one), unless they are there already. It needs an interpreter that has
penstock, torch, numpy, safetensors, transformers, tqdm and pytest.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TESTS = (
    "test_engines.py",
    "test_fastsafetensors.py",
    "test_lmcache_plugin.py",
    "test_sglang_hicache.py",
    "test_vllm_gpu_spec.py",
    "test_vllm_kv_tier.py",
    "test_weights_cache_engines.py",
)


def tested(folder: Path, requirements: list[str]) -> int:
    fetched = subprocess.run([sys.executable, ROOT / "tools" / "fetch_engines", "--folder", folder, *requirements])
    if fetched.returncode:
        return fetched.returncode
    command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", *(str(ROOT / "python" / "tests" / name) for name in TESTS)]
    return subprocess.run(command, env={**os.environ, "PENSTOCK_TEST_ENGINES": str(folder)}).returncode


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("requirements", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        return tested((options.folder or Path(temporary)).resolve(), options.requirements)


if __name__ == "__main__":
    sys.exit(main())
