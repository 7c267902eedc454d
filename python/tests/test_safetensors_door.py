"""Penstock in the place of the safetensors library: in this process, and by `penstock run` in programs and their children."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
from penstock.__main__ import command
from penstock.safetensors import explain, install, original, uninstall

library = pytest.importorskip("safetensors", reason="the safetensors library, which Penstock stands in for, is not installed")
theirs = pytest.importorskip("safetensors.numpy")

STARTUP = Path(penstock.__file__).parent / "_startup"
WHO = "import safetensors; print(safetensors.safe_open.__module__)"
OURS, THEIRS = "penstock._patch.safe_open", "builtins"


@pytest.fixture
def installed() -> Iterator[None]:
    with install():
        yield


@pytest.fixture
def path(tmp_path: Path) -> str:
    name = str(tmp_path / "model.safetensors")
    theirs.save_file({"a": np.arange(12, dtype="f4").reshape(3, 4), "b": np.ones(3, "i2")}, name, {"who": "np"})
    return name


def run(*words: Any, **environment: str) -> str:
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PENSTOCK_SAFETENSORS")}
    told = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=120, env=variables | environment)
    assert told.returncode == 0, told.stderr
    return told.stdout.strip()


def test_all_modules_get_it_and_give_it_back() -> None:
    before = library.safe_open
    mine = types.ModuleType("a_module_that_took_it_before")
    sys.modules[mine.__name__] = mine
    mine.safe_open = before  # type: ignore[attr-defined]
    try:
        with install():
            assert library.safe_open is theirs.safe_open is mine.safe_open is not before  # type: ignore[attr-defined]
            assert original.safe_open is before
            install()
            taken_meanwhile = library.safe_open
            late = sys.modules["a_later_one"] = types.ModuleType("a_later_one")
            late.safe_open = taken_meanwhile  # type: ignore[attr-defined]
        assert library.safe_open is theirs.safe_open is mine.safe_open is late.safe_open is before  # type: ignore[attr-defined]
        uninstall()
    finally:
        del sys.modules[mine.__name__], sys.modules["a_later_one"]


def test_names_of_newer_versions_are_there(installed: None) -> None:
    from safetensors import PrefetchLoader, PrefetchPlan, PySafeSlice, TensorMeta

    assert {each.__name__ for each in (PrefetchLoader, PySafeSlice, TensorMeta)} and PrefetchPlan == dict[str, slice | None]


def test_names_of_newer_versions_go_with_it() -> None:
    before = set(vars(library))
    with install():
        pass
    assert set(vars(library)) == before


def test_memory_of_the_cpu_is_the_librarys(installed: None, path: str) -> None:
    with library.safe_open(path, framework="np") as file:
        assert file.keys() == ["a", "b"] and file.metadata() == {"who": "np"} and set(file.offset_keys()) == {"a", "b"}
        assert np.array_equal(file.get_tensor("a"), np.arange(12, dtype="f4").reshape(3, 4))
        assert np.array_equal(file.get_slice("a")[1:, :2], [[4, 5], [8, 9]])
        assert set(file.get_tensors()) == {"a", "b"}
    assert set(theirs.load_file(path)) == {"a", "b"}
    assert explain().counts["files left to the library: framework np"] >= 2


def test_backend_is_taken_of_any_version(installed: None, path: str) -> None:
    for backend in ("mmap", "pread"):
        with library.safe_open(path, "np", backend=backend) as file:
            assert file.get_tensor("b").tolist() == [1, 1, 1]
    with pytest.raises(library.SafetensorError):
        library.safe_open(path, "np", backend="tape")


@pytest.mark.parametrize(
    "asked",
    [
        lambda path: library.safe_open("no such file", "np"),
        lambda path: library.safe_open(path, "no such library"),
        lambda path: library.safe_open(path, "np", device="tpu"),
        lambda path: library.safe_open(path, "np", no_such_argument=1),
        lambda path: library.safe_open(path, "np").get_tensor("c"),
        lambda path: library.safe_open(path, "np").get_slice("a")[:20],
        lambda path: library.safe_open(path, "np").get_slice("a")[[0, 1]],
        lambda path: library.safe_open(path),
    ],
)
def test_errors_are_the_librarys(path: str, asked: Any) -> None:
    with pytest.raises(Exception) as expected:
        asked(path)
    with install(), pytest.raises(Exception) as found:
        asked(path)
    assert type(found.value) is type(expected.value)
    if not isinstance(found.value, TypeError):
        assert str(found.value) == str(expected.value)


def test_a_closed_file_is_closed(installed: None, path: str) -> None:
    with library.safe_open(path, "np") as file:
        pass
    for asked in (file.keys, file.get_tensors, lambda: file.get_tensor("a"), lambda: file.get_slice("a"), lambda: file.get_tensor_meta("a")):
        with pytest.raises(library.SafetensorError):
            asked()


def test_prefetch_needs_a_gpu(installed: None, path: str) -> None:
    with library.safe_open(path, "np") as file, pytest.raises(library.SafetensorError, match="cuda"):
        file.prefetch()


def test_explain_says_what_is_what(path: str) -> None:
    assert "the safetensors library itself is in use" in str(explain()) and not explain().installed
    with install() as door:
        told = explain()
        assert told.installed and told.library == library.__version__ and "safetensors.safe_open" in told.replaced
        assert "safetensors.numpy.safe_open" in str(told) and repr(door) == str(told)


# --- programs


def test_run_puts_it_into_programs_and_their_children() -> None:
    children = f"import subprocess, sys; print(subprocess.check_output([sys.executable, '-c', {WHO!r}], text=True))"
    for program in (WHO, children):
        assert run(command(), "run", "--", sys.executable, "-c", program) == OURS
        assert run(command(), "run", "--", sys.executable, "-c", program, PENSTOCK_SAFETENSORS="0") == THEIRS


def test_it_comes_with_the_library_and_not_before() -> None:
    program = "import sys; before = 'penstock' in sys.modules; import safetensors; print(before, 'penstock' in sys.modules)"
    assert run(sys.executable, "-c", program, PYTHONPATH=str(STARTUP)) == "False True"
    program = "import sys, json; print('penstock' in sys.modules, len([1 for each in sys.meta_path if getattr(each, '__name__', '') == '_Door']))"
    assert run(sys.executable, "-c", program, PYTHONPATH=str(STARTUP)) == "False 1"


def test_submodules_get_it() -> None:
    program = "import safetensors.numpy as module; print(module.safe_open.__module__)"
    assert run(sys.executable, "-c", program, PYTHONPATH=str(STARTUP)) == OURS


def test_the_programs_own_sitecustomize_runs_too(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.mine = True; here = __file__\n")
    paths = f"{STARTUP}:{tmp_path}"
    assert run(sys.executable, "-c", f"import sys, sitecustomize; print(sys.mine, sitecustomize.here); {WHO}", PYTHONPATH=paths) == (
        f"True {tmp_path}/sitecustomize.py\n{OURS}"
    )
    assert run(sys.executable, "-c", f"import sys; print(sys.mine); {WHO}", PYTHONPATH=paths, PENSTOCK_SAFETENSORS="0") == f"True\n{THEIRS}"


def test_a_program_without_the_library_hears_what_it_would() -> None:
    program = "import sys; sys.path = [each for each in sys.path if 'site-packages' not in each]\ntry: import safetensors\nexcept ModuleNotFoundError as e: print(e)"
    assert run(sys.executable, "-c", program, PYTHONPATH=str(STARTUP)) == "No module named 'safetensors'"


def test_penstock_of_another_interpreter_is_taken_from_beside(tmp_path: Path) -> None:
    """As when the program's virtual environment has the library, and not Penstock."""
    (tmp_path / "safetensors").symlink_to(Path(library.__file__).parent)
    program = "import sys; sys.path = [each for each in sys.path if 'site-packages' not in each]; import safetensors; print(safetensors.safe_open.__module__)"
    assert run(sys.executable, "-c", program, PYTHONPATH=f"{STARTUP}:{tmp_path}") == OURS


