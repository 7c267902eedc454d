"""Weights that a process serves, in others that load them."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import textwrap
import threading
import types
import warnings
import weakref

import numpy as np
import pytest

import penstock
import penstock.pipe
from penstock._core.boxes import Box, chunk_of
from penstock.weights import WeightsReceiver, _held, _line, _talk, _track, _versions, _wire, load_weights, serve_weights
from penstock.weights import _transfer_plan as _plan

pytestmark = pytest.mark.usefixtures("torch_not_imported")

SECRET = "correct horse battery staple"
WAYS = ["unix:", "tcp://127.0.0.1:0"]


def weights(seed=0):
    """Of many types and shapes."""
    numbers = np.random.default_rng(seed)
    return {
        "wide": numbers.random((300, 2000)).astype("f4"),
        "norm": numbers.random(64).astype("f2"),
        "count": np.array(7 + seed),
        "none": np.zeros((0, 5), "f4"),
        "flags": numbers.random((3, 4, 5)) < 0.5,
        "big-endian": numbers.integers(0, 1000, 30).astype(">i4"),
        "wide.T": numbers.random((40, 50)).T,  # not contiguous
    }


def empty_like(tensors):
    return {name: np.full_like(value, 1) for name, value in tensors.items()}


def same(got, expected):
    assert list(got) == list(expected)
    for name, value in expected.items():
        assert got[name].dtype == value.dtype and got[name].shape == value.shape
        assert np.array_equal(got[name], value), name


def device_buffer(content):
    buffer = penstock.device("host:0").empty(content.nbytes)
    buffer.copy_from(np.ascontiguousarray(content))
    return buffer


class Raw:
    """A receiver that says what a test wants."""

    def __init__(self, url, **settings):
        self.pipe = penstock.pipe.connect(url, **settings)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.pipe.close()

    def say(self, word, payloads=(), tensors=()):
        metadata = word if isinstance(word, bytes) else json.dumps(word).encode()
        self.pipe.send(metadata, payloads, tensors).result(timeout=10)

    def hear(self):
        message = self.pipe.next(timeout=10).result()
        return json.loads(message.metadata), message.payloads

    def lease(self, wait_ms=10_000):
        self.say({"weights": 1, "ask": "catalog", "wait_ms": wait_ms})
        word, payloads = self.hear()
        self.catalog = _wire.Catalog.read(payloads)
        return word["version"]

    def ask_for_all(self):
        """In a message for each tensor; returns the arrays once all have come."""
        rows = self.catalog.rows
        self.say({"ask": "send"}, _wire.packed_pieces([_wire.Piece(number, row.box)] for number, row in enumerate(rows)))
        return {row.name: self.receive(row) for row in rows}

    def receive(self, row):
        """All of a tensor, of which come the bytes alone."""
        return self.pipe.receive(timeout=10).result().tensors[0].view(row.dtype).reshape(row.box.shape)


@pytest.mark.parametrize("url", WAYS)
def test_arrays_are_filled_in_place(url):
    source = weights()
    target = empty_like(source)
    addresses = {name: value.ctypes.data for name, value in target.items()}
    with serve_weights(source, url) as server:
        loaded = load_weights(server.url, target, timeout=30)
    assert loaded == (0, True, [], [], {})
    same(target, source)
    assert addresses == {name: value.ctypes.data for name, value in target.items()}


def test_arrays_are_made():
    source = weights()
    del source["big-endian"]  # which only NumPy has
    with serve_weights(source) as server:
        same(load_weights(server.url, timeout=30).tensors, source)
        some = load_weights(server.url, names=["norm", "count"], timeout=30).tensors
        same(some, {name: source[name] for name in ("norm", "count")})
        on_device = load_weights(server.url, device="host:0", timeout=30).tensors
        assert bytes(on_device["wide"].to_host()) == source["wide"].tobytes()
        assert len(on_device["none"]) == 0


def test_arrays_that_were_made_are_the_callers_alone():
    with serve_weights({"it": np.zeros(1000), "that": np.zeros(1000)}) as server, WeightsReceiver(server.url) as receiver:
        gone = weakref.ref(receiver.load(timeout=30).tensors["it"])
        assert gone() is None
        for group in receiver.load_in_groups(1, timeout=30):
            gone = weakref.ref(group.popitem()[1])
            assert gone() is None


def test_memory_of_a_device_at_either_end():
    content = np.arange(100_000, dtype="f4").reshape(100, 1000)
    with serve_weights({"it": device_buffer(content)}) as server:  # which are bytes
        assert load_weights(server.url, timeout=30).tensors["it"].tobytes() == content.tobytes()
        target = device_buffer(content * 0)
        load_weights(server.url, {"it": target}, timeout=30)
        assert bytes(target.to_host()) == content.tobytes()
        with pytest.raises(penstock.InvalidArgument, match='"it" has 400000 bytes at the server but 5 locally'):
            load_weights(server.url, {"it": device_buffer(np.zeros(5, "u1"))}, timeout=30)
    with serve_weights({"it": content}, snapshot=False) as server:
        target = device_buffer(content * 0)
        load_weights(server.url, {"it": target}, timeout=30)
        assert bytes(target.to_host()) == content.tobytes()


def test_many_small_tensors_come_in_one_message():
    source = {f"layers.{number}.norm": np.full(64, number, "f2") for number in range(2000)}
    target = empty_like(source)
    with serve_weights(source) as server, WeightsReceiver(server.url, target) as receiver:
        receiver.load(timeout=30)
        assert [len(batches) for batches in receiver._last[2].batches] == [1]
    same(target, source)


def test_one_memory_with_two_names_is_copied_and_sent_once():
    tied = np.arange(1000.0)
    target = np.zeros(1000)
    with serve_weights({"first": tied, "second": tied}) as server, WeightsReceiver(server.url, {"first": target, "second": target}) as receiver:
        receiver.load(timeout=30)
        assert sum(batch.landings[0].nbytes for batch in receiver._last[2].batches[0]) == tied.nbytes
    assert (target == tied).all()


# --- versions


def test_each_update_is_a_version():
    source = {"it": np.zeros(1000)}
    target = {"it": np.ones(1000)}
    with serve_weights(source, version=5) as server, WeightsReceiver(server.url, target) as receiver:
        source["it"][:] = 3  # which the copy does not have
        assert receiver.load(timeout=30).version == 5 and (target["it"] == 0).all()
        assert server.update() == 6 == server.version
        assert receiver.load(newer_than=5, timeout=30).version == 6 and (target["it"] == 3).all()
        target["it"][:] = 9
        assert receiver.load(newer_than=6, timeout=30) == (6, False, [], [], {}) and (target["it"] == 9).all()
        following = []
        thread = threading.Thread(target=lambda: following.append(load_weights(server.url, at_least=8, timeout=60)))
        thread.start()
        assert [server.update(), server.update()] == [7, 8]
        thread.join()
        assert following[0].version == 8
        assert server.update({"other": np.ones(3)}, version=10) == 10
        assert list(load_weights(server.url, timeout=30).tensors) == ["other"]
        with pytest.raises(penstock.InvalidArgument, match="version 10 is not higher than the last one, 10"):
            server.update(version=10)
        with pytest.raises(penstock.InvalidArgument, match='missing from the server: "it"'):
            receiver.load(timeout=30)


def test_an_update_waits_for_who_is_half_way():
    source = {"it": np.zeros(1000), "that": np.zeros(1000)}
    with serve_weights(source) as server, Raw(server.url) as half_way:
        assert half_way.lease() == 0
        source["it"][:], source["that"][:] = 1, 1
        with pytest.raises(penstock.TimedOut, match="1 receivers are still reading"):
            server.update(timeout=0)
        assert server.version == 0
        got = half_way.ask_for_all()
        assert (got["it"] == 0).all() and (got["that"] == 0).all()
        assert half_way.hear()[0] == {"sent": 0}
        half_way.say({"ask": "done"})
        assert server.update(timeout=30) == 1
        got = load_weights(server.url, timeout=30)
        assert got.version == 1 and (got.tensors["it"] == 1).all() and (got.tensors["that"] == 1).all()


def test_with_two_snapshots_an_update_does_not_wait():
    source = {"it": np.zeros(1000)}
    with serve_weights(source, snapshot=2) as server, Raw(server.url) as half_way:
        assert half_way.lease() == 0
        source["it"][:] = 1
        assert server.update(timeout=0) == 1
        assert (load_weights(server.url, timeout=30).tensors["it"] == 1).all()
        with pytest.raises(penstock.TimedOut):
            server.update(timeout=0)  # the other copy is read yet
        assert (half_way.ask_for_all()["it"] == 0).all()


def test_without_a_snapshot_the_weights_change_between_pause_and_update():
    source = {"it": np.zeros(1000)}
    with serve_weights(source, snapshot=False) as server:
        with pytest.raises(penstock.InvalidArgument, match="pause"):
            server.update()
        with Raw(server.url) as half_way:
            half_way.lease()
            with pytest.raises(penstock.TimedOut):
                server.pause(timeout=0)
            assert half_way.ask_for_all()["it"].sum() == 0
        server.pause(timeout=30)  # it has gone
        with pytest.raises(penstock.TimedOut, match="the next version was not published in time: the latest is 0"):
            load_weights(server.url, timeout=0.1)
        got = {}
        with Raw(server.url) as patient:
            patient.say({"weights": 1, "ask": "catalog", "wait_ms": 60_000})
            source["it"][:] = 1
            assert server.update() == 1
            got, _ = patient.hear()
        assert got["version"] == 1
        server.pause(timeout=30)
        assert server.update({"it": np.full(1000, 2.0)}) == 2
        assert (load_weights(server.url, timeout=30).tensors["it"] == 2).all()
        assert server.update({"it": np.full(1000, 3.0)}) == 3  # others: nobody changes what is read
        assert (load_weights(server.url, timeout=30).tensors["it"] == 3).all()


def test_an_update_that_cannot_be_served_changes_nothing():
    with serve_weights({"it": np.zeros(10)}) as server:
        with pytest.raises(penstock.InvalidArgument, match='"it" cannot be served: it has elements that are Python objects'):
            server.update({"it": np.array([None])})
        with pytest.raises(TypeError, match='"it" must be a PyTorch tensor'):
            server.update({"it": "text"})
        assert load_weights(server.url, timeout=30).version == 0
        assert server.update() == 1


def test_an_array_that_gets_another_shape_in_place_is_served_so():
    array = np.arange(6.0).reshape(2, 3)
    with serve_weights({"it": array}) as server:
        array.resize((3, 2), refcheck=False)
        server.update()
        assert load_weights(server.url, timeout=30).tensors["it"].tolist() == array.tolist()


def test_weights_of_before_are_let_go_of_though_receivers_stay_connected():
    weights = {"it": np.zeros(10)}
    with serve_weights(weights, snapshot=False) as server, WeightsReceiver(server.url, {"it": np.ones(10)}) as receiver:
        receiver.load(timeout=30)
        server.pause(timeout=30)
        server.update({"it": np.zeros(10)})
        gone = weakref.ref(weights.pop("it"))
        assert gone() is None and server.receivers == 1


def test_other_parts_of_the_same_weights_are_no_way_around_pause():
    with serve_weights({"it": np.zeros((2, 3))}, snapshot=False) as server, pytest.raises(penstock.InvalidArgument, match="pause"):
        server.update(shard={"it": ((4, 3), slice(0, 2))})


def test_groups_are_of_one_version():
    source = {f"layers.{number}": np.full(1000, number, "f4") for number in range(7)}
    with serve_weights(source) as server, WeightsReceiver(server.url) as receiver:
        groups = receiver.load_in_groups(9000, timeout=30)
        first = next(groups)
        for value in source.values():
            value[:] = 100
        with pytest.raises(penstock.TimedOut):
            server.update(timeout=0)
        rest = list(groups)
        assert [len(each) for each in (first, *rest)] == [2, 2, 2, 1]
        found = {name: value[0] for each in (first, *rest) for name, value in each.items()}
        assert found == {f"layers.{number}": number for number in range(7)}
        assert server.update(timeout=30) == 1


# --- parts


def grid(shape, cuts):
    """The parts of a tensor that is cut into so many in each dimension."""
    ranges = [[(extent * i // n, extent * (i + 1) // n) for i in range(n)] for extent, n in zip(shape, cuts)]
    return [tuple(slice(*each) for each in part) for part in itertools.product(*ranges)]


def serve_parts(stack, tensors, cuts):
    """A server for each part of the tensors, which all are cut alike."""
    parts = {name: grid(value.shape, cuts) for name, value in tensors.items()}
    servers = []
    for rank in range(np.prod(cuts)):
        mine = {name: (value.shape, parts[name][rank]) for name, value in tensors.items()}
        held = {name: np.ascontiguousarray(value[mine[name][1]]) for name, value in tensors.items()}
        servers.append(stack.enter_context(serve_weights(held, shard=mine)))
    return [each.url for each in servers]


@pytest.mark.parametrize("there, here", [((2, 1), (3, 1)), ((2, 1), (1, 3)), ((1, 2), (3, 1)), ((2, 2), (1, 1)), ((1, 1), (2, 3)), ((3, 2), (2, 2))])
def test_ranks_with_other_parts_get_what_overlaps(there, here):
    numbers = np.random.default_rng(1)
    source = {"a": numbers.random((60, 70)).astype("f4"), "b": numbers.random((7, 11))}
    with contextlib.ExitStack() as stack:
        urls = serve_parts(stack, source, there)
        for rank in range(np.prod(here)):
            parts = {name: (value.shape, grid(value.shape, here)[rank]) for name, value in source.items()}
            expected = {name: value[parts[name][1]] for name, value in source.items()}
            target = {name: np.zeros(value.shape, value.dtype) for name, value in expected.items()}
            with WeightsReceiver(urls, target, shard=parts) as receiver:
                receiver.load(timeout=30)
                landings = [each for of in receiver._last[2].batches for batch in of for each in batch.landings]
            same(target, expected)
            assert sum(each.nbytes for each in landings) == sum(value.nbytes for value in expected.values())
            same(load_weights(urls, shard=parts, timeout=30).tensors, expected)


def test_random_parts_come_together(monkeypatch):
    seed = random.randrange(1 << 30)
    print("seed", seed)
    chance = random.Random(seed)
    monkeypatch.setattr(_plan, "GATHERED_BYTES", 256)  # so that pieces are cut
    monkeypatch.setattr(_plan, "BATCH_BYTES", 2048)
    for _ in range(8):
        shape = tuple(chance.randint(1, 12) for _ in range(chance.randint(1, 3)))
        source = {"it": np.random.default_rng(chance.randrange(1000)).random(shape)}
        there = tuple(chance.randint(1, min(3, extent)) for extent in shape)
        box = [sorted((chance.randint(0, extent), chance.randint(0, extent))) for extent in shape]
        parts = {"it": (shape, tuple(slice(*each) for each in box))}
        with contextlib.ExitStack() as stack:
            urls = serve_parts(stack, source, there)
            target = {"it": np.zeros([stop - start for start, stop in box])}
            load_weights(urls, target, shard=parts, timeout=30)
        assert np.array_equal(target["it"], source["it"][parts["it"][1]]), seed


def test_many_tensors_that_the_server_has_to_gather_go_in_messages_that_it_sends(monkeypatch):
    for module in (_plan, _talk):
        monkeypatch.setattr(module, "GATHERED_BYTES", 256)
    source = {str(number): np.random.default_rng(number).random((6, 8)) for number in range(20)}
    parts = {name: (value.shape, (slice(None), slice(0, 4))) for name, value in source.items()}
    with contextlib.ExitStack() as stack:
        urls = serve_parts(stack, source, (2, 1))
        target = {name: np.zeros((6, 4)) for name in source}
        load_weights(urls, target, shard=parts, timeout=30)
    same(target, {name: value[:, :4] for name, value in source.items()})


def test_servers_that_have_the_same_share_the_work():
    source = {f"{number}": np.full(10_000, number, "f4") for number in range(8)}
    with serve_weights(source) as first, serve_weights(source) as second, WeightsReceiver([first.url, second.url], empty_like(source)) as receiver:
        receiver.load(timeout=30)
        assert [sum(len(batch.landings) for batch in of) for of in receiver._last[2].batches] == [4, 4]


def test_servers_are_waited_for_until_they_have_the_same_version():
    upper, lower = {"it": np.zeros((2, 10))}, {"it": np.zeros((2, 10))}
    parts = [{"it": ((4, 10), (slice(0, 2),))}, {"it": ((4, 10), (slice(2, 4),))}]
    with serve_weights(upper, shard=parts[0]) as first, serve_weights(lower, shard=parts[1]) as second:
        upper["it"][:], lower["it"][:] = 1, 1
        assert first.update() == 1
        loading = WeightsReceiver([first.url, second.url])
        got = []
        thread = threading.Thread(target=lambda: got.append(loading.load(timeout=60)))
        thread.start()
        assert second.update() == 1
        thread.join()
        loading.close()
        assert got[0].version == 1 and (got[0].tensors["it"] == 1).all() and got[0].tensors["it"].shape == (4, 10)
        assert second.update() == 2
        with pytest.raises(penstock.TimedOut, match=f"{first.url}: version 2 was not published in time: the latest is 1"):
            load_weights([first.url, second.url], timeout=0.2)


def test_the_old_name_of_shard_still_works_and_warns():
    whole = {"it": np.arange(8.0).reshape(4, 2)}
    upper, lower = ({"it": ((4, 2), slice(0, 2))}, {"it": ((4, 2), slice(2, 4))})
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with serve_weights(whole) as server, WeightsReceiver(server.url, parts=upper) as receiver:
            assert (receiver.load(timeout=30).tensors["it"] == whole["it"][:2]).all()
            assert (load_weights(server.url, parts=lower, timeout=30).tensors["it"] == whole["it"][2:]).all()
        with serve_weights({"it": np.zeros((2, 2))}, parts=upper) as server:
            server.update(parts=lower)
    assert [each.category for each in told] == [DeprecationWarning] * 4
    assert "use shard=" in str(told[0].message) and told[0].filename == __file__
    with pytest.raises(TypeError, match="the old and the new name"):
        serve_weights(whole, shard=upper, parts=upper)


def test_what_no_server_has_is_named():
    parts = {"it": ((6, 10), (slice(0, 2), slice(0, 10)))}
    with serve_weights({"it": np.zeros((2, 10))}, shard=parts) as server:
        with pytest.raises(penstock.InvalidArgument, match=r'"it": no server has \[2:6, 0:10\] of \[6, 10\]'):
            load_weights(server.url, {"it": np.zeros((6, 10))}, timeout=30)
        with pytest.raises(penstock.InvalidArgument, match=r'"it": no server has \[2:6, 0:10\] of \[6, 10\]'):
            load_weights(server.url, timeout=30)
        with pytest.raises(penstock.InvalidArgument, match=r'"it" has the shape \[6, 10\] at the server but \[2, 10\] locally'):
            load_weights(server.url, {"it": np.zeros((2, 10))}, timeout=30)


@pytest.mark.parametrize(
    "part, message",
    [
        (((4, 10), (slice(0, 3),)), r'"it" has the local shape \[2, 10\], but its part is \[0:3, 0:10\] of \[4, 10\]'),
        (((4, 10), (slice(0, 4, 2),)), "must be slices with a step of 1"),
        (((4, 10), (slice(0, 2), slice(0, 10), slice(0, 1))), "must be slices with a step of 1"),
    ],
)
def test_parts_that_do_not_fit_are_refused(part, message):
    with pytest.raises(penstock.InvalidArgument, match=message):
        serve_weights({"it": np.zeros((2, 10))}, shard={"it": part})
    with pytest.raises(TypeError, match="a pair of the whole shape and a tuple of slices"):
        serve_weights({"it": np.zeros((2, 10))}, shard={"it": (4, 10)})
    with pytest.raises(penstock.InvalidArgument, match='shard contains "its", not found in weights: did you mean it'):
        serve_weights({"it": np.zeros((2, 10))}, shard={"its": part})


def test_chunks_are_those_of_torch():
    parts = [chunk_of((10, 4), [(0, 4, rank), (None, 2, 1)]) for rank in range(4)]
    assert parts == [Box((0, 0), (3, 4)), Box((3, 0), (3, 4)), Box((6, 0), (3, 4)), Box((9, 0), (1, 4))]
    assert chunk_of((5,), [(0, 4, 3)]) == Box((5,), (0,))
    assert chunk_of((8, 8), [(0, 2, 1), (0, 2, 1)]) == Box((6, 0), (2, 8))


# --- chains


def test_a_chain_of_receivers_has_what_the_first_server_has():
    source = weights()
    targets = [empty_like(source) for _ in range(4)]
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(serve_weights(source))
        url, chain = server.url, []
        for target in targets:
            chain.append(stack.enter_context(WeightsReceiver(url, target, relay=True)))
            url = chain[-1].relay_url
        for version in range(3):
            threads = [threading.Thread(target=each.load, kwargs={"at_least": version, "timeout": 60}) for each in chain]
            for each in reversed(threads):
                each.start()
            for each in threads:
                each.join()
            for target in targets:
                same(target, source)
            source["wide"] += 1
            server.update()
        assert server.receivers == 1


def one_after_the_other(go_on, fails):
    """A server of "a" and "b", which goes on to the second once it may, or ends there."""

    def answer(pipe):
        says(catalog(b"a\0b\0", numbers=(0, 8, 1, 1, 10, 0, 10) * 2))(pipe)
        pipe.next(timeout=30).result()
        pipe.send(tensors=[np.ones(10)]).result()
        assert go_on.wait(30)
        if fails:
            pipe.close()
            return
        pipe.send(tensors=[np.full(10, 2.0)]).result()
        pipe.send(b'{"sent": 0}').result()

    return answer


@pytest.mark.parametrize("fails", [False, True])
def test_what_has_come_is_passed_on_before_the_rest_comes(monkeypatch, fails):
    monkeypatch.setattr(_plan, "BATCH_BYTES", 80)  # one tensor in a message
    go_on = threading.Event()
    target = {"a": np.zeros(10), "b": np.zeros(10)}
    ended = []

    def load():
        try:
            ended.append(receiver.load(timeout=60))
        except penstock.Error as problem:
            ended.append(problem)

    with Impostor(one_after_the_other(go_on, fails)) as impostor, WeightsReceiver(impostor.url, target, relay=True) as receiver:
        thread = threading.Thread(target=load)
        thread.start()
        with Raw(receiver.relay_url) as behind:
            behind.lease()
            pieces = [[_wire.Piece(number, row.box)] for number, row in enumerate(behind.catalog.rows)]
            behind.say({"ask": "send"}, _wire.packed_pieces(pieces))
            assert (behind.receive(behind.catalog.rows[0]) == 1).all()
            go_on.set()
            if fails:
                assert "did not receive all weights" in behind.hear()[0]["reason"]
            else:
                assert (behind.receive(behind.catalog.rows[1]) == 2).all()
                assert behind.hear()[0] == {"sent": 0}
        thread.join()
        if fails:
            assert isinstance(ended[0], penstock.Closed)
            with pytest.raises(penstock.TimedOut):
                load_weights(receiver.relay_url, timeout=0)
        else:
            assert ended[0].version == 0
            same(load_weights(receiver.relay_url, timeout=30).tensors, target)


def test_a_relay_waits_for_those_behind_before_it_overwrites():
    source = {"it": np.zeros(100)}
    target = {"it": np.ones(100)}
    with serve_weights(source) as server, WeightsReceiver(server.url, target, relay="unix:") as receiver:
        receiver.load(timeout=30)
        with Raw(receiver.relay_url) as behind:
            behind.lease()
            source["it"][:] = 5
            server.update()
            with pytest.raises(penstock.TimedOut, match="1 receivers are still reading"):
                receiver.load(timeout=0.1)
            assert (behind.ask_for_all()["it"] == 0).all() and (target["it"] == 0).all()
        assert receiver.load(timeout=30).version == 1 and (target["it"] == 5).all()
    with pytest.raises(penstock.InvalidArgument, match="relay"):
        WeightsReceiver("unix:@x", relay=True)


# --- what does not fit


def test_what_does_not_fit_is_told_before_anything_is_written():
    source = {"a": np.ones(10), "b": np.ones((3, 4)), "c": np.ones(5), "extra": np.ones(1)}
    read_only = np.zeros(5)
    read_only.flags.writeable = False
    target = {"a": np.zeros(10, "f4"), "b": np.zeros((4, 3)), "c": read_only, "lacking": np.zeros(1)}
    with serve_weights(source) as server:
        with pytest.raises(penstock.InvalidArgument) as told:
            load_weights(server.url, target, timeout=30)
        for each in (
            '"a" is float64 at the server but float32 locally',
            '"b" has the shape [3, 4] at the server but [4, 3] locally',
            '"c" cannot be filled: it is read-only',
            'missing from the server: "lacking"',
            'unexpected from the server: "extra"',
        ):
            assert each in str(told.value)
        assert not any(value.any() for value in target.values())
        loaded = load_weights(server.url, {"c": np.zeros(5), "lacking": np.zeros(1)}, strict=False, timeout=30)
        assert loaded.missing_keys == ["lacking"] and loaded.unexpected_keys == ["a", "b", "extra"]
        loaded = load_weights(server.url, {"c": np.zeros(5), "lacking": np.zeros(1)}, names=["c"], timeout=30)
        assert loaded.missing_keys == [] == loaded.unexpected_keys
        with pytest.raises(penstock.InvalidArgument, match='names contains "d", which neither side has'):
            load_weights(server.url, names=["c", "d"], timeout=30)
        with pytest.raises(penstock.InvalidArgument, match='shard contains "d", which neither side has'):
            load_weights(server.url, shard={"d": ((1,), (slice(0, 1),))}, timeout=30)


def test_arguments_that_make_no_sense():
    with pytest.raises(TypeError, match="weights must be a torch.nn.Module or a mapping"):
        serve_weights([np.zeros(3)])
    with pytest.raises(penstock.InvalidArgument, match="names contains"):
        serve_weights({"a": np.zeros(3)}, names=["b"])
    with pytest.raises(penstock.InvalidArgument, match="cannot be served: its name is empty"):
        serve_weights({"": np.zeros(3)})
    with pytest.raises(penstock.InvalidArgument, match="snapshot"):
        serve_weights({"a": np.zeros(3)}, snapshot=-1)
    for version in (-1, 1.5, "1", True, 1 << 53):
        with pytest.raises(penstock.InvalidArgument, match="version is .*, which is not an integer"):
            serve_weights({}, version=version)
        with serve_weights({}) as server, pytest.raises(penstock.InvalidArgument, match="version is .*, which is not an integer"):
            server.update(version=version)
    with pytest.raises(penstock.NotFound):
        load_weights("unix:@penstock-nobody-is-here", timeout=5)
    with pytest.raises(TypeError, match="url must be a str"):
        load_weights([])
    with pytest.raises(penstock.InvalidArgument, match="module already has tensors"):
        load_weights("unix:@x", {}, device="host")
    with pytest.raises(TypeError, match="timeout must be a number of seconds, not None"):
        serve_weights({}, timeout=None)
    with pytest.raises(penstock.InvalidArgument, match="timeout is nan seconds"):
        load_weights("unix:@x", timeout=float("nan"))
    with pytest.raises(TypeError, match="names must be an iterable of names"):
        load_weights("unix:@x", names="weight")


# --- strangers


def test_only_who_knows_the_secret_gets_weights(monkeypatch):
    source = {"it": np.arange(10.0)}
    with serve_weights(source, "tcp://127.0.0.1:0", secret=SECRET) as server:
        with pytest.raises(penstock.PermissionDenied):
            load_weights(server.url, secret="another secret, and quite as long", timeout=30)
        with pytest.raises(penstock.Error):
            load_weights(server.url, timeout=30)
        assert server.refused >= 1
        monkeypatch.setenv("PENSTOCK_WEIGHTS_SECRET", SECRET)
        same(load_weights(server.url, timeout=30).tensors, source)
    with serve_weights(source, "tcp://127.0.0.1:0") as server, pytest.raises(penstock.PermissionDenied):
        load_weights(server.url, secret="another secret, and quite as long", timeout=30)


def packed(*numbers):
    return [np.array(numbers, "<i8").tobytes()]


@pytest.mark.parametrize(
    "word, payloads, message",
    [
        (b"", [], "metadata that is not a JSON object"),
        (b"[" * 8000, [], "metadata that is not a JSON object"),
        (b'"' + b"x" * 9000 + b'"', [], "bytes of metadata"),
        ({"ask": "everything"}, [], "the request 'everything', which is not valid now"),
        ({"ask": "catalog"}, [], "protocol version 'None', but only version 1 is supported"),
        ({"weights": 1, "ask": "catalog", "wait_ms": "soon"}, [], "'soon' for wait_ms"),
        ({"weights": 1, "ask": "catalog", "at_least": 1 << 70}, [], "for at_least"),
    ],
)
def test_what_a_stranger_says_harms_nobody(word, payloads, message):
    with serve_weights({"it": np.zeros(10)}) as server:
        with Raw(server.url) as stranger:
            stranger.say(word, payloads)
            said, _ = stranger.hear()
            assert message in said["reason"]
            with pytest.raises(penstock.Closed):
                stranger.pipe.next(timeout=10).result()
        assert load_weights(server.url, timeout=30).version == 0


@pytest.mark.parametrize(
    "payloads, message",
    [
        ([], "a request without pieces"),
        ([b"", b""], "pieces in 2 payloads"),
        ([b"1234567"], "numbers of 7 bytes in total"),
        (packed(1), "too few numbers"),
        (packed(0), "a request for 0 pieces in a message"),
        (packed(-1), "a request for -1 pieces in a message"),
        (packed(1 << 60), "pieces in a message"),
        (packed(1, 2, 0, 1), "tensor index 2, but the catalog has 2 tensors"),
        (packed(1, -1, 0, 1), "tensor index -1, but the catalog has 2 tensors"),
        (packed(1, 0, 5, 6), r"a request for \[5:11\]"),
        (packed(1, 0, -1, 2), r"a request for \[-1:1\]"),
        (packed(1, 0, 3, 0), r"a request for \[3:3\]"),
        (packed(1, 0, 1 << 62, 1 << 62), "but the local part is"),
        (packed(*[1, 0, 0, 10] * 3), "more bytes than the tensors have"),
    ],
)
def test_pieces_that_there_are_none_of_are_refused(payloads, message):
    with serve_weights({"it": np.zeros(10), "that": np.zeros(3)}) as server:
        with Raw(server.url) as stranger:
            stranger.lease()
            stranger.say({"ask": "send"}, payloads)
            said, _ = stranger.hear()
            with pytest.raises(AssertionError, match=message):
                raise AssertionError(said["reason"])
        server.pause(timeout=30)  # its version is free again
        server.update()


def test_tensors_where_a_word_is_expected_are_not_received():
    with serve_weights({"it": np.zeros(10)}) as server, Raw(server.url) as stranger:
        sent = stranger.pipe.send(b"{}", tensors=[np.zeros(1 << 20, "u1")])
        assert "1 tensors" in stranger.hear()[0]["reason"]
        assert isinstance(sent.exception(timeout=10), penstock.Error)


def test_what_does_not_lie_together_is_bounded(monkeypatch):
    monkeypatch.setattr(_talk, "GATHERED_BYTES", 100)
    with serve_weights({"it": np.zeros((10, 10))}) as server, Raw(server.url) as stranger:
        stranger.lease()
        stranger.say({"ask": "send"}, packed(1, 0, 0, 0, 10, 5))
        assert "a message with 400 non-contiguous bytes" in stranger.hear()[0]["reason"]


def test_one_receiver_too_many_is_told_so():
    with serve_weights({"it": np.zeros(10)}, receivers=1) as server, Raw(server.url) as first:
        first.lease()
        assert server.receivers == 1
        with pytest.raises(penstock.Error, match="already has 1 receivers") as told:
            load_weights(server.url, timeout=30)
        assert told.value.code == "would_block"


def test_who_comes_while_a_server_closes_is_told_so():
    with serve_weights({"it": np.zeros(10)}) as server:
        server._door._closed = True
        with pytest.raises(penstock.Closed, match="the weights server is closed"):
            load_weights(server.url, timeout=30)


def test_who_says_nothing_is_let_go(monkeypatch):
    monkeypatch.setattr(_talk, "_first_word", 0.01)
    with serve_weights({"it": np.zeros(10)}) as server, Raw(server.url) as stranger:
        assert stranger.hear()[0] == {"failed": "timed_out", "reason": "the receiver did not continue in time"}


def test_a_version_is_held_for_so_long_only():
    with serve_weights({"it": np.zeros(10)}, timeout=0.05) as server, Raw(server.url) as slow:
        slow.lease()
        assert slow.hear()[0]["failed"] == "timed_out"
        server.pause(timeout=30)


def test_who_takes_what_failed_slowly_holds_the_version_no_longer(monkeypatch):
    now = 0.0

    class Slow:
        """Takes each word just in time."""

        def send(self, metadata, payloads=(), timeout=None):
            nonlocal now
            now += timeout * 0.9
            return self

        def result(self):
            return 0

    monkeypatch.setattr("penstock.weights._deadline.time", types.SimpleNamespace(monotonic=lambda: now))
    versions = _versions.Versions()
    versions.publish(_versions.Version(0, _held.Holder("weights", None, None).held({"it": np.zeros(100)}), None, None))
    talk = _talk.Talk(Slow(), versions, 10.0)
    talk._answer({"weights": 1, "ask": "catalog"}, [], concurrent.futures.Future())
    monkeypatch.setattr(_talk._Sending, "send", lambda *_: 1 / 0)
    talk._answer({"ask": "send"}, _wire.packed_pieces([_wire.Piece(0, Box((at,), (1,)))] for at in range(100)), None)
    assert now < 20
    talk.release()


# --- servers that are none


class Impostor:
    """A server that says what a test wants, once."""

    def __init__(self, answer):
        self.listener = penstock.pipe.listen()
        self.url = self.listener.url
        self._thread = threading.Thread(target=self._run, args=(answer,))
        self._thread.start()

    def _run(self, answer):
        with self.listener.accept(timeout=30).result() as pipe:
            with contextlib.suppress(penstock.Error):
                answer(pipe)
                while True:
                    pipe.next(timeout=30).result()  # until the receiver goes

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._thread.join()
        self.listener.close()


def says(payloads, word=None):
    def answer(pipe):
        pipe.next(timeout=30).result()
        pipe.send(json.dumps({"version": 0} if word is None else word).encode(), payloads).result()

    return answer


def catalog(names=b"it\0", words=b"float64\0", numbers=(0, 8, 1, 1, 10, 0, 10)):
    return [names, words, np.array(numbers, "<i8").tobytes()]


@pytest.mark.parametrize(
    "payloads, message",
    [
        ([], "no catalog"),
        ([b""], "a catalog of 1 payloads"),
        (catalog(names=b"it"), "names without a terminator"),
        (catalog(names=b"\xff\0"), "names that are not UTF-8"),
        (catalog(names=b"\0" * ((1 << 18) + 1)), "more than 262144 names"),
        (catalog(names=b"it\0it\0", numbers=(0, 8, 1, 1, 10, 0, 10) * 2), "lists a tensor twice"),
        (catalog(names=b"x" * 5000 + b"\0"), "an invalid type or number of dimensions"),
        (catalog(numbers=(0, 8, 1, 1, 10, 0)), "too few numbers"),
        (catalog(numbers=(0, 8, 1, 1, 10, 0, 10, 1)), "too many numbers"),
        (catalog(numbers=(1, 8, 1, 1, 10, 0, 10)), "an invalid type or number of dimensions"),
        (catalog(numbers=(0, 0, 1, 1, 10, 0, 10)), "an invalid type or number of dimensions"),
        (catalog(numbers=(0, 8, 1, 1 << 40, 10, 0, 10)), "an invalid type or number of dimensions"),
        (catalog(numbers=(0, 8, 1, -1, 10, 0, 10)), "an invalid type or number of dimensions"),
        (catalog(numbers=(0, 8, 1, 1, -10, 0, -10)), "an invalid shape or part"),
        (catalog(numbers=(0, 8, 1, 1, 10, 5, 6)), "an invalid shape or part"),
        (catalog(numbers=(0, 8, 1, 2, 1 << 40, 1 << 40, 0, 0, 1, 1)), "an invalid shape or part"),
        (catalog(numbers=(0, 8, 1, 2, 0, 1 << 62, 0, 0, 0, 1 << 62)), "an invalid shape or part"),
    ],
)
def test_a_catalog_that_cannot_be_is_refused(payloads, message):
    target = {"it": np.zeros(10)}
    with Impostor(says(payloads)) as impostor, pytest.raises(penstock.Error, match=message) as told:
        load_weights(impostor.url, target, timeout=30)
    assert told.value.code == "io" and impostor.url in str(told.value)


def test_no_memory_is_made_for_what_cannot_be():
    with Impostor(says(catalog(numbers=(0, 8, 1, 1, 1 << 45, 0, 1 << 45)))) as impostor, pytest.raises(penstock.OutOfMemory, match="this machine has"):
        load_weights(impostor.url, timeout=30)


@pytest.mark.parametrize("word", [{"unchanged": 3}, {"version": 3}])
def test_a_version_that_was_not_asked_for_is_refused(word):
    asked = {"at_least": 4} if "version" in word else {"newer_than": 2}
    with Impostor(says(catalog(), word)) as impostor, pytest.raises(penstock.Error, match="version 3, which was not requested"):
        load_weights(impostor.url, {"it": np.zeros(10)}, timeout=30, **asked)
    with pytest.raises(penstock.InvalidArgument, match="at_least is 'two', which is not a version"):
        load_weights("unix:@x", at_least="two")


@pytest.mark.parametrize("word", [{"version": -1}, {"version": -5}, {"version": "1"}, {"version": True}, {}, {"failed": 3}, [1]])
def test_an_answer_that_is_none_is_refused(word):
    with Impostor(says(catalog(), word)) as impostor, pytest.raises(penstock.Error, match="the peer sent"):
        load_weights(impostor.url, {"it": np.zeros(10)}, timeout=30)


def test_a_reason_is_shown_in_bounds():
    word = {"failed": "no such code", "reason": "\x1b[31m" + "x" * 5000}
    with Impostor(says([], word)) as impostor, pytest.raises(penstock.Error) as told:
        load_weights(impostor.url, {"it": np.zeros(10)}, timeout=30)
    assert "\x1b" not in str(told.value) and len(str(told.value)) < 3000


def sends(*messages, ends=b'{"sent": 0}'):
    """Of two tensors, "a" and "b" of 10 float64, these messages."""

    def answer(pipe):
        says(catalog(b"a\0b\0", numbers=(0, 8, 1, 1, 10, 0, 10) * 2))(pipe)
        pipe.next(timeout=30).result()
        for tensors in messages:
            pipe.send(tensors=tensors)
        pipe.send(ends).result()

    return answer


@pytest.mark.parametrize("message", [[np.ones(10)], [np.ones(10), np.ones(11)], [np.ones(10)] * 3, []], ids=["few", "long", "many", "none"])
def test_tensors_that_were_not_asked_for_are_not_received(message):
    target = {"a": np.zeros(10), "b": np.zeros(10)}
    guard = {name: value.copy() for name, value in target.items()}
    with Impostor(sends(message)) as impostor, pytest.raises(penstock.InvalidArgument, match="0 of 2 tensors have the new values"):
        load_weights(impostor.url, target, timeout=30)
    same(target, guard)


def test_a_server_that_never_says_why_it_failed_is_not_listened_to_for_long(monkeypatch):
    monkeypatch.setattr(_plan, "BATCH_BYTES", 80)  # one tensor in a message
    monkeypatch.setattr(_track, "GRACE", 0)
    heard = []
    word_of = _line.word_of
    monkeypatch.setattr(_line, "word_of", lambda message: heard.append(message) or word_of(message))
    names = [f"t{number:02}" for number in range(40)]

    def answer(pipe):
        says(catalog("".join(f"{name}\0" for name in names).encode(), numbers=(0, 8, 1, 1, 10, 0, 10) * 40))(pipe)
        pipe.next(timeout=30).result()
        pipe.send(tensors=[np.ones(11)])
        for _ in range(100):
            pipe.send(b"{}")

    with Impostor(answer) as impostor, pytest.raises(penstock.InvalidArgument, match="0 of 40 tensors have the new values"):
        load_weights(impostor.url, {name: np.zeros(10) for name in names}, timeout=30)
    assert len(heard) <= 2  # the catalog, and once after the error


def test_another_version_at_the_end_is_an_error():
    target = {"a": np.zeros(10), "b": np.zeros(10)}
    impostor = Impostor(sends([np.ones(10)] * 2, ends=b'{"sent": 1}'))
    with impostor, pytest.raises(penstock.Error, match="a version other than 0; 2 of 2 tensors have"):
        load_weights(impostor.url, target, timeout=30)


def test_a_server_that_is_silent_is_not_waited_for_longer(monkeypatch):
    monkeypatch.setattr(_line, "GRACE", 0.01)
    with Impostor(lambda pipe: None) as impostor, pytest.raises(penstock.TimedOut):
        load_weights(impostor.url, {"it": np.zeros(10)}, timeout=0.05)


def test_a_server_that_goes_half_way_is_an_error_that_says_what_was_written(monkeypatch):
    monkeypatch.setattr(_plan, "BATCH_BYTES", 80)  # one tensor in a message

    def answer(pipe):
        says(catalog(b"a\0b\0", numbers=(0, 8, 1, 1, 10, 0, 10) * 2))(pipe)
        pipe.next(timeout=30).result()
        pipe.send(tensors=[np.ones(10)]).result()
        pipe.close()

    target = {"a": np.zeros(10), "b": np.zeros(10)}
    with Impostor(answer) as impostor, pytest.raises(penstock.Closed, match='1 of 2 tensors have the new values, and "b" may be partially written'):
        load_weights(impostor.url, target, timeout=30)
    assert (target["a"] == 1).all() and (target["b"] == 0).all()


@pytest.mark.parametrize("kind", [penstock.Closed, penstock.TimedOut])
def test_a_server_that_stays_says_why_it_ends_a_load(kind, monkeypatch):
    failed = kind("for this reason", code="closed" if kind is penstock.Closed else "timed_out")

    def fail(*_):
        raise failed

    monkeypatch.setattr(_versions.Version, "wait_for", fail)
    with serve_weights({"it": np.zeros(10)}) as server, pytest.raises(kind, match="for this reason; 0 of 1 tensors have the new values"):
        load_weights(server.url, {"it": np.zeros(10)}, timeout=30)


def test_what_fails_at_the_server_is_told_to_the_receiver(monkeypatch):
    source = {"a": np.ones((10, 10)), "b": np.ones((10, 10)).T}
    target = empty_like(source)
    with serve_weights(source, snapshot=False) as server:
        with monkeypatch.context() as patch:
            patch.setattr("penstock._core.arrays.of_numpy.Numpy.copied", lambda self, view: 1 / 0)
            with pytest.raises(penstock.Error, match="ZeroDivisionError: division by zero; 1 of 2 tensors") as told:
                load_weights(server.url, target, timeout=30)
            assert server.url in str(told.value)
        assert load_weights(server.url, target, timeout=30).version == 0
    same(target, source)


# --- ends


def test_close_ends_what_is_under_way():
    server = serve_weights({"it": np.zeros(10)})
    with Raw(server.url) as half_way:
        half_way.lease()
        server.close()
        with pytest.raises(penstock.Closed):
            half_way.pipe.next(timeout=10).result()
    assert server.receivers == 0
    server.close()
    with pytest.raises(penstock.Closed):
        server.update()
    with pytest.raises(penstock.Error):
        load_weights(server.url, timeout=5)


def test_many_loads_leave_no_thread_behind():
    def threads():
        return [each for each in threading.enumerate() if each.name == "penstock-weights"]

    before = threads()
    with serve_weights(weights()) as server:
        target = empty_like(weights())
        for _ in range(30):
            load_weights(server.url, target, timeout=30)
    assert threads() == before and server.receivers == 0


def test_a_server_that_is_dropped_is_closed():
    server = serve_weights({"it": np.zeros(10)})
    url = server.url
    del server
    with pytest.raises(penstock.Error):
        load_weights(url, timeout=5)


def test_a_receiver_connects_again_after_an_error():
    source = {"it": np.zeros(10)}
    target = {"it": np.ones(10)}
    with serve_weights(source) as server, WeightsReceiver(server.url, target) as receiver:
        with pytest.raises(penstock.TimedOut):
            receiver.load(timeout=0)
        assert receiver.load(timeout=30).version == 0 and not target["it"].any()


def test_a_timeout_may_be_without_end():
    with serve_weights({"it": np.zeros(10)}, timeout=float("inf")) as server:
        assert load_weights(server.url, timeout=float("inf")).version == 0


def test_a_forked_child_leaves_the_server_alone():
    server = serve_weights({"it": np.zeros(10)})
    child = os.fork()
    if child == 0:
        server.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert load_weights(server.url, timeout=30).version == 0
    server.close()


def test_who_has_loaded_may_serve_again():
    source = weights()
    with serve_weights(source, version=3) as first:
        target = empty_like(source)
        loaded = load_weights(first.url, target, timeout=30)
    with serve_weights(target, version=loaded.version, snapshot=False) as second:
        last = empty_like(source)
        assert load_weights(second.url, last, timeout=30).version == 3
    same(last, source)


def spawn(code, *arguments):
    source = "import sys, os, signal\nimport numpy as np\nimport penstock, penstock.pipe\nfrom penstock.weights import _wire\n" + textwrap.dedent(code)
    return subprocess.Popen([sys.executable, "-c", source, *arguments], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


@pytest.mark.parametrize("url", WAYS)
def test_between_processes(url):
    trainer = spawn(
        """
        weights = {f"layers.{i}": np.full((100, 300), i, "f4") for i in range(10)}
        with penstock.serve_weights(weights, sys.argv[1]) as server:
            print(server.url, flush=True)
            for line in sys.stdin:
                for each in weights.values():
                    each += 100
                print(server.update(), flush=True)
        """,
        url,
    )
    with trainer:
        served = trainer.stdout.readline().strip()
        target = {f"layers.{i}": np.zeros((100, 300), "f4") for i in range(10)}
        with WeightsReceiver(served, target) as receiver:
            for version in range(3):
                assert receiver.load(timeout=30).version == version
                assert all((value == i + 100 * version).all() for i, value in enumerate(target.values()))
                trainer.stdin.write("go on\n")
                trainer.stdin.flush()
                assert int(trainer.stdout.readline()) == version + 1
        trainer.stdin.close()
        assert trainer.wait(timeout=30) == 0


def test_a_receiver_that_is_killed_costs_the_server_nothing():
    with serve_weights({"it": np.zeros((1000, 1000))}) as server:
        receiver = spawn(
            """
            pipe = penstock.pipe.connect(sys.argv[1])
            pipe.send(b'{"weights": 1, "ask": "catalog"}').result()
            pipe.next().result()
            pipe.send(b'{"ask": "send"}', _wire.packed_pieces([[_wire.Piece(0, _wire.Box((0, 0), (1000, 1000)))]])).result()
            pipe.next().result()  # and does not receive it
            os.kill(os.getpid(), signal.SIGKILL)
            """,
            server.url,
        )
        with receiver:
            assert receiver.wait(timeout=30) == -signal.SIGKILL
        assert server.update(timeout=30) == 1
        assert load_weights(server.url, timeout=30).version == 1


def test_a_server_that_is_killed_is_an_error():
    server = spawn(
        """
        listener = penstock.pipe.listen()
        print(listener.url, flush=True)
        pipe = listener.accept().result()
        pipe.next().result()
        row = _wire.Row("it", "float64", 8, True, (1000000,), _wire.Box((0,), (1000000,)))
        pipe.send(b'{"version": 0}', _wire.Catalog.of([row]).payloads).result()
        pipe.next().result()
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    with server:
        url = server.stdout.readline().strip()
        with pytest.raises(penstock.Closed, match='0 of 1 tensors have the new values, and "it" may be partially written'):
            load_weights(url, {"it": np.zeros(1_000_000)}, timeout=60)
        assert server.wait(timeout=30) == -signal.SIGKILL


def test_the_example_runs():
    program = pathlib.Path(__file__).parents[2] / "examples/python/serve_weights.py"
    told = subprocess.run([sys.executable, str(program)], check=True, timeout=120, capture_output=True, text=True, env=os.environ).stdout
    assert "weights as expected" in told
