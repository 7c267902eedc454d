"""penstock.gguf: metadata and tensors, against the values written and against the gguf package; files that are damaged, and models in several."""

from __future__ import annotations

import math
import os
import random
import struct
import warnings
from pathlib import Path

import numpy as np
import pytest

import penstock
from penstock import gguf as ours
from penstock.gguf import GGUFError

from .gguf_files import BLOCKS, PLAIN, Tensor, array, gguf, pair, tensor_info

pytestmark = pytest.mark.usefixtures("torch_not_imported")

GPUS = [device.name for device in penstock.devices() if device.name.startswith("cuda:")]
NO_GPU = pytest.mark.skipif(not GPUS, reason="no GPU that Penstock can use")
NUMPYS = {"F32": "<f4", "F16": "<f2", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "F64": "<f8"}

METADATA = {
    "general.architecture": ("string", "llama"),
    "one.u8": ("u8", 200),
    "one.i8": ("i8", -3),
    "one.u16": ("u16", 60_000),
    "one.i16": ("i16", -5),
    "one.u32": ("u32", 4_000_000_000),
    "one.i32": ("i32", -7),
    "one.f32": ("f32", 0.5),
    "one.bool": ("bool", True),
    "one.u64": ("u64", 2**64 - 1),
    "one.i64": ("i64", -(2**63)),
    "one.f64": ("f64", 0.1),
    "tokens": ("string", ["<s>", "▁é", ""]),
    "scores": ("f32", [0.25, -1.0]),
    "types": ("i32", [1, -2, 3]),
    "flags": ("bool", [True, False]),
    "none": ("u8", []),
}


def pairs() -> list[bytes]:
    return [pair(key, "array", array(kind, value)) if isinstance(value, list) else pair(key, kind, value) for key, (kind, value) in METADATA.items()]


def tensor(name: str, kind: str, shape: tuple[int, ...], seed: int = 0) -> Tensor:
    """Of random bytes. shape: of blocks, in its last dimension."""
    _, elements, nbytes = (BLOCKS | PLAIN)[kind]
    content = random.Random(f"{seed} {name}").randbytes(math.prod(shape) * nbytes)
    return Tensor(name, kind, (*shape[:-1], shape[-1] * elements) if shape else shape, content)


def tensors() -> list[Tensor]:
    found = [tensor(f"blk.{i}.{kind}", kind, (3, 2)) for i, kind in enumerate(BLOCKS | PLAIN)]
    return [*found, tensor("scalar", "F64", ()), tensor("none", "F32", (0, 4)), tensor("deep", "Q6_K", (2, 3, 1, 2))]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    name = tmp_path / "model.gguf"
    name.write_bytes(gguf(pairs(), tensors()))
    return name


def store(folder: Path, content: bytes, name: str = "wrong.gguf") -> Path:
    (folder / name).write_bytes(content)
    return folder / name


def test_metadata_is_values_of_python(path: Path) -> None:
    with ours.open(path) as file:
        assert list(file.metadata.items()) == [(key, value) for key, (_, value) in METADATA.items()]
        assert {type(value) for value in file.metadata.values()} == {int, float, bool, str, list}
        assert (file.version, file.alignment, file.files) == (3, 32, [str(path)])
        assert repr(file) == f"<penstock.gguf.GGUFFile '{path}', {len(tensors())} tensors>"


def test_arrays_of_arrays_are_lists_of_lists(tmp_path: Path) -> None:
    value = array("array", [array("u8", [1, 2]), array("string", ["a"]), array("array", [])])
    with ours.open(store(tmp_path, gguf([pair("nested", "array", value)]))) as file:
        assert file.metadata == {"nested": [[1, 2], ["a"], []]}


def test_text_that_is_no_utf8_keeps_its_bytes(tmp_path: Path) -> None:
    with ours.open(store(tmp_path, gguf([pair("token", "string", b"a\xff\xc3")]))) as file:
        assert file.metadata["token"].encode(errors="surrogateescape") == b"a\xff\xc3"


