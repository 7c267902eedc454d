"""KvikIO's remote files on Penstock: S3 objects, and files on web servers and WebHDFS.

Names, arguments, defaults, exception types and the message texts that programs match on are KvikIO's (rapidsai/kvikio, 26.x). In Penstock, all reads
of a file return bytes from the same version of the object or raise an error.

http_max_attempts, http_status_codes and http_timeout are read when a file is opened. The timeout applies to stalls: a slow but steady download does
not time out. As with KvikIO, the caller percent-encodes the keys of S3 objects.
"""

from __future__ import annotations

import contextlib
import ctypes
import enum
import functools
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import penstock
from penstock import _native
from penstock._native import _RemoteRetries
from penstock.kvikio import _log, defaults
from penstock.kvikio._buffer_checks import check_not_negative, settle
from penstock._core.closable import Closable
from penstock.kvikio.cufile import IOFuture, _nbytes

__all__ = ["RemoteEndpointType", "RemoteFile", "infer_remote_endpoint_type", "is_remote_file_available"]

Outcome = TypeVar("Outcome")


class RemoteEndpointType(enum.Enum):
    """The kind of a URL, with KvikIO's names and numbers."""

    AUTO = 0
    S3 = 1
    S3_PUBLIC = 2
    S3_PRESIGNED_URL = 3
    WEBHDFS = 4
    HTTP = 5


_KINDS = {
    RemoteEndpointType.S3: "s3",
    RemoteEndpointType.S3_PUBLIC: "s3_public",
    RemoteEndpointType.S3_PRESIGNED_URL: "s3_presigned",
    RemoteEndpointType.WEBHDFS: "webhdfs",
    RemoteEndpointType.HTTP: "http",
}
_S3_HOSTS = re.compile(r"(.+\.)?s3([.-][a-z0-9-]+)?\.amazonaws\.com")


@functools.cache
def is_remote_file_available() -> bool:
    """Returns True if files can be read over the network, that is, if libcurl is installed."""
    try:
        ctypes.CDLL("libcurl.so.4")
    except OSError:
        return False
    return True


def infer_remote_endpoint_type(url: str) -> RemoteEndpointType:
    """Returns the kind of a URL, based only on its text: S3 for s3:// and Amazon's hosts, S3_PRESIGNED_URL for signed URLs of Amazon's hosts.

    Raises RuntimeError ("Bad scheme" or "Unsupported endpoint URL").
    """
    return _fitting(url)[0]


def _fitting(url: str) -> list[RemoteEndpointType]:
    """Returns all kinds that a URL may be, in KvikIO's order."""
    from urllib.parse import parse_qs, urlsplit  # importing takes 2 ms, a cost that programs without URLs should not pay

    if not re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", url):
        raise RuntimeError(f"KvikIO: Bad scheme: {_shown(url)} is not a URL")
    if url.lower().startswith("s3://"):
        return [RemoteEndpointType.S3, RemoteEndpointType.S3_PUBLIC]
    parts = urlsplit(url)
    if parts.scheme.lower() not in ("http", "https"):
        raise RuntimeError(f"KvikIO: Unsupported endpoint URL: {_shown(url)}")
    fits = []
    if _S3_HOSTS.fullmatch((parts.hostname or "").lower()):
        query = parse_qs(parts.query, keep_blank_values=True)
        if "X-Amz-Algorithm" in query and "X-Amz-Signature" in query:
            fits.append(RemoteEndpointType.S3_PRESIGNED_URL)
        else:
            fits += [RemoteEndpointType.S3, RemoteEndpointType.S3_PUBLIC]
    if parts.path.startswith("/webhdfs/v1/"):
        fits.append(RemoteEndpointType.WEBHDFS)
    return [*fits, RemoteEndpointType.HTTP]


def _shown(url: str) -> str:
    """Returns the URL without secrets, such as the query of a presigned URL."""
    return _native.shown_name(url)[:200]


