"""penstock.zarr.load of arrays that are compressed, sharded, transposed or of another byte order: the same values as zarr gives."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import random
import resource
import struct
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

zarr = pytest.importorskip("zarr", minversion="3.1", reason="zarr 3.1 is not installed")

import numcodecs

import penstock
from penstock.zarr import GDSStore, _coded, _nvcomp, _on_gpu, _reads, explain, load
from penstock.zarr._codecs import byte_codecs2, decode
from penstock.zarr._frames import whole_frames
from penstock.zarr._layouts import layout_of, layout_of_metadata
from penstock.zarr._load_array import why_not_gpu
from penstock.zarr._chunk_plan import Unsupported, chunk_parts, region_of
from penstock.zarr._targets import target_for

from .test_malformed_files import damaged as at_random  # noqa: E402
from .zarr_level import stays_level  # noqa: E402, F401

ROUNDS = int(os.environ.get("PENSTOCK_TEST_ROUNDS", "150")) // 3
OTHER = "big" if sys.byteorder == "little" else "little"
OTHER_SIGN = {"big": ">", "little": "<"}[OTHER]

pytestmark = pytest.mark.filterwarnings("ignore::Warning")  # zarr 3, of what its format 3 does not have


CODECS_2: dict[str, Callable[[], Any]] = {
    "zstd": lambda: numcodecs.Zstd(3),
    "lz4": numcodecs.LZ4,
    "zlib": lambda: numcodecs.Zlib(1),
    "gzip": lambda: numcodecs.GZip(1),
    "blosc": lambda: numcodecs.Blosc("lz4", 5, numcodecs.Blosc.SHUFFLE),
    "blosc of zstd": lambda: numcodecs.Blosc("zstd", 3, numcodecs.Blosc.BITSHUFFLE),
    "bz2": lambda: numcodecs.BZ2(1),
}


def make2(folder: Path, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any = "i4", compressor: Any = None, **options: Any) -> Any:
    """An array of format 2."""
    options = {"fill_value": 0, **options}
    return zarr.create_array(GDSStore(str(folder)), shape=shape, chunks=chunks, dtype=dtype, compressors=compressor, zarr_format=2, **options)


def make3(folder: Path, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any = "i4", **options: Any) -> Any:
    return zarr.create_array(GDSStore(str(folder)), shape=shape, chunks=chunks, dtype=dtype, **{"fill_value": 0, **options})


def values_of(shape: tuple[int, ...], seed: int = 0) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = np.random.default_rng(seed).integers(0, 100, shape)
    return values


def check(array: Any, selection: Any = ..., **options: Any) -> None:
    """On the host, on the host device, and in memory that is there."""
    told = explain(array, selection)
    assert told.direct, str(told)
    expected = np.asarray(array[selection])
    result = load(array, selection, **options)
    assert (result.dtype, result.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(result, expected)
    out = np.ones(expected.shape, expected.dtype)
    assert load(array, selection, out=out) is out
    np.testing.assert_array_equal(out, expected)
    if expected.nbytes:
        native = expected.astype(expected.dtype.newbyteorder("="))
        assert load(array, selection, device="host:0").to_host() == native.tobytes()


SELECTIONS = [..., (slice(3, 30), slice(5, 40)), (7, slice(None)), (slice(None), -1), (slice(10, 20),), (slice(4, 4),)]


@pytest.mark.parametrize("name", CODECS_2)
@pytest.mark.parametrize("dtype", ["u1", "f4", f"{OTHER_SIGN}i2", "c16"])
def test_compressors_of_numcodecs(tmp_path: Path, name: str, dtype: str) -> None:
    array = make2(tmp_path, (33, 50), (10, 50), dtype, CODECS_2[name]())
    array[...] = values_of((33, 50))
    assert name.split()[0] in explain(array).reason
    for selection in SELECTIONS:
        check(array, selection)


@pytest.mark.parametrize("chunks", [(33, 50), (10, 7), (1, 50), (40, 60)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_chunks_in_fortran_order_and_over_the_edge(tmp_path: Path, chunks: tuple[int, int], order: str) -> None:
    for name, compressor in (("plain", None), ("packed", numcodecs.Zstd())):
        array = make2(tmp_path / name, (33, 50), chunks, "i4", compressor, order=order)
        array[...] = values_of((33, 50))
        for selection in SELECTIONS:
            check(array, selection)


def test_filters_are_undone(tmp_path: Path) -> None:
    array = make2(tmp_path, (1000,), (300,), "i8", numcodecs.Zlib(1), filters=[numcodecs.Delta("i8"), numcodecs.Shuffle(8)])
    array[...] = np.arange(1000) ** 2
    assert "zlib, shuffle, delta" in explain(array).reason
    check(array)
    check(array, slice(250, 950))


def test_missing_chunks_have_the_fill_value(tmp_path: Path) -> None:
    array = make2(tmp_path, (100, 40), (10, 40), "i4", numcodecs.Zstd(), fill_value=-7)
    array[25:45, :30] = 3
    for selection in (..., slice(0, 5), (slice(20, 50), slice(25, 35))):
        check(array, selection)
    check(make2(tmp_path / "empty", (9, 9), (2, 2), "f4", numcodecs.Zstd(), fill_value=np.nan))


def test_a_number_and_an_empty_array(tmp_path: Path) -> None:
    number = make2(tmp_path / "number", (), (), "f8", numcodecs.Zstd())
    number[...] = 2.5
    check(number)
    assert load(make2(tmp_path / "empty", (0, 5), (1, 5), "f8", numcodecs.Zstd())).shape == (0, 5)


def test_records_and_times_and_texts_of_one_length(tmp_path: Path) -> None:
    records = make2(tmp_path / "records", (10,), (4,), [("a", f"{OTHER_SIGN}i4"), ("b", "f8")], numcodecs.Zstd(), fill_value=None)
    records[...] = np.array([(i, i / 2) for i in range(10)], dtype=records.dtype)
    texts = make2(tmp_path / "texts", (10,), (4,), "U5", numcodecs.Zstd(), fill_value="")
    texts[...] = np.array([f"{i:x}" for i in range(10)])
    times = make2(tmp_path / "times", (10,), (4,), "M8[s]", numcodecs.Zstd())
    times[...] = np.arange(10).astype("M8[s]")
    for array in (records, texts, times):
        assert explain(array).direct
        np.testing.assert_array_equal(load(array), array[...])


def test_objects_are_read_by_zarr_and_lie_in_numpy_alone(tmp_path: Path) -> None:
    array = make3(tmp_path, (4,), (2,), str, fill_value="")
    array[...] = np.array(["a", "bb", "", "dddd"], dtype=object)
    told = explain(array)
    assert not told.direct and "not a plain data type" in told.reason
    assert list(load(array)) == ["a", "bb", "", "dddd"]
    with pytest.raises(TypeError, match="which only a NumPy array can contain"):
        load(array, device="host:0")
    with pytest.raises(TypeError, match="which only a NumPy array can contain"):
        load(array, out=bytearray(32))


def chunk_file(folder: Path, number: int) -> Path:
    return folder / str(number) / "0" if (folder / str(number)).is_dir() else folder / f"{number}.0"


class TestDamage:
    @pytest.fixture
    def array(self, tmp_path: Path) -> Any:
        array = make2(tmp_path, (50, 40), (10, 40), "i4", numcodecs.Zstd())
        array[...] = values_of((50, 40)) + 1
        return array

    @pytest.mark.parametrize("device", [None, "host:0"])
    @pytest.mark.parametrize("harm", ["cut", "bits", "empty", "of another size", "none"])
    def test_of_a_chunk_is_an_error_that_names_it_and_spares_the_others(self, array: Any, tmp_path: Path, device: str | None, harm: str) -> None:
        expected = array[...]
        file = chunk_file(tmp_path, 2)
        data = file.read_bytes()
        harmed = {
            "cut": data[:-9],
            "bits": data[:30] + b"\xff" * 9 + data[39:],
            "empty": b"",
            "of another size": numcodecs.Zstd().encode(np.zeros(399, "i4")),
            "none": b"no frame of zstd",
        }
        file.write_bytes(harmed[harm])
        out = np.zeros_like(expected) if device is None else penstock.device(device).empty(expected.nbytes)
        with pytest.raises(ValueError, match=rf"chunk \(2, 0\) at offset 0 in {file}: ") as raised:
            load(array, out=out)
        assert "decode" in str(raised.value)
        found = out if device is None else np.frombuffer(out.to_host(), "i4").reshape(expected.shape)
        for rows in (slice(0, 20), slice(30, 50)):
            np.testing.assert_array_equal(found[rows], expected[rows])
            np.testing.assert_array_equal(load(array, rows), expected[rows])

    @pytest.mark.parametrize("codec", [None, "ZstdCodec", "GzipCodec", "BloscCodec", "Crc32cCodec", "sharding"])
    def test_at_random_is_penstocks_error(self, tmp_path: Path, codec: str | None) -> None:
        codecs = {"shards": (4, 4)} if codec == "sharding" else {"compressors": None if codec is None else getattr(zarr.codecs, codec)()}
        array = zarr.create_array(tmp_path / "a", shape=(4, 4), chunks=(2, 4), dtype="f4", **codecs)
        array[...] = np.arange(16, dtype="f4").reshape(4, 4)
        chunk = next(each for each in (tmp_path / "a" / "c").rglob("*") if each.is_file())
        content, numbers = chunk.read_bytes(), random.Random(20)
        for number in range(40):
            chunk.write_bytes(at_random(content, numbers))
            try:
                load(array)
            except penstock.Error:
                pass
            except Exception as problem:
                raise AssertionError(f"round {number}: {type(problem).__name__}: {problem}") from problem

    def test_of_several_chunks_is_counted(self, array: Any, tmp_path: Path) -> None:
        for number in range(3):
            chunk_file(tmp_path, number).write_bytes(b"nothing")
        with pytest.raises(ValueError, match=r"\(and 2 more chunks\)"):
            load(array)

    def test_a_file_that_is_far_too_long_is_not_read(self, array: Any, tmp_path: Path) -> None:
        os.truncate(chunk_file(tmp_path, 1), 1 << 40)
        with pytest.raises(ValueError, match=r"chunk \(1, 0\) .* has 1099511627776 bytes, but an encoded chunk of this array has at most"):
            load(array)

    def test_a_short_answer_of_a_codec_is_found(self) -> None:
        short = numcodecs.LZ4().encode(np.zeros(10, "u1"))
        lying = struct.pack("<I", 16) + bytes(short[4:])
        codecs = _codecs_of("lz4")
        for data in (short, lying):
            with pytest.raises(ValueError, match="lz4 cannot decode|it decodes to 10 bytes"):
                decode(codecs, np.frombuffer(data, "u1"), np.empty(16, "u1"))


def _codecs_of(name: str) -> Any:
    return byte_codecs2(None, CODECS_2[name]())


def frame_of_zstd(content: bytes, block: int = 100_000) -> bytes:
    """A frame that does not say how long its content is, as programs write them that compress a stream. Its blocks are not compressed."""
    blocks = [content[at : at + block] for at in range(0, len(content), block)] or [b""]
    heads = [struct.pack("<I", len(some) << 3 | (number == len(blocks) - 1))[:3] for number, some in enumerate(blocks)]
    return b"\x28\xb5\x2f\xfd\x00\x58" + b"".join(head + some for head, some in zip(heads, blocks))


def bomb_of_zstd(blocks: int) -> bytes:
    """A frame without a size that holds one byte, again and again: 128 KiB come of each 4 bytes."""
    frame = b"\x28\xb5\x2f\xfd\x00\x58"
    return frame + b"".join(struct.pack("<I", (128 << 10) << 3 | 2 | (number == blocks - 1))[:3] + b"\x00" for number in range(blocks))


MIB = 1 << 20

BOMBS: dict[str, Callable[[int], bytes]] = {
    "zstd": lambda size: bytes(numcodecs.Zstd(1).encode(bytes(size))),
    "zstd without a size": lambda size: bomb_of_zstd(size // (128 << 10)),
    "zstd in frames": lambda size: bytes(numcodecs.Zstd(1).encode(bytes(size // 2))) * 2,
    "zstd in frames without a size": lambda size: bomb_of_zstd(size // (256 << 10)) * 2,
    "lz4": lambda size: bytes(numcodecs.LZ4().encode(bytes(size))),
    "blosc": lambda size: bytes(numcodecs.Blosc("lz4").encode(bytes(size))),
    "zlib": lambda size: bytes(numcodecs.Zlib(9).encode(bytes(size))),
    "gzip": lambda size: bytes(numcodecs.GZip(9).encode(bytes(size))),
    "gzip in members": lambda size: bytes(numcodecs.GZip(9).encode(bytes(MIB))) * (size // MIB),
    "bz2": lambda size: bytes(numcodecs.BZ2(9).encode(bytes(size))),
    "lzma": lambda size: bytes(numcodecs.LZMA().encode(bytes(size))),
}


@cache
def bomb(name: str, size: int) -> bytes:
    return BOMBS[name](size)


class TestBytesThatGrowWithoutEnd:
    @pytest.mark.parametrize("name", BOMBS)
    @pytest.mark.parametrize("filters", [[], [numcodecs.Shuffle(4)]], ids=["last step", "step between"])
    def test_are_refused_before_they_take_memory(self, name: str, filters: list[Any]) -> None:
        data = np.frombuffer(bomb(name, 64 * MIB), "u1")
        assert len(data) < 2 * MIB
        codecs = byte_codecs2(filters, {"id": name.split()[0]})
        out = np.empty(MIB // 4, "u1")
        # Above the 5 MiB that may lie between two codecs, and below what would come of all.
        why = f"{name.split()[0]} cannot decode {len(data)} bytes: .*(their header declares|they would decode to|buffer is too small)"
        with at_most_more_memory(32 * MIB), pytest.raises(ValueError, match=why):
            decode(codecs, data, out)

    @pytest.mark.parametrize("name", BOMBS)
    @pytest.mark.parametrize("filters", [[], [numcodecs.Shuffle(4)]], ids=["last step", "step between"])
    def test_are_decoded_where_a_chunk_is_as_long(self, name: str, filters: list[Any]) -> None:
        data = np.frombuffer(bomb(name, 2 * MIB), "u1")
        out = np.ones(2 * MIB, "u1")
        assert not decode(byte_codecs2(filters, {"id": name.split()[0]}), data, out).any()

    @pytest.mark.parametrize("name", [name for name in BOMBS if "lz4" not in name])
    def test_are_no_chunk_where_one_is_shorter_or_longer_by_a_byte(self, name: str) -> None:
        data = np.frombuffer(bomb(name, MIB), "u1")
        for size in (MIB - 1, MIB + 1):
            with pytest.raises(ValueError, match=r"cannot decode \d+ bytes: |it decodes to \d+ bytes"):
                decode(byte_codecs2(None, {"id": name.split()[0]}), data, np.empty(size, "u1"))

    @pytest.mark.parametrize("name", BOMBS)
    def test_are_damaged_where_they_are_cut(self, name: str) -> None:
        data = bomb(name, MIB)
        for size in (0, 1, 5, 9, len(data) // 2 + 1, len(data) - 1):
            with pytest.raises(ValueError, match=r"cannot decode \d+ bytes: |it decodes to \d+ bytes"):
                decode(byte_codecs2(None, {"id": name.split()[0]}), np.frombuffer(data[:size], "u1"), np.empty(MIB, "u1"))

    @pytest.mark.parametrize("count", [1, 3])
    def test_frames_of_zstd_without_a_size_are_decoded(self, count: int) -> None:
        content = np.random.default_rng(1).bytes(300_001)
        data = np.frombuffer(frame_of_zstd(content) * count, "u1")
        out = np.empty(count * len(content), "u1")
        assert bytes(decode(_codecs_of("zstd"), data, out)) == content * count

    def test_members_of_gzip_and_frames_of_zstd_and_streams_of_bz2_are_joined(self) -> None:
        for name in ("gzip", "zstd", "bz2"):
            one = bytes(CODECS_2[name]().encode(b"water"))
            assert bytes(decode(_codecs_of(name), np.frombuffer(one * 3, "u1"), np.empty(15, "u1"))) == b"water" * 3

    def test_codecs_that_make_objects_are_left_to_zarr(self) -> None:
        for name in ("pickle", "vlen-utf8"):
            with pytest.raises(Unsupported, match=f"with {name}"):
                byte_codecs2([{"id": name}], None)


@contextmanager
def at_most_more_memory(nbytes: int) -> Iterator[None]:
    """Address space, beyond what the process has: larger allocations fail."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (now + nbytes, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_many_groups_under_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_coded, "MOST_DECODED_BYTES", 3000)
    array = make2(tmp_path, (301, 40), (5, 13), "i4", numcodecs.Blosc())
    array[...] = values_of((301, 40))
    for selection in SELECTIONS[:4]:
        check(array, selection)


