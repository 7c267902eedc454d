"""transformers' own tests of loading and saving models, unchanged, with Penstock in the place of the safetensors library.

Usage: transformers_loading.py [SDIST]    (of the version that is installed; without it, it is taken from PyPI)

Runs the tests of transformers' tests/test_modeling_common.py that load or save, for a small Llama whose weights are large enough that Penstock reads
them, once as they are and once under penstock._startup, in an interpreter that has penstock, torch, transformers, accelerate, safetensors, pytest and
parameterized. Without a GPU, Penstock has nothing to read. No test may fail that passes without Penstock.
"""

from __future__ import annotations

import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import penstock

STARTUP = Path(penstock.__file__).parent / "_startup"
# What the source package leaves out of its tests, and what these import of it.
LEFT_OUT = {"exporters/test_export.py": "ExportTesterMixin", "generation/test_utils.py": "GenerationTesterMixin"}
WANTED = "load or save or safetensors or pretrained or tied or offload or parallelism or device"

MODEL = '''
import unittest

import torch
from transformers import LlamaConfig, LlamaForCausalLM, LlamaModel

from .test_modeling_common import ModelTesterMixin, ids_tensor


class Tester:
    batch_size, seq_length, is_training = 2, 7, False

    def __init__(self, parent):
        self.parent = parent

    def get_config(self):
        return LlamaConfig(
            vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0
        )

    def prepare_config_and_inputs_for_common(self):
        return self.get_config(), {"input_ids": ids_tensor([self.batch_size, self.seq_length], 512)}


class LlamaTest(ModelTesterMixin, unittest.TestCase):
    all_model_classes = (LlamaModel, LlamaForCausalLM)
    model_split_percents = [0.5, 0.7, 0.8]
    test_resize_embeddings = False

    def setUp(self):
        self.model_tester = Tester(self)

    def test_moved_to_a_gpu(self):
        """Of the client's own: what from_pretrained() puts on the device is what was saved."""
        import tempfile

        device = "cuda" if torch.cuda.is_available() else "cpu"
        model = LlamaForCausalLM(self.model_tester.get_config())
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder, max_shard_size="200KB")
            for dtype in (torch.float32, torch.bfloat16):
                found = LlamaForCausalLM.from_pretrained(folder, device_map=device, dtype=dtype).state_dict()
                for name, tensor in model.state_dict().items():
                    assert found[name].device.type == device and torch.equal(found[name].cpu(), tensor.to(dtype)), name
'''


def sources(folder: Path) -> Path:
    version = importlib.metadata.version("transformers")
    words = ["--quiet", "--disable-pip-version-check", "--no-deps", "--no-binary", "transformers", f"transformers=={version}", "--dest", str(folder)]
    subprocess.run([sys.executable, "-m", "pip", "download", *words], check=True)
    return folder / f"transformers-{version}.tar.gz"


def unpack(sdist: Path, folder: Path) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, [each for each in archive if "/tests/" in each.name], filter="data")
    tests = next(folder.glob("transformers-*/tests"))
    for name, mixin in LEFT_OUT.items():
        path = tests / name
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            (path.parent / "__init__.py").touch()
            path.write_text(f"class {mixin}:\n    pass\n")
    (tests / "__init__.py").touch()
    (tests / "test_modeling_llama_of_penstock.py").write_text(MODEL)


def outcomes(folder: Path, *, with_penstock: bool) -> tuple[dict[str, str], str]:
    """Of each test, and what was printed at the end."""
    root = next(folder.glob("transformers-*"))
    paths = ([str(STARTUP)] if with_penstock else []) + [str(root)] + ([os.environ["PYTHONPATH"]] if os.environ.get("PYTHONPATH") else [])
    command = [sys.executable, "-m", "pytest", "-v", "-rf", "--tb=short", "-p", "no:cacheprovider", "-k", WANTED, "tests/test_modeling_llama_of_penstock.py"]
    done = subprocess.run(command, cwd=root, env={**os.environ, "PYTHONPATH": ":".join(paths)}, capture_output=True, text=True)
    found = dict(re.findall(r"^\S+::(\S+) (PASSED|FAILED|SKIPPED|ERROR)", done.stdout, re.MULTILINE))
    return found, done.stdout[-6000:] + done.stderr[-2000:]


def main() -> int:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        unpack(Path(sys.argv[1]) if len(sys.argv) > 1 else sources(folder), folder)
        before, printed = outcomes(folder, with_penstock=False)
        if not before:
            print(printed)
            return 1
        after, printed = outcomes(folder, with_penstock=True)
    ours = sorted(each for each, outcome in before.items() if outcome == "PASSED" and after.get(each) != "PASSED")
    counts = {word: sum(each == word for each in after.values()) for word in ("PASSED", "SKIPPED", "FAILED", "ERROR")}
    print(f"transformers {importlib.metadata.version('transformers')}: {len(after)} tests, {counts}; failing without Penstock: "
          f"{sum(each in ('FAILED', 'ERROR') for each in before.values())}; failing with it alone: {ours or 'none'}")
    if ours:
        print(printed)
    return 1 if ours else 0


if __name__ == "__main__":
    sys.exit(main())