class RemoteFile(Closable):
    """An object on a server. You read it at offsets, into host or device memory. Created by open() and the other class methods. Thread-safe."""

    def __init__(
        self,
        handle: penstock.File,
        endpoint_type: RemoteEndpointType,
        url: str,
        retries: _RemoteRetries,
        open_whole: Callable[[], penstock.File],
    ) -> None:
        """Creates the object for open(). Do not call it yourself."""
        self._file = handle
        self._open_whole = open_whole
        self._retries = retries
        self._endpoint_type = endpoint_type
        self._url = _shown(url)

    @classmethod
    def open_http(cls, url: str, nbytes: int | None = None) -> RemoteFile:
        """Opens a file on a web server. `nbytes` is its size; if it is None, the server is queried. Raises RuntimeError, such as "URL returned error:
        404"."""
        return cls._open(url, RemoteEndpointType.HTTP, nbytes)

    @classmethod
    def open_s3(
        cls,
        bucket_name: str,
        object_name: str,
        nbytes: int | None = None,
        aws_region_name: str | None = None,
        aws_access_key_id: str | None = None,
        aws_secret_access_key: str | None = None,
        aws_endpoint_url: str | None = None,
        aws_session_token: str | None = None,
    ) -> RemoteFile:
        """Opens an S3 object. Arguments that are None are looked up as the AWS tools do, first in the environment."""
        return cls.open_s3_url(
            f"s3://{bucket_name}/{object_name}",
            nbytes,
            aws_region_name,
            aws_access_key_id,
            aws_secret_access_key,
            aws_endpoint_url,
            aws_session_token,
        )

    @classmethod
    def open_s3_url(
        cls,
        url: str,
        nbytes: int | None = None,
        aws_region_name: str | None = None,
        aws_access_key_id: str | None = None,
        aws_secret_access_key: str | None = None,
        aws_endpoint_url: str | None = None,
        aws_session_token: str | None = None,
    ) -> RemoteFile:
        """Opens an S3 object by s3://BUCKET/KEY or by an Amazon http(s) URL. Raises ValueError: "Unsupported protocol"."""
        scheme = url.partition("://")[0].lower()
        if scheme not in ("http", "https", "s3"):
            raise ValueError(f"Unsupported protocol: {_shown(url)}")
        is_by_name = scheme == "s3"
        given = {
            "region": aws_region_name,
            "access_key_id": aws_access_key_id,
            "secret_access_key": aws_secret_access_key,
            "endpoint": aws_endpoint_url if is_by_name else None,  # other URLs already contain the server's name
            "session_token": aws_session_token,
        }
        options = {name: value for name, value in given.items() if value is not None}
        return cls._open(url, RemoteEndpointType.S3, nbytes, options)

    @classmethod
    def open_s3_public(cls, url: str, nbytes: int | None = None) -> RemoteFile:
        """Opens a public S3 object with unsigned requests."""
        return cls._open(url, RemoteEndpointType.S3_PUBLIC, nbytes)

    @classmethod
    def open_s3_presigned_url(cls, presigned_url: str, nbytes: int | None = None) -> RemoteFile:
        """Opens an S3 object by a presigned URL, whose query contains the signature."""
        return cls._open(presigned_url, RemoteEndpointType.S3_PRESIGNED_URL, nbytes)

    @classmethod
    def open_webhdfs(cls, url: str, nbytes: int | None = None) -> RemoteFile:
        """Opens an HDFS file: http://HOST:PORT/webhdfs/v1/PATH. The user name comes from `user.name=` in the query or from
        KVIKIO_WEBHDFS_USERNAME."""
        return cls._open(url, RemoteEndpointType.WEBHDFS, nbytes)

    @classmethod
    def open(
        cls,
        url: str,
        remote_endpoint_type: RemoteEndpointType = RemoteEndpointType.AUTO,
        allow_list: Sequence[RemoteEndpointType] | None = None,
        nbytes: int | None = None,
    ) -> RemoteFile:
        """Opens a file by a URL of any kind. `allow_list` contains the accepted kinds; None accepts all.

        An S3 object that the credentials do not allow reading is opened as a public object, as in KvikIO; a RuntimeWarning says so. Raises
        RuntimeError: "Unsupported endpoint URL", "Invalid URL" (for a different kind), or "not in the allowlist".
        """
        allowed = list(RemoteEndpointType) if allow_list is None else list(allow_list)
        if remote_endpoint_type is not RemoteEndpointType.AUTO:
            if remote_endpoint_type not in allowed:
                raise RuntimeError(f"KvikIO: {_shown(url)} is not in the allowlist: {remote_endpoint_type}")
            return cls._open(url, remote_endpoint_type, nbytes)
        fits = [each for each in _fitting(url) if each in allowed]
        if not fits:
            raise RuntimeError(f"KvikIO: {_shown(url)} is not in the allowlist")
        try:
            return cls._open(url, fits[0], nbytes)
        except RuntimeError as refused:
            if fits[:2] != [RemoteEndpointType.S3, RemoteEndpointType.S3_PUBLIC]:
                raise
            opened = cls._open(url, RemoteEndpointType.S3_PUBLIC, nbytes)
            warnings.warn(f"{opened} is read without credentials: {refused}", RuntimeWarning, stacklevel=2)
            return opened

    @classmethod
    def _open(cls, url: str, kind: RemoteEndpointType, nbytes: int | None, options: dict[str, Any] | None = None) -> RemoteFile:
        defaults.tell_of_unused_variables()
        _log.set_up()
        if kind not in _fitting(url):
            raise RuntimeError(f"KvikIO: Invalid URL: {_shown(url)} is not of type {kind.name}")
        if url.lower().startswith("s3://"):
            from urllib.parse import unquote

            bucket, slash, key = url[5:].partition("/")
            url = f"s3://{bucket}{slash}{unquote(key)}"
        retries = _RemoteRetries()
        how = {"kind": _KINDS[kind], **_patience(), "retries": retries, **(options or {})} | ({} if nbytes is None else {"size": nbytes})

        def opened(**more: Any) -> penstock.File:
            return _attempt(lambda: penstock.open(url, storage_options=how | more))

        try:
            try:
                file = opened(ranges_only=True)
            except OverflowError:  # the server reports the size only with the whole object
                file = opened()
            made = cls(file, kind, url, retries, opened)
            _log.logger.info("%s: opened", _shown(url))
            return made
        finally:
            _print(retries)

    def close(self) -> None:
        """Does nothing, as in KvikIO: the object is released when this file is deleted."""

    def __str__(self) -> str:
        return f'<RemoteFile "{self._url}">'

    def remote_endpoint_type(self) -> RemoteEndpointType:
        """Returns the kind that the URL was opened as."""
        return self._endpoint_type

    def nbytes(self) -> int:
        """Returns the size of the object in bytes."""
        return self._file.size()

    def read(self, buf: Any, size: int | None = None, file_offset: int = 0) -> int:
        """Reads size bytes (None: fills buf) at file_offset into buf and returns the number of bytes read. Blocks.

        - ValueError: the range is not within the object ("cannot read ... bytes into a ... bytes file"), or buf is read-only, not contiguous or
          shorter than size.
        - OverflowError: a negative number, or "maybe the server doesn't support file ranges?".
        - RuntimeError: the read failed.
        """
        return self.pread(buf, size, file_offset).get()

    def pread(self, buf: Any, size: int | None = None, file_offset: int = 0) -> IOFuture:
        """Starts reading and returns at once. Otherwise like read()."""
        check_not_negative(size=size, file_offset=file_offset)
        wanted = _nbytes(buf) if size is None else size
        there = self.nbytes()
        if file_offset + wanted > there:
            raise ValueError(f"KvikIO: cannot read {file_offset}+{wanted} bytes into a {there} bytes file ({self._url})")
        settle(buf)
        future = _attempt(lambda: self._file.pread(buf, file_offset, wanted, order="A"))
        return _RemoteFuture(future, self._url, self, buf if wanted == there else None)

    def _read_whole(self, buf: Any) -> int:
        """Reads a whole object from a server that does not support ranges, as KvikIO does."""
        return _attempt(lambda: self._open_whole().pread(buf, 0, self.nbytes(), order="A").result())


