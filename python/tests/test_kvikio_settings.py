"""penstock.kvikio.defaults and cufile_driver: values, checks, context managers, and the environment."""

from __future__ import annotations

import itertools
import os
import pathlib
import re
import subprocess
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from penstock import kvikio
from penstock._core import file_facts as _file_facts
from penstock.kvikio import CompatMode, cufile_driver, defaults

positive = ["num_threads", "task_size", "bounce_buffer_size", "http_max_attempts", "http_timeout"]


@pytest.fixture(autouse=True)
def untouched() -> Iterator[None]:
    """Every test leaves the settings as it found them, and has told of all that change nothing."""
    defaults._warned.update(defaults._UNUSED, (f"cufile_driver.{name}" for name in cufile_driver._settable))
    before = {name: defaults.get(name) for name in [*positive, "gds_threshold", "compat_mode", "http_status_codes"]}
    yield
    defaults.set(before)


# defaults: the newer generation


@pytest.mark.parametrize("name", [*positive, "gds_threshold"])
def test_a_number_is_set_until_the_end_of_its_block(name: str) -> None:
    before = defaults.get(name)
    with defaults.set(name, 3):
        assert defaults.get(name) == 3
        with defaults.set(name, 7):
            assert defaults.get(name) == 7
        assert defaults.get(name) == 3
        defaults.set(name, 4)
        assert defaults.get(name) == 4
    assert defaults.get(name) == before


def test_several_are_set_together() -> None:
    wanted = {"task_size": 1024, "num_threads": 16, "bounce_buffer_size": 2048}
    before = {name: defaults.get(name) for name in wanted}
    with defaults.set(wanted):
        assert {name: defaults.get(name) for name in wanted} == wanted
    assert {name: defaults.get(name) for name in wanted} == before


def test_nothing_is_set_when_one_value_is_wrong() -> None:
    before = defaults.get("task_size")
    with pytest.raises(ValueError):
        defaults.set({"task_size": before + 1, "num_threads": 0})
    with pytest.raises(KeyError):
        defaults.set({"task_size": before + 1, "no_such_setting": 0})
    assert defaults.get("task_size") == before


@pytest.mark.parametrize("name", positive)
def test_zero_is_no_positive_integer(name: str) -> None:
    with pytest.raises(ValueError, match="positive integer"):
        defaults.set(name, 0)


@pytest.mark.parametrize("name", [*positive, "gds_threshold"])
def test_negative_numbers_overflow(name: str) -> None:
    with pytest.raises(OverflowError, match="negative value"):
        defaults.set(name, -1)


def test_the_threshold_may_be_zero() -> None:
    with defaults.set("gds_threshold", 0):
        assert defaults.gds_threshold() == 0


@pytest.mark.parametrize("value", ["3", 2.5, None])
def test_other_types_are_type_errors(value: Any) -> None:
    with pytest.raises(TypeError):
        defaults.set("task_size", value)


@pytest.mark.parametrize("name", ["no_such_setting", "set_task_size", "thread_pool_nthreads"])
def test_unknown_names_are_key_errors(name: str) -> None:
    with pytest.raises(KeyError, match=name):
        defaults.set(name, 1)
    with pytest.raises(KeyError, match=name):
        defaults.get(name)


@pytest.mark.parametrize("arguments", [(), ("task_size",), (1, 2), ("task_size", 1, 2), ([("task_size", 1)],)])
def test_arguments_of_neither_form_are_a_value_error(arguments: tuple[Any, ...]) -> None:
    for module in (defaults, cufile_driver):
        with pytest.raises(ValueError, match="Valid arguments"):
            module.set(*arguments)


def test_status_codes_are_a_list_of_integers() -> None:
    with defaults.set("http_status_codes", [429, 500]):
        assert defaults.get("http_status_codes") == defaults.http_status_codes() == [429, 500]
        defaults.get("http_status_codes").append(1)
        assert defaults.get("http_status_codes") == [429, 500]
    for wrong in (0, ["a"]):
        with pytest.raises(TypeError):
            defaults.set("http_status_codes", wrong)


