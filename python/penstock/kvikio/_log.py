"""The log that KvikIO's variables control: KVIKIO_LOG_LEVEL (default: off) sets the level, KVIKIO_LOG_FILE (default: standard error) the target.

Failed operations are logged at level error, opened files at info, and operations that start at debug, by the Python logger "penstock.kvikio".
Without a valid KVIKIO_LOG_LEVEL, nothing is set up or logged. If the log file cannot be opened, the log, with a message about the failure, goes to
standard error.
"""

from __future__ import annotations

import logging
import os

from penstock._core.forks import forkable_lock

__all__ = ["logger", "set_up", "wants_operations"]

logger = logging.getLogger("penstock.kvikio")
logger.disabled = True  # until set_up(), because a program's own logging configuration does not request these messages

# Maps KvikIO's level names to Python's levels.
_LEVELS = {
    "trace": logging.DEBUG - 5,
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}

_lock = forkable_lock()
_is_set_up = False
_wants_operations = False


def set_up() -> None:
    """Reads the variables and sets up the log. Later calls do nothing."""
    global _is_set_up, _wants_operations
    if _is_set_up:
        return
    with _lock:
        if _is_set_up:
            return
        level = _level()
        if level is not None:
            logger.setLevel(level)
            logger.propagate = False
            logger.disabled = False
            _add_handler()
            _wants_operations = level <= logging.DEBUG
        _is_set_up = True


def wants_operations() -> bool:
    """Returns True if the start of operations is logged."""
    return _wants_operations


def _level() -> int | None:
    """Returns the level, or None to disable the log. As in KvikIO, an unknown level disables it too."""
    return _LEVELS.get(os.environ.get("KVIKIO_LOG_LEVEL", "off").strip().lower())


def _add_handler() -> None:
    path = os.environ.get("KVIKIO_LOG_FILE")
    problem = None
    handler: logging.Handler = logging.StreamHandler()
    if path:
        try:
            handler = _file_handler(path)
        except OSError as error:
            problem = error.strerror
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(levelname)s penstock.kvikio: %(message)s"))
    logger.addHandler(handler)
    if problem is not None:
        logger.warning("KVIKIO_LOG_FILE=%s: %s; the log goes to standard error", path, problem)


def _file_handler(path: str) -> logging.Handler:
    """Truncates the file and then appends, so that processes that share it do not overwrite each other's lines."""
    with open(path, "w"):
        pass
    return logging.FileHandler(path, "a")
