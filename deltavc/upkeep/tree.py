"""The tree of cheapest ways: from nothing to every version, forwards, as a checkout goes.

    nothing ══> S ──> a ──> b ──> K1 ──> c ──> K2         K1, K2 are kept
                │                  └───────────^           the run K1 ─> c ─> K2 can be one edge
                └─────────────────>^                       and so can S ─> a ─> b ─> K1

What is kept needs the edges on its ways and no others. Between the *joints* of those ways (what is kept, where ways
part, and where a snapshot leads) lie *runs*, in which nothing has a use of its own.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Iterable, Set
from dataclasses import dataclass

from deltavc.lineage.choosing import Outline

SNAPSHOT_RATIO = 0.5
"""Share of a snapshot's bytes at which a run that leads away from it is replaced by a snapshot at its end."""


@dataclass(frozen=True, slots=True)
class Run:
    """Edges in a row, the first one first, with no use of what lies between.

    snapshot: the one it starts from, if nothing else needs that.
    """

    edges: tuple[Outline, ...]
    snapshot: Outline | None

    @property
    def base(self) -> str:
        base = self.edges[0].base
        assert base is not None  # a snapshot ends at a joint
        return base

    @property
    def start(self) -> str | None:
        """Where the one edge in its place starts: at nothing, if it is long enough for a snapshot of its own."""
        return self.base if len(self.replaced) == len(self.edges) else None

    @property
    def replaced(self) -> tuple[Outline, ...]:
        """The edges that may go when the one in its place is there."""
        if self.snapshot is not None and self.nbytes >= SNAPSHOT_RATIO * self.snapshot.nbytes:
            return (self.snapshot, *self.edges)
        return self.edges

    @property
    def target(self) -> str:
        return self.edges[-1].target

    @property
    def nbytes(self) -> int:
        return sum(edge.nbytes for edge in self.edges)


class Tree:
    """`entry`: the last edge of the cheapest way to each version that can be reached, nearest first."""

    def __init__(self, edges: Iterable[Outline]) -> None:
        out: dict[str | None, list[Outline]] = defaultdict(list)
        for edge in edges:
            out[edge.base].append(edge)
        self.entry: dict[str, Outline] = {}
        heap = [(edge.cost, edge.id, edge) for edge in out[None]]
        heapq.heapify(heap)
        while heap:
            spent, _, edge = heapq.heappop(heap)
            if edge.target not in self.entry:
                self.entry[edge.target] = edge
                for onward in out[edge.target]:
                    heapq.heappush(heap, (spent + onward.cost, onward.id, onward))

    def way(self, version: str) -> list[Outline]:
        """The edges to a version that can be reached, last one first."""
        edges = [self.entry[version]]
        while (base := edges[-1].base) is not None:
            edges.append(self.entry[base])
        return edges

    def needed(self, kept: Iterable[str]) -> dict[str, Outline]:
        """The edges on the ways to these versions, by their targets. Those that cannot be reached need none."""
        found: dict[str, Outline] = {}
        for version in kept:
            at: str | None = version if version in self.entry else None
            while at is not None and at not in found:
                found[at] = self.entry[at]
                at = self.entry[at].base
        return found

    def runs(self, kept: Set[str]) -> list[Run]:
        """The runs between the joints of the ways to what is kept, nearest to nothing first."""
        needed = self.needed(kept)
        children = Counter(edge.base for edge in needed.values())
        joints = {
            version for version, edge in needed.items() if version in kept or edge.base is None or children[version] > 1
        }
        found = []
        for version in self.entry:
            if version not in joints or needed[version].base is None:
                continue
            edges = [needed[version]]
            while (base := edges[-1].base) is not None and base not in joints:
                edges.append(needed[base])
            if len(edges) > 1:
                assert base is not None  # what a snapshot leads to is a joint
                start = needed[base]
                only = start.base is None and base not in kept and children[base] == 1
                found.append(Run(tuple(reversed(edges)), start if only else None))
        return found