@pytest.mark.parametrize("name", ["auto_direct_io_read", "auto_direct_io_write"])
def test_switches_are_true_or_false(name: str) -> None:
    with defaults.set(name, True):
        assert defaults.get(name) is True
        defaults.set(name, 0)
        assert defaults.get(name) is False
    with pytest.raises(ValueError, match="True or False"):
        defaults.set(name, 2)
    with pytest.raises(TypeError):
        defaults.set(name, "yes")


def test_compat_mode_takes_every_mode() -> None:
    for mode in CompatMode:
        with defaults.set("compat_mode", mode):
            assert defaults.get("compat_mode") is mode
            resolved = {CompatMode.ON: True, CompatMode.OFF: False, CompatMode.AUTO: penstock.gpu_direct_status() is not None}
            assert defaults.is_compat_mode_preferred() is resolved[mode]
            assert defaults.compat_mode() is resolved[mode] and defaults.compat_mode() == CompatMode(resolved[mode])
    with pytest.raises(ValueError, match="CompatMode"):
        defaults.set("compat_mode", 3)
    with pytest.raises(TypeError):
        defaults.set("compat_mode", "ON")


def test_compat_modes_have_kvikios_numbers() -> None:
    assert [(mode.name, mode.value) for mode in CompatMode] == [("OFF", 0), ("ON", 1), ("AUTO", 2)]
    assert kvikio.CompatMode is CompatMode


# defaults: the older generation


def test_compat_mode_is_reset_by_mode_or_truth() -> None:
    for given, kept in ((True, CompatMode.ON), (False, CompatMode.OFF), (CompatMode.AUTO, CompatMode.AUTO)):
        defaults.compat_mode_reset(given)
        assert defaults.get("compat_mode") is kept