def test_tensors_tell_what_the_file_has(path: Path) -> None:
    content = path.read_bytes()
    with ours.open(path) as file:
        assert set(file.tensors) == {each.name for each in tensors()}
        for each in tensors():
            found = file.tensors[each.name]
            number, elements, nbytes = (BLOCKS | PLAIN)[each.type]
            assert (found.type, found.shape, found.file) == (each.type, each.shape, str(path))
            assert (found.block_size, found.block_nbytes, found.nbytes) == (elements, nbytes, len(each.content))
            assert content[found.offset : found.offset + found.nbytes] == each.content


@pytest.mark.parametrize("framework", [None, "np", "bytes", "pt"])
def test_load_gives_every_byte_with_type_and_shape(path: Path, framework: str | None) -> None:
    if framework == "pt":
        pytest.importorskip("torch")
    names = [each.name for each in tensors() if each.type != "BF16"]
    with ours.open(path) as file:
        found = file.load(names, framework=framework)
        assert list(found) == [name for name in file.tensors if name in names]
        for each in tensors():
            if each.name not in found:
                continue
            value = found[each.name]
            if framework == "bytes":
                assert (bytes(value.to_host()) if each.content else value) == each.content
                continue
            assert tuple(value.shape) == file.tensors[each.name].loaded_shape
            values = value.numpy() if framework == "pt" else value
            assert values.dtype == np.dtype(NUMPYS.get(each.type, "u1"))
            assert values.tobytes() == each.content


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=NO_GPU)])
def test_torch_has_bf16_and_all_others_on_each_device(path: Path, device: str) -> None:
    torch = pytest.importorskip("torch")
    if device != "cpu" and not torch.cuda.is_available():
        pytest.skip("this PyTorch has no GPU")
    with ours.open(path) as file:
        found = file.load(device=device, framework="pt")
    for each in tensors():
        value = found[each.name]
        assert value.device == torch.device(device) and value.is_contiguous()
        assert (value.dtype == torch.bfloat16) == (each.type == "BF16")
        assert value.cpu().reshape(-1).view(torch.uint8).numpy().tobytes() == each.content


@NO_GPU
def test_cupy_has_the_same_bytes(path: Path) -> None:
    pytest.importorskip("cupy")
    names = [each.name for each in tensors() if each.type != "BF16"]
    with ours.open(path) as file:
        found = file.load(names, "cuda:0", "cupy")
    assert all(found[each.name].get().tobytes() == each.content for each in tensors() if each.name in found)


def test_numbers_are_those_of_the_gguf_package(path: Path) -> None:
    theirs = pytest.importorskip("gguf", reason="the gguf package, to compare with, is not installed")
    reader = theirs.GGUFReader(path)
    with ours.open(path) as file:
        fields = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
        assert {key: value for key, value in file.metadata.items() if value != []} == {key: value for key, value in fields.items() if value != []}
        assert reader.data_offset == min(each.offset for each in file.tensors.values())
        found = file.load([each.name for each in reader.tensors if each.tensor_type.name != "BF16"])
        assert len(reader.tensors) == len(file.tensors)
        for each in reader.tensors:
            mine = file.tensors[each.name]
            assert (mine.type, list(mine.shape[::-1]), mine.nbytes, mine.offset) == (each.tensor_type.name, each.shape.tolist(), each.n_bytes, each.data_offset)
            assert (mine.block_size, mine.block_nbytes) == theirs.GGML_QUANT_SIZES[each.tensor_type]
            if each.name in found:
                value = found[each.name]
                assert (value.dtype, value.shape, value.tobytes()) == (each.data.dtype, each.data.shape, each.data.tobytes())