def test_after_an_error_of_a_read_no_thread_writes_to_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array = make2(tmp_path, (16, 40), (1, 40), "i4", numcodecs.Zstd())  # of one group
    array[...] = values_of((16, 40))
    waited = threading.Event()
    begun, ended = [], []
    real_some, real_wait = _coded._Group._decode_some, _coded.wait

    def decode_some(self: Any, numbers: range, outcomes: Any) -> Any:
        begun.append(numbers)
        if numbers.start == 0:
            ended.append(numbers)
            raise OSError("the drive is gone")
        waited.wait()  # until load() waits for the others
        try:
            return real_some(self, numbers, outcomes)
        finally:
            ended.append(numbers)

    def wait(tasks: Any) -> Any:
        waited.set()
        return real_wait(tasks)

    monkeypatch.setattr(_coded._Group, "_decode_some", decode_some)
    monkeypatch.setattr(_coded, "wait", wait)
    try:
        with pytest.raises(OSError, match="the drive is gone"):
            load(array)
        assert waited.is_set() and len(begun) == len(ended) > 1
    finally:
        waited.set()


@pytest.mark.parametrize(("way", "place"), [("plain", "wait"), ("coded", "when_done"), ("on a device", "wait")])
def test_after_ctrl_c_nothing_writes_to_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, place: str) -> None:
    array = make2(tmp_path, (64, 40), (1, 40), "i4", None if way == "plain" else numcodecs.Zstd())
    array[...] = values_of((64, 40))
    made, ended = [], []
    real_init, real_end = _reads.Pending.__init__, _reads.Pending.end
    monkeypatch.setattr(_reads.Pending, "__init__", lambda self, reads: (made.append(self), real_init(self, reads))[1])
    monkeypatch.setattr(_reads.Pending, "end", lambda self: (real_end(self), ended.append(self))[0])

    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(_reads.Pending, place, interrupted)
    with pytest.raises(KeyboardInterrupt):
        load_by_stand_in(array, room=2000) if way == "on a device" else load(array)
    assert made and made == ended


