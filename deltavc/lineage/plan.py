"""The planner: the cheapest way to a version's weights from anything already held.

Versions are nodes, edges are ways between them, and a snapshot is an edge from nothing. An edge can be walked
forwards, and backwards when it is reversible.

    nothing ──snapshot──> v0 ──> v1 ──> v2 ──> v3 <──snapshot── nothing
                                        └─ wanted: v3's snapshot and one edge back, or v0's and two forward?

Dijkstra's algorithm runs backwards from the target, over numbers only, and stops at the first thing that is
held. The neighbourhood of a node is loaded in windows of hundreds of nodes, so a chain of a thousand edges
takes a handful of queries; whole edges are read for the chosen path alone.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from sqlalchemy import Connection, select

from deltavc.errors import NoPath
from deltavc.lineage.database import chunks, reading
from deltavc.lineage.history import History, known_place
from deltavc.lineage.ingest import keys_of
from deltavc.lineage.records import EdgeRecord
from deltavc.lineage.tables import edges, versions

EDGE_COST = 256 << 10
"""What one more edge costs beside its bytes, as bytes: its requests, many of which run at once."""

CHANGES_PER_BYTE = 8
"""Lanes written that cost as much as one byte fetched. Applying runs at billions of lanes a second, so bytes decide."""

_FIRST_WINDOW = 512
_MAX_WINDOW = 8192
_MAX_SEEDS = 256


@dataclass(frozen=True, slots=True)
class Step:
    """One edge of a path, and the direction it is walked in."""

    edge: EdgeRecord
    forward: bool

    @property
    def to(self) -> str:
        """The version this step leads to."""
        if self.forward:
            return self.edge.target
        assert self.edge.base is not None  # snapshots cannot be walked back
        return self.edge.base


@dataclass(frozen=True, slots=True)
class Plan:
    """A path to a version's weights.

    start: the held version it starts from, or None to start from nothing.
    nbytes: bytes of the frames it fetches. changes: lanes it writes.
    """

    target: str
    start: str | None
    steps: tuple[Step, ...]
    nbytes: int
    changes: int


def cost(nbytes: int, changes: int) -> int:
    """What walking one edge costs, in bytes fetched."""
    return nbytes + EDGE_COST + changes // CHANGES_PER_BYTE


def plan(history: History, target: str, held: Iterable[str] = (), *, forward_only: bool = False) -> Plan:
    """Find the cheapest path from nothing, or from any version in `held`, to `target`.

    Args:
        held: ids of versions whose weights are at hand; ids that are not indexed are ignored.
        forward_only: do not walk edges backwards.

    Raises:
        UnknownRef: the target is not indexed.
        NoPath: no edges lead to it from there.
    """
    with reading(history.engine) as db:
        goal = known_place(db, target).pk
        starts = {pk: version for version, pk in keys_of(db, versions, held).items()}
        found = _search(_Surroundings(db, forward_only), goal, starts.keys())
        if found is None:
            raise NoPath(target)
        start, ways = found
        steps = _load_steps(db, ways)
    return Plan(
        target=target,
        start=None if start is None else starts[start],
        steps=steps,
        nbytes=sum(step.edge.nbytes for step in steps),
        changes=sum(step.edge.changes for step in steps),
    )


class _Way(NamedTuple):
    """A walk over one edge, from `source` (None: nothing)."""

    edge: int
    source: int | None
    forward: bool
    cost: int


def _search(around: _Surroundings, goal: int, held: Iterable[int]) -> tuple[int | None, list[_Way]] | None:
    """Dijkstra from the goal back to a source; returns the source and the ways from it to the goal, in order."""
    sources: set[int | None] = {None, *held}
    best: dict[int | None, int] = {goal: 0}
    onward: dict[int | None, tuple[_Way, int]] = {}  # the way to take from a node, and where it leads
    done: set[int | None] = set()
    heap: list[tuple[int, int, int | None]] = [(0, 0, goal)]
    num_pushed = 0
    while heap:
        distance, _, node = heapq.heappop(heap)
        if node in done:
            continue
        if node in sources:
            return node, _path(onward, node, goal)
        done.add(node)
        assert node is not None  # nothing is always a source
        around.load(node, heap)
        for way in around.ways[node]:
            total = distance + way.cost
            if way.source not in best or total < best[way.source]:
                best[way.source] = total
                onward[way.source] = (way, node)
                num_pushed += 1
                heapq.heappush(heap, (total, num_pushed, way.source))  # of equals the one that was met first
    return None


def _path(onward: dict[int | None, tuple[_Way, int]], node: int | None, goal: int) -> list[_Way]:
    ways = []
    while node != goal:
        way, node = onward[node]
        ways.append(way)
    return ways


class _Surroundings:
    """The ways into each node, loaded around the nodes that are asked for."""

    def __init__(self, db: Connection, forward_only: bool) -> None:
        self._db = db
        self._forward_only = forward_only
        self._window = _FIRST_WINDOW
        self.ways: dict[int, list[_Way]] = {}

    def load(self, node: int, waiting: list[tuple[int, int, int | None]]) -> None:
        """Make the ways into `node` known, and with them those of the nodes around it and around others that wait."""
        if node in self.ways:
            return
        near = heapq.nsmallest(_MAX_SEEDS, waiting)
        seeds = [node, *(other for _, _, other in near if other is not None and other not in self.ways)]
        window = {*seeds, *self._up(seeds)}
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
                self.ways[target].append(_Way(edge, base, True, cost(nbytes, changes)))
            if self._forward_only:
                continue
            back = select(*columns).where(edges.c.base.in_(chunk), edges.c.reversible)
            for edge, base, target, nbytes, changes in self._db.execute(back.order_by(edges.c.id)):
                self.ways[base].append(_Way(edge, target, False, cost(nbytes, changes)))

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


def _load_steps(db: Connection, ways: list[_Way]) -> tuple[Step, ...]:
    records: dict[int, EdgeRecord] = {}
    for chunk in chunks(way.edge for way in ways):
        for pk, body in db.execute(select(edges.c.pk, edges.c.body).where(edges.c.pk.in_(chunk))):
            records[pk] = EdgeRecord.trusted(body)
    return tuple(Step(records[way.edge], way.forward) for way in ways)
