"""What every store must do. A store's tests derive from `Conformance` and give it a fixture `store`.

`reopen`, where there is one, returns the same place opened anew; it is sent to other processes.
"""

import multiprocessing
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from deltavc.errors import ObjectMissing
from deltavc.store import probe

BODY = bytes(range(256)) * 5

BAD_KEYS = ["", "/a", "a/", "a//b", "../a", "a/../b", "a/./b", ".a", "a/.b", "A", "a b", "a\\b", "a\n", "é", "a\0"]


def keys(store, prefix=""):
    return sorted(info.key for info in store.list(prefix))


class Conformance:
    reopen = None

    @pytest.mark.parametrize("nbytes", [0, 1, 4097, 3 << 20])
    def test_gives_back_what_was_put(self, store, nbytes):
        body = os.urandom(nbytes)
        store.put("a/b", body)
        assert store.get("a/b") == body
        assert store.stat("a/b").nbytes == nbytes

    @pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
    def test_takes_any_bytes_and_keeps_its_own_copy(self, store, kind):
        buffer = bytearray(BODY)
        body = memoryview(buffer) if kind is memoryview else kind(buffer)
        store.put("put", body)
        assert store.create("create", body)
        buffer[:] = bytes(len(buffer))
        assert store.get("put") == store.get("create") == BODY

    @pytest.mark.parametrize(
        ("start", "nbytes"),
        [
            (0, 1),
            (0, 256),
            (7, 300),
            (1279, 1),
            (1000, None),
            (1000, 10**12),
            (1280, 1),
            (5000, 5),
            (9, 0),
            (5000, None),
        ],
    )
    def test_reads_ranges_and_cuts_them_at_the_end(self, store, start, nbytes):
        store.put("x", BODY)
        assert store.get("x", start, nbytes) == (BODY[start:] if nbytes is None else BODY[start : start + nbytes])

    def test_reads_ranges_of_an_empty_object(self, store):
        store.put("x", b"")
        assert store.get("x", 0, 5) == store.get("x", 3) == b""

    def test_refuses_impossible_ranges(self, store):
        store.put("x", BODY)
        for start, nbytes in [(-1, 2), (0, -1)]:
            with pytest.raises(ValueError, match="no range"):
                store.get("x", start, nbytes)

    def test_says_that_an_object_is_missing(self, store, tmp_path):
        store.put("there/x", BODY)
        for key in ["nothing", "there/nothing", "there", "there/x/below", "no/such/prefix"]:
            for read in (
                store.get,
                store.stat,
                lambda key: store.get(key, 5, 7),
                lambda key: store.get(key, 0, 0),
                lambda key: store.get_path(key, tmp_path / "got"),
            ):
                with pytest.raises(ObjectMissing) as caught:
                    read(key)
                assert caught.value.key == key
        assert not list(tmp_path.glob("got*"))

    def test_put_replaces(self, store):
        store.put("x", BODY)
        store.put("x", b"short")
        assert store.get("x") == b"short"
        assert keys(store) == ["x"]

    def test_create_writes_once(self, store):
        assert store.create("refs/a/1.json", b"first") is True
        assert store.create("refs/a/1.json", b"second") is False
        assert store.get("refs/a/1.json") == b"first"
        store.delete("refs/a/1.json")
        assert store.create("refs/a/1.json", b"third") is True

    def test_create_refuses_what_was_put(self, store):
        store.put("x", BODY)
        assert store.create("x", b"other") is False
        assert store.get("x") == BODY

    def test_threads_that_create_one_object_have_one_winner(self, store):
        start = threading.Barrier(6)

        def race(racer):
            start.wait()
            return store.create(f"race/{number}", bytes([racer]) * 1000)

        with ThreadPoolExecutor(6) as pool:
            for number in range(2):
                won = [racer for racer, created in enumerate(pool.map(race, range(6))) if created]
                assert len(won) == 1
                assert store.get(f"race/{number}") == bytes(won) * 1000

    def test_processes_that_create_one_object_have_one_winner(self, store):
        if self.reopen is None:
            pytest.skip("lives in one process")
        context = multiprocessing.get_context("spawn")
        start, won = context.Barrier(3), context.Queue()
        racers = [context.Process(target=_race, args=(self.reopen, start, won, racer)) for racer in range(3)]
        for racer in racers:
            racer.start()
        results = [won.get(timeout=120) for _ in racers]
        for racer in racers:
            racer.join(60)
            assert racer.exitcode == 0
        for number in range(ROUNDS):
            winners = [racer for racer, created in results if created[number]]
            assert len(winners) == 1
            assert store.get(f"race/{number}") == bytes(winners) * 1000

    def test_lists_at_once_what_is_there_and_nothing_else(self, store):
        assert keys(store) == []
        for key in ["a/b/c", "a/b/d", "a/bb", "ab", "b"]:
            store.put(key, key.encode())
            assert key in keys(store)
        assert keys(store) == ["a/b/c", "a/b/d", "a/bb", "ab", "b"]
        assert keys(store, "a/") == ["a/b/c", "a/b/d", "a/bb"]
        assert keys(store, "a/b/") == ["a/b/c", "a/b/d"]
        assert keys(store, "nothing/") == []
        store.delete("a/b/c")
        assert keys(store, "a/b/") == ["a/b/d"]

    def test_lists_the_prefixes_one_level_below(self, store):
        assert list(store.prefixes()) == []
        for key in ["a/b/c", "a/b/d/e", "a/bb", "a/f/g/h", "ab", "b/c"]:
            store.put(key, BODY)
        assert sorted(store.prefixes()) == ["a/", "b/"]
        assert sorted(store.prefixes("a/")) == ["a/b/", "a/f/"]
        assert list(store.prefixes("a/b/")) == ["a/b/d/"]
        assert list(store.prefixes("a/b/d/")) == list(store.prefixes("nothing/")) == []

    def test_tells_sizes_and_times_by_its_own_clock(self, store):
        before = store.now()
        store.put("a/x", BODY)
        [listed] = store.list()
        assert listed.nbytes == store.stat("a/x").nbytes == len(BODY)
        for time in (listed.modified, store.stat("a/x").modified, store.now()):
            assert time.tzinfo is not None
            assert timedelta(seconds=-2) < time - before < timedelta(seconds=60)
            assert abs(datetime.now(UTC) - time) < timedelta(seconds=60)

    def test_asking_the_time_and_sweeping_leave_objects_alone(self, store):
        store.put("a/x", BODY)
        store.now()
        assert store.sweep(timedelta(0)) == 0
        assert keys(store) == ["a/x"]

    def test_deletes_and_does_not_mind_deleting_nothing(self, store):
        store.put("a/b/x", BODY)
        store.delete("a/b/x")
        store.delete("a/b/x")
        store.delete("never/was")
        assert keys(store) == []
        with pytest.raises(ObjectMissing):
            store.get("a/b/x")

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_refuses_keys_that_could_lead_elsewhere(self, store, tmp_path, key):
        (tmp_path / "file").write_bytes(BODY)
        for use in (
            store.get,
            store.stat,
            store.delete,
            lambda key: store.put(key, BODY),
            lambda key: store.create(key, BODY),
            lambda key: store.put_path(key, tmp_path / "file"),
            lambda key: store.get_path(key, tmp_path / "got"),
            lambda key: list(store.list(f"{key}x/..")),
            lambda key: list(store.prefixes(f"{key}x/..")),
        ):
            with pytest.raises(ValueError):
                use(key)

    @pytest.mark.parametrize("nbytes", [0, 1, (1 << 20) + 3])
    def test_moves_files(self, store, tmp_path, nbytes):
        body = os.urandom(nbytes)
        (tmp_path / "from").write_bytes(body)
        store.put_path("files/x", tmp_path / "from")
        assert store.get("files/x") == body
        (tmp_path / "to").write_bytes(b"older")
        store.get_path("files/x", tmp_path / "to")
        assert (tmp_path / "to").read_bytes() == body
        assert sorted(path.name for path in tmp_path.glob("to*")) == ["to"]

    def test_serves_many_threads(self, store):
        bodies = {f"many/{number}": os.urandom(1000 + number) for number in range(40)}
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(store.put, bodies, bodies.values()))
            assert list(pool.map(store.get, bodies)) == list(bodies.values())
            assert keys(store, "many/") == sorted(bodies)
            list(pool.map(store.delete, bodies))
        assert keys(store) == []

    def test_passes_the_probe_which_leaves_nothing(self, store):
        probe(store)
        assert keys(store) == []


ROUNDS = 5


def _race(reopen, start, won, racer):
    store = reopen()
    created = []
    for number in range(ROUNDS):
        start.wait(60)
        created.append(store.create(f"race/{number}", bytes([racer]) * 1000))
    won.put((racer, created))
