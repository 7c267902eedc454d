"""SGLang's storage back ends for HiCache, its cache controller and its host pools, from the folder that PENSTOCK_TEST_ENGINES names."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import engines_files
import pytest

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
    real = [name for name in [*REAL, *FAST_FILE] if engines_files.has(name)]
    with engines_files.modules_of("sglang", real, names) as found:
        parts = {name: value for module in found.values() for name, value in vars(module).items() if not name.startswith("__")}
        yield SimpleNamespace(**parts, has_fast_file=FAST_FILE[0] in real)


def host_pool(sglang: Any, pages: int, layout: str, page: int = 16, layers: int = 32, heads: int = 8, width: int = 128) -> Any:
    """Returns SGLang's host pool of keys and values. The default sizes are those of Llama 3 8B. The constructor differs between releases, and what it
    requires from a GPU's pool is not needed here.
    """
    import torch

    kind = sglang.MHATokenToKVPoolHost
    pool = kind.__new__(kind)
    sizes = {"page_size": page, "page_num": pages, "size": pages * page, "layer_num": layers, "head_num": heads, "head_dim": width, "v_head_dim": width}
    vars(pool).update(sizes, layout=layout, dtype=torch.bfloat16, device="cpu", pin_memory=False, allocator=sglang.HostTensorAllocator())
    vars(pool).update(_transfer_device=torch.device("cpu"), device_pool=SimpleNamespace(device="cpu"))
    pool.kv_buffer = pool.init_kv_buffer()
    return pool


def mamba_pool(sglang: Any, states: int, has_side_state: bool) -> Any:
    """Returns SGLang's host pool of a Mamba model's states. Pages with side states have no addresses."""
    import torch

    layers = 3
    temporal = torch.zeros((layers, states, 2, 5), dtype=torch.float32)
    conv = (torch.zeros((layers, states, 7), dtype=torch.bfloat16),)
    side = (torch.zeros((states, 9), dtype=torch.float32),) if has_side_state else ()
    if "buffer_info" not in inspect.signature(sglang.MambaPoolHost).parameters:
        pytest.skip("SGLang before 0.5.23 makes its pool of Mamba states from a GPU's pool")
    info = SimpleNamespace(temporal=temporal, conv=conv, extra_checkpoint_buffers=side, validate=lambda: None)
    return sglang.MambaPoolHost(info, 1.0, 0, device_capacity=states, pin_memory=False, layout="page_first")
