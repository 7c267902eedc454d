"""What counts as memory, and what is refused."""

from __future__ import annotations

import array
import ctypes
import mmap
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import penstock
import penstock.kvikio.numpy
from penstock import _native, kvikio

NBYTES = 6_000


@pytest.fixture
def file(tmp_path: Path, pattern: Any) -> Any:
    path = tmp_path / "file"
    path.write_bytes(pattern(NBYTES))
    with penstock.open(path, "r+") as opened:
        yield opened


class CudaArray:
    """An object with __cuda_array_interface__ over memory of NumPy's: it says where memory is, whichever that is."""

    def __init__(self, memory: Any, **changes: Any) -> None:
        self._memory = memory
        self.__cuda_array_interface__ = {
            "shape": memory.shape,
            "typestr": memory.dtype.str,
            "data": (memory.ctypes.data, False),
            "version": 3,
            **changes,
        }


class Exporter:
    """An object with __dlpack__ over memory of NumPy's."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def __dlpack_device__(self) -> tuple[int, int]:
        device: tuple[int, int] = self._memory.__dlpack_device__()
        return device

    def __dlpack__(self, **how: Any) -> Any:
        return self._memory.__dlpack__(**how)


class Tensor:
    """An object as PyTorch's tensors are, with nbytes as a property, or as its storages, with nbytes as a method."""

    def __init__(self, memory: Any, storage: bool = False) -> None:
        self._memory = memory
        self.nbytes: Any = (lambda: memory.nbytes) if storage else memory.nbytes
        if not storage:
            self.is_contiguous = lambda: memory.flags.c_contiguous

    @property
    def __cuda_array_interface__(self) -> Any:
        raise AttributeError("memory of the host")

    def data_ptr(self) -> int:
        return int(self._memory.ctypes.data)


class TorchTensor(Tensor):
    """Known by its name: asked for what costs least. Not for __cuda_array_interface__, which is left out."""

    def __init__(self, memory: Any, conjugated: bool = False, negated: bool = False) -> None:
        super().__init__(memory)
        self.shape, self.stride = memory.shape, lambda: [each // memory.itemsize for each in memory.strides]
        self.is_conj, self.is_neg = lambda: conjugated, lambda: negated


class DlTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("dimensions", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


@ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DlTensor))
def describe(tensor: Any, out: Any) -> int:
    if tensor.told is None:
        return -1
    out[0] = tensor.told
    return 0


class ExchangeTable(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint32 * 2),
        ("previous", ctypes.c_void_p),
        ("others", ctypes.c_void_p * 3),
        ("describe", type(describe)),
        ("current_stream", ctypes.c_void_p),
    ]


def exchange_capsule(table: ExchangeTable) -> Any:
    new = ctypes.pythonapi.PyCapsule_New
    new.argtypes, new.restype = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p), ctypes.py_object
    return new(ctypes.addressof(table), b"dlpack_exchange_api", None)


# As a library with a newer major version that serves older ones too.
EXCHANGE_TABLE = ExchangeTable((1, 3), None, (None,) * 3, describe)
NEWER_TABLE = ExchangeTable((2, 0), ctypes.addressof(EXCHANGE_TABLE))


class DescribedTensor(TorchTensor):
    """PyTorch's own tensor, whose type has DLPack's table. told: what that says; changes are lies."""

    __dlpack_c_exchange_api__ = exchange_capsule(NEWER_TABLE)

    def __init__(self, memory: Any, **changes: Any) -> None:
        super().__init__(memory)
        count = memory.ndim
        self.shape_in_c = (ctypes.c_int64 * count)(*memory.shape)
        self.strides_in_c = (ctypes.c_int64 * count)(*self.stride())
        self.told = DlTensor(memory.ctypes.data - 3, (1, 0), count, 1, 8 * memory.itemsize, 1, self.shape_in_c, self.strides_in_c, 3)
        for name, value in changes.items():
            setattr(self.told, name, value)
        self.asked: list[str] = []

    def data_ptr(self) -> int:
        self.asked.append("data_ptr")
        return super().data_ptr()


