"""vLLM's and SGLang's own loader classes with a weights cache: the second start reads no byte of the model's files, and gives equal outputs."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
library = pytest.importorskip("safetensors.torch", reason="the safetensors library is not installed")

import penstock
from penstock._holding import engine_weights, held_weights
from penstock.weights import _daemon
from penstock.weights_cache import _sources

sys.path.insert(0, str(Path(__file__).parent))
import engines_files

RANKS = 2
ROWS, COLUMNS = 64, 96


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "model"
    found.mkdir()
    (found / "config.json").write_text("{}")
    write_model(found, 1)
    return found


def write_model(folder: Path, seed: int) -> None:
    numbers = torch.Generator().manual_seed(seed)
    library.save_file({"up.weight": torch.randn(ROWS, COLUMNS, generator=numbers), "norm.weight": torch.randn(COLUMNS, generator=numbers)}, folder / "model.safetensors")


def quantize(layer: Any) -> None:
    """Replaces a layer's weight with int8 rows in another layout, and adds their scales, as kernels want them."""
    scale = layer.weight.abs().amax(1, keepdim=True) / 127
    packed = (layer.weight / scale).round().to(torch.int8).t().contiguous().t()
    layer.weight = torch.nn.Parameter(packed, requires_grad=False)
    layer.weight_scale = torch.nn.Parameter(scale.detach(), requires_grad=False)