# --- libraries that are damaged or unusual

RUST = "import sys, types; rust = sys.modules[__name__ + '._safetensors_rust'] = types.ModuleType('safetensors._safetensors_rust')\n"
READ_ONLY = """
class ReadOnly(types.ModuleType):
    def __setattr__(self, name, value): raise AttributeError('read-only')
class safe_open: pass
rust.safe_open = safe_open
sys.modules[__name__].__class__ = ReadOnly
"""
# What its __init__.py has, and what the program must find, as without Penstock.
LIBRARIES = {
    "nothing": ("", "None"),
    "no safe_open": (RUST + "__version__ = '0.1'", "None"),
    "its extension does not load": ("safe_open = 5\n", "5"),
    "safe_open is no callable": (RUST + "safe_open = rust.safe_open = 5", "5"),
    "safe_open is made at each call": (RUST + "rust.safe_open = lambda: 1\ndef __getattr__(name): raise AttributeError(name)", "None"),
    "odd __getattr__": (RUST + "def __getattr__(name):\n    raise RuntimeError(name)\n", "None"),
    "read-only": (RUST + READ_ONLY, "<class 'safetensors.safe_open'>"),
}


def outcome_of(tmp_path: Path, content: str | None, program: str, *options: str) -> subprocess.CompletedProcess[str]:
    if content is not None:
        (tmp_path / "safetensors").mkdir()
        (tmp_path / "safetensors" / "__init__.py").write_text(content)
    variables = {name: value for name, value in os.environ.items() if name != "PENSTOCK_SAFETENSORS"} | {"PYTHONPATH": f"{STARTUP}:{tmp_path}"}
    return subprocess.run([sys.executable, *options, "-c", program], capture_output=True, text=True, timeout=120, env=variables)


