"""The log that KvikIO's variables ask for: KVIKIO_LOG_LEVEL (off) says from which level on, KVIKIO_LOG_FILE (standard error) where to.

Failed operations are errors, files that are opened are told at level info, operations that begin at debug. By Python's logging, as the logger
"penstock.kvikio"; nothing is set up, and nothing is told, where KVIKIO_LOG_LEVEL is not set or names no level. A file that cannot be opened is
told on standard error, where the log then goes.
"""

from __future__ import annotations

import logging
import os

from penstock._forks import forkable_lock

__all__ = ["logger", "set_up", "wants_operations"]

logger = logging.getLogger("penstock.kvikio")
logger.disabled = True  # until it is set up: a program's own logging is not asked for this

# KvikIO's words, and Python's levels.
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
    """Reads the variables, once."""
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
    """Whether operations that begin are told."""
    return _wants_operations


def _level() -> int | None:
    """None: nothing is told, also where the word is none of KvikIO's, as there."""
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
    """Empties the file, and then appends: processes that share it write behind each other."""
    with open(path, "w"):
        pass
    return logging.FileHandler(path, "a")
