import os
import secrets
from concurrent.futures import ThreadPoolExecutor

import pytest

from deltavc.canonical import content_id
from deltavc.errors import ObjectMissing
from deltavc.store import CachedStore, open_store
from tests.store.conformance import BODY

NAME = content_id(BODY)
KEYS = [f"packs/ab/{NAME}.pack", f"layouts/ab/{NAME}.json", f"versions/ab/{NAME}.json", f"edges/ab/{NAME}.json"]


@pytest.fixture
def origin():
    return open_store(f"memory://{secrets.token_hex(8)}")


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def store(origin, directory):
    return CachedStore(origin, directory, 1 << 20)


def cached_files(directory):
    return [path for path in directory.rglob("*") if path.is_file()]


def nbytes_of(files):
    return sum(path.stat().st_size for path in files)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("limits", [(), (0, 100), (7, 100), (1000,)], ids=str)
def test_what_was_read_once_is_read_without_the_store(store, origin, key, limits):
    origin.put(key, BODY)
    first = store.get(key, *limits)
    origin.delete(key)
    assert store.get(key, *limits) == first == open_as(BODY, *limits)


def open_as(body, start=0, nbytes=None):
    return body[start:] if nbytes is None else body[start : start + nbytes]


@pytest.mark.parametrize("key", ["refs/ab/last", "refs/ab/000000000001.json", "deltavc.json", "drops/x.json"])
def test_what_may_change_is_never_kept(store, origin, directory, key):
    origin.put(key, b"old")
    assert store.get(key) == b"old"
    origin.put(key, b"new")
    assert store.get(key) == b"new"
    assert not directory.exists()


def test_stores_do_not_see_each_others_objects(store, origin, directory):
    origin.put(KEYS[0], BODY)
    store.get(KEYS[0])
    other = CachedStore(open_store(f"memory://{secrets.token_hex(8)}"), directory, 1 << 20)
    with pytest.raises(ObjectMissing):
        other.get(KEYS[0])


def test_processes_share_what_is_kept(store, origin, directory):
    origin.put(KEYS[0], BODY)
    store.get(KEYS[0])
    origin.delete(KEYS[0])
    assert CachedStore(origin, directory, 1 << 20).get(KEYS[0]) == BODY


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: b"",
        lambda content: content[:40] + bytes([content[40] ^ 1]) + content[41:],
        lambda content: bytes([content[0] ^ 1]) + content[1:],
        lambda content: content + b"\0",
    ],
    ids=["cut", "empty", "flipped", "checksum", "longer"],
)
def test_a_damaged_file_is_read_from_the_store_again(store, origin, directory, damage):
    origin.put(KEYS[0], BODY)
    store.get(KEYS[0])
    [path] = cached_files(directory)
    path.write_bytes(damage(path.read_bytes()))
    assert store.get(KEYS[0]) == BODY
    origin.delete(KEYS[0])
    assert store.get(KEYS[0]) == BODY  # and is whole now


@pytest.mark.parametrize("key", KEYS)
def test_damaged_objects_and_answers_cut_short_are_not_kept(store, origin, directory, key):
    for damaged in (BODY[:-1], BODY + b"x", b"y" + BODY[1:], b""):
        origin.put(key, damaged)
        assert store.get(key) == damaged
    origin.put(key, BODY[:50])
    assert store.get(key, 7, 100) == BODY[7:50]
    assert not directory.exists()
    origin.put(key, BODY)
    assert store.get(key) == BODY
    assert store.get(key, 7, 100) == BODY[7:107]


def test_forgetting_a_key_reads_the_store_again(store, origin):
    origin.put(KEYS[0], b"damaged on the way")
    store.get(KEYS[0], 3, 4)
    origin.put(KEYS[0], BODY)
    store.forget(KEYS[0])
    assert store.get(KEYS[0], 3, 4) == BODY[3:7]


def test_deleting_forgets(store, origin):
    origin.put(KEYS[0], BODY)
    store.get(KEYS[0])
    store.delete(KEYS[0])
    with pytest.raises(ObjectMissing):
        store.get(KEYS[0])


def test_stays_within_its_bound_and_keeps_what_was_used_last(origin, directory):
    max_bytes = 256 << 10
    store = CachedStore(origin, directory, max_bytes)
    body = os.urandom(8 << 10)
    keys = [f"packs/{number}/{content_id(body)}.pack" for number in range(200)]
    for key in keys:
        origin.put(key, body)
        store.get(key)
        store.get(keys[0])
        assert nbytes_of(cached_files(directory)) <= max_bytes + max_bytes // 16 + len(body) + 32
    origin.delete(keys[0])
    assert store.get(keys[0]) == body
    origin.delete(keys[1])
    with pytest.raises(ObjectMissing):
        store.get(keys[1])


def test_what_is_too_large_passes_through(origin, directory):
    store = CachedStore(origin, directory, 8000)
    origin.put("packs/x", bytes(1001))
    assert store.get("packs/x", 0, 1001) == bytes(1001)
    assert not directory.exists()


def test_a_cache_that_cannot_be_used_does_not_hinder_reading(origin, tmp_path, caplog):
    (tmp_path / "file").write_bytes(b"not a directory")
    origin.put(KEYS[0], BODY)
    store = CachedStore(origin, tmp_path / "file", 1 << 20)
    assert store.get(KEYS[0]) == store.get(KEYS[0]) == BODY
    assert "cannot write cache file" in caplog.text


def test_many_threads_may_read_while_files_are_thrown_out(origin, directory):
    store = CachedStore(origin, directory, 64 << 10)
    bodies = {f"packs/{content_id(body)}.pack": body for body in (os.urandom(4000) for _ in range(60))}
    for key, body in bodies.items():
        origin.put(key, body)
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(store.get, list(bodies) * 5))
    assert read == list(bodies.values()) * 5
