"""The surroundings of a version in the database: the edges that a search for a way may need.

They are loaded in windows of hundreds of nodes, so that a chain of a thousand edges takes a handful of queries;
whole edges are read for the chosen way alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select

from deltavc.lineage import graph
from deltavc.lineage.database import chunks
from deltavc.lineage.ingest import keys_of
from deltavc.lineage.plan import Node, Step, Waiting, Way, cost
from deltavc.lineage.records import EdgeRecord
from deltavc.lineage.tables import edges, versions

_FIRST_WINDOW = 512
_MAX_WINDOW = 8192
_MAX_SEEDS = 256


class IndexedSurroundings:
    """Nodes are the integer keys of versions, edges their own."""

    def __init__(self, db: Connection, forward_only: bool) -> None:
        self._db = db
        self._forward_only = forward_only
        self._window = _FIRST_WINDOW
        self.ways: dict[Any, list[Way]] = {}

    def goal(self, version: str) -> Node:
        return graph.known_place(self._db, version).pk

    def starts(self, goal: Node, held: Iterable[str]) -> Mapping[Node, str]:
        return {pk: version for version, pk in keys_of(self._db, versions, held).items()}

    def load(self, node: Node, waiting: Waiting) -> None:
        if node in self.ways:
            return
        near = heapq.nsmallest(_MAX_SEEDS, waiting)
        seeds: list[Any] = [node, *(other for _, _, other in near if other is not None and other not in self.ways)]
        window: set[int] = {*seeds, *self._up(seeds)}
        if not self._forward_only:
            window |= self._down(seeds)
        self._window = min(2 * self._window, _MAX_WINDOW)
        new = sorted(window - self.ways.keys())
        self.ways |= {pk: [] for pk in new}
        columns = (edges.c.pk, edges.c.base, edges.c.target, edges.c.nbytes, edges.c.changes)
        for chunk in chunks(new):
            for edge, base, target, nbytes, changes in self._db.execute(
                select(*columns).where(edges.c.target.in_(chunk)).order_by(edges.c.id)
            ):
                self.ways[target].append(Way(edge, base, True, cost(nbytes, changes)))
            if self._forward_only:
                continue
            back = select(*columns).where(edges.c.base.in_(chunk), edges.c.reversible)
            for edge, base, target, nbytes, changes in self._db.execute(back.order_by(edges.c.id)):
                self.ways[base].append(Way(edge, target, False, cost(nbytes, changes)))

    def steps(self, ways: Sequence[Way]) -> tuple[Step, ...]:
        records: dict[Any, EdgeRecord] = {}
        for chunk in chunks(way.edge for way in ways):
            for pk, body in self._db.execute(select(edges.c.pk, edges.c.body).where(edges.c.pk.in_(chunk))):
                records[pk] = EdgeRecord.trusted(body)
        return tuple(Step(records[way.edge], way.forward) for way in ways)

    def _up(self, seeds: list[int]) -> set[int]:
        """Nodes that edges come from, breadth first."""
        up = select(versions.c.pk).where(versions.c.pk.in_(seeds)).cte("up", recursive=True)
        up = up.union(select(edges.c.base).where(edges.c.target == up.c.pk, edges.c.base.is_not(None)))
        return set(self._db.execute(select(up.c.pk).limit(self._window)).scalars())

    def _down(self, seeds: list[int]) -> set[int]:
        """Nodes that can be walked back from, breadth first."""
        down = select(versions.c.pk).where(versions.c.pk.in_(seeds)).cte("down", recursive=True)
        down = down.union(select(edges.c.target).where(edges.c.base == down.c.pk, edges.c.reversible))
        return set(self._db.execute(select(down.c.pk).limit(self._window)).scalars())
