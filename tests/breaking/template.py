"""Repositories that are made once and copied for every fault: objects, clock and database, in memory or on disk."""

import functools
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import deltavc
from deltavc.lineage.database import open_database
from deltavc.lineage.index import Index
from deltavc.repo import Repo
from tests.breaking import operations
from tests.breaking.clocks import ClockedDirectory
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
            operation.run(clean)
            check(clean)
            after, without = lineage(clean), without_weights(clean)
        _, kept = copied(store, repo)
    return Template(store, kept, before, after, without)


@dataclass(frozen=True)
class TemplateOnDisk:
    """The same in a directory, for processes. Its stores are `clocks.ClockedDirectory`s."""

    root: Path
    hours: float
    before: Lineage
    after: Lineage
    without: frozenset

    def copy(self, root):
        store = ClockedDirectory(shutil.copytree(self.root, root))
        store.wait(hours=self.hours)  # now: a copy is as old as the copying
        return store


@functools.cache
def template_on_disk(name, directory):
    """Make it below a directory. `opening.open_store` has to open stores with a clock."""
    operation = OPERATIONS[name]
    root = Path(directory) / name.replace(" ", "-")
    with deltavc.init(root) as repo:
        operations.grow(repo)
        before = lineage(repo)
        operation.first(repo)
    made = TemplateOnDisk(root, operation.hours, before, before, frozenset())
    copy = made.copy(f"{root}-clean")
    with deltavc.open(copy.url) as clean:
        operation.run(clean)
        check(clean)
        return replace(made, after=lineage(clean), without=without_weights(clean))
