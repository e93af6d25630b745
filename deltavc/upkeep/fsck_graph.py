"""The graph of edges as a check goes through it: every edge once, and as little as possible twice.

    nothing ══> v0 ──> v1 ──> v2 ──> v3        a tree of ways reaches every version, and is walked depth first
                 │      └──> a1 ──> a2         a side branch before the trunk: one walk back, not a trunk's length
                 └────────────> v2             an edge beside the tree is tried where its base is at hand

Of a version's children the one with the most below it comes last, so nobody walks back from it. Where walking back
costs more than starting from nothing again, that is what is done.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass

from deltavc.lineage.plan import cost
from deltavc.lineage.records import EdgeRecord


@dataclass(frozen=True, slots=True)
class Outline:
    """An edge without its list of tensors, which may be long.

    cost: what walking it costs, as the planner counts. nbytes: of its frames. place: where its record was put aside.
    """

    id: str
    base: str | None
    target: str
    layout: str
    reversible: bool
    cost: int
    nbytes: int
    place: tuple[int, int]

    @classmethod
    def of(cls, edge: EdgeRecord, place: tuple[int, int]) -> Outline:
        walking = cost(edge.nbytes, edge.changes)
        return cls(edge.id, edge.base, edge.target, edge.layout, edge.reversible, walking, edge.nbytes, place)


@dataclass(frozen=True, slots=True)
class Way:
    """A walk over one edge. stays: whether the walk goes on from its end; otherwise it is only tried."""

    edge: Outline
    forward: bool
    stays: bool = True

    @property
    def source(self) -> str | None:
        return self.edge.base if self.forward else self.edge.target

    @property
    def to(self) -> str | None:
        return self.edge.target if self.forward else self.edge.base

    @property
    def back(self) -> Way | None:
        """The same way in the other direction, if there is one."""
        if self.forward and not self.edge.reversible:
            return None
        return Way(self.edge, not self.forward)


class Graph:
    """Versions and the edges between them; None is nothing, where every walk may start."""

    def __init__(self, edges: Iterable[Outline]) -> None:
        self._edges = list(edges)
        self._out: dict[str | None, list[Outline]] = defaultdict(list)
        self._back: dict[str, list[Outline]] = defaultdict(list)
        for edge in self._edges:
            self._out[edge.base].append(edge)
            if edge.reversible:
                self._back[edge.target].append(edge)
        self._entry = self._tree()
        self._on_tree = {way.edge.id for way in self._entry.values()}
        self._depth: dict[str | None, int] = {None: 0}
        for version, way in self._entry.items():  # in the order in which they were reached
            self._depth[version] = self._depth[way.source] + 1
        self._nearest: dict[str, tuple[int, Way]] | None = None

    @property
    def reached(self) -> Set[str]:
        """Versions that some walk from nothing leads to."""
        return self._entry.keys()

    @property
    def forwards(self) -> Set[str]:
        """Those of them that a walk leads to which never goes back over an edge."""
        found: dict[str, None] = {}
        for version, way in self._entry.items():  # after where it is entered from
            if way.forward and (way.source is None or way.source in found):
                found[version] = None
        return found.keys()

    def entered_from(self, version: str) -> str | None:
        """Where the tree comes to a version from; None for nothing."""
        return self._entry[version].source

    def tour(self, needed: Set[str]) -> list[Way]:
        """The ways over these edges (by id), in the order in which to check them. Unreachable ones are left out."""
        children: dict[str | None, list[Way]] = defaultdict(list)
        for way in self._entry.values():
            children[way.source].append(way)
        below: dict[str | None, int] = {}  # cost of what is needed at a version and beyond it
        for version in (*reversed(self._entry), None):
            own = sum(edge.cost for edge in self._beside(version) if edge.id in needed)
            ways = children[version]
            below[version] = own + sum(
                below[way.to] + way.edge.cost * (way.edge.id in needed or below[way.to] > 0) for way in ways
            )
            ways.sort(key=lambda way: -below[way.to])
        order: list[Way] = []
        stack: list[Way] = []
        at: str | None = None
        while True:
            order += [Way(edge, True, stays=False) for edge in self._beside(at) if edge.id in needed]
            stack += [way for way in children[at] if way.edge.id in needed or below[way.to]]
            if not stack:
                return order
            way = stack.pop()
            if way.edge.id in needed:
                order.append(way)
            at = way.to

    def between(self, at: str | None, goal: str | None) -> list[Way]:
        """The cheaper way from one version to another: along the tree, or from nothing (then the first way's source
        is None). Nothing to walk if they are the same."""
        if at == goal or goal is None:
            return []
        fresh = self._from_nothing(goal)
        limit = sum(way.edge.cost for way in fresh)
        along = self._along(at, goal, limit) if at is not None else None
        return fresh if along is None else along

    def _beside(self, version: str | None) -> Iterator[Outline]:
        """Edges from here that are not on the tree."""
        for edge in self._out.get(version, ()):
            if edge.id not in self._on_tree:
                yield edge

    def _tree(self) -> dict[str, Way]:
        """How each version is entered, by Prim's algorithm: the cheapest edge out of what is reached comes next.

        Backwards only where nothing leads forwards: edges tell the fingerprints of their targets, not of their bases.
        """
        entry: dict[str, Way] = {}
        backwards: list[tuple[int, int, Way]] = []
        forwards: list[tuple[int, int, Way]] = []
        num_met = 0

        def meet(version: str | None) -> None:
            nonlocal num_met
            for edge in self._out.get(version, ()):
                heapq.heappush(forwards, (edge.cost, num_met := num_met + 1, Way(edge, True)))
            for edge in self._back.get(version, ()) if version is not None else ():
                heapq.heappush(backwards, (edge.cost, num_met := num_met + 1, Way(edge, False)))

        meet(None)
        while forwards or backwards:
            _, _, way = heapq.heappop(forwards or backwards)
            if way.to is not None and way.to not in entry:
                entry[way.to] = way
                meet(way.to)
        return entry

    def _along(self, at: str, goal: str, limit: int) -> list[Way] | None:
        """The way over the tree, if it can be walked and costs less than `limit`."""
        up: list[Way] = []
        down: list[Way] = []
        here: str | None = at
        there: str | None = goal
        spent = 0
        while here != there:
            if here is not None and self._depth[here] >= self._depth[there]:
                back = self._entry[here].back
                if back is None:
                    return None
                up.append(back)
                spent, here = spent + back.edge.cost, back.to
            else:
                assert there is not None
                way = self._entry[there]
                down.append(way)
                spent, there = spent + way.edge.cost, way.source
            if spent >= limit or here is None:
                return None
        return up + down[::-1]

    def _from_nothing(self, goal: str) -> list[Way]:
        if self._nearest is None:
            self._nearest = self._shortest()
        ways: list[Way] = []
        here: str | None = goal
        while here is not None:
            ways.append(self._nearest[here][1])
            here = ways[-1].source
        return ways[::-1]

    def _shortest(self) -> dict[str, tuple[int, Way]]:
        """The cheapest way from nothing to every version: its cost and its last step, by Dijkstra's algorithm."""
        done: dict[str, tuple[int, Way]] = {}
        heap: list[tuple[int, int, Way]] = []
        num_met = 0

        def meet(version: str | None, spent: int) -> None:
            nonlocal num_met
            for ways, forward in (
                (self._out.get(version, ()), True),
                (self._back.get(version, ()) if version is not None else (), False),
            ):
                for edge in ways:
                    heapq.heappush(heap, (spent + edge.cost, num_met := num_met + 1, Way(edge, forward)))

        meet(None, 0)
        while heap:
            spent, _, way = heapq.heappop(heap)
            if way.to is not None and way.to not in done:
                done[way.to] = (spent, way)
                meet(way.to, spent)
        return done


def closure(starts: Iterable[str], onward: Callable[[str], Iterable[str]]) -> set[str]:
    """What can be reached from these, they themselves among it."""
    found: set[str] = set()
    waiting = list(starts)
    while waiting:
        item = waiting.pop()
        if item not in found:
            found.add(item)
            waiting.extend(onward(item))
    return found
