"""Descent: a part of the graph of versions as ids and parents, without what else is known of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import select

from deltavc.lineage import graph
from deltavc.lineage.database import chunks, reading
from deltavc.lineage.history import History
from deltavc.lineage.tables import edges, parents


@dataclass(frozen=True, slots=True)
class Descent:
    """Versions and their parents.

    parents: by id, every version after its parents; those outside of it are named, too. unkept: versions whose weights
    are not kept, as far as the database knows.
    """

    parents: dict[str, tuple[str, ...]]
    unkept: frozenset[str]


def descent(history: History, of: Iterable[str], without: Iterable[str] = ()) -> Descent:
    """Read these versions and all their ancestors but those of `without`. A few queries for every 500 of them.

    Raises:
        UnknownRef: an id that is not indexed. DatabaseNeeded, DatabaseUnavailable.
    """
    with reading(history.engine) as db:
        starts, excluded = ([graph.known_place(db, version).pk for version in ids] for ids in (of, without))
        order = list(graph.NewestFirst(db, starts, excluded, first_parent=False))[::-1]
        into: defaultdict[int, list[int]] = defaultdict(list)
        kept: set[int] = set()
        for chunk in chunks(order):
            rows = select(parents.c.version, parents.c.parent).where(parents.c.version.in_(chunk))
            for version, parent in db.execute(rows.order_by(parents.c.version, parents.c.place)):
                into[version].append(parent)
            kept.update(db.execute(select(edges.c.target).where(edges.c.target.in_(chunk)).distinct()).scalars())
        ids = graph.ids_of(db, [*order, *(parent for found in into.values() for parent in found)])
    return Descent(
        {ids[version]: tuple(ids[parent] for parent in into[version]) for version in order},
        frozenset(ids[version] for version in order if version not in kept),
    )


def outside(history: History, versions: Sequence[str], of: str) -> list[str]:
    """Those of the versions that are neither `of` nor ancestors of it, in their order. Raises what `descent` raises."""
    if not versions:
        return []
    with reading(history.engine) as db:
        places = {version: graph.known_place(db, version).pk for version in versions}
        found = set(graph.NewestFirst(db, places.values(), [graph.known_place(db, of).pk], first_parent=False))
    return [version for version in versions if places[version] in found]
