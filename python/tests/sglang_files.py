"""SGLang's storage back ends for HiCache, its cache controller and its host pools, from the folder that PENSTOCK_TEST_ENGINES names."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import engines_files

CACHE = "sglang.srt.mem_cache"
REAL = ["sglang.srt.environ", f"{CACHE}.hicache_storage", f"{CACHE}.storage.backend_factory", f"{CACHE}.storage.file", f"{CACHE}.storage.file.lru_file_evictor"]
REAL += [f"{CACHE}.storage.mmap", f"{CACHE}.storage.mmap.mmap_allocator", "sglang.srt.managers.cache_controller"]
REAL += [f"{CACHE}.pool_host.{name}" for name in ("common", "base", "hisparse", "mha", "mamba")]
FAST_FILE = [f"{CACHE}.storage.fast_file", f"{CACHE}.storage.fast_file.fast_file_store", f"{CACHE}.storage.fast_file.lru_file_evictor"]


@contextlib.contextmanager
def modules() -> Iterator[SimpleNamespace]:
    """SGLang's names that the tests use. Skips if the folder does not have SGLang."""
    names = {
        "sglang.srt.utils": {f"is_{kind}": lambda: False for kind in ("cuda", "hip", "mps", "npu", "xpu")},
        "sglang.srt.runtime_context": {"get_parallel": lambda: SimpleNamespace(launch_world_size=1)},
        f"{CACHE}.host_memory": {"available_host_memory_bytes": lambda **_: 1 << 40},
    }
    real = [*REAL, *(name for name in FAST_FILE if engines_files.has(name))]
    with engines_files.modules_of("sglang", real, names) as found:
        parts = {name: value for module in found.values() for name, value in vars(module).items() if not name.startswith("__")}
        yield SimpleNamespace(**parts, has_fast_file=len(real) > len(REAL))


def host_pool(sglang: Any, pages: int, layout: str, page: int = 16, layers: int = 32, heads: int = 8, width: int = 128) -> Any:
    """Returns SGLang's host pool of keys and values, with at least this many pages. The default sizes are those of Llama 3 8B."""
    import torch

    tokens = pages * page
    empty = tuple(torch.zeros((1, heads, width), dtype=torch.bfloat16) for _ in range(layers))
    pointers = torch.zeros(layers, dtype=torch.uint64)
    buffers = SimpleNamespace(k=empty, v=empty, k_data_ptrs=pointers, v_data_ptrs=pointers)
    info = SimpleNamespace(buffers=buffers, scales=None, transfer_buffers=None, validate=lambda: None, page_size=page)
    vars(info).update(head_num=heads, head_dim=width, v_head_dim=width, dtype=torch.bfloat16, device=torch.device("cpu"))
    sizes = {"device_capacity_tokens": tokens, "start_layer": 0, "end_layer": layers}
    return sglang.MHATokenToKVPoolHost(info, 1.0, 0, page, layout, pin_memory=False, **sizes)


def mamba_pool(sglang: Any, states: int, has_side_state: bool) -> Any:
    """Returns SGLang's host pool of a Mamba model's states. Pages with side states have no addresses."""
    import torch

    layers = 3
    temporal = torch.zeros((layers, states, 2, 5), dtype=torch.float32)
    conv = (torch.zeros((layers, states, 7), dtype=torch.bfloat16),)
    side = (torch.zeros((states, 9), dtype=torch.float32),) if has_side_state else ()
    info = SimpleNamespace(temporal=temporal, conv=conv, extra_checkpoint_buffers=side, validate=lambda: None)
    return sglang.MambaPoolHost(info, 1.0, 0, device_capacity=states, pin_memory=False, layout="page_first")