class _RemoteFuture(IOFuture):
    __slots__ = ("_object", "_retries", "_whole")

    def __init__(self, future: penstock.Future[int], name: str, keep: RemoteFile, whole: Any) -> None:
        """`whole`: the memory for a read of the whole object; None for a read of a part."""
        super().__init__(future, name, keep)
        self._object = keep
        self._retries = keep._retries
        self._whole = whole

    def get(self) -> int:
        try:
            while not self._future.done():
                with contextlib.suppress(TimeoutError):
                    self._future.exception(_PRINTED_EVERY_S)
                _print(self._retries)
            return _attempt(self._future.result)
        except OverflowError:
            if self._whole is None:
                raise
            return self._object._read_whole(self._whole)
        finally:
            _print(self._retries)


_FIRST_PAUSE_S = 0.5  # KvikIO's first pause between retries, doubled up to eight times
_PRINTED_EVERY_S = 0.25


def _patience() -> dict[str, Any]:
    return {
        "attempts": defaults.get("http_max_attempts"),
        "retried_statuses": defaults.get("http_status_codes"),
        "timeout": defaults.get("http_timeout"),
        "retry_pause": _FIRST_PAUSE_S,
    }


def _print(retries: _RemoteRetries) -> None:
    """Prints KvikIO's lines on standard output, as KvikIO does. Ignores a closed or full output."""
    for status, in_time, pause_ms, attempt, attempts in retries.take():
        what = f"Got HTTP code {status}" if status else "Connection error" if in_time else "Timeout error"
        with contextlib.suppress(OSError, ValueError):
            print(f"KvikIO: {what}. Retrying after {pause_ms}ms (attempt {attempt} of {attempts}).", flush=True)


def _attempt(call: Callable[[], Outcome]) -> Outcome:
    """Runs call. Converts Penstock's errors to KvikIO's, with the message texts that programs match on."""
    try:
        return call()
    except penstock.Error as error:
        text = str(error)
        _log.logger.error("%s", text)
        if "serves no ranges" in text or "support ranges" in text:
            raise OverflowError(f"KvikIO: {text}: maybe the server doesn't support file ranges?") from error
        if isinstance(error, ValueError) and "URL" not in text:
            raise
        tries = re.search(r"after (\d+) tr(?:y|ies)\b", text)
        status = re.search(r"status (\d+)", text)
        words = f"HTTP request reached maximum number of attempts ({tries[1]}). Reason: " if tries else ""
        if status:
            words += f"Got HTTP code {status[1]}. URL returned error: {status[1]}. "
        if error.code == "timed_out":
            words += "Operation timed out. "
        raise RuntimeError(f"KvikIO: {words}{text}") from error


def __dir__() -> list[str]:
    return sorted(__all__)