class CupyArray:
    """Known by its name: neither __cuda_array_interface__ nor __dlpack__ is there."""

    def __init__(self, memory: Any, with_private_name: bool = False) -> None:
        if with_private_name:
            self._c_contiguous = memory.flags.c_contiguous
        self.data = types.SimpleNamespace(ptr=memory.ctypes.data)
        self.flags = types.SimpleNamespace(c_contiguous=memory.flags.c_contiguous)
        self.nbytes = memory.nbytes


for each, module, name in ((TorchTensor, "torch", "Tensor"), (DescribedTensor, "torch", "Tensor"), (CupyArray, "cupy", "ndarray")):
    each.__module__, each.__name__ = module, name


KINDS: dict[str, Callable[[Any], Any]] = {
    "array of uint8": lambda memory: memory,
    "array of float64": lambda memory: memory.view(np.float64),
    "array of two dimensions": lambda memory: memory.view(np.int16).reshape(30, 100),
    "array of both orders": lambda memory: memory.reshape(NBYTES, 1).T,
    "array with axes of one": lambda memory: memory.reshape(1, NBYTES, 1),
    "memoryview": memoryview,
    "ctypes": lambda memory: (ctypes.c_char * NBYTES).from_buffer(memory),
    "__cuda_array_interface__": CudaArray,
    "__cuda_array_interface__ with strides": lambda memory: CudaArray(memory, strides=(1,)),
    "__dlpack__": Exporter,
    "tensor": Tensor,
    "storage": lambda memory: Tensor(memory, storage=True),
    "tensor of PyTorch": TorchTensor,
    "tensor of a newer PyTorch": DescribedTensor,
    "array of CuPy": lambda memory: CupyArray(memory, with_private_name=True),
    "array of another CuPy": CupyArray,
    "Pointer": lambda memory: penstock.Pointer(memory.ctypes.data, NBYTES, owner=memory),
}


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_read_into_and_written_from(file: penstock.File, pattern: Any, kind: str) -> None:
    memory = np.zeros(NBYTES, np.uint8)
    buffer = KINDS[kind](memory)
    assert file.read_into(buffer) == NBYTES
    assert memory.tobytes() == pattern(NBYTES)
    memory[:] = memory[::-1].copy()
    assert file.write_from(buffer) == NBYTES
    assert Path(str(file.name)).read_bytes() == pattern(NBYTES)[::-1]


@pytest.mark.parametrize("kind", KINDS)
def test_it_is_read_into_without_blocking(file: penstock.File, pattern: Any, kind: str) -> None:
    memory = np.zeros(NBYTES, np.uint8)
    assert file.pread(KINDS[kind](memory), 10, 100, 1_000).result() == 100
    assert memory.tobytes() == bytes(1_000) + pattern(NBYTES)[10:110] + bytes(NBYTES - 1_100)


@pytest.mark.parametrize("kind", KINDS)
def test_resolve_tells_its_address_and_length(kind: str) -> None:
    memory = np.zeros(NBYTES, np.uint8)
    assert _native.resolve(KINDS[kind](memory), True) == (memory.ctypes.data, NBYTES)


def test_other_memory_of_the_host_is_taken(file: penstock.File, pattern: Any) -> None:
    page = mmap.mmap(-1, NBYTES)
    numbers = array.array("d", bytes(NBYTES))
    for buffer in (page, numbers, bytearray(NBYTES)):
        assert file.read_into(buffer) == NBYTES
        assert bytes(memoryview(buffer)) == pattern(NBYTES)
    page.close()


def test_read_only_memory_is_written_from_and_not_read_into(file: penstock.File) -> None:
    locked = np.zeros(10, np.uint8)
    locked.flags.writeable = False
    interface = CudaArray(np.zeros(10, np.uint8))
    address = interface.__cuda_array_interface__["data"][0]
    interface.__cuda_array_interface__["data"] = (address, True)
    pointer = penstock.Pointer(address, 10, owner=interface, readonly=True)
    for buffer in (b"0123456789", memoryview(b"0123456789"), locked, interface, pointer):
        assert file.write_from(buffer) == 10
        for call in (file.read_into, file.pread):
            with pytest.raises(penstock.BufferError, match=f"{type(buffer).__name__} is read-only") as caught:
                call(buffer)
            assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "buffer",
    [
        np.zeros(100, np.uint8)[::2],
        np.zeros((10, 10), np.uint8)[:, :5],
        np.zeros((4, 4, 4), np.uint8).transpose(0, 2, 1),
        memoryview(bytearray(100))[::3],
        CudaArray(np.zeros(50, np.uint8), strides=(2,)),
        CudaArray(np.zeros((5, 10), np.uint8), strides=(20, 1)),
        Exporter(np.zeros(100, np.uint8)[::2]),
        Tensor(np.zeros(100, np.uint8)[::2]),
    ],
    ids=lambda buffer: type(buffer).__name__,
)
def test_memory_with_gaps_is_refused(file: penstock.File, buffer: Any) -> None:
    for call in (file.read_into, file.write_from, file.pread, file.pwrite):
        with pytest.raises(penstock.BufferError, match="not contiguous"):
            call(buffer)


