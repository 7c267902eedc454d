"""Penstock replaces KvikIO's Python interface: in this process, and under `penstock run` in programs and their children."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.kvikio as ours
from penstock.__main__ import command
from penstock._patch import kvikio_library

WHO = "import kvikio; print(kvikio.CuFile.__module__)"

# The real library needs NVIDIA's libraries. Its modules define their names as this one's do; _lib stands for the compiled part.
PACKAGE = """
__version__ = "99.1"
from kvikio.buffer import memory_register
from kvikio.cufile import CuFile
class OnlyTheirs: pass
"""
MODULES = {
    "buffer": "def memory_register(buf): return 'theirs'\ndef memory_deregister(buf): return 'theirs'\n",
    "cufile": "class CuFile: pass\nclass IOFuture: pass\ndef helper(): pass\n",
    "defaults": "def get(name): return 'theirs'\ndef set(*config): return 'theirs'\nlimit = 7\n",
    "numpy": "def fromfile(file): return 'theirs'\n",
    "nsys": "def nsys_plugin_search_dir(): return 'theirs'\n",
}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site" / "kvikio"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text(PACKAGE)
    for name, text in MODULES.items():
        (folder / f"{name}.py").write_text(text)
    return folder.parent


@pytest.fixture
def library(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The stand-in for KvikIO, imported in this process."""
    before = {name: sys.modules.pop(name) for name in list(sys.modules) if name.partition(".")[0] == "kvikio"}
    monkeypatch.syspath_prepend(str(site))
    import kvikio

    yield kvikio
    kvikio_library.uninstall()
    for name in [name for name in sys.modules if name.partition(".")[0] == "kvikio"]:
        del sys.modules[name]
    sys.modules.update(before)


def run(site: Path, program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    dropped = ("PENSTOCK_KVIKIO", "PENSTOCK_LOG")
    variables = {name: value for name, value in os.environ.items() if name not in dropped} | {"PYTHONPATH": str(site)} | environment
    return subprocess.run(
        [command(), "run", "--", sys.executable, "-c", program], capture_output=True, text=True, timeout=120, env=variables
    )


def test_install_replaces_names_in_all_modules_and_uninstall_restores_them(library: Any) -> None:
    theirs = library.CuFile
    mine: Any = types.ModuleType("a_module_that_took_it_before")
    sys.modules[mine.__name__] = mine
    mine.File = theirs
    try:
        with ours.install():
            assert library.CuFile is library.cufile.CuFile is mine.File is ours.CuFile
            assert library.memory_register is library.buffer.memory_register is ours.memory_register
            ours.install()
        assert library.CuFile is library.cufile.CuFile is mine.File is theirs
    finally:
        del sys.modules[mine.__name__]


def test_modules_imported_later_are_changed_too(library: Any) -> None:
    with ours.install():
        import kvikio.defaults
        import kvikio.numpy

        assert (kvikio.numpy.fromfile, kvikio.defaults.get) == (ours.numpy.fromfile, ours.defaults.get)
        assert kvikio.defaults.limit == 7
    assert kvikio.numpy.fromfile("x") == kvikio.defaults.get("x") == "theirs"


def test_names_that_penstock_lacks_are_unchanged(library: Any) -> None:
    before = library.OnlyTheirs
    with ours.install():
        import kvikio.nsys

        assert library.OnlyTheirs is before and library.__version__ == "99.1"
        assert kvikio.nsys.nsys_plugin_search_dir() == "theirs" and library.cufile.helper.__module__ == "kvikio.cufile"


def test_explain_reports_what_was_replaced(library: Any) -> None:
    assert not ours.explain().installed and "kvikio library itself is in use" in str(ours.explain())
    with ours.install() as installed:
        told = ours.explain()
        assert told.installed and told.library == "99.1" and "kvikio.CuFile" in told.replaced
        assert str(told) == repr(installed) and "Penstock replaces the kvikio library 99.1" in str(told)


def test_a_library_that_is_not_installed_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kvikio", None)
    with pytest.raises(ImportError):
        ours.install()
    assert not ours.explain().installed


def test_penstock_run_replaces_it(site: Path) -> None:
    ended = run(site, WHO)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "penstock.kvikio.cufile\n", "")
    both = run(site, "import safetensors; " + WHO + "; print(safetensors.safe_open.__module__)")
    if both.returncode == 0:  # the safetensors library is installed
        assert both.stdout == "penstock.kvikio.cufile\npenstock._patch.safe_open\n"


def test_an_unchanged_program_reads_files(site: Path, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"some bytes")
    program = f"import kvikio; buffer = bytearray(10); print(kvikio.CuFile({str(tmp_path / 'data')!r}).read(buffer), buffer)"
    ended = run(site, program)
    assert (ended.stdout, ended.stderr) == ("10 bytearray(b'some bytes')\n", "")


def test_an_environment_variable_disables_the_replacement(site: Path) -> None:
    assert run(site, WHO, PENSTOCK_KVIKIO="0").stdout == "kvikio.cufile\n"
    assert run(site, WHO, PENSTOCK_SAFETENSORS="0").stdout == "penstock.kvikio.cufile\n"


def test_the_summary_includes_it(site: Path) -> None:
    ended = run(site, WHO, PENSTOCK_LOG="summary")
    assert "penstock: replaced kvikio 99.1; names: " in ended.stderr
    assert "replaced kvikio" not in run(site, "import json", PENSTOCK_LOG="summary").stderr


def test_asking_whether_it_is_installed_changes_nothing(site: Path) -> None:
    """As transformers asks before it imports an optional library."""
    ended = run(site, "import importlib.util; assert importlib.util.find_spec('kvikio'); " + WHO)
    assert (ended.stdout, ended.stderr) == ("penstock.kvikio.cufile\n", "")


def test_a_module_that_penstock_cannot_replace_stays_the_librarys(site: Path) -> None:
    (site / "kvikio" / "zarr.py").write_text("class GDSStore: pass\n")
    ended = run(site, "import sys; sys.modules['zarr'] = None; import kvikio.zarr; print(kvikio.zarr.GDSStore.__module__)")
    assert ended.stdout == "kvikio.zarr\n" and "kvikio.zarr was not replaced with Penstock" in ended.stderr
    strict = run(site, "import sys, warnings; import kvikio; sys.modules['zarr'] = None; warnings.simplefilter('error'); import kvikio.zarr; print('imported')")
    assert strict.stdout == "imported\n"


def test_a_library_that_fails_to_import_fails_as_before(site: Path) -> None:
    (site / "kvikio" / "__init__.py").write_text("raise RuntimeError('no GPU here')")
    ended = run(site, "try:\n import kvikio\nexcept RuntimeError as error: print(error)")
    assert (ended.stdout, ended.stderr) == ("no GPU here\n", "")


def test_a_library_without_these_names_is_unchanged(site: Path) -> None:
    (site / "kvikio" / "__init__.py").write_text("__version__ = '1'\n")
    ended = run(site, "import kvikio; print(kvikio.__version__, hasattr(kvikio, 'CuFile'))")
    assert (ended.stdout, ended.stderr) == ("1 False\n", "")


def test_penstock_itself_is_not_replaced() -> None:
    assert penstock.kvikio.CuFile.__module__ == "penstock.kvikio.cufile"