@pytest.mark.parametrize("options", [(), ("-W", "error")], ids=["plain", "warnings are errors"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_an_unusual_library_stays_as_it_is_and_a_warning_says_why(tmp_path: Path, library: str, options: tuple[str, ...]) -> None:
    content, expected = LIBRARIES[library]
    program = "import safetensors, sys; import safetensors as again; print(vars(safetensors).get('safe_open')); print('alive')"
    ended = outcome_of(tmp_path, content, program, *options)
    assert (ended.returncode, ended.stdout) == (0, f"{expected}\nalive\n"), ended.stderr
    if not options:
        assert ended.stderr.count("the safetensors library was not replaced with Penstock") == 1, ended.stderr


@pytest.mark.parametrize("content", ["raise ImportError('damaged')", "1 / 0", "def broken(:"])
def test_what_the_library_raises_reaches_the_program_as_without_penstock(tmp_path: Path, content: str) -> None:
    program = "try: import safetensors\nexcept BaseException as problem: print(type(problem).__name__, problem)"
    told = outcome_of(tmp_path, content, program)
    os.environ["PENSTOCK_SAFETENSORS"] = "0"
    try:
        plain = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, cwd=tmp_path)
    finally:
        del os.environ["PENSTOCK_SAFETENSORS"]
    assert told.stdout == plain.stdout != ""


def test_a_penstock_that_cannot_be_imported_leaves_the_library_alone(tmp_path: Path) -> None:
    (tmp_path / "penstock").mkdir()
    (tmp_path / "penstock" / "__init__.py").write_text("raise RuntimeError('another penstock')")
    ended = outcome_of(tmp_path, None, f"{WHO}; print('alive')")
    assert (ended.returncode, ended.stdout) == (0, f"{THEIRS}\nalive\n"), ended.stderr
    assert ended.stderr.count("RuntimeError: another penstock") == 1


def test_a_startup_folder_without_its_second_file_leaves_the_program_alone(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text((STARTUP / "sitecustomize.py").read_text())
    assert run(sys.executable, "-c", f"{WHO}; print('alive')", PYTHONPATH=str(tmp_path)) == f"{THEIRS}\nalive"


def test_a_module_that_refuses_changes_keeps_what_it_took() -> None:
    class ReadOnly(types.ModuleType):
        def __setattr__(self, name: str, value: Any) -> None:
            raise AttributeError("read-only")

    before = library.safe_open
    mine = sys.modules["a_read_only_module"] = ReadOnly("a_read_only_module")
    vars(mine)["safe_open"] = before
    nameless = sys.modules["a_nameless_module"] = types.ModuleType("a_nameless_module")
    del nameless.__name__
    nameless.safe_open = before  # type: ignore[attr-defined]
    try:
        with install():
            assert mine.safe_open is before is not library.safe_open
            assert nameless.safe_open is library.safe_open  # type: ignore[attr-defined]
            assert "safetensors.safe_open" in explain().replaced
        assert mine.safe_open is nameless.safe_open is library.safe_open is before  # type: ignore[attr-defined]
    finally:
        del sys.modules["a_read_only_module"], sys.modules["a_nameless_module"]


class _Secretive(types.ModuleType):
    def __getattribute__(self, name: str) -> Any:
        raise RuntimeError(name)


class _Classless:
    @property
    def __class__(self) -> Any:
        raise RuntimeError("class")


@pytest.mark.parametrize("odd", [lambda: _Secretive("odd"), _Classless, lambda: None, lambda: 42], ids=["secretive", "classless", "none", "number"])
def test_odd_objects_among_the_modules_are_left_alone(odd: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "an_odd_module", odd())
    before = library.safe_open
    with install():
        assert library.safe_open is not before
    assert library.safe_open is before


@pytest.mark.parametrize("version", [None, 3, "", "0.8rc1", "new"])
def test_a_library_of_whatever_version_opens_files(installed: None, path: str, version: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if version is None:
        monkeypatch.delattr(library, "__version__")
    else:
        monkeypatch.setattr(library, "__version__", version)
    for backend in ("mmap", "pread"):
        with library.safe_open(path, "np", backend=backend) as file:
            assert file.get_tensor("b").tolist() == [1, 1, 1]
    assert theirs.load_file(path)["b"].tolist() == [1, 1, 1]


def test_a_library_that_cannot_be_replaced_is_not_replaced_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    before = library.safe_open
    monkeypatch.setattr("penstock._patch.safetensors_library.library_attribute", lambda name: None)
    with pytest.raises(ImportError, match="does not define safe_open"):
        install()
    assert library.safe_open is theirs.safe_open is before
    assert not explain().installed
