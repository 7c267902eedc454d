#!/usr/bin/env python3
"""A library's variables of a thread have room when the thread starts: their first use allocates nothing, where glibc would abort the
process if there were no memory. Those of libstdc++, which throws where memory runs out, have it once a thread has called cuFile."""
import ctypes
import struct
import sys
import tempfile
import threading

MOST_BYTES = 64  # of the 1664 that the loader keeps for all libraries that are loaded at run time
TLS_MODULE, TLS_DATA = 9, 10  # RTLD_DI_..., <dlfcn.h>


def facts_of(library: ctypes.CDLL, question: int, answer):
    dlinfo = ctypes.CDLL(None).dlinfo
    dlinfo.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
    if dlinfo(library._handle, question, ctypes.byref(answer)) != 0:
        sys.exit(f"dlinfo({question}) failed")
    return answer.value


def bytes_of_a_thread(name: str) -> int:
    """The size of the segment PT_TLS of an ELF file of 64 bits."""
    with open(name, "rb") as library:
        content = library.read()
    (start,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    headers = (struct.unpack_from("<IIQQQQQQ", content, start + i * size) for i in range(count))
    return sum(each[6] for each in headers if each[0] == 7)


def has_room(library: ctypes.CDLL, first) -> bool:
    """Whether the library's variables have room in a new thread that has called first()."""
    seen = []

    def look() -> None:
        first()
        seen.append(facts_of(library, TLS_DATA, ctypes.c_void_p()))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    return bool(seen[0])


class Description(ctypes.Structure):  # CUfileDescr_t
    _fields_ = [("type", ctypes.c_int), ("fd", ctypes.c_int64), ("operations", ctypes.c_void_p)]


def reader_of(library: ctypes.CDLL, fd: int):
    """Reads a page of the file by cuFile."""
    handle = ctypes.c_void_p()

    class Error(ctypes.Structure):
        _fields_ = [("error", ctypes.c_int), ("cuda", ctypes.c_int)]

    library.cuFileHandleRegister.restype = Error
    registered = library.cuFileHandleRegister(ctypes.byref(handle), ctypes.byref(Description(1, fd, None)))
    if registered.error != 0:
        sys.exit(f"cuFileHandleRegister: {registered.error}")
    into = ctypes.create_string_buffer(4096)
    library.cuFileRead.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int64, ctypes.c_int64]
    library.cuFileRead.restype = ctypes.c_ssize_t

    def read() -> None:
        done = library.cuFileRead(handle, into, len(into), 0, 0)
        if done != len(into):
            sys.exit(f"cuFileRead: {done}")

    return read


def main() -> None:
    for name in sys.argv[1:]:
        wanted = bytes_of_a_thread(name)
        if wanted > MOST_BYTES:
            sys.exit(f"{name} wants {wanted} bytes of each thread, more than {MOST_BYTES}")
        library = ctypes.CDLL(name)
        # Where it has such variables.
        if facts_of(library, TLS_MODULE, ctypes.c_size_t()) and not has_room(library, lambda: None):
            sys.exit(f"{name}: a thread that has not used it has no room for its variables: is one not [[gnu::tls_model(\"initial-exec\")]]?")
        if hasattr(library, "cuFileRead"):
            throws = ctypes.CDLL("libstdc++.so.6")
            with tempfile.NamedTemporaryFile() as file:
                file.write(bytes(4096))
                file.flush()
                if not has_room(throws, reader_of(library, file.fileno())):
                    sys.exit(f"{name}: what libstdc++ keeps for a thread that throws has no room after a call")


main()
