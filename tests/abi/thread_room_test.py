#!/usr/bin/env python3
"""A library's variables of a thread have room when the thread starts: their first use allocates nothing, where glibc would abort the
process if there were no memory."""
import ctypes
import struct
import sys
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


def main() -> None:
    for name in sys.argv[1:]:
        wanted = bytes_of_a_thread(name)
        if wanted > MOST_BYTES:
            sys.exit(f"{name} wants {wanted} bytes of each thread, more than {MOST_BYTES}")
        library = ctypes.CDLL(name)
        if not facts_of(library, TLS_MODULE, ctypes.c_size_t()):
            continue  # it has no such variables
        seen = []
        thread = threading.Thread(target=lambda: seen.append(facts_of(library, TLS_DATA, ctypes.c_void_p())))
        thread.start()
        thread.join()
        if not seen[0]:
            sys.exit(f"{name}: a thread that has not used it has no room for its variables: is one not [[gnu::tls_model(\"initial-exec\")]]?")


main()
