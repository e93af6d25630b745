"""Does a store keep the promises that a repository is built on? Asked once, when one is created.

What a store claims is not enough: some accept `If-None-Match` and overwrite all the same, which would let two
writers both believe that they moved a branch.
"""

from __future__ import annotations

import secrets
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

from deltavc.errors import ObjectMissing, StoreError, StoreUnfit
from deltavc.store.objects import Store

PROBES = "probe/"

RACERS = 6
"""Callers that try to create the same object at once; a store without the promise lets several win."""


def probe(store: Store) -> None:
    """Check on objects of our own, below probe/, that `store` does what `Store` promises; clean up after.

    Raises:
        StoreUnfit: it does not; the reason says what.
        StoreDenied, StoreUnavailable, StoreFull: an operation failed as a whole.
    """
    below = f"{PROBES}{secrets.token_hex(16)}/"
    try:
        _check_whole(store, below)
        _check_create(store, f"{below}create")
        _check_race(store, f"{below}race")
    finally:
        # What stays after an error is a few bytes under a name that nothing reads; the error matters more.
        with suppress(StoreError):
            for info in list(store.list(below)):
                store.delete(info.key)


def _check_whole(store: Store, below: str) -> None:
    key = f"{below}whole"
    body = secrets.token_bytes(4096)
    store.put(key, body)
    _expect(store, store.get(key) == body, "it does not give back what was written")
    _expect(store, store.get(key, 1000, 24) == body[1000:1024], "it does not read ranges")
    _expect(store, store.get(key, 4000, 1000) == body[4000:], "it does not cut a range at the object's end")
    _expect(store, store.stat(key).nbytes == len(body), "it does not know how large an object is")
    _expect(store, [info.key for info in store.list(below)] == [key], "its listings lack what was just written")
    store.put(key, body[:7])
    _expect(store, store.get(key) == body[:7], "a second write does not replace the first")
    store.delete(key)
    _expect(store, _is_missing(store, key), "a deleted object is still there")
    _expect(store, not list(store.list(below)), "its listings show what was deleted")


def _check_create(store: Store, key: str) -> None:
    first, second = secrets.token_bytes(16), secrets.token_bytes(16)
    store.create(key, first)  # a lost answer may say False; what is there then decides
    _expect(store, store.get(key) == first, "create does not create")
    refused = not store.create(key, second)
    _expect(store, store.get(key) == first, "create overwrites an object that is there")
    _expect(store, refused, "create says that it created what was there")


def _check_race(store: Store, key: str) -> None:
    start = threading.Barrier(RACERS)
    bodies = [secrets.token_bytes(16) for _ in range(RACERS)]

    def race(body: bytes) -> bool:
        start.wait()
        return store.create(key, body)

    with ThreadPoolExecutor(RACERS) as pool:
        won = [body for body, created in zip(bodies, pool.map(race, bodies), strict=True) if created]
    _expect(store, len(won) <= 1, f"{len(won)} of {RACERS} callers created the same object at the same time")
    found = store.get(key)
    _expect(store, found in bodies, "callers that create one object at the same time damage it")
    _expect(store, won in ([], [found]), "the caller that created an object is not the one whose bytes are there")


def _is_missing(store: Store, key: str) -> bool:
    try:
        store.get(key)
    except ObjectMissing:
        return True
    return False


def _expect(store: Store, holds: bool, otherwise: str) -> None:
    if not holds:
        raise StoreUnfit(store.url, otherwise)
