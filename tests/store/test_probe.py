"""Stores that break a promise, each in one way, and must be refused for it."""

import threading
import time

import pytest

from deltavc.errors import ObjectMissing, StoreDenied, StoreUnfit
from deltavc.store import probe
from deltavc.store.memory import MemoryStore
from tests.store.conformance import keys


class Overwrites(MemoryStore):
    """Ignores the condition, as servers do that do not know If-None-Match."""

    def create(self, key, body):
        self.put(key, body)
        return True


class OverwritesYetRefuses(MemoryStore):
    def create(self, key, body):
        created = super().create(key, body)
        self.put(key, body)
        return created


class ChecksThenWrites(MemoryStore):
    """Honours the condition, but not as one step."""

    def create(self, key, body):
        try:
            self.get(key)
        except ObjectMissing:
            time.sleep(0.01)
            self.put(key, body)
            return True
        return False


class LetsTwoWin(MemoryStore):
    def create(self, key, body):
        return super().create(key, body) or key.endswith("race")


class IgnoresRanges(MemoryStore):
    def get(self, key, start=0, nbytes=None):
        return super().get(key)


class ListsLate(MemoryStore):
    def list(self, prefix=""):
        return iter(())


class KeepsTheFirst(MemoryStore):
    def put(self, key, body):
        self.create(key, body)


class NeverDeletes(MemoryStore):
    def delete(self, key):
        pass


class Damages(MemoryStore):
    def put(self, key, body):
        super().put(key, bytes(len(body)))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Overwrites, "create overwrites"),
        (OverwritesYetRefuses, "create overwrites"),
        (ChecksThenWrites, "callers created the same object"),
        (LetsTwoWin, "callers created the same object"),
        (IgnoresRanges, "does not read ranges"),
        (ListsLate, "listings lack"),
        (KeepsTheFirst, "does not replace"),
        (NeverDeletes, "deleted object is still there"),
        (Damages, "does not give back"),
    ],
)
def test_a_store_that_breaks_a_promise_is_refused_with_the_reason(kind, reason):
    store = kind("memory://unfit")
    with pytest.raises(StoreUnfit, match=reason) as caught:
        probe(store)
    assert caught.value.url == "memory://unfit"
    if kind not in (NeverDeletes, ListsLate):
        assert keys(store) == []


def test_losing_the_answer_to_a_create_is_no_reason_to_refuse():
    class LosesAnswers(MemoryStore):
        def create(self, key, body):
            return super().create(key, body) and False

    probe(LosesAnswers("memory://lossy"))


def test_an_error_of_the_store_comes_through_as_it_is():
    class ReadOnly(MemoryStore):
        def create(self, key, body):
            raise StoreDenied(self.url, "create", "read only")

    store = ReadOnly("memory://read-only")
    with pytest.raises(StoreDenied):
        probe(store)
    assert keys(store) == []


def test_probes_at_the_same_time_do_not_meet():
    store = MemoryStore("memory://busy")
    errors = []

    def run():
        try:
            probe(store)
        except StoreUnfit as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