def test_files_of_the_gguf_package_are_read(tmp_path: Path) -> None:
    theirs = pytest.importorskip("gguf", reason="the gguf package, to compare with, is not installed")
    writer = theirs.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.add_custom_alignment(128)
    writer.add_token_list(["a", "b"])
    values = np.arange(512, dtype="f4").reshape(2, 256)
    writer.add_tensor("plain", values)
    blocks = theirs.quantize(values, theirs.GGMLQuantizationType.Q8_0)
    writer.add_tensor("quantised", blocks, raw_dtype=theirs.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with ours.open(tmp_path / "m.gguf") as file:
        assert (file.alignment, file.metadata["tokenizer.ggml.tokens"]) == (128, ["a", "b"])
        assert (file.tensors["quantised"].type, file.tensors["quantised"].shape) == ("Q8_0", (2, 256))
        found = file.load()
    assert np.array_equal(found["plain"], values) and np.array_equal(found["quantised"], blocks)


# --- several files


def test_any_file_of_a_model_stands_for_all(tmp_path: Path) -> None:
    for i in range(3):
        split = [pair("split.no", "u16", i), pair("split.count", "u16", 3)] + (pairs() if i == 0 else [])
        store(tmp_path, gguf(split, [tensor(f"t{i}", "I32", (4, 5))]), f"m-{i + 1:05}-of-00003.gguf")
    with ours.open(tmp_path / "m-00002-of-00003.gguf") as file:
        assert [Path(each).name[:7] for each in file.files] == ["m-00001", "m-00002", "m-00003"]
        assert file.metadata["general.architecture"] == "llama"
        found = file.load()
        assert list(found) == ["t0", "t1", "t2"] and file.tensors["t2"].file == file.files[2]
        assert all(found[f"t{i}"].tobytes() == tensor(f"t{i}", "I32", (4, 5)).content for i in range(3))
    os.remove(tmp_path / "m-00003-of-00003.gguf")
    with pytest.raises(penstock.NotFound, match="m-00003-of-00003.gguf"):
        ours.open(tmp_path / "m-00001-of-00003.gguf")
    store(tmp_path, gguf([pair("split.no", "u16", 0), pair("split.count", "u16", 3)]), "m-00003-of-00003.gguf")
    with pytest.raises(GGUFError, match="file 1 of 3 of a model, not 3 of 3"):
        ours.open(tmp_path / "m-00001-of-00003.gguf")
    store(tmp_path, gguf((), [tensor("t0", "I32", (4, 5))]), "m-00003-of-00003.gguf")
    with pytest.raises(GGUFError, match='these tensors are in two files: "t0"'):
        ours.open(tmp_path / "m-00001-of-00003.gguf")


@pytest.mark.parametrize("kind", ["u16", "i32", "u64"])
def test_one_file_of_a_model_under_another_name_is_refused(tmp_path: Path, kind: str) -> None:
    def part(number: int, count: int, total: int, name: str) -> Path:
        keys = [pair("split.no", kind, number), pair("split.count", kind, count), pair("split.tensors.count", kind, total)]
        return store(tmp_path, gguf(keys, [tensor(f"t{number}", "I32", (4,))]), name)

    for number, name in enumerate(("first.gguf", "blob", "m-1-of-2.gguf")):
        with pytest.raises(GGUFError, match=f"{name}: the metadata says that this is file {number + 1} of 3 of a model, but the other files cannot be found"):
            ours.open(part(number, 3, 3, name))
    with pytest.raises(GGUFError, match="says that the model has 7 tensors .split.tensors.count., but its files have 2: the model is incomplete"):
        part(0, 2, 7, "w-00001-of-00002.gguf")
        ours.open(part(1, 2, 7, "w-00002-of-00002.gguf"))
    with pytest.raises(GGUFError, match="says that the model has 2 tensors .split.tensors.count., but its file has 1: the model is incomplete"):
        ours.open(part(0, 1, 2, "one.gguf"))
    with ours.open(part(0, 0, 9, "joined.gguf")) as file:  # as llama-gguf-split --merge leaves it
        assert list(file.load()) == ["t0"]


# --- what is refused


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", 'a GGUF file must start with "GGUF"'),
        (b"version https://git-lfs.github.com/spec/v1\n", "is a git-lfs pointer"),
        (b"<html>", "is an HTML page, not a GGUF file"),
        (gguf(version=1), "version 1 has been obsolete since 2023"),
        (gguf(version=0x03000000), "this is a big-endian GGUF file"),
        (b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 0), "tensors do not fit into a file of 24 bytes"),
        (gguf([pair("k", "u8", 1)] * 2), 'the key "k" appears twice'),
        (gguf([pair("general.alignment", "u32", 24)]), "general.alignment is 24, which is not a power of two"),
        (gguf([struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 8, 1 << 61)]), 'the key "k": at byte .*items do not fit'),
        (gguf((), [tensor("t", "F32", (2,))])[:-1], 'tensor "t": its 8 bytes at offset 0 .* the file is truncated'),
        (gguf((), [tensor("t", "F32", (2,))] * 2), 'tensor "t" appears twice'),
        (gguf((), [Tensor("t", "Q4_K", (2, 128), bytes(144))]), 'tensor "t": its rows of 128 elements are not a multiple of the 256-element blocks'),
    ],
)
def test_a_damaged_file_is_an_error_that_names_it_and_why(tmp_path: Path, content: bytes, why: str) -> None:
    name = store(tmp_path, content)
    with pytest.raises(GGUFError, match=why) as told:
        ours.open(name)
    assert told.value.filename == str(name) and str(name) in str(told.value) and told.value.code == "invalid_argument"


