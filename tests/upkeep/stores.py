"""A repository of a few versions on a store whose clock a test can turn."""

from datetime import timedelta

import deltavc
from deltavc import canonical, opening
from deltavc.lineage import schema
from deltavc.lineage.database import open_database
from deltavc.lineage.drops import DropRecord
from deltavc.lineage.index import Index
from deltavc.repo import Repo
from deltavc.store.memory import MemoryStore
from tests import states
from tests.faults import FaultyStore

NO_SNAPSHOTS = deltavc.SnapshotPolicy(max_edges=10**6, max_ratio=1e9)


class ClockedStore(MemoryStore):
    """A store whose clock is ahead of this machine's by as much as a test says, and stamps objects with it."""

    def __init__(self):
        super().__init__("memory://clocked")
        self.ahead = timedelta()
        self.create(opening.MARKER, canonical.sealed({"format": 1, "repository": "0" * 32}))

    def now(self):
        return super().now() + self.ahead

    def wait(self, **how_long):
        self.ahead += timedelta(**how_long)

    def keys(self, prefix=""):
        return {item.key for item in self.list(prefix)}


def opened(store, database="sqlite://"):
    """The repository on a store of our own, with an empty database unless another is named."""
    engine = open_database(database)
    schema.prepare(engine)
    return Repo(store, Index(engine, store, "0" * 32), "0" * 32)


def state_at(seed):
    return {"w": states.random_bits("bfloat16", (20, 10), seed), "b": states.random_bits("float32", (7,), seed)}


def grown(repo, length, branch="main", *, snapshots=(), first=0, **told):
    """Commit versions; a snapshot beside the deltas of these numbers. Their ids, in order."""
    with repo.writer(branch, snapshots=NO_SNAPSHOTS) as writer:
        return [
            writer.commit(state_at(step), step=step, snapshot=step in snapshots, **told).id
            for step in range(first, first + length)
        ]


def drop(store, *edges, why="expire"):
    for edge in edges:
        record = DropRecord.of(edge, "somebody", why)
        assert store.create(record.key, record.body)


def same_as_committed(state, step):
    return states.same(state, state_at(step))


class Meanwhile(FaultyStore):
    """Lets something happen right before, or after, the next call of a name: what others do, or that time goes by."""

    def __init__(self, store):
        super().__init__(store)
        self.quiet()

    def quiet(self):
        self._hooks = {}

    def before(self, name, call, *, again=False):
        self._hooks["before", name] = call, again

    def after(self, name, call, *, again=False):
        self._hooks["after", name] = call, again

    def _run(self, when, name):
        call, again = self._hooks.pop((when, name), (lambda: None, False))
        if again:
            self._hooks[when, name] = call, again
        call()

    def __getattr__(self, name):
        found = super().__getattr__(name)
        if name not in ("now", "create", "put", "delete", "list", "get", "stat"):
            return found

        def call(*args):
            self._run("before", name)
            result = found(*args)
            self._run("after", name)
            return result

        return call