class Layer(torch.nn.Module):
    """A rank's rows of a linear layer, as parallel layers of engines."""

    def __init__(self, rank: int, quant_method: Any) -> None:
        super().__init__()
        self.rank = rank
        self.quant_method = quant_method
        self.weight = torch.nn.Parameter(torch.empty(ROWS // RANKS, COLUMNS), requires_grad=False)
        self.weight.weight_loader = lambda tensor: self.weight.data.copy_(tensor.narrow(0, self.rank * ROWS // RANKS, ROWS // RANKS))
        self.is_ready = False

    def forward(self, x: Any) -> Any:
        assert self.is_ready  # Python state that no file contains
        return (x @ self.weight.float().t()) * self.weight_scale.t()


class Model(torch.nn.Module):
    def __init__(self, rank: int, quant_method: Any) -> None:
        super().__init__()
        self.up = Layer(rank, quant_method)
        self.norm = torch.nn.Module()
        self.norm.weight = torch.nn.Parameter(torch.empty(COLUMNS), requires_grad=False)
        self.tied = self.norm
        self.register_buffer("table", torch.arange(COLUMNS, dtype=torch.float32), persistent=False)

    def load_weights(self, weights: Any) -> None:
        for name, tensor in weights:
            parameter = self.get_parameter(name)
            getattr(parameter, "weight_loader", parameter.data.copy_)(tensor)

    def forward(self, x: Any) -> Any:
        return self.up(x * self.norm.weight + self.table)


def outputs(model: Any) -> Any:
    return model(torch.linspace(-1, 1, 3 * COLUMNS).view(3, COLUMNS))


# --- vLLM

LOADERS = "vllm.model_executor.model_loader"
CACHES = f"{LOADERS}.weight_cache"
VLLM = ["vllm.model_executor.utils", f"{LOADERS}.weight_utils", f"{LOADERS}.ep_weight_filter", f"{CACHES}.utils", f"{CACHES}.protocol", f"{LOADERS}.utils"]
VLLM += [LOADERS, f"{LOADERS}.base_loader", f"{LOADERS}.default_loader", f"{CACHES}.ipc_loader"]
QUANTIZATION = "vllm.model_executor.layers.quantization"


class QuantizeMethodBase:
    """As vLLM's, whose module needs compiled kernels."""

    supports_pre_processed_weights = False
    requires_device_loading = True


def none(name: str) -> dict[str, Any]:
    return {name: type(name, (), {})}


@pytest.fixture
def vllm() -> Iterator[Any]:
    if not engines_files.has(f"{CACHES}.ipc_loader"):
        pytest.skip("this vLLM has no cache of finished weights")
    envs = SimpleNamespace(VLLM_USE_MODELSCOPE=False, VLLM_LOG_MODEL_INSPECTION=False, compile_factors=lambda: {"VLLM_FLAG": 1})
    names: dict[str, dict[str, Any]] = {
        "vllm": {"envs": envs},
        "vllm.envs": vars(envs),
        "vllm.tracing": {"instrument": lambda *arguments, **settings: lambda function: function},
        "vllm.version": {"__version__": "0.33.0"},
        "vllm.config.utils": {"normalize_value": lambda value: value},
        f"{QUANTIZATION}.base_config": {"QuantizeMethodBase": QuantizeMethodBase, **none("QuantizationConfig")},
        f"{QUANTIZATION}.online.base": none("OnlineQuantizationConfig"),
        f"{QUANTIZATION}.online.fp8": none("OnlineLinearBase"),
        f"{QUANTIZATION}.online.moe_base": none("OnlineMoEMethodBase"),
        f"{QUANTIZATION}.kv_cache": none("BaseKVCacheMethod"),
        "vllm.model_executor.models.interfaces": {"SupportsEagleBase": type("SupportsEagleBase", (), {"__annotations__": {"has_own_lm_head": bool}})},
        "vllm.model_executor.layers.attention": {"is_deferred_attention_layer": lambda module: False},
        "vllm.utils.torch_utils": {"set_default_torch_dtype": lambda dtype: contextlib.nullcontext()},
        "vllm.utils.hashing": {"safe_hash": lambda content, **_: __import__("hashlib").sha256(content)},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_cuda_alike=lambda: False, is_xpu=lambda: False, device_type="cpu")},
        "vllm.distributed": {
            "get_dp_group": lambda: SimpleNamespace(world_size=1, rank_in_group=0),
            "get_pp_group": lambda: SimpleNamespace(world_size=1, rank_in_group=0),
            "get_tensor_model_parallel_rank": lambda: VLLMStart.rank,
            "get_tensor_model_parallel_world_size": lambda: RANKS,
        },
    }
    with engines_files.modules_of("vllm", [each for each in VLLM if each == LOADERS or engines_files.has(each)], names) as found:
        from penstock.vllm import register

        register()
        found[f"{LOADERS}.weight_utils"]._get_available_ram_bytes = lambda: 1 << 40
        yield SimpleNamespace(**{name.rpartition(".")[2]: module for name, module in found.items()}, loader_utils=found[f"{LOADERS}.utils"])


class VLLMStart:
    """One start of a rank of vLLM."""

    rank = 0

    def __init__(self, vllm: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        self.vllm, self.folder, self.patch = vllm, folder, monkeypatch
        self.options = options
        self.loads = 0
        self.supports = True
        self.moves = ""

    def model(self, rank: int = 0, dtype: str = "float32", **quant_config: Any) -> Any:
        is_processed = self.vllm.loader_utils.is_weights_pre_processed
        start = self

        class Int8(QuantizeMethodBase):
            supports_pre_processed_weights = start.supports

            def process_weights_after_loading(self, layer: Any) -> None:
                if not is_processed():
                    start.loads += 1
                    quantize(layer)
                layer.is_ready = True

        VLLMStart.rank = rank
        for module in (self.vllm.base_loader, self.vllm.ipc_loader):
            self.patch.setattr(module, "initialize_model", lambda **_: Model(rank, Int8()))
        for name in ("memory_allocated", "empty_cache"):
            self.patch.setattr(torch.accelerator, name, lambda *_: None, raising=False)
        self.patch.setattr(self.vllm.base_loader, "log_online_quantization_time", lambda config: None, raising=False)
        self.patch.setattr(self.vllm.base_loader, "log_online_quantization", lambda config: None, raising=False)
        self.patch.setattr(torch.accelerator, "current_device_index", lambda: None, raising=False)
        config = SimpleNamespace(
            model=str(self.folder), revision=None, quantization="int8", dtype=dtype, is_moe=False, multimodal_config=None, quantization_config=None,
            hf_config=SimpleNamespace(architectures=["Model"], quantization_config=quant_config), hf_text_config=SimpleNamespace(),
        )
        load = SimpleNamespace(
            load_format="penstock", device="cpu", download_dir=None, ignore_patterns=[], use_tqdm_on_load=False, safetensors_load_strategy=None, pt_load_map_location="cpu",
            model_loader_extra_config={"cache": str(self.folder.parent / "cache"), **self.options}, safetensors_prefetch_num_threads=1, safetensors_prefetch_block_size=1 << 20,
        )
        parallel = SimpleNamespace(enable_eplb=self.moves == "eplb", enable_expert_parallel=False, expert_placement_strategy="linear")
        kernel = SimpleNamespace(moe_backend="auto", linear_backend="auto", linear_backend_per_quant={})
        vllm_config = SimpleNamespace(
            device_config=SimpleNamespace(device="cpu"), load_config=load, parallel_config=parallel, kernel_config=kernel, speculative_config=None,
            cache_config=SimpleNamespace(cache_dtype="auto", kv_cache_dtype_skip_layers=[]), compute_hash=lambda: "abc", quant_config=None,
        )
        uva, prefetch = SimpleNamespace(cpu_offload_gb=float(self.moves == "uva")), SimpleNamespace(offload_group_size=int(self.moves == "prefetch"))
        vllm_config.offload_config = SimpleNamespace(uva=uva, prefetch=prefetch)
        loader = self.vllm.model_loader.get_model_loader(load)
        return loader.load_model(vllm_config=vllm_config, model_config=config)


def test_the_second_start_of_vllm_reads_the_cache(vllm: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = VLLMStart(vllm, folder, monkeypatch)
    expected = [first.model(rank) for rank in range(RANKS)]
    assert first.loads == RANKS and not torch.equal(outputs(expected[0]), outputs(expected[1]))
    second = VLLMStart(vllm, folder, monkeypatch)
    monkeypatch.setattr(_sources, "_hash_of", None)
    monkeypatch.setattr(vllm.default_loader.DefaultModelLoader, "get_all_weights", None)
    for rank in range(RANKS):
        found = second.model(rank)
        assert torch.equal(outputs(found), outputs(expected[rank]))
        assert found.up.weight.dtype == torch.int8 and found.up.weight.stride() == expected[rank].up.weight.stride()
        assert found.tied.weight is found.norm.weight and torch.equal(found.table, expected[rank].table)
    assert second.loads == 0


def test_vllm_never_serves_changed_weights_with_the_same_header(vllm: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = VLLMStart(vllm, folder, monkeypatch)
    first = start.model()
    write_model(folder, 2)
    second = start.model()
    assert start.loads == 2 and not torch.equal(first.up.weight, second.up.weight)


@pytest.mark.parametrize("change", [{"rank": 1}, {"dtype": "bfloat16"}, {"bits": 4}])
def test_vllms_key_covers_the_plan_and_the_quantization(vllm: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any]) -> None:
    start = VLLMStart(vllm, folder, monkeypatch)
    start.model()
    start.model(**change)
    assert start.loads == 2


def test_vllm_loads_if_the_cache_cannot_be_used(vllm: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    start = VLLMStart(vllm, folder, monkeypatch)
    start.supports = False  # a quantization method whose Python state depends on the transformation
    expected = outputs(start.model())
    assert "does not support loading from pre-processed weights" in caplog.text and not list((folder.parent / "cache").glob("*.safetensors"))
    start.supports = True
    start.model()
    monkeypatch.setattr(vllm.ipc_loader.IpcModelLoader, "_build_model", lambda *arguments: 1 / 0)
    assert torch.equal(outputs(start.model()), expected) and "could not use the stored weights" in caplog.text
    (entry,) = (folder.parent / "cache").glob("*.safetensors")
    entry.write_bytes(entry.read_bytes()[:-1])
    assert torch.equal(outputs(start.model()), expected) and start.loads == 4
    monkeypatch.setattr("penstock.vllm._finished.settings_files", lambda folder: [folder + "/absent"])
    assert torch.equal(outputs(start.model()), expected) and "No such file" in caplog.text


@pytest.mark.parametrize("setting", ["eplb", "uva", "prefetch"])
def test_vllm_does_not_cache_weights_that_move(vllm: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, setting: str) -> None:
    start = VLLMStart(vllm, folder, monkeypatch)
    start.moves = setting
    for _ in range(2):
        start.model()
    assert start.loads == 2 and "weights cache: not used, because" in caplog.text


def test_an_older_vllm_loads_without_the_cache(vllm: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, f"{CACHES}.ipc_loader", None)
    start = VLLMStart(vllm, folder, monkeypatch)
    start.model()
    assert start.loads == 1 and "it requires vLLM 0.31" in caplog.text


def test_vllm_refuses_a_wrong_folder_or_limit(vllm: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for options in ({"cache": 1}, {"cache_bytes": "1"}):
        with pytest.raises(ValueError, match="model_loader_extra_config: cache"):
            VLLMStart(vllm, folder, monkeypatch, **options).model()


# --- SGLang

LOADER = "sglang.srt.model_loader.loader"
SGLANG = ["sglang.srt.environ", "sglang.srt.configs.load_config", "sglang.srt.model_loader.weight_utils", LOADER, "sglang.srt.plugins.hook_registry"]


class Unset:
    """Settings of SGLang that are not set."""

    def __getattr__(self, name: str) -> None:
        return None


@pytest.fixture
def sglang() -> Iterator[Any]:
    if not engines_files.has(LOADER):
        pytest.skip("SGLang is not in the folder PENSTOCK_TEST_ENGINES")
    world = SimpleNamespace(world_size=1, rank_in_group=0)
    parallel = SimpleNamespace(tp_size=RANKS, moe_ep_size=1, pp_size=1, moe_dense_tp_size=None, moe_dp_size=1, enable_dp_lm_head=False, world_group=world)
    moe = SimpleNamespace(ep_num_redundant_experts=0, enable_eplb=False, init_expert_location=None)
    arguments = SimpleNamespace(moe_runner_backend="auto", api_key="secret")
    names: dict[str, dict[str, Any]] = {
        "sglang.version": {"__version__": "0.5.23"},
        "sglang.srt.runtime_context": {
            "get_parallel": lambda: parallel,
            "get_exec": lambda: SimpleNamespace(features=SimpleNamespace(enable_fp32_lm_head=False), moe=moe),
            "get_model": lambda: Unset(),
            "get_server_args": lambda: arguments,
        },
        "sglang.srt.layers.dp_attention": {"get_moe_cp_size": lambda: 1},
        "sglang.srt.layers.rotary_embedding.factory": {"_ROPE_DICT": {}},
        "sglang.srt.layers.quantization.base_config": none("QuantizeMethodBase") | none("QuantizationConfig"),
        "sglang.srt.lora.layers": none("BaseLayerWithLoRA"),
        "sglang.srt.model_loader.utils": {"set_default_torch_dtype": lambda dtype: contextlib.nullcontext()},
        "sglang.srt.utils": {**dict.fromkeys(("is_hip", "is_npu"), lambda: False), "get_bool_env_var": lambda *_: False},
        "sglang.srt.utils.common": {"is_cuda_alike": lambda: False},
        "sglang.srt.model_loader.post_load": {"stage_module_for_post_load": lambda module, device: contextlib.nullcontext()},
    }
    with engines_files.modules_of("sglang", SGLANG, names) as found:
        from penstock.weights_cache._sglang import register

        loader = found[LOADER]
        loader.monokernel_weights_iterator = lambda model, weights: weights
        register()
        found["sglang.srt.plugins.hook_registry"].HookRegistry.apply_hooks()
        yield SimpleNamespace(loader=loader, config=found["sglang.srt.configs.load_config"], parallel=parallel, world=world, arguments=arguments)


class SGLangMethod:
    """A quantization method that keeps values of the weights, and adds a tensor for its kernel."""

    def __init__(self) -> None:
        self.calls = 0

    def process_weights_after_loading(self, layer: Any) -> None:
        self.calls += 1
        quantize(layer)
        layer.largest = float(layer.weight_scale.max())
        layer.rows = layer.weight.sum(1).float()
        layer.is_ready = True


class SGLangModel(Model):
    def load_weights(self, weights: Any) -> None:
        super().load_weights(weights)
        self.up.derived = self.up.weight.data[:, :8].clone()  # as models do in load_weights()

    def forward(self, x: Any) -> Any:
        return super().forward(x) * self.up.largest + self.up.rows + self.up.derived.sum()


class SGLangStart:
    def __init__(self, sglang: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sglang, self.folder, self.patch = sglang, folder, monkeypatch
        self.options: dict[str, Any] = {}
        self.use_cache = True

    def model(self, rank: int = 0, quantization: str = "int8") -> Any:
        self.sglang.world.rank_in_group = rank
        self.patch.setattr(self.sglang.loader, "_initialize_model", lambda *_: SGLangModel(rank, SGLangMethod()))
        self.patch.setattr(self.sglang.loader, "_get_quantization_config", lambda *_: None)
        extra = {**({"cache": str(self.folder.parent / "cache")} if self.use_cache else {}), **self.options}
        config = self.sglang.config.LoadConfig(load_format="auto", model_loader_extra_config=extra)
        hf_config = SimpleNamespace(quantization_config={"bits": 8}, architectures=["Model"])
        model_config = SimpleNamespace(
            model_path=str(self.folder), model_weights=None, revision=None, quantization=quantization, dtype=torch.float32, is_draft_model=False, hf_config=hf_config, modelopt_quant=None
        )
        return self.sglang.loader.DefaultModelLoader(config).load_model(model_config=model_config, device_config=SimpleNamespace(device="cpu"))


def test_the_second_start_of_sglang_reads_the_cache(sglang: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = SGLangStart(sglang, folder, monkeypatch)
    expected = [start.model(rank) for rank in range(RANKS)]
    monkeypatch.setattr(_sources, "_hash_of", None)
    monkeypatch.setattr(sglang.loader.DefaultModelLoader, "_get_all_weights", None)
    for rank in range(RANKS):
        found = start.model(rank)
        assert torch.equal(outputs(found), outputs(expected[rank])) and found.up.largest == expected[rank].up.largest
        assert found.up.weight.stride() == expected[rank].up.weight.stride() and found.tied.weight is found.norm.weight
    assert not torch.equal(outputs(expected[0]), outputs(expected[1]))
    assert all(b"secret" not in each.read_bytes() for each in (folder.parent / "cache").glob("*.safetensors"))


@pytest.mark.parametrize("device", ["host", "host:0"])
@pytest.mark.parametrize("threads", [True, False])
def test_sglang_copies_weights_from_a_server(
    sglang: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, device: str, threads: bool
) -> None:
    caplog.set_level("INFO", "penstock")
    start = SGLangStart(sglang, folder, monkeypatch)
    start.use_cache = False
    expected = outputs(start.model())
    at = f"unix:@penstock-test-{os.getpid()}-{os.urandom(4).hex()}"
    start.options = {"server": at, "enable_multithread_load": threads}
    with _daemon.serve(str(folder), device, at):
        assert torch.equal(outputs(start.model()), expected)
        assert caplog.text.count("from penstock serve") == 1
        write_model(folder, 2)  # after the server loaded them
        changed = outputs(start.model())
        assert not torch.equal(changed, expected) and "holds other weights" in caplog.text
    assert torch.equal(outputs(start.model()), changed)  # without a server
    start.options = {"server": False}
    assert torch.equal(outputs(start.model()), changed) and caplog.text.count("from penstock serve") == 1


def test_sglang_reads_the_rest_if_the_server_ends(sglang: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    start = SGLangStart(sglang, folder, monkeypatch)
    start.use_cache = False
    expected = outputs(start.model())
    at = f"unix:@penstock-test-{os.getpid()}-{os.urandom(4).hex()}"
    monkeypatch.setattr(engine_weights, "_held_bytes", 1)  # one tensor at a time
    copied = held_weights.HeldWeights.copied

    def ended(self: Any, *arguments: Any) -> Any:
        raise penstock.Closed("the server has ended", code="closed")

    with _daemon.serve(str(folder), "host", at):
        monkeypatch.setattr(held_weights.HeldWeights, "copied", lambda self, *arguments: (monkeypatch.setattr(held_weights.HeldWeights, "copied", ended), copied(self, *arguments))[1])
        start.options = {"server": at}
        assert torch.equal(outputs(start.model()), expected) and "reading the other" in caplog.text


def test_sglang_never_serves_changed_weights_with_the_same_header(sglang: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = SGLangStart(sglang, folder, monkeypatch)
    first = start.model()
    write_model(folder, 2)
    assert not torch.equal(outputs(first), outputs(start.model()))


@pytest.mark.parametrize("change", ["quantization", "plan", "backend"])
def test_sglangs_key_covers_the_plan_and_the_quantization(sglang: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, change: str) -> None:
    start = SGLangStart(sglang, folder, monkeypatch)
    start.model()
    if change == "plan":
        sglang.parallel.tp_size = 4
    elif change == "backend":
        sglang.arguments.moe_runner_backend = "marlin"
    start.model(quantization="int4" if change == "quantization" else "int8")
    assert len(list((folder.parent / "cache").glob("*.safetensors"))) == 2


def test_sglang_loads_if_the_cache_cannot_be_used(sglang: Any, folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    start = SGLangStart(sglang, folder, monkeypatch)
    expected = outputs(start.model())
    with monkeypatch.context() as patch:
        patch.setattr(sglang.loader.DefaultModelLoader, "postprocess_weights", lambda model, device: 1 / 0)
        with pytest.raises(ZeroDivisionError):  # of SGLang's own load
            start.model()
    assert "could not use the stored weights" in caplog.text
    (entry,) = (folder.parent / "cache").glob("*.safetensors")
    content = bytearray(entry.read_bytes())
    content[-3000] ^= 1
    entry.write_bytes(content)
    assert torch.equal(outputs(start.model()), expected) and "removed" in caplog.text
    assert torch.equal(outputs(start.model()), expected)


def test_sglang_finds_the_plug_in() -> None:
    project = Path(__file__).parents[2] / "pyproject.toml"
    tomllib = pytest.importorskip("tomllib", reason="this Python reads no TOML")
    if not project.exists():
        pytest.skip("pyproject.toml is not beside the tests")
    entries = tomllib.loads(project.read_text())["project"]["entry-points"]["sglang.srt.plugins"]
    assert callable(EntryPoint("penstock", entries["penstock"], "sglang.srt.plugins").load())


def test_sglang_without_a_cache_is_as_before(sglang: Any, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start = SGLangStart(sglang, folder, monkeypatch)
    for options in ({"cache": 5}, {"cache_bytes": "1"}, {"server": 1}, {"unknown": 1}):
        start.options = options
        with pytest.raises(ValueError):
            start.model()
    config = sglang.config.LoadConfig(load_format="auto", model_loader_extra_config={})
    assert not hasattr(sglang.loader.DefaultModelLoader(config), "_penstock_cache")
