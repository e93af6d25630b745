"""The planner: the cheapest way to a version's weights from anything already held.

Versions are nodes, edges are ways between them, and a snapshot is an edge from nothing. An edge can be walked
forwards, and backwards when it is reversible.

    nothing ──snapshot──> v0 ──> v1 ──> v2 ──> v3 <──snapshot── nothing
                                        └─ wanted: v3's snapshot and one edge back, or v0's and two forward?

Dijkstra's algorithm runs backwards from the target, over numbers only, and stops at the first thing that is
held. What it needs of the graph it asks for as it goes: of a database, or of the bucket itself.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from deltavc.errors import NoPath
from deltavc.lineage.records import EdgeRecord

if TYPE_CHECKING:
    from deltavc.lineage.history import History

EDGE_COST = 256 << 10
"""What one more edge costs beside its bytes, as bytes: its requests, many of which run at once."""

CHANGES_PER_BYTE = 8
"""Lanes written that cost as much as one byte fetched. Applying runs at billions of lanes a second, so bytes decide."""

Node: TypeAlias = Hashable
"""A version, as the surroundings at hand call it."""


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


class Way(NamedTuple):
    """A walk over one edge, from `source` (None: nothing)."""

    edge: Hashable
    source: Node | None
    forward: bool
    cost: int


Waiting: TypeAlias = list[tuple[int, int, Node | None]]
"""A heap of nodes by distance; the second number keeps nodes from being compared."""


class Surroundings(Protocol):
    """The part of the graph that a search may ask for."""

    def goal(self, version: str) -> Node:
        """The node of a version. Raises UnknownRef."""

    def starts(self, goal: Node, held: Iterable[str]) -> Mapping[Node, str]:
        """The nodes of those versions that are known, with their ids."""

    def load(self, node: Node, waiting: Waiting) -> None:
        """Make the ways into `node` known, and with them perhaps those of others that wait."""

    @property
    def ways(self) -> Mapping[Node, Sequence[Way]]:
        """The ways that are known into each node that was loaded."""

    def steps(self, ways: Sequence[Way]) -> tuple[Step, ...]:
        """The edges of these ways."""


def cost(nbytes: int, changes: int) -> int:
    """What walking one edge costs, in bytes fetched."""
    return nbytes + EDGE_COST + changes // CHANGES_PER_BYTE


def plan(history: History, target: str, held: Iterable[str] = (), *, forward_only: bool = False) -> Plan:
    """Find the cheapest path from nothing, or from any version in `held`, to `target`.

    Args:
        held: ids of versions whose weights are at hand; ids that are not known are ignored.
        forward_only: do not walk edges backwards.

    Raises:
        UnknownRef: the target is not known.
        NoPath: no edges lead to it from there.
    """
    with history.surroundings(forward_only) as around:
        goal = around.goal(target)
        starts = around.starts(goal, held)
        found = search(around, goal, starts.keys())
        if found is None:
            raise NoPath(target)
        start, ways = found
        steps = around.steps(ways)
    return Plan(
        target=target,
        start=None if start is None else starts[start],
        steps=steps,
        nbytes=sum(step.edge.nbytes for step in steps),
        changes=sum(step.edge.changes for step in steps),
    )


def search(around: Surroundings, goal: Node, held: Collection[Node]) -> tuple[Node | None, list[Way]] | None:
    """Dijkstra from the goal back to a source: nothing (None) or one that is held.

    Returns:
        The nearest source and the ways from it to the goal, in order; None when there is none.
    """
    best: dict[Node | None, int] = {goal: 0}
    onward: dict[Node | None, tuple[Way, Node]] = {}  # the way to take from a node, and where it leads
    done: set[Node | None] = set()
    heap: Waiting = [(0, 0, goal)]
    num_pushed = 0
    while heap:
        distance, _, node = heapq.heappop(heap)
        if node in done:
            continue
        if node is None or node in held:
            return node, _path(onward, node, goal)
        done.add(node)
        around.load(node, heap)
        for way in around.ways[node]:
            total = distance + way.cost
            if way.source not in best or total < best[way.source]:
                best[way.source] = total
                onward[way.source] = (way, node)
                num_pushed += 1
                heapq.heappush(heap, (total, num_pushed, way.source))  # of equals the one that was met first
    return None


def _path(onward: Mapping[Node | None, tuple[Way, Node]], node: Node | None, goal: Node) -> list[Way]:
    ways = []
    while node != goal:
        way, node = onward[node]
        ways.append(way)
    return ways