FORTRAN: dict[str, Callable[[Any], Any]] = {
    "array": lambda memory: memory.reshape(60, 100).T,
    "array with more axes": lambda memory: np.asfortranarray(memory.view("<u4").reshape(10, 15, 10)),
    "array of times": lambda memory: memory.view("M8[s]").reshape(25, 30).T,
    "memoryview": lambda memory: memoryview(memory.reshape(60, 100).T),
    "__cuda_array_interface__": lambda memory: CudaArray(memory.reshape(60, 100), shape=(100, 60), strides=(1, 100)),
    "__dlpack__": lambda memory: Exporter(memory.reshape(60, 100).T),
}


@pytest.mark.parametrize("kind", FORTRAN)
def test_an_array_in_the_order_of_fortran_is_refused_unless_it_is_asked_for(file: penstock.File, pattern: Any, kind: str) -> None:
    memory = np.zeros(NBYTES, np.uint8)
    array = FORTRAN[kind](memory)
    calls: dict[str, Callable[..., Any]] = {
        "buffer": file.read_into,
        "buffer ": file.write_from,
        "buffer  ": file.pread,
        "buffer   ": file.pwrite,
        "buffer    ": lambda array, **order: file.read_ranges(array, [0], [NBYTES], **order),
        "requests[1]": lambda array, **order: file.read_many([(bytearray(1), 0), (array, 0)], **order),
        "requests[1] ": lambda array, **order: file.pwrite_many([(b"1", 0), (array, 0)], **order),
        "requests[1]  ": lambda array, **order: penstock.pread_many([(file, bytearray(1), 0), (file, array, 0)], **order),
        "source": lambda array, **order: penstock.copy(bytearray(NBYTES), array, **order),
        "target": lambda array, **order: penstock.copy(array, pattern(NBYTES), **order),
    }
    for name, call in calls.items():
        with pytest.raises(penstock.BufferError, match="Fortran") as caught:
            call(array)
        name = name.strip()
        assert str(caught.value).startswith(f"{name}: the memory of this ")
        assert f"{name}.T" in str(caught.value) and 'order="A"' in str(caught.value)
        with pytest.raises(penstock.BufferError):
            call(array, order="C")
    assert memory.tobytes() == bytes(NBYTES) or kind == "array with more axes"  # which has memory of its own
    for call in calls.values():
        done = call(array, order="A")
        if isinstance(done, penstock.Future):
            done.result()
    file.write_from(pattern(NBYTES))
    assert file.read_into(array, order="A") == NBYTES
    assert bytes_of(array) == pattern(NBYTES)


def bytes_of(array: Any) -> bytes:
    address, nbytes = _native.resolve(array)
    return ctypes.string_at(address, nbytes)


def test_the_remedy_for_the_order_of_fortran_does(file: penstock.File, pattern: Any) -> None:
    array = np.zeros((100, 60), np.uint8, order="F")
    assert file.read_into(array.T) == NBYTES
    assert array.T.tobytes() == pattern(NBYTES)
    matrix = np.frombuffer(pattern(NBYTES), np.uint8).reshape(100, 60).copy(order="F")
    assert file.write_from(np.ascontiguousarray(matrix)) == NBYTES
    assert Path(str(file.name)).read_bytes() == pattern(NBYTES)