def test_a_tensor_of_an_unknown_type_hides_only_itself(tmp_path: Path) -> None:
    infos = tensor_info("norm", [8], 0, 0) + tensor_info("new", [64, 2], 42, 32)
    content = b"GGUF" + struct.pack("<IQQ", 3, 2, 1) + pair("general.name", "string", "small") + infos
    name = store(tmp_path, content + bytes(-len(content) % 32) + bytes(32) + b"x" * 40)
    with ours.open(name) as file:
        assert file.metadata == {"general.name": "small"} and list(file.tensors) == ["norm"]
        assert file.unknown == {"new": ours.UnknownTensor(42, (2, 64), file.tensors["norm"].offset + 32, str(name))}
        with pytest.warns(UserWarning, match='tensor "new" cannot be loaded: this version does not support its type, 42') as told:
            assert list(file.load()) == ["norm"]
        assert told[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert list(file.load(["norm"])) == ["norm"]
        with pytest.raises(GGUFError, match='tensor "new" cannot be loaded') as refused:
            file.load(["norm", "new"])
        assert refused.value.code == "unsupported"


def test_no_damage_does_more_than_raise(tmp_path: Path) -> None:
    whole = gguf(pairs(), [tensor("a", "Q4_0", (2, 2)), tensor("b", "F32", (3,))])
    numbers = random.Random(5)
    for _ in range(200):
        content = bytearray(whole[: numbers.choice([len(whole), numbers.randrange(len(whole))])])
        for _ in range(numbers.choice([0, 1, 8]) if content else 0):
            content[numbers.randrange(len(content))] = numbers.randrange(256)
        try:
            with ours.open(store(tmp_path, bytes(content))) as file:
                for name, value in file.load().items():
                    assert value.nbytes == file.tensors[name].nbytes
        except GGUFError:
            pass


def test_what_cannot_be_loaded_is_named(path: Path) -> None:
    file = ours.open(path)
    with pytest.raises(GGUFError, match='File does not contain tensor "blk.0.Q4_9": did you mean blk.0.Q4_0'):
        file.load(["blk.0.Q4_9"])
    with pytest.raises(penstock.InvalidArgument, match="framework tf is invalid"):
        file.load(framework="tf")
    with pytest.raises(penstock.NotFound):
        file.load(device="cuda:99")
    if not _has_ml_dtypes():
        with pytest.raises(GGUFError, match="has the type BF16, which NumPy does not support: pip install ml_dtypes"):
            file.load()
    size = os.path.getsize(path)
    os.truncate(path, size - 1)
    with pytest.raises(penstock.ShortRead, match='the file was truncated after it was opened: it ends at .*, before the end of "deep"'):
        file.load(["deep"])
    file.close()
    with pytest.raises(penstock.Closed):
        file.load()
    assert file.tensors and file.metadata


def _has_ml_dtypes() -> bool:
    try:
        import ml_dtypes  # noqa: F401
    except ImportError:
        return False
    return True


def test_other_loaders_say_that_it_is_a_gguf_file(path: Path) -> None:
    from penstock.safetensors import SafetensorError, load_file

    with pytest.raises(SafetensorError, match="is a GGUF file, not a safetensors file"):
        load_file(path)
    assert penstock.load(path, "u1").tobytes() == path.read_bytes()
    with pytest.raises(TypeError, match="path must be a str"):
        ours.open(b"x")  # type: ignore[arg-type]
    with pytest.raises(FileNotFoundError):
        ours.open(path.parent / "nothing.gguf")
