"""Pickles open files: the pickle contains the path, mode and options, and the receiver opens the file again. Secrets are never pickled."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, NoReturn

import penstock

from .. import _native

__all__ = ["path_to_pickle", "reduce_file", "refuse", "storage_options_to_pickle"]

# Storage options that are not secret, in lower case and without "aws_": the names that penstock.open() uses, and the aliases that it accepts.
_without_secrets = frozenset(
    """
    kind size tags attempts retried_statuses timeout retry_pause cache_dir cache_bytes region endpoint profile addressing_style content_type
    server_side_encryption sse_kms_key_id storage_class acl user anonymous overwrite use_ssl ranges_only allow_credential_process requester_pays
    use_fips use_dualstack
    anon skip_signature no_sign_request endpoint_url endpoint_override endpoint_url_s3 region_name default_region profile_name request_payer
    requestpayer virtual_hosted_style_request use_fips_endpoint use_dualstack_endpoint serversideencryption sse ssekmskeyid kms_key_id encryption
    storageclass contenttype content-type tagging max_attempts read_timeout request_timeout connect_timeout cache_directory cache_storage s3_acl
    default_acl asynchronous default_block_size block_size default_cache_type cache_type default_fill_cache fill_cache use_listings_cache
    skip_instance_cache max_concurrency max_pool_connections
    """.split()
)


def reduce_file(file: _native.File) -> tuple[Callable[..., _native.File], tuple[Any, ...]]:
    """Returns what pickle and copy need to open the file again. Raises TypeError if the file cannot be opened again."""
    description = f"File {file.name if isinstance(file.name, int) else _native.shown_name(file.name)}"
    if file.closed:
        refuse(description, "it is closed")
    if isinstance(file.name, int):
        refuse(description, "it was opened from a descriptor, which another process cannot reopen; open the file by its path")
    if file.mode[0] == "w":
        refuse(description, f'its mode is "{file.mode}", and reopening it would truncate the file; open it with "r+", or "r" to read')
    if file.mode[0] == "x":
        refuse(description, f'its mode is "{file.mode}", but the file already exists; open it with "r+", or "r" to read')
    path, options = penstock._openings.get(file, (file.name, {}))
    given = dict(options)
    if given.get("storage_options") is not None:
        given["storage_options"] = storage_options_to_pickle(description, given["storage_options"])
    return _open_again, (path_to_pickle(description, path), file.mode, given, file.tell())


def _open_again(path: Any, mode: Any, options: dict[str, Any], position: int) -> _native.File:
    file = penstock.open(path, mode, **options)
    if position:
        file.seek(position)
    return file


def refuse(description: str, reason: str) -> NoReturn:
    raise TypeError(f"cannot pickle or copy {description}: {reason}")


def path_to_pickle(description: str, path: Any) -> Any:
    """Returns a path that refers to the same file from any working directory. Raises TypeError if a URL contains a secret."""
    text = os.fsdecode(path)
    if _native.is_url(path):
        if _native.shown_name(text) != text and ("?" in text or "@" in text):
            refuse(description, "its URL contains a query or a password, which may be secret; open it in each process")
        return path
    if os.path.isabs(text):
        return path
    absolute = os.path.abspath(os.fspath(path))
    return type(path)(absolute) if isinstance(path, PurePath) else absolute


def storage_options_to_pickle(description: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of the options. Raises TypeError if one of them may be a secret."""
    secrets = [name for name, value in options.items() if _may_hold_secret(name, value)]
    if secrets:
        reason = f"its storage_options may be secret ({', '.join(secrets)}); keep credentials in the environment or a profile, or open it in each process"
        refuse(description, reason)
    return dict(options)


def _may_hold_secret(name: str, value: Any) -> bool:
    if value is None:
        return False
    if name.lower().removeprefix("aws_") in _without_secrets:
        return isinstance(value, str) and _native.shown_name(value) != value and "@" in value  # the endpoint contains a user and a password
    if isinstance(value, Mapping):  # such as client_kwargs of s3fs
        return "header" in name.lower() or any(_may_hold_secret(str(inner), each) for inner, each in value.items())
    return True