def test_no_file_stays_open(tmp_path: Path) -> None:
    array = make2(tmp_path, (301, 40), (5, 40), "i4", numcodecs.Blosc())
    array[...] = values_of((301, 40))
    load(array)
    getattr(array.store, "_files", {}).clear()
    assert open_files(tmp_path) == []


def open_files(folder: Path) -> list[str]:
    """Files in a folder of which this process has a descriptor."""
    links = [os.path.realpath(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
    return [link for link in links if link.startswith(f"{folder}/")]


WAYS: dict[str, Callable[[Any], Any]] = {
    "plain": load,
    "coded": load,
    "coded to a device": lambda array: load(array, device="host:0"),
    "on a device": lambda array: load_by_stand_in(array, room=2000)[0],
}


def array_for(way: str, folder: Path) -> Any:
    """64 chunks, of which every fourth is missing."""
    array = make2(folder, (64, 40), (1, 40), "i4", None if way == "plain" else numcodecs.Zstd(), fill_value=7)
    array[...] = values_of((64, 40)) + 1
    for number in range(0, 64, 4):
        chunk_file(folder, number).unlink()
    getattr(array.store, "_files", {}).clear()
    return array


@pytest.mark.parametrize("way", WAYS)
def test_files_are_closed_beside_missing_chunks(tmp_path: Path, way: str) -> None:
    array = array_for(way, tmp_path)
    found = WAYS[way](array)
    assert open_files(tmp_path) == []
    expected = values_of((64, 40)) + 1
    expected[::4] = 7
    values = found if isinstance(found, np.ndarray) else np.frombuffer(found.to_host(), "i4").reshape(64, 40)
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("way", WAYS)
def test_files_are_closed_where_one_cannot_be_opened(tmp_path: Path, way: str) -> None:
    array = array_for(way, tmp_path)
    loop = chunk_file(tmp_path, 38)  # of the second group
    loop.unlink()
    loop.symlink_to(loop.name)
    with pytest.raises(penstock.Error, match="Too many levels of symbolic links"):
        WAYS[way](array)
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("way", WAYS)
def test_files_are_closed_after_damage_and_after_an_error_of_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    array = array_for(way, tmp_path)
    monkeypatch.setattr(_reads.Pending, "wait", lambda self: [OSError("the drive is gone") for _ in self._reads])
    with pytest.raises(OSError, match="the drive is gone"):
        WAYS[way](array)
    assert open_files(tmp_path) == []
    monkeypatch.undo()
    os.truncate(chunk_file(tmp_path, 38), 10)
    with pytest.raises(ValueError):
        WAYS[way](array)
    gc.collect()
    assert open_files(tmp_path) == []


@pytest.mark.parametrize("way", WAYS)
def test_shards_stay_open_for_the_groups_that_follow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    monkeypatch.setattr(_coded, "MOST_DECODED_BYTES", 1000)
    codecs = [] if way == "plain" else [zarr.codecs.ZstdCodec()]
    array = make3(tmp_path, (64, 40), (2, 40), "i4", shards=(32, 40), compressors=codecs)
    array[...] = values_of((64, 40)) + 1
    getattr(array.store, "_files", {}).clear()
    found = WAYS[way](array)
    values = found if isinstance(found, np.ndarray) else np.frombuffer(found.to_host(), "i4").reshape(64, 40)
    np.testing.assert_array_equal(values, values_of((64, 40)) + 1)
    assert open_files(tmp_path) == []


def test_explains_who_decodes(tmp_path: Path) -> None:
    array = make2(tmp_path, (64, 64), (8, 64), "f4", numcodecs.Zstd())
    array[...] = 1
    told = explain(array, (slice(4, 60), slice(0, 5)))
    assert (told.direct, told.decoder, told.chunks, told.ranges, told.files, told.staged_chunks) == (True, "cpu", 8, 8, 8, 0)
    assert str(told).endswith(f"its chunks in local files are decoded (zstd) by {_coded.threads()} CPU threads")
    with pytest.raises(ValueError, match="decode is 'fast': it must be one of 'auto', 'cpu', 'gpu'"):
        load(array, decode="fast")
    with pytest.raises(ValueError, match='decode is "gpu", but nvCOMP cannot decode this array: the result is on host'):
        load(array, decode="gpu")


@pytest.mark.parametrize("is_far", [False, True])
@pytest.mark.parametrize("codec", [numcodecs.Zstd(), numcodecs.LZ4(), numcodecs.GZip(), numcodecs.Zlib()], ids=lambda codec: str(codec.codec_id))
def test_the_gpu_decodes_only_when_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: Any, is_far: bool) -> None:
    monkeypatch.setattr(_nvcomp, "problem", lambda: None)
    array = make2(tmp_path, (64, 64), (8, 64), "f4", codec)
    layout = replace(layout_of(array), open_far=penstock.open) if is_far else layout_of(array)
    assert "can write out of bounds if a chunk is corrupt" in str(why_not_gpu(layout, "cuda:0", "auto"))
    assert why_not_gpu(layout, "cuda:0", "cpu") == 'decode is "cpu"'
    assert why_not_gpu(layout, "cuda:0", "gpu") is None


def test_a_forked_child_decodes(tmp_path: Path) -> None:
    program = f"""
import os, sys, numcodecs, numpy, zarr, warnings
warnings.simplefilter("ignore")
import penstock.zarr
options = {{"zarr_format": 2, "compressors": numcodecs.Zstd()}}
array = zarr.create_array({str(tmp_path / "a")!r}, shape=(100,), chunks=(7,), dtype="i4", **options)
array[...] = numpy.arange(100)
expected = penstock.zarr.load(array)
child = os.fork()
if child == 0:
    os._exit(0 if (penstock.zarr.load(array) == expected).all() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


class TestFormat3:
    @pytest.mark.parametrize("name", ["zstd", "gzip", "blosc", "crc32c", "zstd, crc32c"])
    @pytest.mark.parametrize("endian", ["little", "big"])
    def test_codecs(self, tmp_path: Path, name: str, endian: str) -> None:
        made = {
            "zstd": [zarr.codecs.ZstdCodec()],
            "gzip": [zarr.codecs.GzipCodec(level=1)],
            "blosc": [zarr.codecs.BloscCodec(cname="zstd", shuffle="shuffle")],
            "crc32c": [zarr.codecs.Crc32cCodec()],
            "zstd, crc32c": [zarr.codecs.ZstdCodec(), zarr.codecs.Crc32cCodec()],
        }
        array = make3(tmp_path, (33, 50), (10, 50), "f4", compressors=made[name], serializer=zarr.codecs.BytesCodec(endian=endian))
        array[...] = values_of((33, 50))
        for selection in SELECTIONS:
            check(array, selection)

    def test_codecs_of_numcodecs(self, tmp_path: Path) -> None:
        from zarr.codecs import numcodecs as of_zarr

        for number, compressors in enumerate(([of_zarr.LZ4()], [of_zarr.Zlib(level=1)], [of_zarr.Shuffle(elementsize=4), of_zarr.BZ2(level=1)])):
            array = make3(tmp_path / str(number), (33, 50), (10, 50), "f4", compressors=compressors)
            array[...] = values_of((33, 50))
            check(array)
        array = make3(tmp_path / "delta", (33,), (10,), "f4", filters=[of_zarr.Delta(dtype="f4")], compressors=None)
        assert "numcodecs.delta" in explain(array).reason and not explain(array).direct

    def test_a_wrong_checksum_is_an_error(self, tmp_path: Path) -> None:
        array = make3(tmp_path, (20, 8), (10, 8), compressors=[zarr.codecs.Crc32cCodec()])
        array[...] = values_of((20, 8))
        file = tmp_path / "c" / "1" / "0"
        data = bytearray(file.read_bytes())
        data[5] ^= 1
        file.write_bytes(data)
        with pytest.raises(ValueError, match=rf"chunk \(1, 0\) at offset 0 in {file}: crc32c cannot decode .*checksum mismatch: computed CRC-32C"):
            load(array)

    @pytest.mark.parametrize("order", [(1, 0, 2), (2, 0, 1), (2, 1, 0)])
    @pytest.mark.parametrize("compressors", [None, "auto"])
    def test_transposed_chunks(self, tmp_path: Path, order: tuple[int, ...], compressors: Any) -> None:
        filters = [zarr.codecs.TransposeCodec(order=order), zarr.codecs.TransposeCodec(order=(1, 0, 2))]
        array = make3(tmp_path, (7, 9, 11), (3, 4, 5), filters=filters, compressors=compressors)
        array[...] = values_of((7, 9, 11))
        check(array)
        check(array, (slice(1, 6), 3, slice(2, 9)))

    @pytest.mark.parametrize("compressors", [None, "auto"])
    @pytest.mark.parametrize("location", ["start", "end"])
    @pytest.mark.parametrize("shards", [(16, 20), (64, 40), (8, 10)])
    def test_shards(self, tmp_path: Path, compressors: Any, location: str, shards: tuple[int, int]) -> None:
        codec = zarr.codecs.ShardingCodec(
            chunk_shape=(8, 10),
            codecs=[zarr.codecs.BytesCodec(), *([] if compressors is None else [zarr.codecs.ZstdCodec()])],
            index_location=location,
        )
        array = make3(tmp_path, (50, 33), shards, serializer=codec, compressors=None, fill_value=9)
        array[...] = values_of((50, 33))
        array[10:30, 5:15] = 9  # chunks that are all fill value are not stored
        for selection in [*SELECTIONS[:5], (slice(8, 16), slice(10, 20))]:
            check(array, (selection if isinstance(selection, tuple) else (selection,)))
        told = explain(array)
        assert told.files == -(-50 // shards[0]) * -(-33 // shards[1])
        assert ("shards" in str(told)) == (told.files != told.chunks)

    def test_of_a_shard_only_the_index_and_the_wanted_chunks_are_read(self, tmp_path: Path) -> None:
        array = make3(tmp_path, (64, 1024), (1, 1024), "f4", shards=(64, 1024))
        array[...] = np.random.default_rng(1).random((64, 1024), "f4")
        load(array, slice(0, 1))
        before = bytes_read()
        load(array, slice(20, 22))
        assert bytes_read() - before < 3 * 4096 + 64 * 16 + 4

    def test_missing_shards_and_chunks_have_the_fill_value(self, tmp_path: Path) -> None:
        array = make3(tmp_path, (100,), (5,), "i4", shards=(20,), fill_value=3)
        array[42:47] = 8
        check(array)
        check(array, slice(30, 60))

    def test_a_damaged_index_is_an_error(self, tmp_path: Path) -> None:
        array = make3(tmp_path, (40,), (5,), "i4", shards=(20,))
        array[...] = values_of((40,))
        file = tmp_path / "c" / "1"
        good = file.read_bytes()
        file.write_bytes(good[:-10] + b"\x01" + good[-9:])
        with pytest.raises(ValueError, match=f"the index of shard {file} is damaged"):
            load(array)
        file.write_bytes(good[-20:])
        with pytest.raises(ValueError, match=f"shard {file} has 20 bytes, but its index alone has 68"):
            load(array)
        np.testing.assert_array_equal(load(array, slice(0, 20)), array[:20])

    def test_an_index_that_points_past_the_file_is_an_error(self, tmp_path: Path) -> None:
        codec = zarr.codecs.ShardingCodec(chunk_shape=(5,), codecs=[zarr.codecs.BytesCodec()], index_codecs=[zarr.codecs.BytesCodec()])
        array = make3(tmp_path, (20,), (20,), "i4", serializer=codec, compressors=None)
        array[...] = values_of((20,)) + 1
        file = tmp_path / "c" / "0"
        data = bytearray(file.read_bytes())
        struct.pack_into("<Q", data, len(data) - 16, 1 << 50)
        file.write_bytes(data)
        with pytest.raises(ValueError, match=r"places chunk \(3,\) at offset 1125899906842624, with 20 bytes, but the file has"):
            load(array)

    ENTRY_BYTES = 128 << 10

    def shard_whose_entries_overlap(self, folder: Path) -> Any:
        """64 chunks of 256 bytes, and an index that gives all of them the same ENTRY_BYTES."""
        codec = zarr.codecs.ShardingCodec(
            chunk_shape=(64,), codecs=[zarr.codecs.BytesCodec(), zarr.codecs.GzipCodec()], index_codecs=[zarr.codecs.BytesCodec()]
        )
        array = make3(folder, (64 * 64,), (64 * 64,), "i4", serializer=codec, compressors=None)
        array[...] = values_of((64 * 64,)) + 1
        one = bytes(numcodecs.GZip().encode(np.full(64, 7, "i4")))
        chunk = one + bytes(self.ENTRY_BYTES - len(one))  # gzip allows zeros at the end
        (folder / "c" / "0").write_bytes(chunk + struct.pack("<QQ", 0, self.ENTRY_BYTES) * 64)
        return array

    def test_a_shard_whose_entries_overlap_is_read_in_bounded_memory(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_coded, "MOST_DECODED_BYTES", 4 * self.ENTRY_BYTES)
        array = self.shard_whose_entries_overlap(tmp_path)
        asked: list[int] = []
        real = _coded._Spare.take
        monkeypatch.setattr(_coded._Spare, "take", lambda self, nbytes: (asked.append(nbytes), real(self, nbytes))[1])
        assert (load(array) == 7).all()
        assert sum(asked) >= 64 * self.ENTRY_BYTES and max(asked) == 5 * self.ENTRY_BYTES

    def test_a_shard_whose_entries_overlap_is_read_in_bounded_memory_of_a_device(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        array = self.shard_whose_entries_overlap(tmp_path)
        rooms: list[int] = []
        ready: list[int] = []
        made, decoded = _on_gpu._Batch.__init__, _on_gpu._Work.decode
        monkeypatch.setattr(_on_gpu._Batch, "__init__", lambda self, *rest: (made(self, *rest), rooms.append(self.nbytes))[0])
        monkeypatch.setattr(_on_gpu._Work, "decode", lambda self, decoder: (ready.append(self.nbytes), decoded(self, decoder))[1])
        assert (load_by_stand_in(array, room=4 * self.ENTRY_BYTES)[0] == 7).all()
        assert max(rooms) == 5 * self.ENTRY_BYTES and max(ready) == 5 * self.ENTRY_BYTES

    def test_small_chunks_count_on_a_device_as_they_are_aligned(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        array = make3(tmp_path, (4096,), (1,), "u1", shards=(4096,))
        array[...] = np.arange(4096) % 251 + 1
        ready: list[int] = []
        decoded = _on_gpu._Work.decode
        monkeypatch.setattr(_on_gpu._Work, "decode", lambda self, decoder: (ready.append(len(self._ready)), decoded(self, decoder))[1])
        np.testing.assert_array_equal(load_by_stand_in(array, room=256 << 10)[0], array[...])
        assert max(ready) <= 2 * 1024

    def test_more_shards_than_files_at_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("penstock.zarr._stored.files_at_once", lambda: 4)
        array = make3(tmp_path, (200, 30), (5, 10), shards=(10, 30))
        array[...] = values_of((200, 30))
        check(array)
        check(array, (slice(7, 155), slice(2, 21)))

    def test_shards_in_shards_are_left_to_zarr(self, tmp_path: Path) -> None:
        inner = zarr.codecs.ShardingCodec(chunk_shape=(5,))
        array = make3(tmp_path, (40,), (20,), serializer=zarr.codecs.ShardingCodec(chunk_shape=(10,), codecs=[inner]), compressors=None)
        array[...] = values_of((40,))
        assert "its shards contain shards" in explain(array).reason
        np.testing.assert_array_equal(load(array), array[...])

    def test_of_the_index_of_a_shard_only_its_bytes_are_kept(self, tmp_path: Path) -> None:
        codec = zarr.codecs.ShardingCodec(chunk_shape=(1,), codecs=[zarr.codecs.BytesCodec()], index_codecs=[zarr.codecs.BytesCodec()])
        count = 1 << 17
        array = make3(tmp_path, (count,), (count,), "u1", serializer=codec, compressors=None)
        index = np.stack([np.arange(count), np.ones(count)], axis=1).astype("<u8")
        (tmp_path / "c").mkdir()
        (tmp_path / "c" / "0").write_bytes(bytes(values_of((count,)).astype("u1")) + index.tobytes())
        load(array, slice(0, 1))
        tracemalloc.start()
        try:
            assert load(array, slice(77, 78))[0] == values_of((count,))[77]
            assert tracemalloc.get_traced_memory()[1] < 2 * index.nbytes
        finally:
            tracemalloc.stop()

    def test_parts_of_shards_come_file_by_file_and_are_not_kept(self, tmp_path: Path) -> None:
        array = make3(tmp_path, (1 << 20, 1 << 20), (4, 4), shards=(8, 16))
        layout = layout_of(array)
        parts = list(itertools.islice(chunk_parts(layout, region_of((slice(3, None), slice(5, None)), layout.shape)), 14))
        assert [part.chunk for part in parts[:8]] == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3), (0, 4), (0, 5)]
        assert [part.name for part in parts] == ["c/0/0"] * 6 + ["c/0/1"] * 8

    def test_a_transposed_index_is_left_to_zarr(self, tmp_path: Path) -> None:
        for number, order in enumerate(((1, 0, 2), (0, 1, 2))):
            codec = zarr.codecs.ShardingCodec(
                chunk_shape=(5, 5), index_codecs=[zarr.codecs.TransposeCodec(order=order), zarr.codecs.BytesCodec(), zarr.codecs.Crc32cCodec()]
            )
            array = make3(tmp_path / str(number), (20, 30), (10, 15), serializer=codec, compressors=None)
            array[...] = values_of((20, 30))
            told = explain(array)
            assert told.direct == (number == 1) and ("shard indexes are transposed" in told.reason) == (number == 0)
            np.testing.assert_array_equal(load(array), values_of((20, 30)))

    @pytest.mark.parametrize(
        "codecs",
        [
            [{"configuration": {}}],
            [{"name": "transpose", "configuration": {}}, {"name": "bytes"}],
            [{"name": "transpose", "configuration": {"order": [7, 8]}}, {"name": "bytes"}],
            [{"name": "transpose", "configuration": {"order": 3}}, {"name": "bytes"}],
            [{"name": "sharding_indexed", "configuration": {"chunk_shape": [0, 5], "codecs": [{"name": "bytes"}], "index_codecs": [{"name": "bytes"}]}}],
            [{"name": "sharding_indexed", "configuration": {"chunk_shape": [5, 5], "codecs": [{"name": "bytes"}]}}],
            [{"name": "bytes", "configuration": "little"}],
        ],
        ids=str,
    )
    def test_odd_metadata_are_left_to_zarr(self, tmp_path: Path, codecs: Any) -> None:
        array = make3(tmp_path, (20, 30), (10, 15))

        class Odd:
            """The metadata of an array, but for the codecs."""

            def __getattr__(self, name: str) -> Any:
                return getattr(array.metadata, name)

            def to_dict(self) -> dict[str, Any]:
                return {**array.metadata.to_dict(), "codecs": codecs}

        with pytest.raises(Unsupported, match="its metadata could not be read"):
            layout_of_metadata(Odd(), array.store, "")

    def test_arrays_of_groups_with_consolidated_metadata(self, tmp_path: Path) -> None:
        group = zarr.create_group(GDSStore(tmp_path)).create_group("a")
        group.create_array("b", shape=(33, 50), chunks=(10, 7), dtype="f4")[...] = values_of((33, 50))
        zarr.consolidate_metadata(GDSStore(tmp_path))
        check(zarr.open_group(GDSStore(tmp_path), mode="r", use_consolidated=True)["a/b"])


def bytes_read() -> int:
    """By this process, however it read."""
    with open("/proc/self/io") as file:
        return int(next(line for line in file if line.startswith("rchar")).split()[1])


def test_random_arrays_codecs_and_selections(tmp_path: Path) -> None:
    seed = int(os.environ.get("PENSTOCK_TEST_SEED", random.SystemRandom().randrange(1 << 32)))
    print(f"PENSTOCK_TEST_SEED={seed}")
    dice = random.Random(seed)
    for turn in range(ROUNDS):
        array = random_array(dice, tmp_path / str(turn))
        for _ in range(3):
            selection = tuple(slice(*sorted(dice.choices(range(size + 1), k=2))) if dice.random() < 0.7 else dice.randrange(size) for size in array.shape)
            context = f"seed {seed}, turn {turn}: {array.shape} in {array.chunks}, {selection}"
            expected = np.asarray(array[selection])
            assert explain(array, selection).direct, context
            np.testing.assert_array_equal(load(array, selection), expected, err_msg=context)
            if expected.nbytes:
                native = expected.astype(expected.dtype.newbyteorder("="))
                assert load(array, selection, device="host:0").to_host() == native.tobytes(), context


def random_array(dice: random.Random, folder: Path) -> Any:
    ndim = dice.choice([1, 2, 2, 3])
    shape = tuple(dice.randint(1, {1: 3000, 2: 120, 3: 30}[ndim]) for _ in range(ndim))
    chunks = tuple(dice.randint(max(1, size // 5), size) for size in shape)
    dtype = dice.choice(["u1", "i2", f"{OTHER_SIGN}i4", "f8"])
    if dice.random() < 0.5:
        compressor = dice.choice([None, *CODECS_2])
        made = make2(folder, shape, chunks, dtype, CODECS_2[compressor]() if compressor else None, order=dice.choice("CF"), fill_value=1)
    else:
        options: dict[str, Any] = {"compressors": dice.choice([None, "auto", [zarr.codecs.BloscCodec()], [zarr.codecs.Crc32cCodec()]])}
        if dice.random() < 0.5:
            options["shards"] = tuple(size * dice.randint(1, 3) for size in chunks)
        elif dice.random() < 0.5:
            options["filters"] = [zarr.codecs.TransposeCodec(order=tuple(dice.sample(range(ndim), ndim)))]
        made = make3(folder, shape, chunks, dtype, fill_value=1, **options)
    if dice.random() < 0.3:
        made[: shape[0] // 2] = 5
    else:
        made[...] = values_of(shape, dice.randrange(1 << 30))
    return made


class StandIn:
    """Decodes in the host device's memory as nvCOMP does in a GPU's: by addresses. What is no frame of zstd would be its end."""

    alignment = 8

    def __init__(self, buffers: Any, codec: Any, payload: _nvcomp.Payload, room: int = 1 << 20, refuses: int = -1) -> None:
        self.buffers, self.codec, self.payload, self.room, self.refuses = buffers, codec, payload, room, refuses
        self.chunks = 0

    def most_bytes(self) -> int:
        return self.room

    def decode(self, sources: Any, sizes: Any, places: Any, chunk_bytes: int) -> Any:
        good = []
        for source, size, place in zip(sources.tolist(), sizes.tolist(), places.tolist()):
            assert source % 256 == 0 and place % self.alignment == 0
            good.append(self.chunks != self.refuses and self._decode(source, size, place, chunk_bytes))
            self.chunks += 1
        return np.array(good, bool)

    def _decode(self, source: int, size: int, place: int, chunk_bytes: int) -> bool:
        whole = size + self.payload.before + self.payload.behind
        data = bytearray(whole)
        penstock.copy(data, penstock.Pointer(source - self.payload.before, whole))
        try:
            decoded = bytes(self.codec.decode(bytes(data)))
        except Exception:
            assert self.payload.algorithm != "Zstd", f"{size} bytes that are no frame"
            return False
        if len(decoded) != chunk_bytes:
            return False
        penstock.copy(penstock.Pointer(place, chunk_bytes), decoded)
        return True


def load_by_stand_in(array: Any, selection: Any = ..., **options: Any) -> tuple[np.ndarray[Any, Any], StandIn]:
    """As load() does where nvCOMP decodes, on the host device."""
    layout = layout_of(array)
    region = region_of(selection, layout.shape)
    payload = _nvcomp.payload_of(layout.codecs, layout.chunk_bytes)
    assert not isinstance(payload, str)
    decoder = StandIn(None, layout.codecs[0].codec, payload, **options)
    target = target_for(region.shape, layout.dtype, "host:0", None)
    _on_gpu.read_on_gpu(layout, list(chunk_parts(layout, region)), target, target.as_box(region.lengths), decoder, payload)
    return np.frombuffer(target.result.to_host(), target.dtype).reshape(region.shape), decoder


class TestDecodingOnADevice:
    @pytest.mark.parametrize("name", ["zstd", "lz4", "zlib", "gzip"])
    @pytest.mark.parametrize("chunks", [(1, 50), (10, 50), (10, 7)])
    @pytest.mark.parametrize(("dtype", "order"), [("f8", "C"), (f"{OTHER_SIGN}i2", "F"), (f"{OTHER_SIGN}c8", "C")])
    def test_gives_what_zarr_gives(self, tmp_path: Path, name: str, chunks: tuple[int, int], dtype: str, order: str) -> None:
        array = make2(tmp_path, (33, 50), chunks, dtype, CODECS_2[name](), fill_value=4, order=order)
        array[:20] = values_of((20, 50)) + 1
        for selection in SELECTIONS[:5]:
            found, decoder = load_by_stand_in(array, selection, room=5000)
            np.testing.assert_array_equal(found, array[selection])
            assert decoder.chunks > 0

    def test_of_shards(self, tmp_path: Path) -> None:
        array = make3(tmp_path, (50, 40), (5, 40), shards=(20, 40))
        array[...] = values_of((50, 40))
        for selection in SELECTIONS[:5]:
            np.testing.assert_array_equal(load_by_stand_in(array, selection, room=2000)[0], array[selection])

    @pytest.mark.parametrize("chunks", [(10, 50), (10, 7)])
    def test_what_the_decoder_refuses_the_cpu_decodes(self, tmp_path: Path, chunks: tuple[int, int]) -> None:
        array = make2(tmp_path, (33, 50), chunks, "i4", numcodecs.Zstd())
        array[...] = values_of((33, 50))
        np.testing.assert_array_equal(load_by_stand_in(array, refuses=2)[0], array[...])

    @pytest.mark.parametrize(
        "harm",
        [lambda good: b"", lambda good: b"no frame of zstd", lambda good: bytes(len(good)), lambda good: good[:-1], lambda good: good[: len(good) // 2],
         lambda good: good[:7] + bytes(len(good) - 7), lambda good: bytes(numcodecs.Zstd().encode(bytes(4000)))],
        ids=["empty", "other bytes", "zeros", "cut", "half", "zeros behind the header", "of another size"],
    )  # fmt: skip
    def test_a_damaged_chunk_is_an_error_that_names_it(self, tmp_path: Path, harm: Any) -> None:
        array = make2(tmp_path, (33, 50), (10, 50), "i4", numcodecs.Zstd())
        array[...] = values_of((33, 50))
        file = chunk_file(tmp_path, 1)
        file.write_bytes(harm(file.read_bytes()))
        with pytest.raises(ValueError, match=rf"chunk \(1, 0\) at offset 0 in {file}: .*zstd cannot decode"):
            load_by_stand_in(array)
        np.testing.assert_array_equal(load_by_stand_in(array, slice(0, 10))[0], array[:10])

    def test_frames_of_zstd_that_nvcomp_would_not_decode_whole_are_left_to_the_cpu(self, tmp_path: Path) -> None:
        array = make2(tmp_path, (4, 500), (1, 500), "i4", numcodecs.Zstd())
        array[...] = values_of((4, 500))
        encode = numcodecs.Zstd().encode
        data = values_of((4, 500))[1].astype("i4").tobytes()
        chunk_file(tmp_path, 1).write_bytes(bytes(encode(data[:800])) + bytes(encode(data[800:])))
        skippable = b"\x50\x2a\x4d\x18" + struct.pack("<I", 5) + b"other"
        chunk_file(tmp_path, 2).write_bytes(skippable + chunk_file(tmp_path, 2).read_bytes())
        found, decoder = load_by_stand_in(array)
        np.testing.assert_array_equal(found, values_of((4, 500)))
        assert decoder.chunks == 2

    def test_nvcomp_is_asked_only_for_what_it_decodes(self) -> None:
        assert _nvcomp.payload_of(_codecs_of("blosc"), 100) == "nvCOMP does not support blosc"
        assert _nvcomp.payload_of(_codecs_of("zstd") * 2, 100) == "its bytes were encoded with 2 codecs"
        assert "nvCOMP supports at most 2147483647" in str(_nvcomp.payload_of(_codecs_of("zstd"), 1 << 31))


class TestWaitingForNvcomp:
    @pytest.fixture(autouse=True)
    def answers(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """What cudaStreamQuery says, which cupy passes on: the last again and again."""
        told: list[int] = []
        query = lambda stream: told.pop(0) if len(told) > 1 else told[0]  # noqa: E731
        monkeypatch.setitem(sys.modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(runtime=SimpleNamespace(streamQuery=query))))
        return told

    def test_ends_with_the_stream(self, answers: list[int]) -> None:
        answers += [600, 600, 0]
        _nvcomp._wait(SimpleNamespace(ptr=0), 3, 1000)
        assert answers == [0]

    def test_a_lost_context_is_an_error_that_says_what_to_do(self, answers: list[int]) -> None:
        answers += [600, 700]
        with pytest.raises(penstock.Error, match=r'one of 3 chunks of 1000 bytes.*can no longer use CUDA .*decode="cpu" reports') as raised:
            _nvcomp._wait(SimpleNamespace(ptr=0), 3, 1000)
        assert (raised.value.domain, raised.value.native) == ("cuda", 700)

    def test_what_does_not_end_is_given_up(self, answers: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
        answers.append(600)
        monkeypatch.setattr(_nvcomp, "_SECONDS_AT_LEAST", 0)
        with pytest.raises(penstock.TimedOut, match="nvCOMP is still decoding .*, after 0 s"):
            _nvcomp._wait(SimpleNamespace(ptr=0), 3, 1000)


@pytest.mark.parametrize("nbytes", [1, 255, 256, 300, 65791, 65792, 131072, 131073, 1 << 20])
@pytest.mark.parametrize("level", [1, 9, 19])
@pytest.mark.parametrize("checksum", [False, True])
def test_frames_that_zstd_makes_are_whole(nbytes: int, level: int, checksum: bool) -> None:
    dice = random.Random(nbytes)
    made = [bytes(nbytes), dice.randbytes(nbytes), bytes(dice.choices(range(50), k=nbytes))]
    chunks = [bytes(numcodecs.Zstd(level, checksum).encode(data)) for data in made]
    assert whole_of(chunks, nbytes) == [True] * 3
    assert whole_of(chunks, nbytes + 1) == [False] * 3
    assert whole_of([chunk[:-1] for chunk in chunks] + [chunk + b"\0" for chunk in chunks], nbytes) == [False] * 6


def block(kind: int, size: int, body: int, *, is_last: bool) -> bytes:
    return struct.pack("<I", size << 3 | kind << 1 | is_last)[:3] + bytes(body)


def test_a_frame_of_more_blocks_than_zstd_makes_is_not_whole() -> None:
    header = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 1000)
    empty, full = block(0, 0, 0, is_last=False), block(0, 1000, 1000, is_last=True)
    assert whole_of([header + full, header + empty * 9 + full, header + empty * 1000 + full], 1000) == [True, True, False]


def test_blocks_that_zstd_never_makes_are_not_whole() -> None:
    single = b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", 1000)
    assert whole_of([single + block(2, 0, 0, is_last=True), single + block(2, 1, 1, is_last=True)], 1000) == [False, False], "too short"
    assert whole_of([single + block(1, 1001, 1, is_last=True), single + block(1, 1000, 1, is_last=True)], 1000) == [False, True]
    # A window of 1 KiB bounds what comes of a block, and one of terabytes is none.
    of_window = [b"\x28\xb5\x2f\xfd\x80" + bytes([window]) + struct.pack("<I", 100_000) for window in (0x00, 0x80, 0xF8)]
    raw = block(0, 100_000, 100_000, is_last=True)
    assert whole_of([header + raw for header in of_window], 100_000) == [False, True, False]


def whole_of(chunks: list[bytes], nbytes: int) -> list[bool]:
    memory = np.frombuffer(b"".join(chunks), np.uint8)
    sizes = np.array([len(chunk) for chunk in chunks])
    found: list[bool] = whole_frames(lambda at: memory[at], np.cumsum(sizes) - sizes, sizes, nbytes).tolist()
    return found


def test_the_options_of_nvcomp_have_their_size() -> None:
    assert ctypes.sizeof(_nvcomp._Options) == 64


@pytest.mark.parametrize("name", ["zstd", "lz4", "zlib", "gzip", "blosc"])
def test_cuda(tmp_path: Path, name: str) -> None:
    if "cuda:0" not in [device.name for device in penstock.devices()]:
        pytest.skip("no CUDA device (GPU)")
    cupy = pytest.importorskip("cupy", reason="cupy is not installed (GPU)")
    ways = ["cpu", "auto"]
    if name != "blosc" and _nvcomp.problem() is None:
        ways.append("gpu")
    for dtype, chunks in (("f4", (7, 3000)), ("f4", (16, 700)), (f"{OTHER_SIGN}i4", (7, 3000))):
        array = make2(tmp_path / f"{dtype}{chunks}", (100, 3000), chunks, dtype, CODECS_2[name](), fill_value=2)
        array[10:80] = values_of((70, 3000))
        for selection in (..., (slice(3, 90), slice(1, 2999)), (slice(None), 5)):
            for way in ways:
                result = load(array, selection, device="cuda:0", decode=way)
                assert isinstance(result, cupy.ndarray)
                np.testing.assert_array_equal(cupy.asnumpy(result), array[selection])
                out = cupy.empty(result.shape, result.dtype)
                assert load(array, selection, out=out, decode=way) is out
                np.testing.assert_array_equal(cupy.asnumpy(out), array[selection])


def test_cuda_finds_damage(tmp_path: Path) -> None:
    if "cuda:0" not in [device.name for device in penstock.devices()]:
        pytest.skip("no CUDA device (GPU)")
    pytest.importorskip("cupy", reason="cupy is not installed (GPU)")
    if _nvcomp.problem() is not None:
        pytest.skip(f"{_nvcomp.problem()} (GPU)")
    array = make2(tmp_path, (50, 4000), (10, 4000), "i4", numcodecs.Zstd())
    array[...] = values_of((50, 4000))
    chunk_file(tmp_path, 2).write_bytes(b"no frame of zstd")
    with pytest.raises(ValueError, match=r"chunk \(2, 0\) at offset 0 in "):
        load(array, device="cuda:0", decode="gpu")
    np.testing.assert_array_equal(load(array, slice(0, 20), device="cuda:0", decode="gpu").get(), array[:20])
