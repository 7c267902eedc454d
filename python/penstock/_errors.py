"""The exceptions. ``except OSError`` catches all of them; ``except ValueError`` what the caller got wrong."""

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


# What a terminal obeys, and halves of characters: files and peers are named by others, and messages are printed.
_not_printable = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


# SCHEME://USER:PASSWORD@HOST/PATH?QUERY. What follows s3:// has no user, and its key may have a question mark.
# Strings, which re compiles and keeps when they are first used: an import needs none of them.
_url = r"""(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<user>[^\s/?#"'<>@]*@)?(?P<place>[^\s?#"'<>]*)(?P<query>[?#][^\s"'<>]*?)?(?=[:,;)\]}.]*(?:[\s"'<>]|$))"""
_plain_host = r"[\w.\-\[\]%]*|.*\]:\d*|[\w.\-]*:\d*"
_credential = r"signature=|sig=|token=|credential=|password=|secret=|key="


def _shown_url(found: re.Match[str]) -> str:
    scheme, user, place, query = found.group("scheme", "user", "place", "query")
    # A password that is not encoded may have a slash.
    if not user and "@" in place and not re.fullmatch(_plain_host, place.partition("/")[0]):
        user, place = place.rsplit("@", 1)
    is_by_name = scheme.lower() in ("s3", "s3a", "s3n", "gs", "gcs", "hf")
    kept = query if query and is_by_name and not re.search(_credential, query, re.I) else ""
    return f"{scheme}://{'...@' if user else ''}{place}{kept}"


def without_url_secrets(text: str) -> str:
    """Cuts off queries, user names and passwords of the URLs in a text: a message or a name that is shown must not give access."""
    return re.sub(_url, _shown_url, text, flags=re.I) if "://" in text else text


class Error(OSError):
    """A request, or something else asked of Penstock, that failed.

    ``errno``: the system's number, or None where the error is not the system's. ``strerror``: the whole message. ``filename``: of the
    file as it is, or None; of a URL without its query. ``offset``: of the request in the file, or None. ``bytes_done``: how many bytes, from the start of the request, were
    moved before it failed. ``code``: Penstock's word for the kind of error, such as "no_space". ``domain`` and ``native``: who reported it
    ("penstock", "os", "cuda" or "cufile") and by which number.
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
        message = _not_printable.sub("?", without_url_secrets(message))
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
    """What was asked for makes no sense: a negative offset, an unknown word."""


class BufferError(Error, ValueError, builtins.BufferError):
    """Memory that cannot be used for this: read-only, not contiguous, or not what it was claimed to be."""


class NotFound(Error, FileNotFoundError):
    """No such file, device or library."""


class FileExists(Error, FileExistsError):
    """The file that mode 'x' should have created is there."""


class PermissionDenied(Error, PermissionError):
    """The file, or how it was opened, does not allow this."""


class NotAFile(Error):
    """A pipe, socket or terminal where a regular file or a block device is needed."""


class IsADirectory(NotAFile, IsADirectoryError):
    """A directory where a file is needed."""


class TimedOut(Error, TimeoutError):
    """The request's timeout passed."""


class Cancelled(Error):
    """cancel() came before the request's end."""


class Closed(Error, ValueError):
    """The file was closed."""


class ShortRead(Error, EOFError):
    """The file ended before what was asked for. bytes_done: how many bytes there were."""


class OutOfMemory(Error, MemoryError):
    """Host, pinned or device memory is exhausted."""


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
    """For pickle."""
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
    """The exception for an error of the library. Called by penstock._native."""
    if code == "not_a_file" and filename is not None and os.path.isdir(filename):
        domain, native = "os", errno.EISDIR
    kind = _class_of(code, domain, native)
    return kind(
        message, code=code, domain=domain, native=native, filename=filename, offset=offset, bytes_done=bytes_done
    )


# As their users name them, in tracebacks and pickles.
for _name in __all__:
    globals()[_name].__module__ = "penstock"
