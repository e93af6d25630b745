"""Ways to all versions at once: how long they are, and where to put edges that make them shorter.

    position   0 ─ 1 ─ … ─ 16 ─ … ─ 32 ─ … ─ 48 ─ … ─ 256        a snapshot, and the deltas that go on from it
    spans      0 ──────────16 ───────32 ───────48 …               16 deltas in one edge
               0 ────────────────────────────────────────256      256 in one

So a way to any position takes at most 15 edges of each kind, and a chain that is twice as long needs no more of
them. Of these edges those are made that some way needs, and none that is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from deltavc.lineage.links import Link, Links
from deltavc.lineage.plan import cost


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a way to a version may take beyond the snapshot that it starts from.

    max_edges: deltas that are walked. Each takes a few requests, though many run at once.
    max_ratio: bytes of all deltas, as a share of the snapshot's: at 1, a checkout reads at most two snapshots' worth.
    max_work: lanes that the deltas write, as a multiple of those that the snapshot does.
    span: deltas that one edge takes the place of; also its square, its cube and so on.
    """

    max_edges: int = 48
    max_ratio: float = 1.0
    max_work: float = 4.0
    span: int = 16

    def __post_init__(self) -> None:
        if self.span < 2 or self.max_edges < 1 or self.max_ratio <= 0 or self.max_work <= 0:
            raise ValueError(f"{self} are no bounds: a span is 2 or more, max_edges 1 or more, and the others positive")


@dataclass(frozen=True, slots=True)
class Way:
    """A way from nothing, forwards: its snapshot, and sums over the deltas that follow. cost is what a plan goes by."""

    snapshot: Link
    cost: int
    num_edges: int = 0
    nbytes: int = 0
    changes: int = 0

    @classmethod
    def over(cls, snapshot: Link) -> Way:
        """The way that is one snapshot."""
        return cls(snapshot, cost(snapshot.nbytes, snapshot.changes))

    def then(self, link: Link) -> Way:
        """The way with one more delta."""
        return Way(
            self.snapshot,
            self.cost + cost(link.nbytes, link.changes),
            self.num_edges + 1,
            self.nbytes + link.nbytes,
            self.changes + link.changes,
        )

    def is_long(self, bounds: Bounds) -> bool:
        """Whether it has too many edges."""
        return self.num_edges > bounds.max_edges

    def is_large(self, bounds: Bounds) -> bool:
        """Whether it has too many bytes, or writes too many lanes."""
        return (
            self.nbytes > bounds.max_ratio * self.snapshot.nbytes
            or self.changes > bounds.max_work * self.snapshot.changes
        )


class Ways:
    """The cheapest way to every version that has been looked at, in an order in which parents come first."""

    def __init__(self, links: Links) -> None:
        self._into = links.into
        self._place = {version: place for place, version in enumerate(links.order)}
        self.best: dict[str, Way] = {}
        self._before: dict[str, str] = {}  # where the shortest delta to a version comes from, if it has no snapshot

    def look(self, version: str) -> Way | None:
        """Find the way to a version, with the edges there are; None if there is none."""
        ways = [way for link in self._into[version] if (way := self._over(version, link)) is not None]
        if not ways:
            return None
        self.best[version] = min(ways, key=lambda way: way.cost)
        bases = [link.base for link in self._into[version]]
        if None in bases:
            self._before.pop(version, None)
        else:
            known = (base for base in bases if base in self.best)
            self._before[version] = max(known, key=self._place.__getitem__)
        return self.best[version]

    def add(self, target: str, link: Link) -> None:
        """Take in an edge that was made."""
        self._into[target].append(link)

    def has(self, base: str, target: str) -> bool:
        """Whether one edge leads from one to the other."""
        return any(link.base == base for link in self._into[target])

    def chain(self, version: str) -> list[str]:
        """The versions from the last snapshot on, delta by delta, as finely as there are edges."""
        found = [version]
        while (before := self._before.get(found[-1])) is not None:
            found.append(before)
        return found[::-1]

    def between(self, base: str, target: str) -> Link:
        """At most what one edge in the place of a part of a chain takes: its deltas, or the snapshot before it."""
        whole = self.best[target].snapshot
        nbytes = changes = 0
        while target != base:
            before = self._before[target]
            shortest = min((link for link in self._into[target] if link.base == before), key=lambda link: link.nbytes)
            nbytes, changes, target = nbytes + shortest.nbytes, changes + shortest.changes, before
        return Link(base, min(nbytes, whole.nbytes), min(changes, whole.changes))

    def _over(self, target: str, link: Link) -> Way | None:
        if link.base is None:
            return Way.over(link)
        before = self.best.get(link.base)
        if before is None or self._place[link.base] >= self._place[target]:
            return None
        return before.then(link)


def spans(chain: list[str], span: int) -> Iterator[list[tuple[int, int]]]:
    """For ever longer spans, the places in a chain that an edge each should join."""
    length = span
    while length < len(chain):
        yield [(start, start + length) for start in range(0, len(chain) - length, length)]
        length *= span
