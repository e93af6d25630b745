"""A repository in memory that is made once and copied for every fault: its objects, its clock and its database."""

import functools
from dataclasses import dataclass

from deltavc.lineage.database import open_database
from deltavc.lineage.index import Index
from deltavc.repo import Repo
from tests.breaking import operations
from tests.breaking.operations import OPERATIONS
from tests.breaking.whole import Lineage, check, lineage, without_weights
from tests.faults import FaultyStore
from tests.upkeep.stores import ClockedStore, opened


@dataclass(frozen=True)
class Template:
    """What an operation finds.

    before, after: the lineage before it, and when nothing came in between. without: steps whose weights it lets go.
    """

    store: ClockedStore
    repo: Repo
    before: Lineage
    after: Lineage
    without: frozenset

    def copy(self):
        """A copy on a store that can fail."""
        return copied(self.store, self.repo)


def copied(store, repo):
    copy = ClockedStore()
    copy._objects.update(store._objects)
    copy.ahead = store.ahead
    engine = open_database("sqlite://")
    with repo._index.engine.connect() as source, engine.connect() as target:
        source.connection.driver_connection.backup(target.connection.driver_connection)
    faulty = FaultyStore(copy)
    return faulty, Repo(faulty, Index(engine, faulty, repo.id), repo.id)


@functools.cache
def template(name):
    operation = OPERATIONS[name]
    store = ClockedStore()
    with opened(store) as repo:
        operations.grow(repo)
        before = lineage(repo)
        operation.first(repo)
        store.wait(hours=operation.hours)
        _, clean = copied(store, repo)
        with clean:
            assert operations.attempt(operation, clean) is None
            check(clean)
            after, without = lineage(clean), without_weights(clean)
        _, kept = copied(store, repo)
    return Template(store, kept, before, after, without)
