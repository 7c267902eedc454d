"""Inference engines' own loaders over Penstock: vLLM's with the load format penstock, SGLang's and diffusers' with Penstock in place of the library."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
library = pytest.importorskip("safetensors.torch", reason="the safetensors library is not installed")

import penstock
from penstock._patch import safe_open as _door_open
from penstock._patch import tensor_in_file as _in_file
from penstock.safetensors import install
from penstock.vllm import _weights

sys.path.insert(0, str(Path(__file__).parent))
import engines_files

RANKS = 4
HEADER_BYTES = 66_000  # of a file that is opened: what is read of it at first
LOADERS = "vllm.model_executor.model_loader"


def model() -> dict[str, Any]:
    numbers = torch.Generator().manual_seed(1)
    found = {"embed.weight": torch.randn(8192, 256, generator=numbers), "norm.weight": torch.randn(256, generator=numbers), "scale": torch.tensor(2.5)}
    for layer in range(6):
        found[f"layers.{layer}.up.weight"] = torch.randn(512, 256, generator=numbers).bfloat16()
        found[f"layers.{layer}.down.weight"] = torch.randn(128, 4096, generator=numbers).bfloat16()
        for expert in range(4):
            found[f"layers.{layer}.experts.{expert}.weight"] = torch.randn(128, 128, generator=numbers)
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of eleven shards with an index, which another file lies beside, as in models of Mistral."""
    found = tmp_path_factory.mktemp("model")
    tensors, weights = model(), {}
    for number in range(11):
        name = f"model-{number + 1}-of-11.safetensors"
        mine = {each: tensors[each] for each in sorted(tensors)[number::11]}
        library.save_file(mine, found / name)
        weights.update(dict.fromkeys(mine, name))
    (found / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    library.save_file({name: torch.zeros_like(each) for name, each in tensors.items()}, found / "consolidated.safetensors")
    return found


def files_of(folder: Path) -> list[str]:
    return [str(each) for each in sorted(folder.glob("model-*.safetensors"))]


@pytest.fixture
def cpu_as_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is copied into a tensor of the CPU, or moved there, is read from the file, as if that were a GPU."""
    monkeypatch.setattr(_in_file, "_is_gpu", lambda device: device is not None)
    monkeypatch.setattr(_in_file, "gpus_may_be_used", lambda: True)
    monkeypatch.setattr(_door_open, "_known_gpu", lambda device: torch.device("cpu"))


def equal(found: Any, expected: Any) -> bool:
    return found.dtype == expected.dtype and found.shape == expected.shape and torch.equal(found, expected)


def read_bytes() -> int:
    return int(penstock.stats()["read_bytes"])


# --- without any engine


def test_whole_tensors_come_for_a_device(folder: Path) -> None:
    tensors = model()
    found = dict(_weights.streamed(files_of(folder), torch.device("cpu"), None, max_host_bytes=1 << 20))
    assert found.keys() == tensors.keys() and all(equal(found[name], tensors[name]) for name in tensors)


@pytest.mark.parametrize("way", ["streamed", "parts_of"])
def test_what_a_rank_has_no_use_for_is_left_out(folder: Path, way: str) -> None:
    def skip(name: str) -> bool:
        return ".experts." in name and not name.endswith("experts.2.weight")

    before = read_bytes()
    found = dict(_weights.streamed(files_of(folder), torch.device("cpu"), skip) if way == "streamed" else _weights.parts_of(files_of(folder), skip))
    tensors = {name: each for name, each in model().items() if not skip(name)}
    assert found.keys() == tensors.keys() and all(equal(found[name], tensors[name]) for name in tensors)
    assert read_bytes() - before <= sum(each.nbytes for each in tensors.values()) + 2 * 11 * HEADER_BYTES


def test_of_a_tensor_in_two_files_the_last_one_counts(tmp_path: Path) -> None:
    for number in (2, 10):
        library.save_file({"a": torch.full((9,), float(number))}, tmp_path / f"model-{number}.safetensors")
    found = list(_weights.streamed([str(tmp_path / f"model-{each}.safetensors") for each in (10, 2)], torch.device("cpu"), None))
    assert [float(tensor[0]) for _, tensor in found] == [2, 10]


def test_an_error_names_the_tensor(tmp_path: Path) -> None:
    library.save_file({f"t{each}": torch.zeros(1000) for each in range(10)}, tmp_path / "model.safetensors")
    weights = _weights.streamed([str(tmp_path / "model.safetensors")], torch.device("cpu"), None, max_host_bytes=1)
    next(weights)
    with open(tmp_path / "model.safetensors", "r+b") as file:
        file.truncate(20_000)
    with pytest.raises(penstock.ShortRead, match="model.safetensors.*t4"):
        list(weights)


def taken(tensor: Any, dim: int, rank: int) -> Any:
    """As weight loaders of engines take a rank's part."""
    length = tensor.shape[dim] // RANKS
    return tensor.narrow(dim, rank * length, length)


@pytest.mark.usefixtures("cpu_as_gpu")
def test_all_ranks_together_read_the_model_once(folder: Path) -> None:
    tensors = model()
    before = read_bytes()
    for rank in range(RANKS):
        for name, tensor in _weights.parts_of(files_of(folder), None):
            dim = 1 if "down" in name else 0
            if "norm" in name or "scale" in name:
                continue
            parameter = torch.zeros_like(taken(tensors[name], dim, rank))
            parameter.copy_(taken(tensor, dim, rank))
            assert torch.equal(parameter, taken(tensors[name], dim, rank))
    read = read_bytes() - before - RANKS * 11 * HEADER_BYTES
    assert read <= 1.02 * sum(each.nbytes for each in tensors.values())
    assert read_bytes() - before >= 0.98 * sum(each.nbytes for each in tensors.values())  # by Penstock, and not by the library's mapping


def test_importing_it_imports_no_engine() -> None:
    code = "import sys, penstock.vllm; assert 'vllm' not in sys.modules and 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_entry_point_is_there() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    tomllib = pytest.importorskip("tomllib", reason="this Python reads no TOML")
    if not project.exists():
        pytest.skip("pyproject.toml is not beside the tests")
    entries = tomllib.loads(project.read_text())["project"]["entry-points"]["vllm.general_plugins"]
    assert callable(EntryPoint("penstock", entries["penstock"], "vllm.general_plugins").load())


def test_another_vllm_goes_on_without_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from penstock.vllm import register

    monkeypatch.setitem(sys.modules, "vllm", None)
    register()
    assert "the load format penstock is disabled" in caplog.text


# --- vLLM


PARAMETERS = "vllm.model_executor.parameter"
VLLM = [LOADERS, PARAMETERS, f"{LOADERS}.base_loader", f"{LOADERS}.default_loader", f"{LOADERS}.weight_utils", f"{LOADERS}.ep_weight_filter"]
SETTINGS = SimpleNamespace(VLLM_USE_MODELSCOPE=False)


def as_it_is(*arguments: Any, **settings: Any) -> Callable[[Any], Any]:
    return lambda function: function


@pytest.fixture(scope="module")
def vllm() -> Iterator[Any]:
    names = {"vllm": {"envs": SETTINGS}, "vllm.envs": vars(SETTINGS), "vllm.tracing": {"instrument": as_it_is}}
    real = [each for each in VLLM if Path(engines_files.FOLDER, *each.split(".")).with_suffix(".py").exists() or each == LOADERS]
    with engines_files.modules_of("vllm", real, names) as found:
        from penstock.vllm import register

        register()
        register()
        found[f"{LOADERS}.weight_utils"]._get_available_ram_bytes = lambda: 1 << 40
        yield SimpleNamespace(**{name.rpartition(".")[2]: module for name, module in found.items()})


def load_config(**fields: Any) -> Any:
    common: dict[str, Any] = {"load_format": "penstock", "model_loader_extra_config": {}, "device": None, "download_dir": None, "ignore_patterns": []}
    common |= {"use_tqdm_on_load": False, "safetensors_load_strategy": None, "pt_load_map_location": "cpu"}
    common |= {"safetensors_prefetch_num_threads": 1, "safetensors_prefetch_block_size": 1 << 20}
    return SimpleNamespace(**{**common, **fields})


class Model:
    """As vLLM's models are for its loaders."""

    def __init__(self) -> None:
        self.parameters: dict[str, Any] = {}

    def load_weights(self, weights: Any) -> None:
        for name, tensor in weights:
            self.parameters[name] = torch.empty(tensor.shape, dtype=tensor.dtype)
            self.parameters[name].copy_(tensor)

    def named_parameters(self) -> list[Any]:
        return []  # of which vLLM checks that each was loaded


def model_config(folder: Path) -> Any:
    return SimpleNamespace(model=str(folder), revision=None, quantization=None, is_moe=False, multimodal_config=None)


def loaded(vllm: Any, folder: Path, **fields: Any) -> dict[str, Any]:
    found = Model()
    loader = vllm.model_loader.get_model_loader(load_config(**fields))
    loader.load_weights(found, model_config(folder))
    return found.parameters


@pytest.mark.parametrize("options", [{}, {"read": "whole", "max_host_bytes": 1 << 20, "max_device_bytes": 1 << 20}, {"read": "parts"}])
def test_vllm_loads_what_its_own_loader_does(vllm: Any, folder: Path, options: dict[str, Any]) -> None:
    expected = loaded(vllm, folder, load_format="auto")
    found = loaded(vllm, folder, model_loader_extra_config=options)
    assert found.keys() == expected.keys() == model().keys()
    assert all(equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("server", [True, "an address", False])
def test_vllm_copies_from_penstock_serve(
    vllm: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, server: Any
) -> None:
    from penstock._holding import held_weights
    from penstock.weights import _daemon

    at = f"unix:@penstock-engines-{os.getpid()}"
    monkeypatch.setattr(held_weights, "default_address", lambda device: at)
    caplog.set_level("INFO", "penstock")
    expected = loaded(vllm, folder, load_format="auto")
    with _daemon.serve(str(folder), "host", at):
        found = loaded(vllm, folder, model_loader_extra_config={"server": at if isinstance(server, str) else server})
        assert all(equal(found[name], expected[name]) for name in expected)
        assert ("files from penstock serve" in caplog.text) is (server is not False)
        caplog.clear()
        for file in folder.glob("*.safetensors"):  # an update of the model
            os.utime(file)
        assert equal(loaded(vllm, folder)[name := next(iter(expected))], expected[name])
        assert "files from penstock serve" not in caplog.text


@pytest.mark.parametrize("read", ["whole", "parts"])
def test_a_bar_shows_the_progress(vllm: Any, folder: Path, capsys: pytest.CaptureFixture[str], read: str) -> None:
    loaded(vllm, folder, use_tqdm_on_load=True, model_loader_extra_config={"read": read})
    counted = f"{len(model())}/{len(model())}" if read == "whole" else "11/11"
    assert "Loading safetensors by Penstock: 100%" in (told := capsys.readouterr().err) and counted in told


def test_vllms_iterator_is_its_own_afterwards(vllm: Any, folder: Path) -> None:
    theirs = vllm.default_loader.safetensors_weights_iterator
    loaded(vllm, folder)
    assert vllm.default_loader.safetensors_weights_iterator is theirs is vllm.weight_utils.safetensors_weights_iterator
    config = load_config()
    vllm.model_loader.get_model_loader(config)
    assert config.load_format == "penstock"


@pytest.mark.usefixtures("cpu_as_gpu")
def test_ranks_of_vllm_read_their_parts(vllm: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By vLLM's own weight loaders, of parameters that are cut."""
    tensors = model()
    cut = {name for name in tensors if "down" in name or "up" in name or "embed" in name or "experts" in name}
    before = read_bytes()
    for rank in range(RANKS):
        monkeypatch.setattr(vllm.weight_utils, "get_tensor_model_parallel_rank", lambda rank=rank: rank)
        monkeypatch.setattr("penstock.vllm._loader._ranks", lambda: RANKS)
        expected = {name: taken(each, 1 if "down" in name else 0, rank) if name in cut else each for name, each in tensors.items()}
        parameters = {name: torch.zeros_like(each) for name, each in expected.items()}

        for name, tensor in vllm.model_loader.get_model_loader(load_config()).get_all_weights(model_config(folder), Model()):
            loader = vllm.weight_utils.sharded_weight_loader(1 if "down" in name else 0) if name in cut else vllm.weight_utils.default_weight_loader
            loader(parameters[name], tensor)
        assert all(torch.equal(each, expected[name]) for name, each in parameters.items())
    assert read_bytes() - before <= 1.02 * sum(each.nbytes for each in tensors.values()) + RANKS * 11 * HEADER_BYTES


@pytest.mark.usefixtures("cpu_as_gpu")
def test_parameters_of_vllm_take_their_parts(vllm: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of linear layers, cut by columns and by rows, and merged: query, key and value are three cuts of one parameter."""
    up, down, embed = (model()[name] for name in ("layers.0.up.weight", "layers.0.down.weight", "embed.weight"))
    monkeypatch.setattr(vllm.parameter, "get_tensor_model_parallel_world_size", lambda: RANKS)
    for rank in range(RANKS):
        monkeypatch.setattr(vllm.parameter, "get_tensor_model_parallel_rank", lambda rank=rank: rank)
        weights = dict(_weights.parts_of(files_of(folder), lambda name: name not in ("layers.0.up.weight", "layers.0.down.weight", "embed.weight")))
        _door_open.counts.clear()
        rows = vllm.parameter.ModelWeightParameter(data=torch.zeros(128, 256, dtype=up.dtype), input_dim=1, output_dim=0, weight_loader=None)
        rows.load_column_parallel_weight(weights["layers.0.up.weight"])
        columns = vllm.parameter.ModelWeightParameter(data=torch.zeros(128, 1024, dtype=down.dtype), input_dim=1, output_dim=0, weight_loader=None)
        columns.load_row_parallel_weight(weights["layers.0.down.weight"])
        merged = vllm.parameter.ModelWeightParameter(data=torch.zeros(3 * 2048, 256), input_dim=1, output_dim=0, weight_loader=None)
        for number, shard in enumerate("qkv"):
            merged.load_qkv_weight(weights["embed.weight"], shard_offset=2048 * number, shard_size=2048, shard_id=shard, num_heads=1)
        assert torch.equal(rows.data, taken(up, 0, rank)) and torch.equal(columns.data, taken(down, 1, rank))
        assert torch.equal(merged.data, torch.cat([taken(embed, 0, rank)] * 3))
        assert _door_open.counts["parts of tensors read into a GPU"] == 5 and not _door_open.counts["tensors read into a GPU"]


def test_prefixes_and_experts_are_vllms(vllm: Any, folder: Path) -> None:
    loader = vllm.model_loader.get_model_loader(load_config())
    source = vllm.default_loader.DefaultModelLoader.Source(str(folder), None, prefix="language_model.")
    if hasattr(vllm, "ep_weight_filter"):
        loader.local_expert_ids = {1, 3}
    found = dict(loader._get_weights_iterator(source))
    assert all(name.startswith("language_model.") for name in found)
    experts = {name.split(".")[4] for name in found if ".experts." in name}
    assert experts == ({"1", "3"} if hasattr(vllm, "ep_weight_filter") else {"0", "1", "2", "3"})


def test_files_that_are_no_safetensors_are_vllms(vllm: Any, tmp_path: Path) -> None:
    torch.save({"a": torch.arange(10.0)}, tmp_path / "pytorch_model.bin")
    assert torch.equal(loaded(vllm, tmp_path)["a"], torch.arange(10.0))
    (tmp_path / "nothing").mkdir()
    with pytest.raises(RuntimeError, match="Cannot find any model weights"):
        loaded(vllm, tmp_path / "nothing")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"read": "all"}, "read must be"),
        ({"max_device_bytes": "1 GiB"}, "max_device_bytes must be a number of bytes"),
        ({"max_host_bytes": 0}, "max_host_bytes"),
        ({"server": 1}, "server must be true, false or an address"),
        ({"enable_multithread_load": True}, "its own threads"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_options_that_are_none_are_refused(vllm: Any, options: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        vllm.model_loader.get_model_loader(load_config(model_loader_extra_config=options))


def test_damaged_files_are_named(vllm: Any, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"damaged")
    with pytest.raises(penstock.Error, match="model.safetensors"):
        loaded(vllm, tmp_path)


# --- SGLang


@pytest.fixture(scope="module")
def sglang() -> Iterator[Any]:
    name = "sglang.srt.model_loader.weight_utils"
    with engines_files.modules_of("sglang", [name], {}) as found:
        yield found[name]


@pytest.mark.usefixtures("cpu_as_gpu")
@pytest.mark.parametrize("iterator", ["safetensors_weights_iterator", "buffered_multi_thread_safetensors_weights_iterator"])
def test_iterators_of_sglang_read_parts(sglang: Any, folder: Path, iterator: str) -> None:
    tensors = model()
    how = {"max_workers": 3} if "multi" in iterator else {}
    for rank in range(2):
        _door_open.counts.clear()
        with install():
            found = {}
            for name, tensor in getattr(sglang, iterator)(files_of(folder), **how):
                found[name] = torch.zeros_like(taken(tensors[name], 0, rank) if "up" in name else tensors[name])
                found[name].copy_(taken(tensor, 0, rank) if "up" in name else tensor)
        assert found.keys() == tensors.keys()
        assert all(torch.equal(each, taken(tensors[name], 0, rank) if "up" in name else tensors[name]) for name, each in found.items())
        assert _door_open.counts["parts of tensors read into a GPU"] == 6
        assert _door_open.counts["tensors read into a GPU"] == len(tensors) - 6 - 2  # but for the two that are small


# --- diffusers


@pytest.fixture(scope="module")
def diffusers() -> Iterator[Any]:
    name = "diffusers.models.model_loading_utils"
    with engines_files.modules_of("diffusers", [name], {"diffusers.utils": {"SAFETENSORS_FILE_EXTENSION": "safetensors"}}) as found:
        yield found[name]


@pytest.mark.usefixtures("cpu_as_gpu")
def test_diffusers_state_dicts_move_to_a_gpu(diffusers: Any, folder: Path) -> None:
    tensors = model()
    _door_open.counts.clear()
    with install():
        for file in files_of(folder):
            for name, tensor in diffusers.load_state_dict(file).items():
                parameter = torch.zeros_like(tensors[name])
                parameter.copy_(tensor)
                assert torch.equal(parameter, tensors[name])
    assert _door_open.counts["tensors read into a GPU"] == len(tensors) - 2
