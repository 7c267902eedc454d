"""The exceptions. `except OSError` catches all of them; `except ValueError` catches the caller's mistakes."""

from __future__ import annotations

import builtins
import errno
import os
import re
from typing import Any

__all__ = [
    "BufferError",
    "Cancelled",
    "Closed",
    "Error",
    "FileExists",
    "InvalidArgument",
    "IsADirectory",
    "NotAFile",
    "NotFound",
    "OutOfMemory",
    "PermissionDenied",
    "ShortRead",
    "TimedOut",
]

# These patterns are strings, which re compiles and caches on first use, so that importing the module costs nothing.
# Terminal control characters, and surrogates: names of files and peers may come from untrusted parties, and messages are printed.
_not_printable = "[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]"

# SCHEME://USER:PASSWORD@HOST/PATH?QUERY. s3:// URLs have no user, and their keys may contain question marks.
_url = r"""(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<user>[^\s/?#"'<>@]*@)?(?P<place>[^\s?#"'<>]*)(?P<query>[?#][^\s"'<>]*?)?(?=[:,;)\]}.]*(?:[\s"'<>]|$))"""
_plain_host = r"[\w.\-\[\]%]*|.*\]:\d*|[\w.\-]*:\d*"
_credential = r"signature=|sig=|token=|credential=|password=|secret=|key="


def _shown_url(found: re.Match[str]) -> str:
    scheme, user, place, query = found.group("scheme", "user", "place", "query")
    # A password that is not percent-encoded may contain a slash.
    if not user and "@" in place and not re.fullmatch(_plain_host, place.partition("/")[0]):
        user, place = place.rsplit("@", 1)
    is_by_name = scheme.lower() in ("s3", "s3a", "s3n", "gs", "gcs", "hf")
    kept = query if query and is_by_name and not re.search(_credential, query, re.I) else ""
    return f"{scheme}://{'...@' if user else ''}{place}{kept}"


def without_url_secrets(text: str) -> str:
    """Removes queries, user names and passwords from URLs in a text, so that messages and displayed names do not leak credentials."""
    return re.sub(_url, _shown_url, text, flags=re.I) if "://" in text else text


class Error(OSError):
    """A failed request, or another error of Penstock.

    - `errno`: the system's error number; None if the error did not come from the system.
    - `strerror`: the whole message.
    - `filename`: the name of the file, or a URL without its query; None if no file is involved.
    - `offset`: the offset of the request in the file, or None.
    - `bytes_done`: the number of bytes, from the start of the request, that were transferred before the failure.
    - `code`: the kind of error, such as "no_space".
    - `domain`, `native`: the component that reported the error ("penstock", "os", "cuda" or "cufile"), and its error number.
    """

    code: str
    domain: str
    native: int
    offset: int | None
    bytes_done: int

    def __init__(
        self,
        message: str = "",
        *,
        code: str = "internal",
        domain: str = "penstock",
        native: int = 0,
        filename: str | None = None,
        offset: int | None = None,
        bytes_done: int = 0,
    ) -> None:
        number = native if domain == "os" and native else None
        message = re.sub(_not_printable, "?", without_url_secrets(message))
        super().__init__(number, message)
        self.errno = number
        self.strerror = message
        self.filename = without_url_secrets(filename) if isinstance(filename, str) else filename
        self.code = code
        self.domain = domain
        self.native = native
        self.offset = offset
        self.bytes_done = bytes_done

    def __str__(self) -> str:
        return str(self.strerror)

    def __reduce__(self) -> tuple[Any, ...]:
        return _remade, (type(self), str(self), dict(self.__dict__, filename=self.filename))


class InvalidArgument(Error, ValueError):
    """An argument is invalid, such as a negative offset or an unknown word."""


class BufferError(Error, ValueError, builtins.BufferError):
    """The memory cannot be used: it is read-only, not contiguous, or of a different kind or size than declared."""


class NotFound(Error, FileNotFoundError):
    """The file, device or library does not exist."""


class FileExists(Error, FileExistsError):
    """The file that mode "x" should create already exists."""


class PermissionDenied(Error, PermissionError):
    """The file's permissions, or the mode in which it was opened, do not allow the operation."""


class NotAFile(Error):
    """A pipe, socket or terminal was passed where a regular file or a block device is required."""


class IsADirectory(NotAFile, IsADirectoryError):
    """A directory was passed where a file is required."""


class TimedOut(Error, TimeoutError):
    """The request's timeout expired."""


class Cancelled(Error):
    """The request was cancelled before it completed."""


class Closed(Error, ValueError):
    """The file is closed."""


class ShortRead(Error, EOFError):
    """The file ended before the requested range did. `bytes_done` is the number of bytes read."""


class OutOfMemory(Error, MemoryError):
    """No host, pinned or device memory is left."""


_CLASSES: dict[str, type[Error]] = {
    "invalid_argument": InvalidArgument,
    "bad_memory": BufferError,
    "not_found": NotFound,
    "permission_denied": PermissionDenied,
    "not_a_file": NotAFile,
    "timed_out": TimedOut,
    "cancelled": Cancelled,
    "closed": Closed,
    "out_of_memory": OutOfMemory,
}


def _remade(kind: type[Error], message: str, fields: dict[str, Any]) -> Error:
    """Recreates the exception when it is unpickled."""
    names = ("code", "domain", "native", "filename", "offset", "bytes_done")
    return kind(message, **{name: fields[name] for name in names})


def _class_of(code: str, domain: str, native: int) -> type[Error]:
    if domain == "os" and native == errno.EISDIR:
        return IsADirectory
    if domain == "os" and native == errno.EEXIST:
        return FileExists
    return _CLASSES.get(code, Error)


def make_error(
    code: str, message: str, domain: str, native: int, filename: str | None, offset: int | None, bytes_done: int
) -> Error:
    """Returns the exception for an error that the library reported. Called by penstock._native."""
    if code == "not_a_file" and filename is not None and os.path.isdir(filename):
        domain, native = "os", errno.EISDIR
        if "nor a block device" in message:  # the file was opened; a file that was saved there keeps its message
            message = f"{filename} is a folder, not a file: penstock.load() and penstock.safetensors.load_file() load the model in a folder"
    kind = _class_of(code, domain, native)
    return kind(
        message, code=code, domain=domain, native=native, filename=filename, offset=offset, bytes_done=bytes_done
    )


# Sets the public module name for tracebacks and pickles.
for _name in __all__:
    globals()[_name].__module__ = "penstock"
