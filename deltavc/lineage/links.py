"""Links: every edge as numbers, and every version after its parents. What a plan for all versions at once needs."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from sqlalchemy import select

from deltavc.lineage.database import reading
from deltavc.lineage.history import History
from deltavc.lineage.tables import edges, versions


@dataclass(frozen=True, slots=True)
class Link:
    """An edge from a version, or from nothing: bytes of its frames, and lanes that it writes."""

    base: str | None
    nbytes: int
    changes: int


@dataclass
class Links:
    """order: ids of all versions, each after its parents. into: the edges that lead to each."""

    order: list[str]
    into: defaultdict[str, list[Link]] = field(default_factory=lambda: defaultdict(list))


def links(history: History) -> Links:
    """Read all versions and edges that are indexed. Raises DatabaseUnavailable."""
    with reading(history.engine) as db:
        ids = {row.pk: row.id for row in db.execute(select(versions.c.pk, versions.c.id).order_by(versions.c.pk))}
        found = Links(list(ids.values()))
        columns = (edges.c.base, edges.c.target, edges.c.nbytes, edges.c.changes)
        for base, target, nbytes, changes in db.execute(select(*columns).order_by(edges.c.pk)):
            found.into[ids[target]].append(Link(None if base is None else ids[base], nbytes, changes))
    return found
