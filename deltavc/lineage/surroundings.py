"""The surroundings of a version: the edges that a search for a way may need, from the database or from the bucket.

From the database they are loaded in windows of hundreds of nodes, so that a chain of a thousand edges takes a handful
of queries; whole edges are read for the chosen way alone.

The bucket only tells which edges lead to a version. So what is walked back over has to be looked for from what is
held, before the search for a way from it begins.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, select

from deltavc.lineage import graph
from deltavc.lineage.backwards import Backwards
from deltavc.lineage.database import chunks
from deltavc.lineage.ingest import keys_of
from deltavc.lineage.plan import Node, Step, Waiting, Way, cost, search
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


class BucketSurroundings:
    """Nodes are ids of versions, edges their own. Back ways are those from what is held."""

    def __init__(self, edges_to: Backwards[list[EdgeRecord]], forward_only: bool) -> None:
        """`edges_to` gives the edges that lead to a version."""
        self._edges_to = edges_to
        self._forward_only = forward_only
        self._edges: dict[Any, EdgeRecord] = {}
        self._loaded: set[Any] = set()
        self.ways: defaultdict[Any, list[Way]] = defaultdict(list)

    def goal(self, version: str) -> Node:
        return version

    def starts(self, goal: Node, held: Iterable[str]) -> Mapping[Node, str]:
        found: dict[Node, str] = {version: version for version in held}
        if found and not self._forward_only:
            onwards = search(self, goal, found)
            self._go_back(found.values(), math.inf if onwards is None else sum(way.cost for way in onwards[1]))
        return found

    def load(self, node: Any, waiting: Waiting) -> None:
        if node in self._loaded:
            return
        self._loaded.add(node)
        for edge in self._edges_to[node]:
            self._edges[edge.id] = edge
            price = cost(edge.nbytes, edge.changes)
            self.ways[node].append(Way(edge.id, edge.base, True, price))
            if edge.reversible and not self._forward_only:
                self.ways[edge.base].append(Way(edge.id, node, False, price))

    def steps(self, ways: Sequence[Way]) -> tuple[Step, ...]:
        return tuple(Step(self._edges[way.edge], way.forward) for way in ways)

    def _go_back(self, held: Iterable[str], bound: float) -> None:
        """Load the ways back from what is held, as far as they may be cheaper than the way that is known."""
        best: dict[str, int] = dict.fromkeys(held, 0)
        heap = [(0, version) for version in best]
        while heap:
            distance, version = heapq.heappop(heap)
            if distance > best[version]:
                continue
            self.load(version, [])
            for edge in self._edges_to[version]:
                total = distance + cost(edge.nbytes, edge.changes)
                if edge.base is not None and edge.reversible and total < min(bound, best.get(edge.base, math.inf)):
                    best[edge.base] = total
                    heapq.heappush(heap, (total, edge.base))