@pytest.mark.parametrize("order", ["F", "", "a", "K"])
def test_no_other_order_is_known(file: penstock.File, order: Any) -> None:
    with pytest.raises(ValueError, match=f"order must be 'C' or 'A', not '{order}'"):
        file.read_into(bytearray(1), order=order)
    with pytest.raises(TypeError, match="order must be 'C' or 'A', not int"):
        file.read_into(bytearray(1), order=1)  # type: ignore[arg-type]


class NoTensor(Tensor):
    """Of PyTorch's, in the host's memory, which tells of its strides by elements."""

    def __init__(self, memory: Any) -> None:
        super().__init__(memory)
        self.shape = memory.shape
        self.stride = lambda: tuple(each // memory.itemsize for each in memory.strides)


def test_a_tensor_in_the_order_of_fortran_needs_to_be_asked_for_too(file: penstock.File, pattern: Any) -> None:
    memory = np.zeros((60, 50), "<u2")
    with pytest.raises(penstock.BufferError, match="buffer: .*Fortran"):
        file.read_into(NoTensor(memory.T))
    assert file.read_into(NoTensor(memory.T), order="A") == NBYTES
    assert memory.tobytes() == pattern(NBYTES)
    for order in ("C", "A"):
        with pytest.raises(penstock.BufferError, match="not contiguous"):
            file.read_into(NoTensor(memory[:, ::2]), order=order)


OBJECTS: dict[str, Callable[[], Any]] = {
    "array": lambda: np.zeros(3, object),
    "matrix": lambda: np.zeros((3, 3), object, order="F"),
    "record": lambda: np.zeros(3, [("number", "<i8"), ("name", object)]),
    "record with a time": lambda: np.zeros(3, [("when", "M8[s]"), ("name", object)]),
    "memoryview": lambda: memoryview(np.zeros(3, object)),
    "ctypes": lambda: (ctypes.py_object * 3)(),
    "__cuda_array_interface__": lambda: CudaArray(np.zeros(3, "u8"), typestr="|O8"),
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_objects_are_refused_everywhere(file: penstock.File, pattern: Any, tmp_path: Path, kind: str) -> None:
    memory = penstock.device("host:0").empty(100)
    calls: dict[str, Callable[[Any], Any]] = {
        "read_into": file.read_into,
        "read_into in any order": lambda array: file.read_into(array, order="A"),
        "write_from": file.write_from,
        "readinto": file.readinto,
        "pread": file.pread,
        "pwrite": file.pwrite,
        "read_many": lambda array: file.read_many([(array, 0)], order="A"),
        "pread_many": lambda array: file.pread_many([(array, 0)], order="A"),
        "penstock.pwrite_many": lambda array: penstock.pwrite_many([(file, array, 0)], order="A"),
        "read_ranges": lambda array: file.read_ranges(array, [0], [8], order="A"),
        "read_on_stream": lambda array: file.read_on_stream(array, None, order="A"),
        "copy to": lambda array: penstock.copy(array, bytes(24), order="A"),
        "copy from": lambda array: memory.copy_from(array, order="A"),
        "resolve": _native.resolve,
        "tofile": lambda array: penstock.tofile(array, file.name),
        "kvikio.read": lambda array: kvikio.CuFile(file.name, "r").read(array),
    }
    if kind in ("array", "matrix", "record"):
        calls["kvikio.tofile"] = lambda array: kvikio.numpy.tofile(array, file.name)
    for call in calls.values():
        with pytest.raises(ValueError, match="contains Python objects"):
            call(OBJECTS[kind]())
    assert Path(str(file.name)).read_bytes() == pattern(NBYTES)


def test_a_field_with_a_name_of_capitals_is_no_object(file: penstock.File) -> None:
    assert file.read_into(np.zeros(3, [("OBJECT", "<i8"), ("O", "<f8")])) == 48
    assert file.read_into(memoryview(np.zeros(3, [("OBJECT", "<i8"), ("O", "<f8")]))) == 48


def test_a_mask_is_refused(file: penstock.File) -> None:
    with pytest.raises(penstock.BufferError, match="masked"):
        file.read_into(CudaArray(np.zeros(10, np.uint8), mask=CudaArray(np.zeros(10, np.bool_))))


@pytest.mark.parametrize("what", [None, 3, "text", [1, 2], object()], ids=lambda what: type(what).__name__)
def test_what_is_no_memory_is_a_type_error(file: penstock.File, what: Any) -> None:
    for call in (file.read_into, file.write_from, file.pread, file.pwrite):
        with pytest.raises(TypeError, match=f"memory is required, not .*{type(what).__name__}"):
            call(what)


def test_what_an_object_raises_is_passed_on(file: penstock.File) -> None:
    class Failing:
        @property
        def __cuda_array_interface__(self) -> Any:
            raise KeyError("of its own")

    with pytest.raises(KeyError, match="of its own"):
        file.read_into(Failing())


@pytest.mark.parametrize(
    ("size", "buffer_offset"), [(101, 0), (100, 1), (1, 100), (-1, 0), (10, -1), (None, 101), (1 << 62, 1 << 62), (1, 1 << 62)]
)
def test_a_range_outside_the_buffer_is_refused(memory: Any, file: penstock.File, size: int | None, buffer_offset: int) -> None:
    buffer = memory.of(bytes(100))
    for call in (file.read_into, file.write_from, file.pread, file.pwrite):
        with pytest.raises(ValueError, match="the buffer has|size is|buffer_offset is"):
            call(buffer, 0, size, buffer_offset)
    assert memory.bytes(buffer) == bytes(100)


def test_an_object_of_time_is_no_obstacle(file: penstock.File, pattern: Any) -> None:
    dates = np.zeros(NBYTES // 8, "M8[s]")
    assert file.read_into(dates) == NBYTES
    assert dates.tobytes() == pattern(NBYTES)


def test_a_buffer_in_use_cannot_be_resized(file: penstock.File) -> None:
    target = bytearray(NBYTES)
    future = file.pread(target)
    try:
        target.extend(b"more")
    except BufferError:
        pass  # in use: as it should be, unless it ended before
    future.result()
    target.extend(b"more")  # and free again


def test_a_tensor_whose_bits_are_not_what_it_holds_is_refused(file: penstock.File) -> None:
    memory = np.zeros(16, np.complex64)
    with pytest.raises(penstock.BufferError, match=r"buffer: .* is a lazy conjugate view: pass buffer\.resolve_conj\(\)"):
        file.write_from(TorchTensor(memory, conjugated=True))
    for described in (memory[:1], memory):
        with pytest.raises(penstock.BufferError, match=r"buffer: .* is a lazy negative view: pass buffer\.resolve_neg\(\)"):
            file.write_from(TorchTensor(described, negated=True))
    with pytest.raises(penstock.BufferError, match=r"is a lazy negative view: read into a plain tensor, then copy it with buffer\.copy_\(\)"):
        file.read_into(TorchTensor(memory, negated=True))


def test_a_tensor_of_real_numbers_is_not_asked_whether_it_is_to_be_conjugated(file: penstock.File) -> None:
    asked: list[str] = []

    def tensor(dtype: Any, conjugated: bool) -> TorchTensor:
        made: Any = TorchTensor(np.zeros(16, np.complex64))
        made.dtype, made.is_conj = dtype, lambda: asked.append("is_conj") or conjugated
        return made

    real, other = types.SimpleNamespace(is_complex=False), types.SimpleNamespace(is_complex=False)
    complex_numbers, unknown = types.SimpleNamespace(is_complex=True), types.SimpleNamespace()
    for dtype in (real, other, real):
        assert file.read_into(tensor(dtype, True)) == 128
    assert asked == []
    for dtype in (complex_numbers, unknown):
        assert file.read_into(tensor(dtype, False)) == 128
        with pytest.raises(penstock.BufferError, match="is a lazy conjugate view"):
            file.read_into(tensor(dtype, True))


def test_a_tensor_without_memory_of_its_own_is_refused(file: penstock.File) -> None:
    tensor = TorchTensor(np.zeros(16, np.uint8))
    tensor.data_ptr = lambda: 0  # type: ignore[method-assign]
    with pytest.raises(penstock.BufferError, match="has no address, so it has no values"):
        file.read_into(tensor)
    del tensor.nbytes  # PyTorch raises RuntimeError
    with pytest.raises(penstock.BufferError, match="has no address, so it has no values"):
        file.read_into(tensor)


def test_a_tensor_of_a_newer_pytorch_is_asked_by_one_call_and_others_by_their_methods() -> None:
    memory = np.zeros((4, 25, 3), np.float32)

    def asked(tensor: DescribedTensor) -> list[str]:
        assert _native.resolve(tensor, True) == (tensor._memory.ctypes.data, tensor._memory.nbytes)
        return tensor.asked

    assert asked(DescribedTensor(memory)) == []
    assert asked(DescribedTensor(memory[:1])) == []
    complex_number, opencl = 5, (4, 0)
    for changes in ({"code": complex_number}, {"data": None}, {"device": opencl}, {"bits": 0}):
        assert asked(DescribedTensor(memory, **changes)) == ["data_ptr"]
    floating = 2
    negated = DescribedTensor(memory, code=floating)
    negated.is_neg = lambda: True
    with pytest.raises(penstock.BufferError, match="is a lazy negative view"):
        asked(negated)
    silent = DescribedTensor(memory)
    silent.told = None
    assert asked(silent) == ["data_ptr"]
    assert asked(type("Derived", (DescribedTensor,), {})(memory)) == ["data_ptr"]
    with pytest.raises(penstock.BufferError, match="in Fortran order"):
        penstock.copy(DescribedTensor(memory.T), bytes(memory.nbytes))
    with pytest.raises(penstock.BufferError, match="is not contiguous"):
        _native.resolve(DescribedTensor(memory[:, ::2]), True)


def test_tensors_of_torch_are_found_where_they_lie() -> None:
    torch = pytest.importorskip("torch")
    memory = torch.arange(6000, dtype=torch.uint8)
    for tensor in (memory, memory[5:77], memory.view(torch.float32).reshape(3, 500), memory[8:24].view(torch.complex64), memory[:3], memory[:0]):
        assert _native.resolve(tensor, True) == (tensor.data_ptr(), tensor.nbytes)
    assert _native.resolve(torch.nn.Parameter(memory.view(torch.float64)), True) == (memory.data_ptr(), 6000)
    for wrong, why in (
        (memory.reshape(60, 100)[:, :50], "not contiguous"),
        (memory.view(torch.complex64).conj(), "resolve_conj"),
        (torch.empty(100, device="meta"), "device meta"),
        (torch.eye(10).to_sparse(), "sparse"),
    ):
        with pytest.raises(penstock.BufferError, match=why):
            _native.resolve(wrong)


def test_a_tensor_in_another_order_is_told_as_such(file: penstock.File) -> None:
    matrix = np.zeros((30, 100), np.uint8)
    with pytest.raises(penstock.BufferError, match="in Fortran order"):
        file.read_into(TorchTensor(matrix.T))
    with pytest.raises(penstock.BufferError, match="is not contiguous"):
        file.read_into(TorchTensor(matrix[:, ::2]))
    assert file.read_into(TorchTensor(matrix.T), order="A") == matrix.nbytes


def test_more_types_than_are_remembered_are_told_apart(file: penstock.File, pattern: Any) -> None:
    memory = np.zeros(NBYTES, np.uint8)
    for count in range(20):
        for base in (TorchTensor, CupyArray, Tensor, Exporter):
            assert file.read_into(type(f"{base.__name__}{count}", (base,), {})(memory)) == NBYTES
            assert memory.tobytes() == pattern(NBYTES)
            memory[:] = 0


def test_pointer_names_the_argument_that_is_wrong() -> None:
    for arguments, message in (
        (("0x10", 1), "address must be an int, not str"),
        ((None, 1), "address must be an int, not NoneType"),
        ((1, 2.5), "nbytes must be an int, not float"),
        ((1, 1, None, "yes"), "readonly must be a bool, not str"),
    ):
        with pytest.raises(TypeError, match=message):
            penstock.Pointer(*arguments)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"nbytes is -1: it must be between 0 and 2\*\*64 - 1"):
        penstock.Pointer(1, -1)


def test_pointer_tells_what_it_is() -> None:
    memory = np.zeros(16, np.uint8)
    pointer = penstock.Pointer(memory.ctypes.data, 16, memory, True)
    assert (pointer.address, pointer.nbytes, pointer.readonly) == (memory.ctypes.data, 16, True)
    assert pointer.owner is memory
    assert repr(pointer) == f"penstock.Pointer({memory.ctypes.data:#x}, 16, readonly=True)"
