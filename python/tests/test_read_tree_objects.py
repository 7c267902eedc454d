"""read_tree(): all objects below a URL in memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import penstock

from .object_server import FAULTS, FOLDER, KEY, TREE, ObjectServer, below, serving_objects


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with serving_objects(TREE | {"q/other": b"other", "p.txt": b"beside"}) as up:
        yield up


def read_tree(server: ObjectServer, url: str = FOLDER, **options: Any) -> dict[str, bytes]:
    found = penstock.read_tree(url, storage_options=server.options, **options)
    assert list(found) == sorted(found, key=os.fsencode)
    return {name: bytes(view) for name, view in found.items()}


@pytest.mark.parametrize("url", [FOLDER, f"{FOLDER}/", "gs://bucket/p", "s3://arn:aws:s3:::bucket/p"])
def test_each_object_below_the_url_is_read_with_one_request(server: ObjectServer, url: str) -> None:
    server.page_size = 30
    assert read_tree(server, url) == below("p/", TREE)
    assert [each for each in server.asked if each[0] == "GET" and each[1] == ""] == [("GET", "")] * 7
    asked = [key for _, key in server.asked if key != ""]
    assert sorted(asked) == sorted(key for key, content in TREE.items() if content), "one request each, none for an empty object"


def test_a_whole_bucket_can_be_read(server: ObjectServer) -> None:
    assert read_tree(server, "s3://bucket") == server.objects


def test_objects_are_requested_in_parallel_up_to_a_limit(server: ObjectServer) -> None:
    server.objects = {f"p/{i}": b"x" * 100 for i in range(600)}
    server.faults = {key: [lambda server: server.wait_for_others(4)] for key in sorted(server.objects)[:8]}
    assert len(read_tree(server)) == 600
    assert 4 <= server.most_at_once <= 129


def test_folder_markers_are_left_out(server: ObjectServer) -> None:
    server.objects = {"p/": b"", "p/a/": b"", "p/a/b": b"1", "p/./c": b"2", "p/d//e": b"3"}
    assert read_tree(server) == {"a/b": b"1", "c": b"2", "d/e": b"3"}


def test_an_empty_folder_is_read_and_a_missing_one_is_an_error(server: ObjectServer) -> None:
    server.objects = {"p/": b""}
    assert read_tree(server) == {}
    with pytest.raises(penstock.NotFound, match="there are no objects below s3://bucket/absent/"):
        read_tree(server, "s3://bucket/absent")


def test_more_bytes_or_objects_than_the_limits_are_refused(server: ObjectServer) -> None:
    server.objects = dict.fromkeys(("p/a", "p/b", "p/c"), b"x" * 100)
    with pytest.raises(penstock.InvalidArgument, match="more than 299 bytes"):
        read_tree(server, max_bytes=299)
    with pytest.raises(penstock.InvalidArgument, match="more than 2 objects"):
        read_tree(server, max_files=2)
    assert len(read_tree(server, max_bytes=300, max_files=3)) == 3
    server.sizes["p/b"] = 2**64 - 1
    with pytest.raises(penstock.InvalidArgument, match="max_bytes"):
        read_tree(server)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/folder", "hf://owner/name"])
def test_a_url_whose_objects_cannot_be_listed_is_an_error(url: str) -> None:
    with pytest.raises(penstock.Error, match="can be listed"):
        penstock.read_tree(url)


def test_storage_options_apply_only_to_urls(tmp_path: Path) -> None:
    with pytest.raises(penstock.InvalidArgument, match="is not a URL"):
        penstock.read_tree(tmp_path, storage_options={})
    (tmp_path / "a").write_bytes(b"1")
    assert bytes(penstock.read_tree(f"file://{tmp_path}")["a"]) == b"1"


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_is_retried_or_its_error_names_the_object(server: ObjectServer, what: str) -> None:
    faults, message = FAULTS[what]
    server.faults[KEY] = list(faults)
    if message is None:
        assert read_tree(server) == below("p/", TREE)
        return
    with pytest.raises(penstock.Error, match=f"s3://bucket/{KEY}.*({message})"):
        read_tree(server)
    server.faults.clear()
    server.objects |= TREE
    assert read_tree(server) == below("p/", TREE), "afterwards it works"


# Keys that an attacker may choose: a program that writes the tree to a folder must not write outside it.
@pytest.mark.parametrize("key", ["../up", "a/../../up", "/etc/up", "..", "a/..", "a/.", "a/"])
def test_a_hostile_key_is_refused_by_name(server: ObjectServer, key: str) -> None:
    server.objects = {"p/one": b"1", f"p/{key}": b"hostile"}
    with pytest.raises(penstock.InvalidArgument, match=f"bucket/p/{key}"):
        read_tree(server)


def test_two_keys_with_the_same_path_are_refused(server: ObjectServer) -> None:
    server.objects = {"p/a/b": b"1", "p/a//b": b"2", "p/c": b"3"}
    with pytest.raises(penstock.InvalidArgument, match=r"p/a.*/b .*p/a.*/b .*same path"):
        read_tree(server)


@pytest.mark.parametrize("status", [403, 404])
def test_a_failed_listing_is_an_error(server: ObjectServer, status: int) -> None:
    server.faults[""] = [status]
    with pytest.raises(penstock.Error, match="list s3://bucket/p/"):
        read_tree(server)


def test_a_signal_ends_read_tree(server: ObjectServer) -> None:
    is_asked, is_over = threading.Event(), threading.Event()

    def hold(_: ObjectServer) -> None:
        is_asked.set()
        is_over.wait()

    server.faults[KEY] = [hold] * 10
    program = f"import penstock; penstock.read_tree({FOLDER!r}, storage_options={server.options!r})"
    running = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.PIPE, text=True)
    try:
        assert is_asked.wait(60)
        running.send_signal(signal.SIGINT)
        assert "KeyboardInterrupt" in running.communicate(timeout=60)[1]
    finally:
        running.kill()
        running.wait()
        is_over.set()