def test_auto_is_resolved_by_what_the_machine_can(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults.compat_mode_reset(CompatMode.AUTO)
    for status, answer in (("no libcufile", True), (None, False)):
        monkeypatch.setattr(penstock, "gpu_direct_status", lambda status=status: status)
        assert defaults.compat_mode() is answer


@pytest.mark.parametrize("name", ["num_threads", "task_size", "bounce_buffer_size"])
def test_what_changes_nothing_says_so_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(defaults, "_warned", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        defaults.set(name, defaults.get(name))  # no other value: nothing to tell
        with pytest.raises(RuntimeWarning, match=f"KvikIO's {name} has no effect in Penstock"), defaults.set(name, 2):
            pass
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with defaults.set(name, 7):
            pass
    assert told == []


def test_what_changes_something_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with defaults.set({"compat_mode": CompatMode.ON, "auto_direct_io_write": False, "gds_threshold": 1 << 20}):
            pass


def test_variables_that_change_nothing_are_named_when_a_file_is_opened(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    names = [*defaults._UNUSED_VARIABLES, "KVIKIO_NTHREADS", "KVIKIO_TASK_SIZE"]
    assert len(names) == 7
    path = str(tmp_path / "file")
    done = told(dict.fromkeys([*names, "KVIKIO_COMPAT_MODE"], "1"), f"[CuFile({path!r}) for _ in range(3)]")
    assert done.returncode == 0
    for name in names:
        assert done.stderr.count(f"KvikIO's {name} has no effect in Penstock: ") == 1
    assert "COMPAT_MODE" not in done.stderr
    used = {"KVIKIO_AUTO_DIRECT_IO_READ_OVERREAD": "1", "KVIKIO_THREAD_POOL_PER_BLOCK_DEVICE": "1", "KVIKIO_LOG_LEVEL": "off"}
    assert told({**used, "KVIKIO_GDS_THRESHOLD": "1048576"}, f"CuFile({path!r})").stderr == ""
    assert told({}, f"CuFile({path!r})").stderr == ""


TABLE = pathlib.Path(__file__).parents[2] / "docs/guides/kvikio.md"


@pytest.mark.skipif(not TABLE.exists(), reason="the documentation is in the repository only")
def test_the_table_of_the_documentation_has_every_setting_and_variable() -> None:
    acting = {"compat_mode", "gds_threshold", "auto_direct_io_read", "auto_direct_io_write"}
    acting |= {name for name in defaults._SETTINGS if name.startswith("http_")}
    assert acting | set(defaults._UNUSED) == set(defaults._SETTINGS)
    rows = [line for line in TABLE.read_text().splitlines() if line.startswith("| `") and line.count("|") == 5]
    told = {re.sub("`", "", cells[1]).strip(): cells for cells in (row.split("|") for row in rows)}
    for name, setting in defaults._SETTINGS.items():
        _, _, variables, acts, _, _ = told.pop(name)
        assert re.findall(r"`(KVIKIO_\w+)`", variables) == list(setting.variables)
        assert acts.strip() == ("warns" if name in defaults._UNUSED else "works"), name
    for name in (*defaults._UNUSED_VARIABLES, *defaults._USED_VARIABLES):
        acts = told.pop(name)[3].strip()
        assert acts == "warns" if name in defaults._UNUSED_VARIABLES else acts in ("works", "always on"), name
    for name in cufile_driver._settable:
        assert told.pop(f"cufile_driver.{name}")[3].strip() == "warns"
    assert not told


@pytest.mark.parametrize(
    ("getter", "setters"),
    [
        ("get_num_threads", ["reset_num_threads", "num_threads_reset", "set_num_threads"]),
        ("num_threads", ["reset_num_threads"]),
        ("task_size", ["reset_task_size", "task_size_reset", "set_task_size"]),
        ("gds_threshold", ["gds_threshold_reset", "set_gds_threshold"]),
        ("bounce_buffer_size", ["bounce_buffer_size_reset", "set_bounce_buffer_size"]),
        ("http_max_attempts", ["http_max_attempts_reset", "set_http_max_attempts"]),
        ("http_timeout", ["http_timeout_reset", "set_http_timeout"]),
        ("http_status_codes", ["http_status_codes_reset", "set_http_status_codes"]),
        ("compat_mode", ["compat_mode_reset", "set_compat_mode"]),
    ],
)
def test_functions_set_for_good_or_for_a_block(getter: str, setters: list[str]) -> None:
    get = getattr(defaults, getter)
    special: dict[str, list[Any]] = {
        "http_status_codes": [[500], [501]],
        "compat_mode": [CompatMode.OFF, CompatMode.ON],
    }
    values = special.get(getter, [5, 6])
    for setter in setters:
        getattr(defaults, setter)(values[0])
        assert get() == values[0]
        with getattr(defaults, setter)(values[1]):
            assert get() == values[1]
        assert get() == values[0]


def test_every_public_setting_name_is_there() -> None:
    for name in defaults.__all__:
        assert hasattr(defaults, name)


# defaults: the environment


def told(environment: dict[str, str], expression: str = "None") -> subprocess.CompletedProcess[str]:
    """What a new process prints of an expression, with these variables and no other of KvikIO's."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KVIKIO_")}
    script = f"""
from penstock.kvikio import CuFile, CompatMode, defaults
def attempt(call):
    try: call()
    except RuntimeError: pass
print({expression})"""
    return subprocess.run([sys.executable, "-c", script], env=kept | environment, capture_output=True, text=True)


def test_without_variables_the_defaults_are_kvikios() -> None:
    expected = {
        "num_threads": 1,
        "task_size": 4 << 20,
        "gds_threshold": 16 << 10,
        "bounce_buffer_size": 16 << 20,
        "auto_direct_io_read": False,
        "auto_direct_io_write": True,
        "http_max_attempts": 3,
        "http_status_codes": [429, 500, 502, 503, 504],
        "http_timeout": 60,
        "compat_mode": 2,
    }
    done = told({}, f"{{name: defaults.get(name) for name in {list(expected)}}} == {expected}")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


@pytest.mark.parametrize(
    ("variable", "text", "name", "value"),
    [
        ("KVIKIO_NTHREADS", "7", "num_threads", 7),
        ("KVIKIO_NUM_THREADS", "8", "num_threads", 8),
        ("KVIKIO_TASK_SIZE", "1024", "task_size", 1024),
        ("KVIKIO_GDS_THRESHOLD", "0", "gds_threshold", 0),
        ("KVIKIO_BOUNCE_BUFFER_SIZE", "4096", "bounce_buffer_size", 4096),
        ("KVIKIO_AUTO_DIRECT_IO_READ", "on", "auto_direct_io_read", True),
        ("KVIKIO_AUTO_DIRECT_IO_WRITE", "No", "auto_direct_io_write", False),
        ("KVIKIO_HTTP_MAX_ATTEMPTS", "5", "http_max_attempts", 5),
        ("KVIKIO_HTTP_STATUS_CODES", "500, 503", "http_status_codes", [500, 503]),
        ("KVIKIO_HTTP_TIMEOUT", "9", "http_timeout", 9),
        ("KVIKIO_COMPAT_MODE", "Yes", "compat_mode", 1),
        ("KVIKIO_COMPAT_MODE", "0", "compat_mode", 0),
        ("KVIKIO_COMPAT_MODE", "auto", "compat_mode", 2),
    ],
)
def test_a_variable_sets_its_setting(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, name: str, value: Any
) -> None:
    fresh(monkeypatch)
    monkeypatch.setenv(variable, text)
    assert defaults.get(name) == value


def test_two_names_of_one_setting_must_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    fresh(monkeypatch)
    monkeypatch.setenv("KVIKIO_NTHREADS", "7")
    monkeypatch.setenv("KVIKIO_NUM_THREADS", "8")
    with pytest.raises(ValueError, match="KVIKIO_NTHREADS and KVIKIO_NUM_THREADS"):
        defaults.get("num_threads")
    monkeypatch.setenv("KVIKIO_NUM_THREADS", "7")
    assert defaults.get("num_threads") == 7


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        *itertools.product(["KVIKIO_NTHREADS", "KVIKIO_TASK_SIZE", "KVIKIO_HTTP_TIMEOUT"], ["0", "-1", "many", "", "1.5"]),
        *itertools.product(["KVIKIO_COMPAT_MODE", "KVIKIO_AUTO_DIRECT_IO_READ"], ["maybe", "", "2"]),
        ("KVIKIO_GDS_THRESHOLD", "-1"),
        ("KVIKIO_HTTP_STATUS_CODES", "5x"),
        ("KVIKIO_HTTP_STATUS_CODES", ""),
    ],
)
def test_a_malformed_variable_is_named(monkeypatch: pytest.MonkeyPatch, variable: str, text: str) -> None:
    fresh(monkeypatch)
    monkeypatch.setenv(variable, text)
    name = next(name for name, setting in defaults._SETTINGS.items() if variable in setting.variables)
    with pytest.raises(ValueError, match=variable):
        defaults.get(name)


def test_importing_reads_no_variable_and_the_first_use_does(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    wrong = {"KVIKIO_AUTO_DIRECT_IO_WRITE": "perhaps"}
    assert told(wrong).returncode == 0
    opened = told(wrong, f"CuFile({str(path)!r})")
    assert opened.returncode == 1 and "ValueError: KVIKIO_AUTO_DIRECT_IO_WRITE=perhaps" in opened.stderr


@pytest.mark.parametrize("variable", ["KVIKIO_NTHREADS", "KVIKIO_TASK_SIZE", "KVIKIO_HTTP_TIMEOUT"])
def test_a_malformed_variable_keeps_files_closed(tmp_path: pathlib.Path, variable: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    opened = told({variable: "abc"}, f"CuFile({str(path)!r})")
    assert opened.returncode == 1 and f"ValueError: {variable}=abc" in opened.stderr


def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a process that has asked for no setting yet."""
    monkeypatch.setattr(defaults, "_values", {})
    for setting in defaults._SETTINGS.values():
        for variable in setting.variables:
            monkeypatch.delenv(variable, raising=False)


# The log


def test_the_log_tells_of_files_operations_and_failures(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 10)
    log = tmp_path / "log"
    log.write_text("of an earlier run")
    script = f"""[
        CuFile({str(tmp_path / "file")!r}).read(bytearray(10), file_offset=3),
        attempt(lambda: CuFile({str(tmp_path / "missing")!r})),
    ]"""
    for level, expected in {
        "DEBUG": ["INFO penstock.kvikio: .*file: opened with flags r", "DEBUG .*read_into of all bytes at 3", "ERROR .*missing"],
        "info": ["INFO .*opened", "ERROR .*missing"],
        "error": ["ERROR .*Unable to open file .*missing"],
        "off": [],
    }.items():
        log.write_text("of an earlier run" if level != "off" else "")
        done = told({"KVIKIO_LOG_LEVEL": level, "KVIKIO_LOG_FILE": str(log)}, script)
        assert (done.stdout, done.stderr) == ("[7, None]\n", ""), level
        lines = log.read_text().splitlines()
        assert len(lines) == len(expected) and all(map(re.search, expected, lines)), lines
    assert "ERROR penstock.kvikio: " in told({"KVIKIO_LOG_LEVEL": "warn"}, script).stderr


def test_a_level_that_is_none_logs_nothing(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    done = told({"KVIKIO_LOG_LEVEL": "loud"}, f"CuFile({str(tmp_path / 'file')!r}) and None")
    assert (done.stdout, done.stderr) == ("None\n", "")


def test_a_log_whose_file_cannot_be_opened_goes_to_standard_error(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    done = told({"KVIKIO_LOG_LEVEL": "info", "KVIKIO_LOG_FILE": str(tmp_path)}, f"CuFile({str(tmp_path / 'file')!r}) and None")
    lines = done.stderr.splitlines()
    assert done.stdout == "None\n" and len(lines) == 2, done.stderr
    assert f"WARNING penstock.kvikio: KVIKIO_LOG_FILE={tmp_path}: Is a directory" in lines[0] and "opened with flags r" in lines[1]


def test_a_log_is_emptied_once_and_then_appended_to(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    log = tmp_path / "log"
    log.write_text("of an earlier run")
    script = f"CuFile({str(tmp_path / 'file')!r}) and open({str(log)!r}, 'a').write('of another process\\n') and CuFile({str(tmp_path / 'file')!r}) and None"
    told({"KVIKIO_LOG_LEVEL": "info", "KVIKIO_LOG_FILE": str(log)}, script)
    lines = log.read_text().splitlines()
    assert len(lines) == 3 and "opened" in lines[0] and lines[1] == "of another process" and "opened" in lines[2]


# cufile_driver


@pytest.mark.parametrize("name", ["poll_mode", "poll_thresh_size", "max_device_cache_size", "max_pinned_memory_size"])
def test_a_driver_property_that_is_changed_says_so_once(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(defaults, "_warned", set())
    before = cufile_driver.get(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cufile_driver.set(name, before)
        with pytest.raises(RuntimeWarning, match=f"KvikIO's cufile_driver.{name} has no effect in Penstock: "):
            cufile_driver.set(name, not before if name == "poll_mode" else before + 1)
        assert cufile_driver.get(name) == before
        with cufile_driver.set(name, not before if name == "poll_mode" else before + 1):
            pass


def test_driver_properties_are_set_until_the_end_of_their_block() -> None:
    tried: dict[str, list[Any]] = {
        "poll_mode": [True, False],
        "poll_thresh_size": [1024, 2048],
        "max_device_cache_size": [2048, 4096],
        "max_pinned_memory_size": [64, 128],
    }
    for name, values in tried.items():
        before = cufile_driver.get(name)
        with cufile_driver.set(name, values[0]):
            assert cufile_driver.get(name) == getattr(cufile_driver.properties, name) == values[0]
            with cufile_driver.set({name: values[1]}):
                assert cufile_driver.get(name) == values[1]
            assert cufile_driver.get(name) == values[0]
        assert cufile_driver.get(name) == before
    with cufile_driver.set({"poll_mode": True, "max_device_cache_size": 2048}):
        assert cufile_driver.properties.poll_mode is True
        assert cufile_driver.properties.max_device_cache_size == 2048


def test_unknown_and_read_only_driver_properties_are_key_errors() -> None:
    with pytest.raises(KeyError, match="no_such"):
        cufile_driver.get("no_such")
    with pytest.raises(KeyError, match="no_such"):
        cufile_driver.set("no_such", 1)
    for name in ("is_gds_available", "major_version", "minor_version", "allow_compat_mode", "per_buffer_cache_size"):
        cufile_driver.get(name)
        with pytest.raises(KeyError, match="read-only"):
            cufile_driver.set(name, 1)


def test_wrong_driver_values_leave_all_as_it_was() -> None:
    before = cufile_driver.get("poll_mode")
    with pytest.raises(OverflowError, match="negative value"):
        cufile_driver.set({"poll_mode": not before, "poll_thresh_size": -1})
    with pytest.raises(TypeError):
        cufile_driver.set({"poll_mode": not before, "poll_thresh_size": "4"})
    assert cufile_driver.get("poll_mode") is before


def test_read_only_driver_properties_tell_of_nvidia_fs(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = tmp_path / "version"
    monkeypatch.setattr(_file_facts, "_nvidia_fs_version_file", str(version))
    known = ("is_gds_available", "major_version", "minor_version")
    assert [cufile_driver.get(name) for name in known] == [False, 0, 0]
    version.write_text("version: 2.25.7\n")
    assert [cufile_driver.get(name) for name in known] == [True, 2, 25]
    version.write_text("unknown\n")
    assert [cufile_driver.get(name) for name in known] == [False, 0, 0]
    assert cufile_driver.get("allow_compat_mode") is True
    assert cufile_driver.get("per_buffer_cache_size") == 1024
    with pytest.raises(AttributeError):
        cufile_driver.properties.major_version = 3  # type: ignore[misc]


def test_driver_properties_start_as_cufile_json_has_them(tmp_path: pathlib.Path) -> None:
    settings = tmp_path / "cufile.json"
    settings.write_text(
        '{"properties": {"use_poll_mode": true, "poll_mode_max_size_kb": 64, "max_device_cache_size_kb": 640, '
        '"max_device_pinned_mem_size_kb": 128, "per_buffer_cache_size_kb": 256, "allow_compat_mode": false}}'
    )
    script = """
import warnings
from penstock.kvikio import cufile_driver
names = cufile_driver._settable + cufile_driver._read_only[3:]
print([cufile_driver.get(name) for name in names])
warnings.simplefilter("ignore")
cufile_driver.set("poll_thresh_size", 8)
print(cufile_driver.properties.poll_thresh_size)
"""
    environ = dict(os.environ, CUFILE_ENV_PATH_JSON=str(settings))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environ)
    assert (done.stdout, done.stderr) == ("[True, 64, 640, 128, False, 256]\n8\n", "")


def test_a_cufile_json_that_is_none_is_a_runtime_error(tmp_path: pathlib.Path) -> None:
    settings = tmp_path / "cufile.json"
    settings.write_text("{")
    script = """
from penstock.kvikio import cufile_driver
for call in (cufile_driver.driver_open, lambda: cufile_driver.get("poll_mode"), cufile_driver.initialize):
    try: call()
    except RuntimeError as error: print("cufile.json" in str(error), "5002" in str(error))
"""
    environ = dict(os.environ, CUFILE_ENV_PATH_JSON=str(settings))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environ)
    assert done.stdout == "True True\n" * 3
    # Once, as NVIDIA's library prints it.
    assert done.stderr.count("\n") == 1 and str(settings) in done.stderr and "line 1" in done.stderr


def test_the_driver_opens_and_closes_in_pairs() -> None:
    cufile_driver.driver_open()
    cufile_driver.driver_open()
    cufile_driver.driver_close()
    cufile_driver.driver_close()


def test_closing_a_driver_that_is_not_open_is_a_runtime_error() -> None:
    script = (
        "from penstock.kvikio import cufile_driver\n"
        "try: cufile_driver.driver_close()\n"
        "except RuntimeError as error: print(error)\n"
        "cufile_driver.initialize()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    assert "not open" in done.stdout


def test_the_version_is_that_of_cufile() -> None:
    assert cufile_driver.libcufile_version() == (1, 17)
